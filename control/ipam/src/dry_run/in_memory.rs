//! An API server in memory that serves one operator.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::core::DeserializeGuard;
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use strait_api::{Configuration, IP, Network};
use strait_plan::objects::Listed;

use super::super::cluster::{Cluster, Failure, Stored};
use super::super::object::{Denial, Kind, Target, Write};
use super::super::resources::Objects;
use super::{DryRunError, Snapshot};

/// The annotation in which `kubectl apply` records what it has applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Kind, namespace and name of an object.
pub(super) type Key = (Kind, String, String);

/// The objects. A single operator writes to them, so there is never a conflict.
pub(super) struct InMemoryCluster {
    state: Mutex<State>,
    now: Timestamp,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    journal: Option<Stored>,
    /// The counter of resource versions.
    version: u64,
}

impl InMemoryCluster {
    pub(super) fn new(snapshot: Snapshot, now: Timestamp) -> Self {
        let Snapshot { objects, journal } = snapshot;
        let stored = |text| Stored { uid: "found".to_owned(), version: "0".to_owned(), text };
        let objects = objects.into_iter().filter_map(|object| Some((key(&object)?, object)));
        let state = State {
            objects: objects.collect(),
            journal: journal.map(|text| stored(Some(text))),
            version: 0,
        };

        Self { state: Mutex::new(state), now }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes with each write that changed something.
    pub(super) fn version(&self) -> u64 {
        self.state().version
    }

    pub(super) fn objects(&self) -> Vec<Value> {
        self.state().objects.values().cloned().collect()
    }

    /// The objects as an operator's watch shows them.
    pub(super) fn seen(&self) -> Objects {
        let state = self.state();

        Objects {
            networks: state.listed::<Network>(Kind::Network),
            ips: state.listed::<IP>(Kind::Ip),
            configurations: state.listed::<Configuration>(Kind::Configuration),
        }
    }

    /// See [`super::DryRun::put`].
    pub(super) fn put(&self, object: &Value) -> Result<(), DryRunError> {
        let Some(key) = key(object) else {
            let text = |field, none| object.get(field).and_then(Value::as_str).unwrap_or(none);
            let what =
                format!("{} of {}", text("kind", "an object"), text("apiVersion", "no group"));
            return Err(DryRunError::Unknown(what));
        };
        let mut state = self.state();
        let Some(former) = state.objects.get(&key) else {
            state.make(key, object.clone(), self.now);
            return Ok(());
        };

        let annotations = former.pointer("/metadata/annotations");
        let applied = annotations.and_then(|annotations| annotations.get(LAST_APPLIED)?.as_str());
        let applied = applied.and_then(|applied| serde_json::from_str(applied).ok());
        let patch = patch(&applied.unwrap_or_default(), object);
        let mut changed = former.clone();
        if let Some(spec) = patch.get("spec") {
            json_patch::merge(&mut changed, &json!({"spec": spec}));
        }
        for field in ["labels", "annotations"] {
            if let Some(marks) = patch.pointer(&format!("/metadata/{field}")) {
                json_patch::merge(&mut changed, &json!({"metadata": {field: marks}}));
            }
        }
        state.replace(&key, changed);

        Ok(())
    }

    /// See [`super::DryRun::delete`].
    pub(super) fn delete(&self, key: &Key) -> bool {
        let mut state = self.state();
        let is_there = state.objects.contains_key(key);
        state.delete(key, self.now);

        is_there
    }

    fn list<K>(&self, kind: Kind) -> Vec<Listed<K>>
    where
        K: Resource + DeserializeOwned,
    {
        self.state().listed(kind)
    }

    fn change(&self, target: &Target, patch: &Value) -> Result<(), Failure> {
        let mut state = self.state();
        let key = (target.kind, target.namespace.clone(), target.name.clone());
        let mut changed = state.objects.get(&key).cloned().ok_or(Failure::Gone)?;
        json_patch::merge(&mut changed, patch);
        state.replace(&key, changed);
        state.collect(&key, self.now);

        Ok(())
    }
}

impl State {
    fn listed<K>(&self, kind: Kind) -> Vec<Listed<K>>
    where
        K: Resource + DeserializeOwned,
    {
        let of_kind = self.objects.iter().filter(|((other, ..), _)| *other == kind);
        // An object without metadata cannot come from an API server.
        let read = of_kind.filter_map(|(_, object)| {
            serde_json::from_value::<DeserializeGuard<K>>(object.clone()).ok()
        });

        read.map(Arc::new).collect()
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn make(&mut self, key: Key, mut object: Value, now: Timestamp) {
        let version = self.next();
        for (field, value) in [
            // A UID that no real object has.
            ("uid", json!(format!("planned-{version}"))),
            ("resourceVersion", json!(format!("planned-{version}"))),
            ("creationTimestamp", json!(Time(now))),
            ("generation", json!(1)),
        ] {
            set(&mut object, "metadata", field, value);
        }
        // On creation a status is ignored.
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
        self.objects.insert(key, object);
    }

    /// Replaces the object by `changed`, with a new resource version if it differs.
    fn replace(&mut self, key: &Key, mut changed: Value) {
        let Some(former) = self.objects.get(key) else { return };
        if *former == changed {
            return;
        }
        if former.get("spec") != changed.get("spec") {
            let generation = former.pointer("/metadata/generation").and_then(Value::as_i64);
            let next = generation.map_or(1, |generation| generation.saturating_add(1));
            set(&mut changed, "metadata", "generation", json!(next));
        }
        let version = self.next();
        set(&mut changed, "metadata", "resourceVersion", json!(format!("planned-{version}")));
        self.objects.insert(key.clone(), changed);
    }

    fn delete(&mut self, key: &Key, now: Timestamp) {
        let Some(former) = self.objects.get(key) else { return };
        if former.pointer("/metadata/deletionTimestamp").is_none() {
            let mut changed = former.clone();
            set(&mut changed, "metadata", "deletionTimestamp", json!(Time(now)));
            self.replace(key, changed);
        }
        self.collect(key, now);
    }

    /// Removes a deleted object without finalizers, and deletes the objects that it owns.
    fn collect(&mut self, key: &Key, now: Timestamp) {
        let Some(object) = self.objects.get(key) else { return };
        let of = |field: &str| object.pointer(&format!("/metadata/{field}"));
        let is_kept = of("finalizers").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if of("deletionTimestamp").is_none() || is_kept {
            return;
        }
        let uid = of("uid").cloned();
        self.next();
        self.objects.remove(key);

        let is_owned = |object: &Value| {
            let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            owners.into_iter().flatten().any(|owner| owner.get("uid") == uid.as_ref())
        };
        let owned = self.objects.iter().filter(|(_, object)| is_owned(object));
        let owned: Vec<_> = owned.map(|(key, _)| key.clone()).collect();
        for key in owned {
            self.delete(&key, now);
        }
    }
}

impl Cluster for InMemoryCluster {
    async fn journal(&self) -> Result<Option<Stored>, Failure> {
        Ok(self.state().journal.clone())
    }

