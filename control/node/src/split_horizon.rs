//! Split horizon: packets to a remote cluster never go back to the node that they came from. Pure.
//!
//! Two nodes that have a different gateway in mind, as while one has no agent, would send them to each other until the
//! TTL ends. A packet shows by its source MAC address which node sent it: inside VXLAN that follows from the node's
//! address, and on a network in common it is what the kernel has resolved.
//!
//! # Not here
//!
//! The rules in the kernel, which reject such packets (see [`super::nftables`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::state::{Mac, NextHop, RouteKey, State};
use crate::plan::Plan;

/// The MAC addresses of neighbours, by interface and IP address.
pub(super) type Neighbours = BTreeMap<(u32, IpAddr), Mac>;

/// The prefixes that are routed to each node, by the MAC address of what that node sends.
pub(super) type PrefixesByNode = BTreeMap<Mac, BTreeSet<IpNet>>;

/// The next hops of routes, and of those in `reserve`, that are nodes on a network in common, with their interfaces.
pub(super) fn near_nodes(
    plan: &Plan,
    state: &State,
    reserve: &BTreeSet<NextHop>,
) -> BTreeSet<(u32, IpAddr)> {
    let reserve = reserve.iter().map(|NextHop { gateway, device }| (*device, *gateway));

    next_hops(state)
        .map(|(_, hop)| hop)
        .chain(reserve)
        .filter(|hop| !state.neighbours.contains_key(&hop.1) && node(plan, hop.1).is_some())
        .collect()
}

/// The prefixes that must not go back, by the node that they would go back to. A node whose MAC address may be that of
/// others as well, as behind a router that answers for all, is left out.
pub(super) fn prefixes_by_node(
    plan: &Plan,
    state: &State,
    neighbours: &Neighbours,
) -> PrefixesByNode {
    let near = near_nodes(plan, state, &BTreeSet::new());
    let mut prefixes = PrefixesByNode::new();
    for (prefix, hop) in next_hops(state) {
        let mac = match state.neighbours.get(&hop.1) {
            Some(in_vxlan) => Some(*in_vxlan),
            None if near.contains(&hop) => mac_of_near_node(plan, hop, neighbours),
            None => None,
        };
        if let Some(mac) = mac {
            prefixes.entry(mac).or_default().insert(prefix);
        }
    }

    prefixes
}

/// Each prefix with each of its next hops: interface and address.
fn next_hops(state: &State) -> impl Iterator<Item = (IpNet, (u32, IpAddr))> + '_ {
    state.routes.iter().flat_map(|(RouteKey { prefix, .. }, target)| {
        target.hops().map(|NextHop { gateway, device }| (*prefix, (*device, *gateway)))
    })
}

/// The MAC address of a node, unless another neighbour on that interface has it too.
fn mac_of_near_node(plan: &Plan, hop: (u32, IpAddr), neighbours: &Neighbours) -> Option<Mac> {
    let mac = neighbours.get(&hop)?;
    let addresses = node(plan, hop.1)?;
    let is_other = |address: &IpAddr| !addresses.contains(address) && !is_link_local(*address);
    let mut same =
        neighbours.iter().filter(|((device, _), other)| *device == hop.0 && *other == mac);

    (!same.any(|((_, address), _)| is_other(address))).then_some(*mac)
}

/// The addresses of the other node that has `address`.
fn node(plan: &Plan, address: IpAddr) -> Option<&[IpAddr]> {
    plan.others.values().find(|addresses| addresses.contains(&address)).map(Vec::as_slice)
}

