//! The routes of a node to remote clusters: every object in, the next hops for each prefix out. Pure.
//!
//! A prefix is the local name, from a `Configuration`, of a prefix of the remote cluster. It is routed to the active
//! pod of the gateway in the namespace of that `Configuration`: on the node of the pod to the pod, on every other node
//! to that node; inside VXLAN to the pod, on all nodes, if the pod ends VXLAN itself.
//!
//! A peering may have several gateways. Then a prefix is routed to all that say that they forward, or to all if none
//! does; a node that runs one of them sends to its own ones alone. Parts of a prefix that only one gateway carries are
//! routed to that one.
//!
//! # Invariants
//!
//! - The same objects in any order make the same plan.
//! - All nodes plan for the same prefixes, and where gateways say the same to all of them, for the same gateways.
//! - A node that runs one of the gateways that a prefix is routed to sends to no other node, except for the parts that only
//!   a gateway there carries.
//! - No prefix of a plan holds an address of a node or of a pod of this cluster.
//! - A prefix stays in the plan while its `Configuration` is there, with a gateway or without.
//! - A former next hop is kept only while a pod of the gateway has that address: a pod that gets the address later must
//!   not receive the packets.
//!
//! # Not here
//!
//! How a node reaches another one, and what it configures in its kernel (see `strait node`).

mod endpoint;
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
use strait_kube::nodes;
use strait_plan::objects::{self, Listed, ObjectName, ParsedConfiguration, parse};

pub use endpoint::{Endpoint, Forwarding, GatewayState};
use gateway::Gateways;
pub use problem::Problem;

/// The label of agent pods; each runs on the node that it configures.
pub(crate) const AGENT: (&str, &str) = ("app.kubernetes.io/name", "strait-node");

/// All objects that concern nodes.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Those of all remote clusters.
    pub configurations: Vec<Listed<Configuration>>,
    /// The pods of gateways, active or not.
    pub pods: Vec<Arc<Pod>>,
    /// The nodes of this cluster.
    pub nodes: Vec<Arc<Node>>,
    /// The agent pods, from the namespace in which this one runs; none where it runs outside of pods.
    pub agents: Vec<Arc<Pod>>,
    /// What the gateways say that share a remote cluster.
    pub forwarding: Forwarding,
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hop {
    /// The gateway's pod, which is on this node and has this address.
    Pod(IpAddr),
    /// The node of the gateway.
    Node {
        /// The name of the node.
        name: String,
        /// Its `InternalIP` of the version of the prefix.
        address: IpAddr,
    },
    /// The gateway's pod, on any node, which ends VXLAN itself.
    Overlay {
        /// The name of the pod.
        pod: String,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
}

/// Where a gateway may be that is not usable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The addresses of its pods on this node, of those that end VXLAN, and of other nodes that run one.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether a node that runs one has no known address.
    pub is_incomplete: bool,
}

/// The plan for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The next hops of every prefix of a remote cluster. Without any it keeps the former ones that are still in
    /// [`Places`], as no gateway is usable, or it is not known yet which of several forward.
    pub hops: BTreeMap<Prefix, BTreeSet<Hop>>,
    /// The next hops of parts of those prefixes that only one gateway carries.
    pub hops_of_parts: BTreeMap<Prefix, BTreeSet<Hop>>,
    /// The next hops that a prefix may get from one moment to the next, as a gateway begins or stops to forward.
    pub reserve: BTreeMap<Prefix, BTreeSet<Hop>>,
    /// Where the gateway of each prefix may be.
    pub places: BTreeMap<Prefix, Places>,
    /// Where the gateway of any other prefix may be.
    pub other_places: Places,
    /// The pod prefixes of this cluster, as far as objects specify them.
    pub pods: BTreeSet<Prefix>,
    /// The `InternalIP`s of this node.
    pub own: Vec<IpAddr>,
    /// The `InternalIP`s of all other nodes, by name.
    pub others: BTreeMap<String, Vec<IpAddr>>,
    /// The `Configuration` of each prefix, and of parts that only one gateway carries.
    pub owners: BTreeMap<Prefix, ObjectName>,
    /// The problems, in the order of objects.
    pub problems: Vec<Problem>,
    /// The `Configuration`s without an active gateway pod: not a problem, as it may be so for a moment.
    pub without_gateway: BTreeSet<ObjectName>,
    /// Whether all `Configuration`s could be read. If not, a missing prefix may belong to one of the others.
    pub is_complete: bool,
}

