//! Which way a node sends packets for remote clusters: every object in, a next hop for each prefix out.
//! Pure.
//!
//! A prefix is what a `Configuration` calls one of the remote cluster's. Its way is to the active pod of
//! the gateway in the namespace of that `Configuration`: on the node of the pod to the pod, on every
//! other node to that node.
//!
//! # Invariants
//!
//! - The same objects in any order make the same plan.
//! - All nodes plan for the same prefixes, and no two of them for different gateways.
//! - No prefix of a plan holds an address of a node or of a pod of this cluster.
//! - A prefix stays in the plan while its `Configuration` is there, with a gateway or without.
//! - Where packets went before they go no longer than a pod of the gateway is there: whoever is given its
//!   address next is not to have them.
//!
//! # Not here
//!
//! How a node reaches another one, and what its kernel is told (see `strait node`).

pub(crate) mod gateway;
mod problem;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use remap::Prefix;
use strait_api::Configuration;
use strait_plan::objects::{self, Judgement, Listed, ObjectName, judge};

use gateway::Gateways;
pub use problem::Problem;

/// Marks the pods of agents, which are on the nodes that they speak for.
pub(crate) const AGENT: (&str, &str) = ("app.kubernetes.io/name", "strait-node");

/// All objects that concern nodes.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Of all remote clusters.
    pub configurations: Vec<Listed<Configuration>>,
    /// Of gateways, the active ones and the others.
    pub pods: Vec<Arc<Pod>>,
    /// Of this cluster.
    pub nodes: Vec<Arc<Node>>,
    /// Pods in which a node does what is planned here, of the namespace that this one runs in; none where that
    /// runs outside of pods.
    pub agents: Vec<Arc<Pod>>,
}

/// Where a node sends packets for a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hop {
    /// To the gateway, whose pod is on this node and has this address.
    Pod(IpAddr),
    /// To the node with the gateway.
    Node {
        /// Of the node.
        name: String,
        /// Its `InternalIP` of the version of the prefix.
        address: IpAddr,
    },
    /// Where it sent them before, as no gateway can be used, if that is one of the [`Places`] still; else
    /// nowhere.
    AsBefore,
}

/// Where a gateway is that cannot be used, or not yet, or no longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Those of its pods on this node, and those of other nodes with one.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether a node with one does not say where it is.
    pub may_be_elsewhere: bool,
}

/// What one node has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Every prefix of a remote cluster.
    pub hops: BTreeMap<Prefix, Hop>,
    /// Where the gateway of each may be.
    pub places: BTreeMap<Prefix, Places>,
    /// Where that of a prefix may be that is missing above.
    pub other_places: Places,
    /// Pods of this cluster, as far as objects say where they are.
    pub pods: BTreeSet<Prefix>,
    /// The `InternalIP`s of this node.
    pub own: Vec<IpAddr>,
    /// Those of all other nodes, by name.
    pub others: BTreeMap<String, Vec<IpAddr>>,
    /// Whose each of them is.
    pub owners: BTreeMap<Prefix, ObjectName>,
    /// What is wrong, in the order of objects.
    pub problems: Vec<Problem>,
    /// Whether all `Configuration`s could be read. If not, a prefix that is missing may be one of theirs.
    pub is_whole: bool,
}

/// What the node called `own` has to do.
#[must_use]
pub fn plan(own: &str, objects: &Objects) -> Plan {
    let mut plan = Plan { is_whole: true, ..Plan::default() };
    for node in &objects.nodes {
        let addresses = internal_addresses(node);
        plan.pods.extend(pod_prefixes(node));
        if node.name_any() == own {
            plan.own = addresses;
        } else {
            plan.others.insert(node.name_any(), addresses);
        }
    }
    if plan.own.is_empty() {
        plan.problems.push(Problem::OwnNode { node: own.to_owned() });
    }

    let gateways = Gateways::new(&objects.pods);
    plan.other_places = gateways.all_places(own, &plan);
    let taken = Taken::new(objects);
    plan.pods.extend(taken.pods.iter().map(|(pods, _)| *pods));
    let mut configurations: Vec<_> = objects.configurations.iter().collect();
    configurations.sort_by_cached_key(|listed| ObjectName::of(&***listed));
    for listed in configurations {
        let object = ObjectName::of(&**listed);
        match &listed.0 {
            Ok(configuration) => {
                for prefix in prefixes(configuration, &object, &taken, &mut plan) {
                    if let Some(by) = plan.owners.get(&prefix).cloned() {
                        let object = object.clone();
                        plan.problems.push(Problem::Shared { object, prefix, by });
                        continue;
                    }
                    let hop = gateways.hop(configuration, prefix, own, &plan);
                    let hop = hop.unwrap_or_else(|problem| {
                        plan.problems.extend(problem.map(|problem| *problem));
                        Hop::AsBefore
                    });
                    plan.hops.insert(prefix, hop);
                    plan.places.insert(prefix, gateways.places(configuration, own, &plan));
                    plan.owners.insert(prefix, object.clone());
                }
            }
            Err(invalid) => {
                plan.is_whole = false;
                plan.problems.push(Problem::Malformed { object, cause: invalid.error.clone() });
            }
        }
    }

    plan
}

