//! An API server in memory, and the connection of each operator to it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DeserializeGuard;
use remap::Prefix;
use serde_json::{Value, json};
use strait_api::{Configuration, IP, Network};
use strait_plan::objects::Listed;

use crate::cluster::{Cluster, Failure, Stored};
use crate::object::{Denial, Kind, Target, Write};
use crate::resources::Objects;

/// An object's kind, namespace and name.
pub(super) type Name = (Kind, String, String);

/// An object as JSON, as an API server stores it, and as it is read.
#[derive(Clone)]
pub(super) struct Object {
    pub(super) value: Arc<Value>,
    read: Read,
}

#[derive(Clone)]
enum Read {
    Network(Listed<Network>),
    Ip(Listed<IP>),
    Configuration(Listed<Configuration>),
}

impl Object {
    pub(super) fn new(kind: Kind, value: Value) -> Self {
        fn read<K: serde::de::DeserializeOwned>(value: &Value) -> Listed<K> {
            Arc::new(DeserializeGuard(Ok(serde_json::from_value(value.clone()).unwrap())))
        }
        let read = match kind {
            Kind::Network => Read::Network(read(&value)),
            Kind::Ip => Read::Ip(read(&value)),
            Kind::Configuration => Read::Configuration(read(&value)),
        };

        Self { value: Arc::new(value), read }
    }
}

/// All objects.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) version: u64,
    pub(super) objects: BTreeMap<Name, Object>,
    pub(super) journal: Option<Stored>,
}

impl State {
    pub(super) fn seen(&self) -> Objects {
        let mut seen = Objects::default();
        for object in self.objects.values() {
            match &object.read {
                Read::Network(network) => seen.networks.push(network.clone()),
                Read::Ip(ip) => seen.ips.push(ip.clone()),
                Read::Configuration(peer) => seen.configurations.push(peer.clone()),
            }
        }

        seen
    }
}

/// An API server that keeps its history.
#[derive(Default)]
pub(super) struct Server {
    pub(super) state: State,
    /// The state at any time.
    pub(super) history: Vec<Objects>,
    /// A violated invariant, if any.
    pub(super) wrong: Option<String>,
    /// Reason and message of all Events.
    pub(super) events: Vec<(&'static str, String)>,
    /// By UID: the status that was written.
    pub(super) reported: BTreeMap<String, Value>,
}

impl Server {
    fn next(&mut self) -> u64 {
        self.state.version += 1;
        self.state.version
    }

    /// Records the present state, and checks its invariants.
    pub(super) fn record(&mut self) {
        self.history.push(self.state.seen());
        let wrong = self.two_owners();
        self.wrong = self.wrong.take().or(wrong);
    }

    pub(super) fn make(&mut self, kind: Kind, mut object: Value) -> Result<(), Failure> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap().to_owned();
        let name = (kind, text("/metadata/namespace"), text("/metadata/name"));
        if self.state.objects.contains_key(&name) {
            return Err(Failure::Conflict);
        }
        let version = self.next();
        object["metadata"]["uid"] = json!(uid(version));
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let created = jiff::Timestamp::from_second(i64::try_from(version / 16).unwrap()).unwrap();
        object["metadata"]["creationTimestamp"] = json!(Time(created));
        object["metadata"]["generation"] = json!(1);
        self.state.objects.insert(name, Object::new(kind, object));
        self.record();

        Ok(())
    }

    /// Merges `patch` into the object if its version is still the same.
    pub(super) fn change(&mut self, target: &Target, patch: Value) -> Result<(), Failure> {
        let name = (target.kind, target.namespace.clone(), target.name.clone());
        let Some(object) = self.state.objects.get(&name) else { return Err(Failure::Gone) };
        let object = &*object.value;
        let metadata = &object["metadata"];
        if metadata["uid"] != target.uid || metadata["resourceVersion"] != target.version {
            return Err(Failure::Conflict);
        }
        let mut changed = object.clone();
        merge(&mut changed, patch);
        if changed["spec"] != object["spec"] {
            changed["metadata"]["generation"] =
                json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        }
        if changed != *object {
            let version = self.next();
            changed["metadata"]["resourceVersion"] = json!(version.to_string());
        }
        self.state.objects.insert(name.clone(), Object::new(target.kind, changed));
        self.collect(&name);
        self.record();

        Ok(())
    }

