//! Routes: from the nodes into the tunnel, and from the tunnel to the node behind each address.
//!
//! All routes of an object are in one table, which each of its rules leads to. A rule whose table has no route for a
//! packet is passed over, as in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kube::ResourceExt;
use remap::Prefix;
use remap::lpm::Lpm;
use remap::ruleset::{Device, NodeId};
use strait_api::RouteConfiguration;

use super::devices::{Nodes, is_tunnel};
use super::selection::Selected;
use super::{Outcomes, Problem, Scope};
use crate::routing::{Route, Rule};

/// All routes.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// The destinations behind the tunnel.
    pub(super) remotes: Vec<Prefix>,
    pub(super) node_routes: NodeRoutes,
    /// Those for packets without a mark.
    pub(super) node_prefixes: BTreeMap<Prefix, NodeId>,
    /// The addresses of pods of this cluster.
    pub(super) pods: BTreeSet<IpAddr>,
}

/// The node behind each address of this cluster.
#[derive(Clone, Debug, Default)]
pub struct NodeRoutes {
    unmarked: Lpm<NodeId>,
    /// In ascending order of the marks.
    marked: Vec<(u32, Lpm<NodeId>)>,
}

impl NodeRoutes {
    /// The node that a packet from the tunnel goes to. A route of its mark comes before those of all packets; 0 is no
    /// mark.
    #[must_use]
    #[inline]
    pub fn node(&self, destination: IpAddr, mark: u32) -> Option<NodeId> {
        let place = self.marked.binary_search_by_key(&mark, |(mark, _)| *mark).ok();
        let marked = place.and_then(|place| self.marked.get(place));

        marked
            .and_then(|(_, routes)| routes.lookup(destination))
            .or_else(|| self.unmarked.lookup(destination))
    }
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Node(NodeId),
    Tunnel,
}

/// The packets that a rule selects, apart from their destination.
enum Origin {
    /// Any, for an address on the link to a node.
    Any,
    Tunnel,
    Node,
    /// None: they come from devices that this gateway does not forward from.
    Nowhere,
}

/// What one object adds.
#[derive(Default)]
struct Added {
    remotes: BTreeSet<Prefix>,
    unmarked: BTreeMap<Prefix, NodeId>,
    marked: BTreeMap<(u32, Prefix), NodeId>,
}

/// Lowers all objects. If two lead to different nodes for one prefix, the younger one applies, as the younger rule does
/// in the kernel.
pub(super) fn lower(
    scope: &Scope,
    nodes: &Nodes,
    mut objects: Vec<(Selected<'_, RouteConfiguration>, Vec<Rule>)>,
    outcomes: &mut Outcomes,
) -> Routes {
    objects.sort_by_key(|(selected, _)| (selected.object.creation_timestamp(), selected.name()));

    let mut all = Added::default();
    let mut pods = BTreeSet::new();
    for (selected, rules) in objects {
        let Some(added) = outcomes.value(of_object(scope, nodes, &rules), selected) else {
            continue;
        };
        all.remotes.extend(added.remotes);
        all.unmarked.extend(added.unmarked);
        all.marked.extend(added.marked);
        let routes = rules.iter().flat_map(|rule| &rule.routes);
        let of_pods = routes.filter(|route| route.is_for_pod && route.destination.is_host());
        pods.extend(of_pods.map(|route| route.destination.network()));
    }

    // The prefixes of a map are unique.
    let lpm = |routes| Lpm::new(routes).unwrap_or_default();
    let mut marked: BTreeMap<u32, Vec<(Prefix, NodeId)>> = BTreeMap::new();
    for ((mark, prefix), node) in all.marked {
        marked.entry(mark).or_default().push((prefix, node));
    }
    let node_routes = NodeRoutes {
        unmarked: lpm(all.unmarked.clone().into_iter().collect()),
        marked: marked.into_iter().map(|(mark, routes)| (mark, lpm(routes))).collect(),
    };

    Routes {
        remotes: all.remotes.into_iter().collect(),
        node_routes,
        node_prefixes: all.unmarked,
        pods,
    }
}

fn of_object(scope: &Scope, nodes: &Nodes, rules: &[Rule]) -> Result<Added, Problem> {
    let mut table: Vec<&Route> = rules.iter().flat_map(|rule| &rule.routes).collect();
    // Of several that cover the whole destination of a rule, the longest one is entered last.
    table.sort_by_key(|route| route.destination.len_bits());

    let mut added = Added::default();
    for (number, rule) in rules.iter().enumerate() {
        let origin = origin(nodes, number, rule)?;
        for route in &table {
            let Some(prefix) = common(rule.destination, route.destination) else {
                continue;
            };
            let on_link = route.next_hop.is_none();
            match (&origin, target(scope, nodes, route), rule.mark.unwrap_or(0)) {
                (Origin::Nowhere, _, _) => {}
                (Origin::Node, Some(Target::Tunnel), 0) => {
                    added.remotes.insert(prefix);
                }
                (Origin::Tunnel, Some(Target::Node(node)), 0) => {
                    added.unmarked.insert(prefix, node);
                }
                (Origin::Any, Some(Target::Node(node)), 0) if on_link => {
                    added.unmarked.insert(prefix, node);
                }
                (Origin::Any | Origin::Tunnel, Some(Target::Node(node)), mark) if mark > 0 => {
                    added.marked.insert((mark, prefix), node);
                }
                (Origin::Any | Origin::Tunnel | Origin::Node, _, _) => {
                    let destination = route.destination;
                    return Err(Problem::Target { rule: number, destination });
                }
            }
        }
    }

    Ok(added)
}

fn origin(nodes: &Nodes, number: usize, rule: &Rule) -> Result<Origin, Problem> {
    let others = [
        ("src", rule.source.is_some()),
        ("oif", rule.output.is_some()),
        ("priority", rule.priority.is_some()),
    ];
    if let Some((field, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
        return Err(Problem::Selector { rule: number, field });
    }
    let Some(name) = &rule.input else {
        return Ok(Origin::Any);
    };
    let devices = nodes.named(name);

    if devices.is_empty() {
        return Ok(Origin::Nowhere);
    }
    match (devices.contains(Device::Tunnel), devices.is_tunnel()) {
        (true, true) => Ok(Origin::Tunnel),
        (false, _) => Ok(Origin::Node),
        // Packets from a node and from the tunnel cannot have one route.
        (true, false) => Err(Problem::Selector { rule: number, field: "iif" }),
    }
}

fn target(scope: &Scope, nodes: &Nodes, route: &Route) -> Option<Target> {
    let is_into_tunnel = route.next_hop == Some(scope.peer_address)
        || route.device.as_deref().is_some_and(is_tunnel);
    if is_into_tunnel {
        return Some(Target::Tunnel);
    }

    nodes.behind(route).map(Target::Node)
}

/// The destinations that are in both.
fn common(of_rule: Option<Prefix>, of_route: Prefix) -> Option<Prefix> {
    match of_rule {
        Some(of_rule) if of_route.covers(of_rule) => Some(of_rule),
        Some(of_rule) if !of_rule.covers(of_route) => None,
        Some(_) | None => Some(of_route),
    }
}
