//! The state that all reconciliations share.

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
use super::kind::{Object, OwnedKind};
use super::problem::Problem;

/// The first and the longest pause between attempts.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// The longest note that an Event may have.
const NOTE_BYTES_MAX: usize = 1_000;

/// The state of one operator, for as long as it leads.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) settings: Settings,
    /// The kinds of templates, by kind and group, from their definitions.
    pub(super) templates: Mutex<BTreeMap<(String, String), ApiResource>>,
    /// The kinds that templates make; they are watched.
    pub(super) children: watch::Sender<HashMap<GroupVersionKind, ApiResource>>,
    pub(super) secrets: Secrets,
    /// Held while a Deployment changes: one gateway of a peering is replaced at a time.
    pub(super) rollouts: tokio::sync::Mutex<()>,
    /// By kind and label selector.
    caches: Mutex<HashMap<(GroupVersionKind, String), Arc<Cache>>>,
    /// The tasks that keep the caches up to date.
    watches: Mutex<JoinSet<()>>,
    /// Gateways that were seen to have no `ServiceMonitor`, with their UID.
    unmonitored: Mutex<HashMap<ObjectRef<DynamicObject>, String>>,
    /// `Configuration`s whose condition was removed since a gateway of theirs was seen.
    removed: Mutex<HashSet<ObjectRef<DynamicObject>>>,
    schemas: [Value; 2],
    recorder: Recorder,
    /// The last failure of each object, and the number of failures in a row.
    failures: Mutex<HashMap<ObjectRef<DynamicObject>, Failure>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Failure {
    attempts: u32,
    reported: Option<(&'static str, String)>,
}

impl Context {
    pub(super) fn new(client: Client, settings: Settings) -> Self {
        let instance = Some(settings.holder.clone());
        let reporter = Reporter { controller: "strait-operator".to_owned(), instance };
        let recorder = Recorder::new(client.clone(), reporter);
        let schemas = [spec_schema::<GatewayServer>(), spec_schema::<GatewayClient>()];

        let kind = ApiResource::erase::<Secret>(&());
        let labels = <Secret as OwnedKind>::labels();
        let (metadata, watch) = Cache::new(&client, &kind, &labels);
        let mut watches = JoinSet::new();
        watches.spawn(watch);
        let secrets = Secrets::new(&client, Arc::clone(&metadata), settings.public_of);
        let kind = GroupVersionKind::gvk(&kind.group, &kind.version, &kind.kind);
        let known = ((kind, labels), metadata);

        Self {
            client,
            settings,
            secrets,
            rollouts: tokio::sync::Mutex::default(),
            templates: Mutex::default(),
            children: watch::Sender::default(),
            caches: Mutex::new(HashMap::from([known])),
            watches: Mutex::new(watches),
            unmonitored: Mutex::default(),
            removed: Mutex::default(),
            schemas,
            recorder,
            failures: Mutex::default(),
        }
    }

    /// The cache for a kind of Kubernetes, or one of ours, with `labels`; it is created and filled by the first call.
    pub(super) fn cache(&self, resource: &ApiResource, labels: &str) -> Arc<Cache> {
        let kind = GroupVersionKind::gvk(&resource.group, &resource.version, &resource.kind);
        let mut caches = self.caches.lock();
        let cache = caches.entry((kind, labels.to_owned())).or_insert_with(|| {
            let (cache, watch) = Cache::new(&self.client, resource, labels);
            self.watches.lock().spawn(watch);
            cache
        });

        Arc::clone(cache)
    }

    /// [`Self::cache`] for a kind of Kubernetes that gateways consist of.
    pub(super) fn of<K: OwnedKind>(&self) -> Arc<Cache> {
        self.cache(&ApiResource::erase::<K>(&()), &K::labels())
    }

    /// The schema of the spec of a `GatewayServer` or `GatewayClient`.
    pub(super) const fn schema(&self, mode: Mode) -> &Value {
        let [server, client] = &self.schemas;
        match mode {
            Mode::Server => server,
            Mode::Client => client,
        }
    }

    /// Reports a success in an Event.
    pub(super) async fn report<K: Object>(&self, object: &K, reason: &str, note: String) {
        self.publish(object, EventType::Normal, reason, note).await;
    }

    /// Clears the failure of `object`, and reports that.
    pub(super) async fn succeeded<K: Object>(&self, object: &K) {
        self.settings.counts.count(&K::kind(&()), true);
        let former = self.failures().remove(&ObjectRef::from_obj(object).erase());
        if former.is_some_and(|former| former.reported.is_some()) {
            self.report(object, "Reconciled", "the problem is solved".to_owned()).await;
        }
    }

    /// Records `problem`, and reports it to users if it is new.
    pub(super) async fn failed<K: Object>(&self, object: &K, problem: &Problem) {
        self.settings.counts.count(&K::kind(&()), false);
        let object_ref = ObjectRef::from_obj(object).erase();
        let report = (problem.reason(), problem.to_string());
        let is_new = {
            let mut failures = self.failures();
            let failure = failures.entry(object_ref.clone()).or_default();
            failure.attempts = failure.attempts.saturating_add(1);
            let is_new = failure.reported.as_ref() != Some(&report);
            if !problem.is_outage() {
                failure.reported = Some(report.clone());
            }
            is_new
        };

        if problem.is_outage() {
            debug!(object = %object_ref, %problem, "trying again");
        } else if is_new {
            warn!(object = %object_ref, %problem, "cannot reconcile");
            let (reason, note) = report;
            self.publish(object, EventType::Warning, reason, note).await;
        }
    }

    /// The pause before the next attempt with `object`.
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

    /// Records whether `gateway` has a `ServiceMonitor`.
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

    /// Records whether the condition of `configuration` was removed since a gateway of it was seen.
    pub(super) fn note_removed<K: Object>(&self, configuration: &K, is_removed: bool) {
        let configuration = ObjectRef::from_obj(configuration).erase();
        if is_removed {
            self.removed().insert(configuration);
        } else {
            self.removed().remove(&configuration);
        }
    }

    /// The object was deleted.
    pub(super) fn forget(&self, object: &ObjectRef<DynamicObject>) {
        self.failures().remove(object);
        self.unmonitored().remove(object);
        self.removed().remove(object);
    }

    /// Writes an Event for `object`, and for the `GatewayServer` or `GatewayClient` that it was made from.
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
        // An Event may be lost; the log has the report too.
        for target in [Some(object.object_ref(&())), gateway_of(object)].into_iter().flatten() {
            if let Err(error) = self.recorder.publish(&event, &target).await {
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
fn gateway_of<K: Object>(object: &K) -> Option<ObjectReference> {
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