/// Each host has one of IPv6.
const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::super::state::Target;
    use super::*;

    const UPLINK: u32 = 2;
    const VXLAN: u32 = 9;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn plan() -> Plan {
        let others = [("node-2", &["172.18.0.2", "fd00:18::2"][..]), ("node-3", &["172.18.3.3"])];
        let others = others.map(|(name, addresses)| {
            (name.to_owned(), addresses.iter().map(|text| ip(text)).collect())
        });

        Plan { others: others.into(), ..Plan::default() }
    }

    /// A route to node 2, which is near, one to node 3 inside VXLAN, and one to a pod of this node.
    fn state() -> State {
        let via = |gateway, device| Target::via(ip(gateway), device, None);
        let routes = [
            ("10.71.0.0/16", via("172.18.0.2", UPLINK)),
            ("10.72.0.0/16", via("172.18.3.3", VXLAN)),
            ("10.73.0.0/16", via("10.244.1.9", 5)),
        ];
        let routes = routes.map(|(prefix, target)| (RouteKey::of(net(prefix)), target));
        let mut state = State { routes: routes.into(), ..State::default() };
        state.routes.insert(RouteKey::of_last_resort(net("10.71.0.0/16")), Target::Unreachable);
        state.neighbours.insert(ip("172.18.3.3"), Mac::of_node(ip("172.18.3.3")));

        state
    }

    fn neighbours(all: &[(u32, &str, u8)]) -> Neighbours {
        all.iter().map(|(device, address, mac)| ((*device, ip(address)), Mac([*mac; 6]))).collect()
    }

    #[test]
    fn each_nodes_prefixes_are_listed_by_mac() {
        let far = (Mac::of_node(ip("172.18.3.3")), [net("10.72.0.0/16")].into());
        let near = |mac| (Mac([mac; 6]), [net("10.71.0.0/16")].into());
        let (plan, state) = (plan(), state());

        let near_one = [(UPLINK, ip("172.18.0.2"))].into();
        assert_eq!(near_nodes(&plan, &state, &BTreeSet::new()), near_one);
        assert_eq!(prefixes_by_node(&plan, &state, &Neighbours::new()), [far.clone()].into());
        let known = neighbours(&[
            (UPLINK, "172.18.0.2", 2),
            (UPLINK, "fd00:18::2", 2),
            (UPLINK, "fe80::2", 2),
            (UPLINK, "172.18.0.254", 7),
            (VXLAN, "172.18.0.9", 2),
            (5, "10.244.1.9", 4),
        ]);
        assert_eq!(prefixes_by_node(&plan, &state, &known), [near(2), far].into());
    }

    /// A route to both nodes, and one to a pod of this node with node 2 in reserve.
    #[test]
    fn each_of_several_hops_gets_nothing_back() {
        let hop = |gateway, device| NextHop { gateway: ip(gateway), device };
        let mut state = state();
        state.routes.clear();
        let hops = [hop("172.18.0.2", UPLINK), hop("172.18.3.3", VXLAN)].into();
        let whole = net("10.71.0.0/16");
        state.routes.insert(RouteKey::of(whole), Target::Via { hops, source: None });
        let known = neighbours(&[(UPLINK, "172.18.0.2", 2)]);

        let prefixes = prefixes_by_node(&plan(), &state, &known);

        let macs = [Mac([2; 6]), Mac::of_node(ip("172.18.3.3"))];
        assert_eq!(prefixes, macs.map(|mac| (mac, [whole].into())).into());

        let pod = Target::via(ip("10.244.1.9"), 5, None);
        state.routes.insert(RouteKey::of(whole), pod);
        let reserve = [hop("172.18.0.2", UPLINK), hop("172.18.3.3", VXLAN)].into();
        assert_eq!(prefixes_by_node(&plan(), &state, &known), PrefixesByNode::new());
        let near_one = [(UPLINK, ip("172.18.0.2"))].into();
        assert_eq!(near_nodes(&plan(), &state, &reserve), near_one, "it is resolved beforehand");
    }

    #[test]
    fn a_mac_of_several_hosts_shows_no_node() {
        for other in ["172.18.3.3", "172.18.0.254", "fd00:18::254"] {
            let known = neighbours(&[(UPLINK, "172.18.0.2", 2), (UPLINK, other, 2)]);
            let found = prefixes_by_node(&plan(), &state(), &known);

            let macs: Vec<_> = found.into_keys().collect();
            assert_eq!(macs, [Mac::of_node(ip("172.18.3.3"))], "{other}");
        }
    }
}