    pub(super) fn delete(&mut self, name: &Name) {
        let version = self.next();
        let Some(object) = self.state.objects.get_mut(name) else { return };
        if object.value["metadata"]["deletionTimestamp"].is_null() {
            let mut value = (*object.value).clone();
            value["metadata"]["deletionTimestamp"] = json!(Time(jiff::Timestamp::UNIX_EPOCH));
            value["metadata"]["resourceVersion"] = json!(version.to_string());
            *object = Object::new(name.0, value);
        }
        self.collect(name);
        self.record();
    }

    /// Removes a deleted object without finalizers, and deletes the objects that it owns.
    fn collect(&mut self, name: &Name) {
        let Some(object) = self.state.objects.get(name) else { return };
        let metadata = &object.value["metadata"];
        let is_kept = metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if metadata["deletionTimestamp"].is_null() || is_kept {
            return;
        }
        let uid = metadata["uid"].clone();
        self.state.objects.remove(name);
        let is_owned = |object: &Object| {
            let owners = object.value["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid))
        };
        let owned = self.state.objects.iter().filter(|(_, object)| is_owned(object));
        let owned: Vec<_> = owned.map(|(name, _)| name.clone()).collect();
        owned.iter().for_each(|name| self.delete(name));
    }

    /// Deletes objects whose owner was deleted before they were created.
    pub(super) fn collect_orphans(&mut self) {
        let uids: Vec<_> =
            self.state.objects.values().map(|o| &o.value["metadata"]["uid"]).collect();
        let is_orphan = |object: &Object| {
            let owners = object.value["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| !owners.iter().any(|owner| uids.contains(&&owner["uid"])))
        };
        let orphans = self.state.objects.iter().filter(|(_, object)| is_orphan(object));
        let orphans: Vec<_> = orphans.map(|(name, _)| name.clone()).collect();
        for name in orphans {
            if self.state.objects[&name].value["metadata"]["deletionTimestamp"].is_null() {
                self.delete(&name);
            }
        }
    }

    /// Two resources with one allocation. A deleted one counts until its allocation is released.
    fn two_owners(&mut self) -> Option<String> {
        let mut prefixes: Vec<(&Name, Prefix, bool)> = Vec::new();
        let mut addresses: Vec<(&Name, &Value)> = Vec::new();
        for (name, object) in &self.state.objects {
            let object = &*object.value;
            if !object["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            let status = object["status"].clone();
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            if name.0 != Kind::Configuration && !status.is_null() {
                let former = self.reported.entry(uid).or_insert_with(|| status.clone());
                if *former != status {
                    return Some(format!("{name:?} had status {former} and then {status}"));
                }
            }
            if let Some(address) = object.pointer("/status/ip") {
                addresses.push((name, address));
            } else if let Some(prefix) = object.pointer("/status/cidr").and_then(Value::as_str) {
                let is_shared = object.pointer("/metadata/labels/ipam.liqo.io~1network-shared");
                prefixes.push((name, prefix.parse().unwrap(), is_shared.is_some()));
            }
        }
        for (place, (name, one, is_shared)) in prefixes.iter().enumerate() {
            for (other_name, other, is_other_shared) in &prefixes[place + 1..] {
                if one.overlaps(*other) && !(*is_shared && *is_other_shared) {
                    return Some(format!("{name:?} has {one}, {other_name:?} has {other}"));
                }
            }
        }
        for (place, (name, one)) in addresses.iter().enumerate() {
            if let Some((other, _)) = addresses[place + 1..].iter().find(|(_, two)| one == two) {
                return Some(format!("{name:?} and {other:?} have {one}"));
            }
        }

        None
    }
}

fn uid(number: u64) -> String {
    format!("00000000-0000-0000-0000-{number:012x}")
}

/// As RFC 7386 specifies.
fn merge(object: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *object = patch;
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(&key);
        } else {
            merge(&mut object[key], value);
        }
    }
}

/// The fate of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Answered,
    /// Executed, but its answer is lost.
    AnswerLost,
    /// Not executed.
    Lost,
}

