//! Predicts `network disconnect` and `network reset`.
//!
//! Dependent objects are listed without their content: others wrote it, and some of it is secret.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use strait_api::labels::{GATEWAY_NAME, GATEWAY_NAMESPACE};
use strait_api::{
    Configuration, Connection, GatewayClient, GatewayServer, PublicKey, WgGatewayClient,
    WgGatewayServer,
};
use strait_ipam::Pools;

use super::super::context::{PeeringSide, PeeringSides};
use super::super::report::WarningsOnly;
use super::super::{CommandError, FormatError, Pair, Session};
use super::change::{Action, Change};
use super::copy::ClusterCopy;
use super::{ClusterPlan, Plan};

/// The objects that [`super::super::disconnect()`] would delete in both clusters, with the dependent ones.
///
/// # Errors
///
/// [`CommandError`], as with the verb itself; and if a part cannot be read.
pub async fn plan_disconnect(pair: &Pair, session: Session<'_>) -> Result<Plan, CommandError> {
    let quiet = WarningsOnly(session.report);
    let ends = PeeringSides::connect_both(pair, Session { report: &quiet, ..session }).await?;
    let mut clusters = Vec::new();
    for (end, cluster_id) in named(&ends) {
        let mut notes = Vec::new();
        let mut changes = gateways(end, &mut notes).await?;
        changes.sort_by(|a, b| a.order().cmp(&b.order()));
        if !changes.is_empty() {
            notes.push(
                "no prefix is given back: that is what `strait network reset` does".to_owned(),
            );
        }
        let (side, conflicts) = (end.side, Vec::new());
        clusters.push(ClusterPlan { side, cluster_id, changes, conflicts, notes });
    }

    Ok(Plan { clusters })
}

/// The objects that [`super::super::reset()`] would delete in both clusters, and the prefixes that it would release.
///
/// # Errors
///
/// [`CommandError`], as with the verb itself; and if a part cannot be read.
pub async fn plan_reset(
    pair: &Pair,
    pools: Option<&Pools>,
    session: Session<'_>,
) -> Result<Plan, CommandError> {
    let quiet = WarningsOnly(session.report);
    let ends = PeeringSides::connect_both(pair, Session { report: &quiet, ..session }).await?;
    let mut clusters = Vec::new();
    for (end, cluster_id) in named(&ends) {
        let mut copied = ClusterCopy::read(end, pools).await?;
        let gone = gateways(end, &mut copied.notes).await?;
        copied.others.extend(gone);
        for configuration in end.list::<Configuration>().await? {
            copied.delete("Configuration", &end.namespace, &configuration.name_any());
        }
        let mut plan = copied.compare(end, cluster_id).await?;
        if plan.changes.is_empty() && plan.conflicts.is_empty() {
            // The notes are on prefixes that change hands.
            plan.notes.clear();
        }
        plan.notes.extend(released(&plan.changes));
        clusters.push(plan);
    }

    Ok(Plan { clusters })
}

/// Both, with their own ids.
fn named<'a, 'b>(
    PeeringSides { local, remote }: &'b PeeringSides<'a>,
) -> [(&'b PeeringSide<'a>, String); 2] {
    [(local, remote.other.clone()), (remote, local.other.clone())]
}

/// The local prefixes that would be free.
fn released(changes: &[Change]) -> Option<String> {
    let networks =
        changes.iter().filter(|change| change.action == Action::Delete && change.kind == "Network");
    let fields = networks.flat_map(|change| &change.fields);
    let names = fields.filter(|field| field.path == "status.cidr");
    let names: BTreeSet<_> =
        names.filter_map(|field| field.before.as_ref().and_then(Value::as_str)).collect();
    let names: Vec<_> = names.into_iter().collect();

    (!names.is_empty())
        .then(|| format!("IPAM gets back {}: a later peering may be given them", names.join(", ")))
}