/// What the prefixes of a remote cluster are called here, as far as they may be routed.
fn prefixes(
    configuration: &Configuration,
    object: &ObjectName,
    taken: &Taken<'_>,
    plan: &mut Plan,
) -> Vec<Prefix> {
    let Judgement { names, problems, own: [own, _], .. } = judge(configuration);
    for problem in problems {
        let object = object.clone();
        let is_name = matches!(problem, objects::Problem::Local { .. });
        plan.is_whole &= !is_name;
        plan.problems.push(match is_name {
            true => Problem::Name { object, problem },
            false => Problem::Refused { object, problem },
        });
    }
    // Also the name of what gateways refuse: they drop what is sent there, and nothing else has it.
    let mut prefixes = Vec::new();
    for prefix in names {
        match taken.problem(prefix, object.clone()) {
            // Among the problems above.
            None | Some(Problem::HoldsPods { .. })
                if own.iter().any(|pods| pods.overlaps(prefix)) => {}
            Some(problem) => plan.problems.push(problem),
            None => prefixes.push(prefix),
        }
    }
    if !prefixes.is_empty() && objects::cluster_id(configuration).is_none() {
        plan.problems.push(Problem::NoCluster { object: object.clone() });
    }

    prefixes
}

/// What belongs to this cluster: a route that pulls it away would cut nodes or pods off.
struct Taken<'a> {
    /// Addresses of nodes and of their pods, each with the name of the node.
    nodes: Vec<(&'a str, Prefix)>,
    /// The pods, each with a `Configuration` that says so: one that says nothing of pods knows of them all
    /// the same.
    pods: Vec<(Prefix, ObjectName)>,
}

impl<'a> Taken<'a> {
    fn new(objects: &'a Objects) -> Self {
        let mut nodes = Vec::new();
        for node in &objects.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let hosts = addresses(node).map(|(_, address)| Prefix::of_host(address));
            nodes.extend(hosts.chain(pod_prefixes(node)).map(|prefix| (name, prefix)));
        }
        nodes.sort_unstable();
        let readable = objects.configurations.iter().filter_map(|listed| listed.0.as_ref().ok());
        let said: Vec<(_, Vec<_>)> =
            readable.map(|by| (ObjectName::of(by), own_pods(by))).collect();
        // Who leads one remote cluster to another one names that one's prefixes here as well, but not to
        // all: pods are what everybody is told of.
        let is_told_to_all = |pods: &Prefix| {
            said.iter().all(|(_, others)| others.is_empty() || others.contains(pods))
        };
        let each =
            said.iter().flat_map(|(by, all)| all.iter().map(move |pods| (*pods, by.clone())));
        let mut pods: Vec<_> = each.filter(|(pods, _)| is_told_to_all(pods)).collect();
        pods.sort();

        Self { nodes, pods }
    }

    /// Why `object` must not call anything `prefix`, if there is a reason.
    fn problem(&self, prefix: Prefix, object: ObjectName) -> Option<Problem> {
        if prefix.len_bits() == 0 {
            return Some(Problem::Everything { object, prefix });
        }
        if let Some((node, address)) = self.nodes.iter().find(|(_, taken)| taken.overlaps(prefix)) {
            let (node, address) = ((*node).to_owned(), address.to_string());
            return Some(Problem::HoldsNode { object, prefix, node, address });
        }
        let (pods, by) = self.pods.iter().find(|(pods, _)| pods.overlaps(prefix))?.clone();

        Some(Problem::HoldsPods { object, prefix, pods, by })
    }
}

/// The pods of this cluster, as far as a `Configuration` knows them.
fn own_pods(configuration: &Configuration) -> Vec<Prefix> {
    let [pods, _] = judge(configuration).own;

    pods
}

/// Of the pods of a node, where it has prefixes of its own.
fn pod_prefixes(node: &Node) -> impl Iterator<Item = Prefix> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
    let first = spec.and_then(|spec| spec.pod_cidr.as_ref());

    all.iter().chain(first).filter_map(|text| text.parse().ok())
}

fn internal_addresses(node: &Node) -> Vec<IpAddr> {
    addresses(node).filter(|(type_, _)| *type_ == "InternalIP").map(|(_, ip)| ip).collect()
}

/// With what each is for, as far as they are no names.
fn addresses(node: &Node) -> impl Iterator<Item = (&str, IpAddr)> {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();

    all.iter().filter_map(|found| Some((found.type_.as_str(), found.address.parse().ok()?)))
}