/// The server as one operator reaches it: each call waits until it may proceed.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) server: Arc<Mutex<Server>>,
    /// The fate of the next call.
    pub(super) fate: Arc<Mutex<Option<Fate>>>,
    /// Of the calls that wait.
    pub(super) wakers: Arc<Mutex<Vec<Waker>>>,
}

impl Connection {
    pub(super) async fn call<T>(
        &self,
        call: impl FnOnce(&mut Server) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let fate = poll_fn(|context| match self.fate.lock().unwrap().take() {
            Some(fate) => Poll::Ready(fate),
            None => {
                self.wakers.lock().unwrap().push(context.waker().clone());
                Poll::Pending
            }
        });
        let away = || Failure::Away("no answer".to_owned());
        match fate.await {
            Fate::Answered => call(&mut self.server.lock().unwrap()),
            Fate::AnswerLost => {
                let _ = call(&mut self.server.lock().unwrap());
                Err(away())
            }
            Fate::Lost => Err(away()),
        }
    }
}

impl Cluster for Connection {
    async fn journal(&self) -> Result<Option<Stored>, Failure> {
        self.call(|server| Ok(server.state.journal.clone())).await
    }

    async fn create_journal(&self) -> Result<Stored, Failure> {
        self.call(|server| {
            if server.state.journal.is_some() {
                return Err(Failure::Conflict);
            }
            let version = server.next();
            let stored = Stored { uid: uid(version), version: version.to_string(), text: None };
            Ok(server.state.journal.insert(stored).clone())
        })
        .await
    }

    async fn replace_journal(&self, former: &Stored, text: String) -> Result<Stored, Failure> {
        self.call(|server| {
            let Some(journal) = server.state.journal.clone() else { return Err(Failure::Gone) };
            if (&journal.uid, &journal.version) != (&former.uid, &former.version) {
                return Err(Failure::Conflict);
            }
            let version = server.next().to_string();
            let stored = Stored { version, text: Some(text), ..journal };
            Ok(server.state.journal.insert(stored).clone())
        })
        .await
    }

    async fn networks(&self) -> Result<Vec<Listed<Network>>, Failure> {
        self.call(|server| Ok(server.state.seen().networks)).await
    }

    async fn ips(&self) -> Result<Vec<Listed<IP>>, Failure> {
        self.call(|server| Ok(server.state.seen().ips)).await
    }

    async fn uid(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, Failure> {
        let name = (kind, namespace.to_owned(), name.to_owned());
        self.call(|server| {
            let object = server.state.objects.get(&name);
            Ok(object.map(|object| object.value["metadata"]["uid"].as_str().unwrap().to_owned()))
        })
        .await
    }

    async fn write(&self, write: &Write) -> Result<(), Failure> {
        self.call(|server| match write.clone() {
            Write::Create(network) => {
                server.make(Kind::Network, serde_json::to_value(network).unwrap())
            }
            Write::Delete(target) => {
                let name = (target.kind, target.namespace.clone(), target.name.clone());
                server.change(&target, json!({}))?;
                server.delete(&name);
                Ok(())
            }
            Write::Main(target, patch) => server.change(&target, patch),
            Write::Status(target, status) => server.change(&target, json!({"status": status})),
        })
        .await
    }

    async fn report(&self, denial: &Denial) -> Result<(), Failure> {
        self.call(|server| {
            server.events.push((denial.reason, denial.message.clone()));
            Ok(())
        })
        .await
    }
}
