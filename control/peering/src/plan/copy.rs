//! A copy of the relevant objects of a cluster, to try a change on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::{Configuration, IP, Network};
use strait_ipam::{ALLOCATIONS, DryRun, JOURNAL, Pools, Settings, Snapshot, Unallocated};

use super::super::CommandError;
use super::super::context::PeeringSide;
use super::super::flag_or_env::flag_or_env;
use super::change::{Change, Conflict};
use super::{ClusterPlan, NodeConflict, networks, node_conflicts};

/// Selects the Deployment of the operator.
pub(in super::super) const OPERATOR: &str =
    "app.kubernetes.io/component=operator,app.kubernetes.io/part-of=strait";

/// The flag of the operator for its pools.
const POOLS: (&str, &str) = ("--pools", "STRAIT_POOLS");

/// The immutable fields.
const IMMUTABLE: [(&str, &str); 3] =
    [("Network", "/spec/cidr"), ("Network", "/spec/preAllocated"), ("IP", "/spec/ip")];

/// A copy of one cluster.
pub(super) struct ClusterCopy {
    /// The present state.
    pub(super) before: Vec<Value>,
    dry_run: DryRun,
    /// The resources without an allocation even without a change.
    known: Vec<Unallocated>,
    nodes: Vec<Node>,
    /// Changes of objects that do not affect IPAM.
    pub(super) others: Vec<Change>,
    pub(super) conflicts: Vec<Conflict>,
    pub(super) notes: Vec<String>,
}

impl ClusterCopy {
    /// Reads the cluster at `end`.
    pub(super) async fn read(
        end: &PeeringSide<'_>,
        pools: Option<&Pools>,
    ) -> Result<Self, CommandError> {
        let mut notes = Vec::new();
        let pools = match pools {
            Some(pools) => pools.clone(),
            None => pools_of_operator(end, &mut notes).await?,
        };
        let mut before = values::<Network>(end).await?;
        before.extend(values::<IP>(end).await?);
        before.extend(values::<Configuration>(end).await?);
        let snapshot = Snapshot { objects: before.clone(), journal: journal(end).await? };
        let settings = Settings { pools, namespace: end.liqo_namespace.clone() };
        let mut dry_run = DryRun::new(settings, snapshot, Timestamp::now());
        let known = dry_run.run().await.map_err(wrong(end))?;
        let note = |unserved: &Unallocated| {
            let Unallocated { kind, namespace, name, message, .. } = unserved;
            format!("{kind} {namespace}/{name} has no allocation now: {message}")
        };
        notes.extend(known.iter().map(note));
        let nodes = nodes(end, &mut notes).await?;
        let (others, conflicts) = (Vec::new(), Vec::new());

        Ok(Self { before, dry_run, known, nodes, others, conflicts, notes })
    }

    /// The object of this name in the present state.
    pub(super) fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let mut found = self.before.iter().map(|object| (key(object), object));
        let wanted = [kind, namespace, name].map(str::to_owned);

