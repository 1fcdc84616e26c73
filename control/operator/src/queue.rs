//! The queue of objects to reconcile, because they or related objects have changed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use kube::api::DynamicObject;
use kube::runtime::controller::{Action, Config, Error, ReconcileRequest, applier};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::watcher;
use kube::{Api, Client, ResourceExt as _};
use strait_kube::watch::unending;

use super::cache::Cache;
use super::changes::{changed_objects, config};
use super::context::Context;
use super::kind::Object;
use super::problem::Problem;

/// Each object is reconciled after this time even without a change.
const RESYNC: Duration = Duration::from_secs(600);

/// Changes within this time are reconciled once.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// The number of objects of one kind that are reconciled concurrently.
const CONCURRENCY: u16 = 8;

/// The queue for one kind: gateways, or addresses that may have a service in front of them.
pub(super) struct ReconcileQueue<K: Object> {
    store: Store<K>,
    requests: Vec<BoxStream<'static, ObjectRef<K>>>,
}

impl<K: Object> ReconcileQueue<K> {
    /// Reconciles the objects of the kind when they change.
    pub(super) fn new(client: &Client) -> Self {
        let api = Api::<K>::all(client.clone());
        let (store, writer) = reflector::store();
        let changes = unending(move || watcher(api.clone(), config()));
        let changes =
            changed_objects(K::kind(&()).into_owned(), reflector::reflector(writer, changes));
        let requests = vec![changes.map(|object| ObjectRef::from_obj(&object)).boxed()];

        Self { store, requests }
    }

    /// Also reconciles the objects that a change of another kind affects, as `concerned` finds among all.
    pub(super) fn also_on(
        mut self,
        others: &Cache,
        concerned: impl Fn(&DynamicObject, &Store<K>) -> Vec<ObjectRef<K>> + Send + 'static,
    ) -> Self {
        let store = self.store.clone();
        let requests =
            others.changes().flat_map(move |other| stream::iter(concerned(&other, &store)));
        self.requests.push(requests.boxed());

        self
    }

    /// Reconciles all of them with `round`, and each again when it is due, without end.
    pub(super) async fn run<F>(self, context: &Arc<Context>, round: fn(Arc<K>, Arc<Context>) -> F)
    where
        F: Future<Output = Result<(), Problem>> + Send + 'static,
    {
        let look = move |object: Arc<K>, context: Arc<Context>| {
            let outcome = round(Arc::clone(&object), Arc::clone(&context));
            Box::pin(async move {
                match outcome.await {
                    Ok(()) => {
                        context.succeeded(object.as_ref()).await;
                        Ok(Action::requeue(RESYNC))
                    }
                    Err(problem) => {
                        context.failed(object.as_ref(), &problem).await;
                        Err(problem)
                    }
                }
            })
        };
        let again = |object: Arc<K>, _: &Problem, context: Arc<Context>| {
            Action::requeue(context.retry(object.as_ref()))
        };
        let queue = stream::select_all(self.requests)
            .map(|object| Ok::<_, Infallible>(ReconcileRequest::from(object)));
        let config = Config::default().debounce(DEBOUNCE).concurrency(CONCURRENCY);

        applier(look, again, Arc::clone(context), self.store, queue, config)
            .for_each(|outcome| {
                // The problem was reported.
                if let Err(Error::ObjectNotFound(gone)) = outcome {
                    context.forget(&gone);
                }
                ready(())
            })
            .await;
    }
}

/// The owner of `other`, if it is of the reconciled kind.
pub(super) fn owners<K: Object>(other: &DynamicObject, _: &Store<K>) -> Vec<ObjectRef<K>> {
    let namespace = other.metadata.namespace.clone().unwrap_or_default();
    let owners = other
        .owner_references()
        .iter()
        .filter(|owner| owner.kind == K::kind(&()) && owner.controller == Some(true));

    owners.map(|owner| ObjectRef::new(&owner.name).within(&namespace)).collect()
}

/// All objects of the reconciled kind in the namespace of `other`.
pub(super) fn neighbours<K: Object>(other: &DynamicObject, all: &Store<K>) -> Vec<ObjectRef<K>> {
    let namespace = &other.metadata.namespace;
    let all = all.state();
    let neighbours = all.iter().filter(|gateway| gateway.meta().namespace == *namespace);

    neighbours.map(|gateway| ObjectRef::from_obj(gateway.as_ref())).collect()
}