/// Computes the plan for the node `own`.
#[must_use]
pub fn plan(own: &str, objects: &Objects) -> Plan {
    let mut plan = Plan { is_complete: true, ..Plan::default() };
    for node in &objects.nodes {
        let addresses = nodes::internal_addresses(node).collect();
        plan.pods.extend(nodes::pod_cidrs::<Prefix>(node));
        if node.name_any() == own {
            plan.own = addresses;
        } else {
            plan.others.insert(node.name_any(), addresses);
        }
    }
    if plan.own.is_empty() {
        plan.problems.push(Problem::OwnNode { node: own.to_owned() });
    }

    let gateways = Gateways::new(&objects.pods, &objects.forwarding);
    plan.other_places = gateways.all_places(own, &plan);
    let taken = OwnPrefixes::new(objects);
    plan.pods.extend(taken.pods.iter().map(|(pods, _)| *pods));
    let mut configurations: Vec<_> = objects.configurations.iter().collect();
    configurations.sort_by_cached_key(|listed| ObjectName::of(&***listed));
    let mut owners_of_parts = Vec::new();
    for listed in configurations {
        let object = ObjectName::of(&**listed);
        match &listed.0 {
            Ok(configuration) => {
                let prefixes = prefixes(configuration, &object, &taken, &mut plan);
                for &prefix in &prefixes {
                    if let Some(by) = plan.owners.get(&prefix).cloned() {
                        let object = object.clone();
                        plan.problems.push(Problem::Shared { object, prefix, by });
                        continue;
                    }
                    let hops = gateways.hops(configuration, prefix, own, &plan);
                    if hops.all.is_empty() && hops.problems.is_empty() {
                        plan.without_gateway.insert(object.clone());
                    }
                    plan.problems.extend(hops.problems);
                    plan.hops.insert(prefix, hops.used);
                    owners_of_parts
                        .extend(hops.of_parts.keys().map(|part| (*part, object.clone())));
                    plan.hops_of_parts.extend(hops.of_parts);
                    plan.reserve.insert(prefix, hops.all);
                    plan.places.insert(prefix, gateways.places(configuration, own, &plan));
                    plan.owners.insert(prefix, object.clone());
                }
                for (pod, claim) in gateways.foreign_destinations(configuration, &prefixes) {
                    let object = object.clone();
                    plan.problems.push(Problem::ForeignDestination { object, pod, claim });
                }
            }
            Err(invalid) => {
                plan.is_complete = false;
                plan.problems.push(Problem::Malformed { object, cause: invalid.error.clone() });
            }
        }
    }

    for (part, object) in owners_of_parts {
        plan.owners.entry(part).or_insert(object);
    }

    plan
}

/// The pages that tell which gateways forward, of remote clusters with several gateways.
#[must_use]
pub fn endpoints(objects: &Objects) -> BTreeSet<Endpoint> {
    let gateways = Gateways::new(&objects.pods, &objects.forwarding);
    let readable = objects.configurations.iter().filter_map(|listed| listed.0.as_ref().ok());

    readable.flat_map(|configuration| gateways.endpoints(configuration)).collect()
}

/// The local prefixes of a remote cluster, as far as they may be routed.
fn prefixes(
    configuration: &Configuration,
    object: &ObjectName,
    taken: &OwnPrefixes<'_>,
    plan: &mut Plan,
) -> Vec<Prefix> {
    let ParsedConfiguration { names, problems, own: [own, _], .. } = parse(configuration);
    for problem in problems {
        let object = object.clone();
        let is_name = matches!(problem, objects::Problem::Local { .. });
        plan.is_complete &= !is_name;
        plan.problems.push(match is_name {
            true => Problem::Name { object, problem },
            false => Problem::Refused { object, problem },
        });
    }
    // A name that gateways refuse is planned too: they drop packets to it, and it has no other use.
    let mut prefixes = Vec::new();
    for prefix in names {
        match taken.problem(prefix, object.clone()) {
            // Already among the problems.
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

/// The prefixes of this cluster: a route that covers one would cut nodes or pods off.
struct OwnPrefixes<'a> {
    /// Addresses of nodes and of their pods, each with the name of the node.
    nodes: Vec<(&'a str, Prefix)>,
    /// The pod prefixes, each with a `Configuration` that specifies it; they bind the `Configuration`s that specify
    /// none too.
    pods: Vec<(Prefix, ObjectName)>,
}

impl<'a> OwnPrefixes<'a> {
    fn new(objects: &'a Objects) -> Self {
        let mut nodes = Vec::new();
        for node in &objects.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let hosts = nodes::addresses(node).map(|(_, address)| Prefix::of_host(address));
            nodes.extend(hosts.chain(nodes::pod_cidrs(node)).map(|prefix| (name, prefix)));
        }
        nodes.sort_unstable();
        let readable = objects.configurations.iter().filter_map(|listed| listed.0.as_ref().ok());
        let specified: Vec<(_, Vec<_>)> =
            readable.map(|by| (ObjectName::of(by), own_pods(by))).collect();
        // A hub that joins two remote clusters lists the prefixes of each in the `Configuration` of the other, but not
        // in all: pods of this cluster are in every `Configuration`.
        let is_in_all = |pods: &Prefix| {
            specified.iter().all(|(_, others)| others.is_empty() || others.contains(pods))
        };
        let each =
            specified.iter().flat_map(|(by, all)| all.iter().map(move |pods| (*pods, by.clone())));
        let mut pods: Vec<_> = each.filter(|(pods, _)| is_in_all(pods)).collect();
        pods.sort();

        Self { nodes, pods }
    }

    /// Why `object` must not use `prefix` as a name, if there is a reason.
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

/// The pod prefixes of this cluster in `configuration`.
fn own_pods(configuration: &Configuration) -> Vec<Prefix> {
    let [pods, _] = parse(configuration).own;

    pods
}
