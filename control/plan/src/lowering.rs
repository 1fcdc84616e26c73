//! From the `FirewallConfiguration`s and `RouteConfiguration`s of a gateway to what forwards packets without nftables
//! and without routing tables of the kernel. Pure.
//!
//! Liqo's controllers write a few shapes of objects, which become lookups: prefixes and host maps of the [`Table`], the
//! node behind an address, limits for the MSS, marks for sources that the remote does not know. What others write
//! becomes a [`Ruleset`].
//!
//! # Invariants
//!
//! - The result depends on the objects as they are now, in any order: what is deleted is no longer in force.
//! - An object is executed whole, or refused with the cause in its [`Outcome`].
//! - The shape of an object is recognised by its rules: names of objects, tables, chains and rules have no meaning.
//!
//! # Deviations
//!
//! - Remapping has no state, so a packet that belongs to no flow of the kernel is remapped too.
//! - A host with an external address that is no pod of this cluster has it also in flows that it starts itself: under
//!   another address the remote could not reply.
//! - Of several routes the longest prefix applies, in any of the objects. What Liqo's controllers write is disjoint.
//!
//! # Sources
//!
//! `pkg/firewall/utils` and `pkg/route` of Liqo 1.2.0, which install the same objects in the kernel.

mod devices;
mod outcome;
mod program;
mod routes;
mod selection;
mod selector;
mod shape;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use remap::policy::Policy;
use remap::ruleset::{Clamp, NodeId, Ruleset};
use remap::{Cluster, Conflict, HostMap, PeerId, Prefix, Rule, Table};
use strait_api::{FirewallConfiguration, RouteConfiguration};

use crate::firewall;
use crate::objects::{Listed, ObjectName};
use crate::routing;

pub use devices::{Node, TUNNEL_DEVICE};
pub use outcome::{Outcome, Problem};
pub use routes::NodeRoutes;

use devices::Nodes;
use selection::Selected;
use shape::Shape;

/// The gateway that objects are lowered for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The id of the remote cluster, its only peer.
    pub remote_cluster_id: String,
    /// The node that it runs on.
    pub node_name: Option<String>,
    /// The address of the other gateway inside the tunnel.
    pub peer_address: IpAddr,
    /// Whether the gateway tracks the flows of all packets. Otherwise it tracks those of sources that share an address
    /// alone, and an object that needs others is refused.
    pub tracks_flows: bool,
}

/// All objects of the cluster that may concern a gateway.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Those with rules for packets.
    pub firewall_configurations: Vec<Listed<FirewallConfiguration>>,
    /// Those with routes.
    pub route_configurations: Vec<Listed<RouteConfiguration>>,
}

/// What the objects ask a gateway to do.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// The nodes of this cluster; [`NodeId`] `n` is the `n`th.
    pub nodes: Vec<Node>,
    /// The destinations behind the tunnel, with the addresses that they have there.
    pub remotes: Vec<Prefix>,
    /// The remap rules of the peer.
    pub remaps: Vec<Rule>,
    /// The object that each of them is from.
    pub remap_objects: Vec<(Rule, ObjectName)>,
    /// The external addresses of hosts of this cluster.
    pub cluster: Cluster,
    /// The table of both; the peer is the first one.
    pub table: Table,
    /// The node behind each address.
    pub node_routes: NodeRoutes,
    /// The same for packets without a mark, by prefix.
    pub node_prefixes: BTreeMap<Prefix, NodeId>,
    /// The limits for the MSS of connections through the tunnel.
    pub clamp: Clamp,
    /// Sources that the remote does not know, in order.
    pub unknown_sources: BTreeMap<(IpAddr, NodeId), u32>,
    /// Without tracking all flows: the address that all nodes have as a source that the remote does not know. Inside this
    /// gateway each node has its own address instead, and shares this one with the others ([`Cluster::sharing`]).
    pub shared_sources: BTreeMap<NodeId, IpAddr>,
    /// All other rules.
    pub ruleset: Ruleset,
    /// The outcome of each object that concerns this gateway, in the order of their names.
    pub outcomes: Vec<Outcome>,
}