        found.find(|(key, _)| *key == wanted).map(|(_, object)| object.clone())
    }

    /// Puts `object` into the copy.
    pub(super) fn put(
        &mut self,
        end: &PeeringSide<'_>,
        object: &Value,
    ) -> Result<(), CommandError> {
        let [kind, namespace, name] = key(object);
        let mut read = [read::<Network>, read::<IP>, read::<Configuration>].into_iter();
        // Other kinds are rejected by the dry run.
        let Some(read) = read.find_map(|read| read(object)) else {
            return self.dry_run.put(object).map_err(wrong(end));
        };
        read.map_err(|error_text| {
            let what = format!("{kind} {namespace}/{name}");
            CommandError::Malformed { what, error_text }
        })?;
        let all = self.dry_run.objects();
        let former = all.iter().find(|other| key(other) == key(object));
        for (_, pointer) in IMMUTABLE.iter().filter(|(of_kind, _)| *of_kind == kind) {
            let [was, is] = [former, Some(object)].map(|object| object?.pointer(pointer));
            let (Some(was), Some(is)) = (was, is) else { continue };
            if was != is {
                let field = pointer.trim_start_matches('/').replace('/', ".");
                self.conflicts.push(Conflict {
                    kind: kind.clone(),
                    namespace: Some(namespace),
                    name,
                    reason: "FieldImmutable".to_owned(),
                    message: format!(
                        "{field} cannot be changed from {was} to {is}: delete it, and make it again"
                    ),
                });
                return Ok(());
            }
        }

        self.dry_run.put(object).map_err(wrong(end))
    }

    /// Reports each of `namespaces` that does not exist, and the objects that so cannot be created.
    pub(super) async fn find_namespaces(
        &mut self,
        end: &PeeringSide<'_>,
        namespaces: BTreeSet<String>,
    ) -> Result<(), CommandError> {
        let api = Api::<Namespace>::all(end.client.clone());
        for name in namespaces {
            let doing = format!("reading namespace {name}");
            match end.ask(&doing, async || api.get_opt(&name).await).await? {
                Some(Some(_)) => {}
                Some(None) => self.conflicts.push(Conflict {
                    kind: "Namespace".to_owned(),
                    namespace: None,
                    message: format!(
                        "it is not there, and nothing can be made in it: `kubectl create namespace {name}` first"
                    ),
                    name,
                    reason: "NamespaceMissing".to_owned(),
                }),
                None => self.notes.push(format!(
                    "namespaces may not be read: it was not checked whether {name} exists"
                )),
            }
        }

        Ok(())
    }

    /// Deletes the object from the copy.
    pub(super) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let _was_there = self.dry_run.delete(kind, namespace, name);
    }

    /// Runs IPAM until it has nothing to do.
    pub(super) async fn run_operator(
        &mut self,
        end: &PeeringSide<'_>,
    ) -> Result<Vec<Unallocated>, CommandError> {
        self.dry_run.run().await.map_err(wrong(end))
    }

    /// The differences in the end.
    pub(super) async fn compare(
        mut self,
        end: &PeeringSide<'_>,
        cluster_id: String,
    ) -> Result<ClusterPlan, CommandError> {
        let unserved = self.run_operator(end).await?;
        let after = self.dry_run.objects();
        let by_key = |objects: &[Value]| -> BTreeMap<_, _> {
            objects.iter().map(|object| (key(object), object.clone())).collect()
        };
        let (of_before, of_after) = (by_key(&self.before), by_key(&after));
        let keys =
            of_before.keys().chain(of_after.keys().filter(|key| !of_before.contains_key(*key)));
        let changes = keys.filter_map(|key| Change::between(of_before.get(key), of_after.get(key)));
        let mut changes: Vec<_> = changes.chain(self.others).collect();
        changes.sort_by(|a, b| a.order().cmp(&b.order()));

        let mut conflicts = self.conflicts;
        let is_new = |unserved: &Unallocated| !self.known.contains(unserved);
        conflicts.extend(unserved.into_iter().filter(is_new).map(Conflict::from));
        let old = node_conflicts(&networks(&self.before), &self.nodes);
        let new = node_conflicts(&networks(&after), &self.nodes);
        conflicts.extend(new.into_iter().filter(|new| !old.contains(new)).map(Conflict::from));

        Ok(ClusterPlan { side: end.side, cluster_id, changes, conflicts, notes: self.notes })
    }
}

impl From<Unallocated> for Conflict {
    fn from(unserved: Unallocated) -> Self {
        let Unallocated { kind, namespace, name, reason, message } = unserved;

        Self { kind, namespace: Some(namespace), name, reason: reason.to_owned(), message }
    }
}

impl From<NodeConflict> for Conflict {
    fn from(conflict: NodeConflict) -> Self {
        Self {
            kind: "Node".to_owned(),
            namespace: None,
            name: conflict.node.clone(),
            reason: NodeConflict::REASON.to_owned(),
            message: format!("{conflict}: {}", NodeConflict::REMEDY),
        }
    }
}

/// Kind, namespace and name.
fn key(object: &Value) -> [String; 3] {
    ["/kind", "/metadata/namespace", "/metadata/name"].map(|pointer| {
        object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    })
}

