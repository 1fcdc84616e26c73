//! `plan`: predicts the effects of a change. Reads, and writes nothing.
//!
//! Prefixes and addresses are those that IPAM would allocate: its own code runs on a copy of the objects (see
//! `strait_ipam::DryRun`). The result is the difference from the present state, so it includes what the operator
//! has yet to do.

mod change;
mod connect;
mod copy;
mod disconnect;
mod display;
mod environment;
mod file;

use std::collections::BTreeSet;

use remap::Prefix;
use serde_json::{Value, json};
use strait_api::Network;
use strait_api::labels::{EXTERNAL_CIDR, NETWORK_TYPE, POD_CIDR, REMOTE_CLUSTER_ID};
use strait_ipam::Pools;
use strait_plan::objects::cluster_id;

use super::context::{PeeringSide, own_id};
use super::report::WarningsOnly;
use super::{ClusterContext, CommandError, Session, Side};

pub use change::{Action, Change, Conflict, Field};
pub use connect::plan_connect;
use copy::ClusterCopy;
pub(super) use copy::OPERATOR;
pub use disconnect::{plan_disconnect, plan_reset};
pub(super) use environment::{NodeConflict, node_conflicts};
pub use file::objects;

/// The predicted differences. Its JSON form is public interface.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Plan {
    /// Each cluster that the change affects.
    pub clusters: Vec<ClusterPlan>,
}

/// The predicted differences in one cluster.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ClusterPlan {
    /// Which of two it is.
    #[serde(skip_serializing_if = "Side::is_only")]
    pub side: Side,
    /// The cluster id.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// The refusals, in the order of kinds and names.
    pub changes: Vec<Change>,
    /// What could not be allocated, or would conflict.
    pub conflicts: Vec<Conflict>,
    /// Further notes.
    pub notes: Vec<String>,
}

impl Plan {
    /// Whether anything would change.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.clusters.iter().any(|cluster| !cluster.changes.is_empty())
    }

    /// Whether a part cannot be done.
    #[must_use]
    pub fn has_conflicts(&self) -> bool {
        self.clusters.iter().any(|cluster| !cluster.conflicts.is_empty())
    }
}

/// A change of one cluster.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the documentation of a variant names its fields")]
pub enum Proposal {
    /// `objects` are applied: `Network`s, `IP`s and `Configuration`s.
    Apply { objects: Vec<Value> },
    /// The Network `name` of the installation gets the prefix `cidr`, which takes another object of the same name.
    Network { name: String, cidr: Prefix },
}

/// The effects of `proposal` on the cluster of `context`. IPAM allocates from `pools`; by default from those of its
/// Deployment.
///
/// # Errors
///
/// [`CommandError`] if a part cannot be read, or is invalid.
pub async fn plan(
    context: &ClusterContext,
    proposal: &Proposal,
    pools: Option<&Pools>,
    session: Session<'_>,
) -> Result<Plan, CommandError> {
    let quiet = WarningsOnly(session.report);
    let session = Session { report: &quiet, ..session };
    let cluster_id = own_id(context, session).await?;
    let namespace = context.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let end = PeeringSide::alone(context, namespace, session);
    let mut copied = ClusterCopy::read(&end, pools).await?;
    match proposal {
        Proposal::Apply { objects } => apply(&end, &mut copied, objects).await?,
        Proposal::Network { name, cidr } => replace(&end, &mut copied, name, *cidr).await?,
    }

    Ok(Plan { clusters: vec![copied.compare(&end, cluster_id).await?] })
}

/// Puts `objects` into the copy, each in its namespace or in that of the context.
async fn apply(
    end: &PeeringSide<'_>,
    copied: &mut ClusterCopy,
    objects: &[Value],
) -> Result<(), CommandError> {
    let mut namespaces = BTreeSet::new();
    for object in objects {
        let mut object = object.clone();
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = metadata
            && !metadata.contains_key("namespace")
        {
            metadata.insert("namespace".to_owned(), json!(end.namespace));
        }
        copied.put(end, &object)?;
        let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
        namespaces.extend(namespace.map(str::to_owned));
    }

    copied.find_namespaces(end, namespaces).await
}

/// Gives a `Network` of the installation another prefix.
async fn replace(
    end: &PeeringSide<'_>,
    copied: &mut ClusterCopy,
    name: &str,
    cidr: Prefix,
) -> Result<(), CommandError> {
    let namespace = &end.liqo_namespace;
    let Some(former) = copied.find("Network", namespace, name) else {
        return Err(CommandError::NoNetwork {
            side: end.side,
            name: name.to_owned(),
            namespace: namespace.clone(),
        });
    };
    let text = |pointer: &str| former.pointer(pointer).and_then(Value::as_str);
    if text("/spec/cidr") == Some(cidr.to_string().as_str()) {
        return Ok(());
    }
    let kept = |pointer: &str| former.pointer(pointer).cloned().unwrap_or_default();
    let mut spec = kept("/spec");
    json_patch::merge(&mut spec, &json!({"cidr": cidr.to_string()}));
    let object = json!({
        "apiVersion": kept("/apiVersion"), "kind": "Network",
        "metadata": {
            "name": name, "namespace": namespace, "labels": kept("/metadata/labels"),
            "annotations": kept("/metadata/annotations"),
        },
        "spec": spec,
    });
    copied.delete("Network", namespace, name);
    // Only then is its former prefix free.
    copied.run_operator(end).await?;
    copied.put(end, &object)?;
    let label = format!("/metadata/labels/{}", NETWORK_TYPE.replace('/', "~1"));
    let type_ = text(&label).unwrap_or_default();
    if [POD_CIDR, EXTERNAL_CIDR].contains(&type_) {
        copied.notes.extend(outdated_peers(&copied.before));
    }

    Ok(())
}

/// Notes for clusters that know the former prefix, and do not update it.
fn outdated_peers(objects: &[Value]) -> impl Iterator<Item = String> {
    let configurations = objects
        .iter()
        .filter(|object| object.get("kind").and_then(Value::as_str) == Some("Configuration"));

    configurations.map(|configuration| {
        let text = |pointer: &str| {
            configuration.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
        };
        let label = format!("/metadata/labels/{}", REMOTE_CLUSTER_ID.replace('/', "~1"));
        let (namespace, name, id) =
            (text("/metadata/namespace"), text("/metadata/name"), text(&label));
        format!(
            "cluster {id} knows the former prefix: apply there what `strait generate configuration` prints afterwards; and delete spec.local of Configuration {namespace}/{name}, which is written once"
        )
    })
}

/// The `Network`s among `objects` that can be read.
fn networks(objects: &[Value]) -> Vec<Network> {
    let of_kind = objects
        .iter()
        .filter(|object| object.get("kind").and_then(Value::as_str) == Some("Network"));

    of_kind.filter_map(|object| serde_json::from_value(object.clone()).ok()).collect()
}

/// The description of a `Network`: the remote prefix that it is the local one of, if any.
fn described(network: &Network) -> String {
    match cluster_id(network) {
        Some(id) => format!("the name of {} of {id}", network.spec.cidr),
        None => format!(
            "that of Network {}/{}",
            network.metadata.namespace.as_deref().unwrap_or_default(),
            network.metadata.name.as_deref().unwrap_or_default()
        ),
    }
}