impl Lowered {
    /// Lowers all `objects` for one gateway.
    #[must_use]
    pub fn new(scope: &Scope, objects: &Objects) -> Self {
        let mut outcomes = Outcomes::default();
        let firewalls = selection::firewalls(scope, &objects.firewall_configurations);
        let firewalls = read(firewalls, firewall::chains, &mut outcomes);
        let routes = selection::routes(scope, &objects.route_configurations);
        let routes = read(routes, routing::rules, &mut outcomes);

        let nodes = Nodes::of(routes.iter().flat_map(|(_, rules)| rules));
        let routes = routes::lower(scope, &nodes, routes, &mut outcomes);
        let shapes = firewalls
            .into_iter()
            .filter_map(|(selected, chains)| {
                let lowered = shape::lower(&nodes, selected.object, chains, scope.tracks_flows);
                outcomes.value(lowered, selected).map(|shape| (selected.name(), shape))
            })
            .collect();
        let shapes =
            if scope.tracks_flows { shapes } else { one_source_a_node(shapes, &mut outcomes) };

        let mut lowered = Self {
            nodes: nodes.into_list(),
            remotes: routes.remotes,
            node_routes: routes.node_routes,
            node_prefixes: routes.node_prefixes,
            ..Self::default()
        };
        if !scope.tracks_flows {
            lowered.shared_sources = shared_sources(&shapes);
        }
        lowered.add(shapes, &routes.pods, &mut outcomes);
        lowered.outcomes = outcomes.of.into_values().collect();

        lowered
    }

    /// The mark of the flow of a packet from `source` that came in from `node`: its replies go back there, although all
    /// nodes share the address. `None` for an address that is that of one host.
    ///
    /// The node for the replies is [`NodeRoutes::node`] with this mark.
    #[must_use]
    pub fn mark(&self, source: IpAddr, node: NodeId) -> Option<u32> {
        self.unknown_sources.get(&(source, node)).copied()
    }

    /// Whether `address` is a source that several nodes share: a reply to it has the mark of its flow.
    #[must_use]
    pub fn is_unknown_source(&self, address: IpAddr) -> bool {
        let of_address = (address, NodeId(0))..=(address, NodeId(u32::MAX));

        self.unknown_sources.range(of_address).next().is_some()
    }

    /// Adds all shapes; an object that contradicts an earlier one is refused.
    fn add(
        &mut self,
        mut shapes: Vec<(ObjectName, Shape)>,
        pods: &BTreeSet<IpAddr>,
        outcomes: &mut Outcomes,
    ) {
        loop {
            self.remaps = shapes.iter().flat_map(|(_, shape)| shape.remaps()).copied().collect();
            self.cluster = self.cluster(&shapes, pods);
            let rules = self.remaps.iter().map(|rule| (PeerId(0), *rule));
            let (table, conflicts) = Table::build(0, &self.cluster, rules);
            self.table = table;
            // The later of two objects is refused, so its conflicts with others are gone then.
            let Some((place, conflict)) = conflicts.into_iter().find_map(|conflict| {
                let is_part = |(_, shape): &(ObjectName, Shape)| shape.has_rejected(&conflict);
                shapes.iter().rposition(is_part).map(|place| (place, conflict))
            }) else {
                break;
            };
            let (object, _) = shapes.remove(place);
            outcomes.because(&object, Problem::Conflict(conflict));
        }

        self.add_others(shapes);
    }

    /// The host maps. A pod has its own address in flows that it starts, so those are known addresses of this cluster.
    fn cluster(&self, shapes: &[(ObjectName, Shape)], pods: &BTreeSet<IpAddr>) -> Cluster {
        let host_maps: Vec<HostMap> =
            shapes.iter().flat_map(|(_, shape)| shape.host_maps()).copied().collect();
        let of_pods = host_maps.iter().map(HostMap::internal).filter(|host| pods.contains(host));
        let is_remapped =
            |host: &IpAddr| self.remaps.iter().any(|rule| rule.local().contains(*host));
        let prefixes = of_pods.filter(|host| !is_remapped(host)).map(Prefix::of_host).collect();
        let shared: BTreeSet<IpAddr> = self.shared_sources.values().copied().collect();
        let sharing = self.nodes_by_id().filter(|(id, _)| self.shared_sources.contains_key(id));

        Cluster {
            prefixes,
            host_maps,
            masquerade: shared.into_iter().collect(),
            sharing: sharing.map(|(_, node)| node.address).collect(),
        }
    }