/// What is wrong with `object` as one of the kind `K`; `None` if it is of another kind.
fn read<K>(object: &Value) -> Option<Result<(), String>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let says = |field: &str, what: &str| object.get(field).is_some_and(|found| found == what);
    let is_one = says("apiVersion", &K::api_version(&())) && says("kind", &K::kind(&()));
    let read = || serde_json::from_value::<K>(object.clone());

    is_one.then(|| read().map(|_| ()).map_err(|error| error.to_string()))
}

fn wrong(end: &PeeringSide<'_>) -> impl FnOnce(strait_ipam::DryRunError) -> CommandError + use<> {
    let side = end.side;

    move |cause| CommandError::DryRun { side, cause }
}

/// All objects of a kind, as the API server returns them.
async fn values<K>(end: &PeeringSide<'_>) -> Result<Vec<Value>, CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Debug,
{
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::all_with(end.client.clone(), &resource);
    let doing = format!("listing {} in all namespaces", resource.plural);
    let parameters = ListParams::default();
    let list = end.call(&doing, async || api.list(&parameters).await).await?;

    Ok(list
        .items
        .into_iter()
        .filter_map(|mut object| {
            object.metadata.managed_fields = None;
            let mut value = serde_json::to_value(object).ok()?;
            // The items of a list have no kind.
            let kind = json!({"apiVersion": resource.api_version, "kind": resource.kind});
            json_patch::merge(&mut value, &kind);
            Some(value)
        })
        .collect())
}

async fn journal(end: &PeeringSide<'_>) -> Result<Option<String>, CommandError> {
    let api = Api::<ConfigMap>::namespaced(end.client.clone(), &end.liqo_namespace);
    let doing = format!("reading ConfigMap {JOURNAL} in namespace {}", end.liqo_namespace);
    let found = end.call(&doing, async || api.get_opt(JOURNAL).await).await?;

    Ok(found.and_then(|found| found.data?.remove(ALLOCATIONS)))
}

/// The nodes of the cluster, if they may be read.
async fn nodes(end: &PeeringSide<'_>, notes: &mut Vec<String>) -> Result<Vec<Node>, CommandError> {
    let api = Api::<Node>::all(end.client.clone());
    let parameters = ListParams::default();
    let list = async || api.list(&parameters).await.map(|list| list.items);
    let found = end.ask("listing nodes", list).await?;
    if found.is_none() {
        notes.push("nodes may not be listed: their addresses were not compared".to_owned());
    }

    Ok(found.unwrap_or_default())
}

/// The pools of the operator's Deployment.
async fn pools_of_operator(
    end: &PeeringSide<'_>,
    notes: &mut Vec<String>,
) -> Result<Pools, CommandError> {
    let api = Api::<Deployment>::namespaced(end.client.clone(), &end.liqo_namespace);
    let parameters = ListParams::default().labels(OPERATOR);
    let doing = format!("listing deployments in namespace {}", end.liqo_namespace);
    let found =
        end.ask(&doing, async || api.list(&parameters).await.map(|list| list.items)).await?;
    let Some(found) = found else {
        notes.push(
            "deployments may not be listed: the operator is taken to have its default pools, unless --pools says otherwise"
                .to_owned(),
        );
        return Ok(Pools::default());
    };
    if found.is_empty() {
        notes.push(format!(
            "no operator of Strait is in namespace {}: prefixes are those that one with its default pools would give, unless --pools says otherwise",
            end.liqo_namespace
        ));
    }
    let containers = found.into_iter().filter_map(|operator| operator.spec.template.spec);
    let (flag, variable) = POOLS;
    let containers = containers.flat_map(|pod| pod.containers);
    let mut texts = containers.filter_map(|container| flag_or_env(&container, flag, variable));
    let Some(text) = texts.next() else { return Ok(Pools::default()) };
    let prefixes: Result<Vec<_>, _> = text.split(',').map(str::parse).collect();
    let pools = prefixes.ok().and_then(|prefixes| Pools::new(prefixes).ok());

    pools.ok_or(CommandError::Pools { side: end.side, text })
}
