//! The objects of one kind, as the watch shows them: reads cost the API server nothing.
//!
//! Of Secrets only the metadata is kept.
//!
//! A recent write may not be visible yet. Readers may draw only conclusions that another read corrects.

use std::sync::Arc;

use futures_util::stream::{Stream, StreamExt as _};
use futures_util::{FutureExt as _, TryStreamExt as _};
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector::store::Writer};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::Value;
use strait_kube::watch::unending;
use tokio::sync::mpsc;

use super::apply::api;
use super::changes::{changed_objects, config};
use super::kind::all_equal;

/// The objects of one kind with certain labels.
pub(super) struct Cache {
    client: Client,
    resource: ApiResource,
    labels: String,
    store: Store<DynamicObject>,
    listeners: Mutex<Vec<mpsc::UnboundedSender<Arc<DynamicObject>>>>,
}

impl Cache {
    /// The cache, and the task that keeps it up to date, which never ends.
    pub(super) fn new(
        client: &Client,
        resource: &ApiResource,
        labels: &str,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + use<>) {
        let writer = Writer::new(resource.clone());
        let cache = Arc::new(Self {
            client: client.clone(),
            resource: resource.clone(),
            labels: labels.to_owned(),
            store: writer.as_reader(),
            listeners: Mutex::default(),
        });
        let watched = Arc::clone(&cache);
        let drive = async move { watched.watch(writer).await };

        (cache, drive)
    }

    async fn watch(&self, writer: Writer<DynamicObject>) {
        let config = config().labels(&self.labels);
        let changes = if self.is_secret() {
            // Only their metadata is transferred and kept.
            let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(
                self.client.clone(),
                &self.resource,
            );
            unending(move || watcher(api.clone(), config.clone())).map_ok(metadata_only).boxed()
        } else {
            let api = Api::<DynamicObject>::all_with(self.client.clone(), &self.resource);
            unending(move || watcher(api.clone(), config.clone())).boxed()
        };
        let changes = changes.modify(slim);
        let changes =
            changed_objects(self.resource.kind.clone(), reflector::reflector(writer, changes));

        let tell = |object: DynamicObject| {
            let object = Arc::new(object);
            let mut listeners = self.listeners.lock();
            listeners.retain(|listener| listener.send(Arc::clone(&object)).is_ok());
        };
        changes.for_each(async |object| tell(object)).await;
    }

    /// The objects that change from now on.
    pub(super) fn changes(&self) -> impl Stream<Item = Arc<DynamicObject>> + Send + use<> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        self.listeners.lock().push(sender);

        futures_util::stream::poll_fn(move |context| receiver.poll_recv(context))
    }

    /// The API of the kind, in `namespace` or in none.
    pub(super) fn api(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        api(&self.client, &self.resource, namespace)
    }

    /// The object called `name`. Until the first list is complete, the API server is asked.
    pub(super) async fn get(
        &self,
        name: &str,
        namespace: Option<&str>,
    ) -> kube::Result<Option<DynamicObject>> {
        if !self.is_complete() {
            return self.api(namespace).get_opt(name).await;
        }
        let mut key = ObjectRef::new_with(name, self.resource.clone());
        key.namespace = namespace.map(str::to_owned);

        Ok(self.store.get(&key).map(|object| DynamicObject::clone(&object)))
    }

    /// Whether an object called `name` may exist, as far as is known.
    pub(super) fn may_have(&self, namespace: &str, name: &str) -> bool {
        let key = ObjectRef::new_with(name, self.resource.clone()).within(namespace);

        !self.is_complete() || self.store.get(&key).is_some()
    }

    /// All objects of `namespace`. Until the first list is complete, the API server is asked.
    pub(super) async fn list(&self, namespace: &str) -> kube::Result<Vec<DynamicObject>> {
        if !self.is_complete() {
            let selected = ListParams::default().labels(&self.labels);
            return Ok(self.api(Some(namespace)).list(&selected).await?.items);
        }
        let all = self.store.state();
        let here = all.iter().filter(|object| object.namespace().as_deref() == Some(namespace));

        Ok(here.map(|object| DynamicObject::clone(object)).collect())
    }

    /// All objects with these labels. Until the first list is complete, the API server is asked.
    pub(super) async fn labelled(
        &self,
        labels: &[(&str, &str)],
    ) -> kube::Result<Vec<DynamicObject>> {
        if !self.is_complete() {
            let selected = ListParams::default().labels(&all_equal(labels));
            return Ok(self.api(None).list(&selected).await?.items);
        }
        let all = self.store.state();
        let has = |object: &DynamicObject, (label, value): &(&str, &str)| {
            object.labels().get(*label).is_some_and(|found| found == value)
        };
        let labelled = all.iter().filter(|object| labels.iter().all(|label| has(object, label)));

        Ok(labelled.map(|object| DynamicObject::clone(object)).collect())
    }

    /// Returns once the first list is complete: the API server then serves the kind.
    pub(super) async fn until_complete(&self) {
        // It fails only without a writer, which lives as long as the operator.
        let _ = self.store.wait_until_ready().await;
    }

    fn is_secret(&self) -> bool {
        self.resource.kind == "Secret" && self.resource.group.is_empty()
    }

    fn is_complete(&self) -> bool {
        self.store.wait_until_ready().now_or_never().is_some_and(|ready| ready.is_ok())
    }
}

/// Removes large fields that are unused here: the images on a node.
fn slim(object: &mut DynamicObject) {
    if let Some(status) = object.data.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("images");
    }
}

/// An object with metadata alone.
fn metadata_only(event: Event<PartialObjectMeta<DynamicObject>>) -> Event<DynamicObject> {
    let metadata_only_object = |object: PartialObjectMeta<DynamicObject>| DynamicObject {
        types: object.types,
        metadata: object.metadata,
        data: Value::Null,
    };
    match event {
        Event::Apply(object) => Event::Apply(metadata_only_object(object)),
        Event::Delete(object) => Event::Delete(metadata_only_object(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(metadata_only_object(object)),
        Event::InitDone => Event::InitDone,
    }
}