    /// All nodes with their ids.
    pub fn nodes_by_id(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0..).map(NodeId).zip(&self.nodes)
    }

    /// What packets must meet besides having a peer; `None`: nothing.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        if self.ruleset.is_empty() && self.clamp.to.is_none() {
            return None;
        }
        let shared = self
            .nodes_by_id()
            .filter_map(|(id, node)| Some((node.address, *self.shared_sources.get(&id)?)));
        let shared = shared.collect();

        Some(Policy::new(self.ruleset.clone(), self.node_prefixes.clone(), shared, self.clamp))
    }

    /// What is no lookup in the table.
    fn add_others(&mut self, shapes: Vec<(ObjectName, Shape)>) {
        let mut chains = Vec::new();
        for (object, shape) in shapes {
            self.remap_objects.extend(shape.remaps().iter().map(|rule| (*rule, object.clone())));
            match shape {
                Shape::Clamp(clamp) => self.clamp = self.clamp.and(clamp),
                Shape::UnknownSources(sources) => self.unknown_sources.extend(sources),
                Shape::Program(program) => chains.extend(program),
                Shape::Remap(_) | Shape::HostMaps(_) => {}
            }
        }
        self.ruleset = Ruleset::new(chains);
    }
}

/// The outcome of each object.
#[derive(Debug, Default)]
struct Outcomes {
    of: BTreeMap<ObjectName, Outcome>,
}

impl Outcomes {
    /// The value, or `None` after the cause is kept.
    fn value<T, O>(
        &mut self,
        result: Result<T, impl Into<Problem>>,
        selected: Selected<'_, O>,
    ) -> Option<T>
    where
        O: kube::Resource<DynamicType = ()>,
    {
        result.map_err(|problem| self.because(&selected.name(), problem.into())).ok()
    }

    fn because(&mut self, object: &ObjectName, problem: Problem) {
        if let Some(outcome) = self.of.get_mut(object) {
            outcome.problem.get_or_insert(problem);
        }
    }
}

/// The content of every object that can be read. From here on each has an outcome.
fn read<'a, O, T, E>(
    listed: Vec<Result<Selected<'a, O>, Box<Outcome>>>,
    content: impl Fn(&O) -> Result<T, E>,
    outcomes: &mut Outcomes,
) -> Vec<(Selected<'a, O>, T)>
where
    O: kube::Resource<DynamicType = ()>,
    E: Into<Problem>,
{
    let mut read = Vec::with_capacity(listed.len());
    for listed in listed {
        match listed {
            Ok(selected) => {
                outcomes.of.insert(selected.name(), Outcome::of(selected.object));
                let content = outcomes.value(content(selected.object), selected);
                read.extend(content.map(|content| (selected, content)));
            }
            Err(outcome) => {
                outcomes.of.insert(outcome.object.clone(), *outcome);
            }
        }
    }

    read
}

/// The source that the remote does not know, of each node.
fn shared_sources(shapes: &[(ObjectName, Shape)]) -> BTreeMap<NodeId, IpAddr> {
    let sources = shapes.iter().flat_map(|(_, shape)| shape.unknown_sources());

    sources.map(|((source, node), _)| (*node, *source)).collect()
}

/// The `shapes` with one source for each node at most: an object with another one is refused.
fn one_source_a_node(
    shapes: Vec<(ObjectName, Shape)>,
    outcomes: &mut Outcomes,
) -> Vec<(ObjectName, Shape)> {
    let mut taken = BTreeMap::new();
    let is_kept = |(object, shape): &(ObjectName, Shape)| {
        for ((source, node), _) in shape.unknown_sources() {
            let kept = *taken.entry(*node).or_insert(*source);
            if kept != *source {
                outcomes.because(object, Problem::SecondSource { kept, rejected: *source });
                return false;
            }
        }
        true
    };

    shapes.into_iter().filter(is_kept).collect()
}

/// The rule or host map of `conflict` that is not in the table.
fn rejected(conflict: &Conflict) -> (Option<Rule>, Option<HostMap>) {
    if let Conflict::HostMap { rejected, .. }
    | Conflict::Chain { rejected, .. }
    | Conflict::Shared { rejected, .. } = conflict
    {
        return (None, Some(*rejected));
    }

    (conflict.rejected_rule().map(|(_, rule)| rule), None)
}
