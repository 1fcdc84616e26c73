//! What all reconciliations share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use strait_api::crd::spec_schema;
use strait_api::identity::Mode;
use strait_api::{GatewayClient, GatewayServer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::Settings;
use super::cache::Cache;
use super::keys::Secrets;
use super::kind::{Belonging, Object};
use super::problem::Problem;

/// Between attempts, first and longest.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// The longest note that an Event may have.
const NOTE_BYTES_MAX: usize = 1_000;

/// Of one operator, for as long as it leads.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) settings: Settings,
    /// Kinds of templates, by kind and group, as their definitions have them.
    pub(super) templates: Mutex<BTreeMap<(String, String), ApiResource>>,
    /// Kinds that templates make, so that changes of theirs are seen.
    pub(super) children: watch::Sender<HashMap<GroupVersionKind, ApiResource>>,
    pub(super) secrets: Secrets,
    /// By kind, and which labels its objects have.
    caches: Mutex<HashMap<(GroupVersionKind, String), Arc<Cache>>>,
    /// What keeps them up to date.
    hearing: Mutex<JoinSet<()>>,
    /// Gateways that were seen to have no `ServiceMonitor`, with their UID.
    unmonitored: Mutex<HashMap<ObjectRef<DynamicObject>, String>>,
    /// `Configuration`s whose condition was removed since a gateway of theirs was seen.
    removed: Mutex<HashSet<ObjectRef<DynamicObject>>>,
    schemas: [Value; 2],
    recorder: Recorder,
    /// What went wrong with an object, and how often in a row.
    failures: Mutex<HashMap<ObjectRef<DynamicObject>, Failure>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Failure {
    attempts: u32,
    told: Option<(&'static str, String)>,
}

impl Context {
    pub(super) fn new(client: Client, settings: Settings) -> Self {
        let instance = Some(settings.holder.clone());
        let reporter = Reporter { controller: "strait-operator".to_owned(), instance };
        let recorder = Recorder::new(client.clone(), reporter);
        let schemas = [spec_schema::<GatewayServer>(), spec_schema::<GatewayClient>()];

        let kind = ApiResource::erase::<Secret>(&());
        let labels = <Secret as Belonging>::labels();
        let (metadata, hear) = Cache::new(&client, &kind, &labels);
        let mut hearing = JoinSet::new();
        hearing.spawn(hear);
        let secrets = Secrets::new(&client, Arc::clone(&metadata), settings.public_of);
        let kind = GroupVersionKind::gvk(&kind.group, &kind.version, &kind.kind);
        let known = ((kind, labels), metadata);

        Self {
            client,
            settings,
            secrets,
            templates: Mutex::default(),
            children: watch::Sender::default(),
            caches: Mutex::new(HashMap::from([known])),
            hearing: Mutex::new(hearing),
            unmonitored: Mutex::default(),
            removed: Mutex::default(),
            schemas,
            recorder,
            failures: Mutex::default(),
        }
    }

    /// What there is of a kind of Kubernetes, or of one of ours, with `labels`; all of it is known from the
    /// first time on.
    pub(super) fn cache(&self, resource: &ApiResource, labels: &str) -> Arc<Cache> {
        let kind = GroupVersionKind::gvk(&resource.group, &resource.version, &resource.kind);
        let mut caches = self.caches.lock();
        let cache = caches.entry((kind, labels.to_owned())).or_insert_with(|| {
            let (cache, hear) = Cache::new(&self.client, resource, labels);
            self.hearing.lock().spawn(hear);
            cache
        });

        Arc::clone(cache)
    }

    /// [`Self::cache`] of what belongs to gateways of a kind of Kubernetes.
    pub(super) fn of<K: Belonging>(&self) -> Arc<Cache> {
        self.cache(&ApiResource::erase::<K>(&()), &K::labels())
    }

    /// Of the spec of what asks for a gateway of this end.
    pub(super) const fn schema(&self, mode: Mode) -> &Value {
        let [server, client] = &self.schemas;
        match mode {
            Mode::Server => server,
            Mode::Client => client,
        }
    }

    /// Tells of something that went well.
    pub(super) async fn tell<K: Object>(&self, object: &K, reason: &str, note: String) {
        self.publish(object, EventType::Normal, reason, note).await;
    }

    /// All is well with `object`.
    pub(super) async fn succeeded<K: Object>(&self, object: &K) {
        self.settings.tally.count(&K::kind(&()), true);
        let former = self.failures().remove(&ObjectRef::from_obj(object).erase());
        if former.is_some_and(|former| former.told.is_some()) {
            self.tell(object, "Reconciled", "nothing is in the way any more".to_owned()).await;
        }
    }

    /// Takes note of `problem`, and tells users of it if they have not heard it.
    pub(super) async fn failed<K: Object>(&self, object: &K, problem: &Problem) {
        self.settings.tally.count(&K::kind(&()), false);
        let object_ref = ObjectRef::from_obj(object).erase();
        let said = (problem.reason(), problem.to_string());
        let is_news = {
            let mut failures = self.failures();
            let failure = failures.entry(object_ref.clone()).or_default();
            failure.attempts = failure.attempts.saturating_add(1);
            let is_news = failure.told.as_ref() != Some(&said);
            if !problem.is_outage() {
                failure.told = Some(said.clone());
            }
            is_news
        };

        if problem.is_outage() {
            debug!(object = %object_ref, %problem, "trying again");
        } else if is_news {
            warn!(object = %object_ref, %problem, "cannot make it as it was asked for");
            let (reason, note) = said;
            self.publish(object, EventType::Warning, reason, note).await;
        }
    }

    /// When to try again with `object`.
    pub(super) fn retry<K: Object>(&self, object: &K) -> Duration {
        let object = ObjectRef::from_obj(object).erase();
        let attempts = self.failures().get(&object).map_or(1, |failure| failure.attempts);
        let [first, longest] = RETRY;

        first
            .saturating_mul(1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX))
            .min(longest)
    }

    /// Whether `gateway` was seen to have no `ServiceMonitor`.
    pub(super) fn is_unmonitored<K: Object>(&self, gateway: &K) -> bool {
        let gateway_ref = ObjectRef::from_obj(gateway).erase();

        self.unmonitored()
            .get(&gateway_ref)
            .is_some_and(|uid| Some(uid) == gateway.meta().uid.as_ref())
    }

    /// Notes whether `gateway` has a `ServiceMonitor`.
    pub(super) fn note_monitored<K: Object>(&self, gateway: &K, is_monitored: bool) {
        let gateway_ref = ObjectRef::from_obj(gateway).erase();
        if is_monitored {
            self.unmonitored().remove(&gateway_ref);
        } else {
            self.unmonitored().insert(gateway_ref, gateway.meta().uid.clone().unwrap_or_default());
        }
    }

    /// Whether the condition of `configuration` was removed since a gateway of it was seen.
    pub(super) fn is_removed<K: Object>(&self, configuration: &K) -> bool {
        self.removed().contains(&ObjectRef::from_obj(configuration).erase())
    }

    /// Notes whether the condition of `configuration` was removed since a gateway of it was seen.
    pub(super) fn note_removed<K: Object>(&self, configuration: &K, is_removed: bool) {
        let configuration = ObjectRef::from_obj(configuration).erase();
        if is_removed {
            self.removed().insert(configuration);
        } else {
            self.removed().remove(&configuration);
        }
    }

    /// It is there no more.
    pub(super) fn forget(&self, object: &ObjectRef<DynamicObject>) {
        self.failures().remove(object);
        self.unmonitored().remove(object);
        self.removed().remove(object);
    }

    /// Writes an Event of `object`, and of what the user has made if a template made `object` of that.
    async fn publish<K: Object>(
        &self,
        object: &K,
        type_: EventType,
        reason: &str,
        mut note: String,
    ) {
        let ends = (0..=NOTE_BYTES_MAX).rev();
        note.truncate(ends.into_iter().find(|end| note.is_char_boundary(*end)).unwrap_or(0));
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        // Whoever reads Events can do without one; the log has it too.
        for told in [Some(object.object_ref(&())), asked_by(object)].into_iter().flatten() {
            if let Err(error) = self.recorder.publish(&event, &told).await {
                debug!(%error, reason, "an Event is lost");
            }
        }
    }

    fn unmonitored(&self) -> MutexGuard<'_, HashMap<ObjectRef<DynamicObject>, String>> {
        self.unmonitored.lock()
    }

    fn removed(&self) -> MutexGuard<'_, HashSet<ObjectRef<DynamicObject>>> {
        self.removed.lock()
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<ObjectRef<DynamicObject>, Failure>> {
        self.failures.lock()
    }
}

/// The `GatewayServer` or `GatewayClient` that `object` was made from.
fn asked_by<K: Object>(object: &K) -> Option<ObjectReference> {
    let is_gateway = |kind: &str| ["GatewayServer", "GatewayClient"].contains(&kind);
    let mut owners = ResourceExt::owner_references(object).iter();
    let owner = owners.find(|owner| owner.controller == Some(true) && is_gateway(&owner.kind))?;

    Some(ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: ResourceExt::namespace(object),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    })
}