/// The gateways of the peering, and their dependent objects.
async fn gateways(
    end: &PeeringSide<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<Change>, CommandError> {
    let mut gone = Deletions { end, owners: BTreeSet::new(), changes: Vec::new(), notes };
    for gateway in end.list::<GatewayClient>().await? {
        gone.delete(&gateway)?;
    }
    for gateway in end.list::<GatewayServer>().await? {
        gone.delete(&gateway)?;
    }
    if gone.changes.is_empty() {
        return Ok(gone.changes);
    }

    // Owners first.
    gone.follow::<WgGatewayClient>().await?;
    gone.follow::<WgGatewayServer>().await?;
    gone.follow::<Deployment>().await?;
    gone.follow::<Service>().await?;
    gone.follow::<ServiceAccount>().await?;
    gone.follow::<RoleBinding>().await?;
    gone.follow::<Secret>().await?;
    gone.follow::<PublicKey>().await?;
    gone.follow::<Connection>().await?;
    gone.rights().await?;

    Ok(gone.changes)
}

/// The objects that would be deleted on one side.
struct Deletions<'a, 'b> {
    end: &'a PeeringSide<'b>,
    /// Their UIDs.
    owners: BTreeSet<String>,
    changes: Vec<Change>,
    notes: &'a mut Vec<String>,
}

impl Deletions<'_, '_> {
    /// Adds an object that the verb itself deletes.
    fn delete<K: Resource + Serialize>(&mut self, object: &K) -> Result<(), CommandError> {
        let value = serde_json::to_value(object).map_err(FormatError::Json)?;
        self.changes.extend(Change::between(Some(&value), None));
        self.owners.extend(object.uid());

        Ok(())
    }

    /// Adds the objects of a kind whose owners would all be deleted.
    async fn follow<K>(&mut self) -> Result<(), CommandError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned,
    {
        let api = self.end.api::<K>();
        let place = format!("in namespace {}", self.end.namespace);
        for object in self.list(&api, &ListParams::default(), &place).await? {
            let owners = object.owner_references();
            if !owners.is_empty() && owners.iter().all(|owner| self.owners.contains(&owner.uid)) {
                self.changes.push(goes::<K>(&object));
                self.owners.extend(object.uid());
            }
        }

        Ok(())
    }

    /// Adds the cluster-wide role bindings of the gateways, which the operator deletes: they cannot have an owner.
    async fn rights(&mut self) -> Result<(), CommandError> {
        let api = Api::<ClusterRoleBinding>::all(self.end.client.clone());
        let selector = format!("{GATEWAY_NAMESPACE}={}", self.end.namespace);
        let found = self.list(&api, &ListParams::default().labels(&selector), "").await?;
        let is_gone = |name: &String| {
            let kinds = ["WgGatewayClient", "WgGatewayServer"];
            self.changes.iter().any(|change| kinds.contains(&&*change.kind) && change.name == *name)
        };
        let of_gone = found.iter().filter(|it| it.labels().get(GATEWAY_NAME).is_some_and(is_gone));
        let changes: Vec<_> = of_gone.map(goes::<ClusterRoleBinding>).collect();
        self.changes.extend(changes);

        Ok(())
    }

    /// The metadata of all objects of a kind; none if the user may not read them, which is noted.
    async fn list<K>(
        &mut self,
        api: &Api<K>,
        parameters: &ListParams,
        place: &str,
    ) -> Result<Vec<PartialObjectMeta<K>>, CommandError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let plural = K::plural(&());
        let doing = format!("listing {plural} {place}");
        let call = async || api.list_metadata(parameters).await.map(|list| list.items);
        let found = self.end.ask(doing.trim_end(), call).await?;
        if found.is_none() {
            let note = "may not be listed: those of the gateways would be gone as well";
            self.notes.push(format!("{plural} {note}"));
        }

        Ok(found.unwrap_or_default())
    }
}

/// Its deletion, without its content.
fn goes<K: Resource<DynamicType = ()>>(object: &PartialObjectMeta<K>) -> Change {
    Change {
        action: Action::Delete,
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace(),
        name: object.name_any(),
        fields: Vec::new(),
    }
}