    async fn create_journal(&self) -> Result<Stored, Failure> {
        let mut state = self.state();
        let version = state.next().to_string();
        let stored = Stored { uid: "planned".to_owned(), version, text: None };

        Ok(state.journal.insert(stored).clone())
    }

    async fn replace_journal(&self, former: &Stored, text: String) -> Result<Stored, Failure> {
        let mut state = self.state();
        let version = state.next().to_string();
        let stored = Stored { uid: former.uid.clone(), version, text: Some(text) };

        Ok(state.journal.insert(stored).clone())
    }

    async fn networks(&self) -> Result<Vec<Listed<Network>>, Failure> {
        Ok(self.list(Kind::Network))
    }

    async fn ips(&self) -> Result<Vec<Listed<IP>>, Failure> {
        Ok(self.list(Kind::Ip))
    }

    async fn uid(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, Failure> {
        let state = self.state();
        let found = state.objects.get(&(kind, namespace.to_owned(), name.to_owned()));
        let uid = found.and_then(|found| found.pointer("/metadata/uid"));

        Ok(uid.and_then(Value::as_str).map(str::to_owned))
    }

    async fn write(&self, write: &Write) -> Result<(), Failure> {
        match write {
            Write::Create(network) => {
                let object = serde_json::to_value(network)
                    .map_err(|error| Failure::Refused(error.to_string()))?;
                let key = key(&object).ok_or_else(|| Failure::Refused(write.to_string()))?;
                let mut state = self.state();
                if state.objects.contains_key(&key) {
                    return Err(Failure::Conflict);
                }
                state.make(key, object, self.now);
            }
            Write::Delete(Target { kind, namespace, name, .. }) => {
                self.delete(&(*kind, namespace.clone(), name.clone()));
            }
            Write::Main(target, patch) => self.change(target, patch)?,
            Write::Status(target, status) => self.change(target, &json!({"status": status}))?,
        }

        Ok(())
    }

    async fn report(&self, _: &Denial) -> Result<(), Failure> {
        Ok(())
    }
}

/// The key of an object.
fn key(object: &Value) -> Option<Key> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let kind = Kind::of(text("/apiVersion")?, text("/kind")?)?;

    Some((kind, text("/metadata/namespace")?.to_owned(), text("/metadata/name")?.to_owned()))
}

/// The patch from `applied`, the last recorded configuration, to `wanted`.
fn patch(applied: &Value, wanted: &Value) -> Value {
    let mut wanted = wanted.clone();
    let (Some(applied), Some(fields)) = (applied.as_object(), wanted.as_object_mut()) else {
        return wanted;
    };
    for (field, was) in applied {
        let is = fields.get(field).map_or(Value::Null, |is| patch(was, is));
        fields.insert(field.clone(), is);
    }

    wanted
}

/// Sets `field` in the map called `part` of `object` to `value`.
fn set(object: &mut Value, part: &str, field: &str, value: Value) {
    let Some(object) = object.as_object_mut() else { return };
    let part = object.entry(part).or_insert_with(|| Value::Object(Map::new()));
    if let Some(part) = part.as_object_mut() {
        part.insert(field.to_owned(), value);
    }
}
