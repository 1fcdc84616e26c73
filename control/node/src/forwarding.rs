//! Desired routes and neighbours, from next hops and the kernel's view of the network. Pure.
//!
//! ```text
//! gateway on this node      prefix via POD          dev the interface that reaches the pod
//! its node is a neighbour   prefix via NODE         dev the interface that reaches the node
//! behind a router           prefix via NODE         dev the VXLAN device, which has NODE as a fixed
//!                                                   neighbour and sends its frames to NODE
//! the pod ends VXLAN        prefix via POD          dev the VXLAN device, likewise
//! each prefix, behind that  prefix unreachable      with the highest metric
//! ```
//!
//! A prefix with several gateways has one route with a next hop for each.

mod path;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use remap::Prefix;
use strait_api::vxlan;

use super::flags::{OverlaySettings, Vxlan};
use super::state::{Mac, NextHop, RouteKey, State, Target, Version};
use crate::plan::{Hop, Places, Plan};
pub(super) use path::{Path, PathProblem};

/// Outer IPv4 header 20, UDP 8, VXLAN 8, inner Ethernet 14 bytes (RFC 7348 section 5).
const OVERHEAD_BYTES: u32 = 50;

/// The additional length of an outer IPv6 header.
const OVERHEAD_BYTES_IPV6: u32 = 20;

/// The kernel's view of the network.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkView {
    /// How pods here and other nodes are reached; those without a route are missing.
    pub(super) reach: BTreeMap<IpAddr, Reach>,
    /// The `InternalIP`s of this node that are on one of its interfaces, in the order of the Node.
    pub(super) own: Vec<OwnAddress>,
    /// Whether another node is behind a router; `None` while that is not known of all of them.
    pub(super) has_far_nodes: Option<bool>,
}

/// How an address is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// On the network of this interface.
    Neighbour { device: u32 },
    /// Through a router.
    Routed,
}

/// An address of this node and the MTU of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnAddress {
    pub(super) address: IpAddr,
    pub(super) mtu_bytes: u32,
}

/// The desired VXLAN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlay {
    pub(super) device: String,
    pub(super) vni: u32,
    pub(super) port: u16,
    /// The source of its datagrams, and the destination of those of other nodes.
    pub(super) local: IpAddr,
    pub(super) mac: Mac,
    pub(super) mtu_bytes: u32,
}

/// The existing VXLAN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VxlanDevice {
    /// The index of the interface.
    pub(super) index: u32,
    /// The source of its datagrams; `None` if its settings are wrong: then existing routes stay on it, and no new ones
    /// are added.
    pub(super) local: Option<IpAddr>,
}

/// The desired kernel state, and the problems that limit it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Desired {
    pub(super) state: State,
    /// The paths of each prefix: one for each kind of next hop.
    pub(super) paths: BTreeMap<Prefix, BTreeSet<Path>>,
    pub(super) problems: Vec<PathProblem>,
    /// The next hops that routes may get from one moment to the next.
    pub(super) reserve: BTreeSet<NextHop>,
}

/// The VXLAN device, if it is needed: to reach another node, or for a node behind a router to reach a gateway here.
/// `before` is the kernel's state, if the device exists: then it is kept while it is not known that it is not needed.
/// Packets may use it as before, and those of others come in by it.
///
/// # Errors
///
/// [`PathProblem::NoOwnAddress`]; an existing device stays as it is.
pub(super) fn overlay(
    plan: &Plan,
    view: &NetworkView,
    vxlan: Vxlan,
    settings: &OverlaySettings,
    before: Option<&State>,
) -> Result<Option<Overlay>, PathProblem> {
    // `None` where it is not known.
    let need_of_former = |prefix: &Prefix| {
        let before = before.and_then(|before| before.route(prefix.to_net()));
        let goes_on = before.is_some_and(|before| may_go_on(plan, *prefix, before).is_some());
        if goes_on { None } else { Some(false) }
    };
    let need_of_hop = |hop: &Hop| match (hop, vxlan) {
        (_, Vxlan::Never) => Some(false),
        (Hop::Overlay { .. }, Vxlan::Auto | Vxlan::Always)
        | (Hop::Pod(_) | Hop::Node { .. }, Vxlan::Always) => Some(true),
        (Hop::Pod(_), Vxlan::Auto) => view.has_far_nodes,
        (Hop::Node { address, .. }, Vxlan::Auto) => {
            view.reach.get(address).map(|reach| *reach == Reach::Routed)
        }
    };
    let without_hops = plan.hops.iter().filter(|(_, hops)| hops.is_empty());
    // Also for the hops in reserve: a new device would be too late.
    let hops = plan.hops.values().chain(plan.reserve.values()).flatten();
    let needs: BTreeSet<_> = without_hops
        .map(|(prefix, _)| need_of_former(prefix))
        .chain(hops.map(need_of_hop))
        .collect();
    let stays = before.is_some() && (!plan.is_complete || needs.contains(&None));
    if !stays && !needs.contains(&Some(true)) {
        return Ok(None);
    }
    let OwnAddress { address, mtu_bytes } = view.own.first().ok_or(PathProblem::NoOwnAddress)?;
    let more = if address.is_ipv6() { OVERHEAD_BYTES_IPV6 } else { 0 };
    let OverlaySettings { device, vni, port, mtu_bytes: chosen } = settings.clone();

    Ok(Some(Overlay {
        device,
        vni,
        port,
        local: *address,
        mac: Mac::of_node(*address),
        mtu_bytes: chosen
            .map_or_else(|| mtu_bytes.saturating_sub(OVERHEAD_BYTES + more), u32::from),
    }))
}

/// The desired kernel state; `found` is the present one.
pub(super) fn desired(
    plan: &Plan,
    view: &NetworkView,
    vxlan: Vxlan,
    device: Option<VxlanDevice>,
    found: &State,
) -> Desired {
    let mut wanted = Desired::default();
    let site = Site { plan, view, vxlan, device };
    for (prefix, hops) in &plan.hops {
        let target = site.target(*prefix, hops, &mut wanted);
        // The pod of this node may be out of reach though its gateway forwards, or has just done so.
        let target = target.or_else(|| {
            let others = plan.reserve.get(prefix).filter(|_| !hops.is_empty())?;
            site.target(*prefix, &(others - hops), &mut wanted)
        });
        let net = prefix.to_net();
        let before = found.route(net).and_then(|before| may_go_on(plan, *prefix, before));
        let (paths, target) = match (target, before) {
            (Some((paths, target)), _) => (paths, Some(target)),
            (None, Some(before)) => {
                keep_next_hops(&before, device, found, &mut wanted.state);
                for (part, target) in found.parts(net) {
                    if let Some(target) = may_go_on(plan, *prefix, target) {
                        keep_next_hops(&target, device, found, &mut wanted.state);
                        wanted.state.routes.insert(RouteKey::of(part), target);
                    }
                }
                ([Path::Former].into(), Some(before))
            }
            (None, None) => ([Path::Unreachable].into(), None),
        };
        wanted.paths.insert(*prefix, paths);
        let routes = &mut wanted.state.routes;
        routes.extend(target.map(|target| (RouteKey::of(net), target)));
        routes.insert(RouteKey::of_last_resort(net), Target::Unreachable);
        wanted.state.rules.insert(Version::of(net));
    }
    let parts = plan.hops_of_parts.iter().filter(|(part, _)| !plan.hops.contains_key(part));
    for (part, hops) in parts {
        // Without a last resort: that of the whole prefix is behind it, and so are the other gateways.
        if let Some((_, target)) = site.target(*part, hops, &mut wanted) {
            wanted.state.routes.insert(RouteKey::of(part.to_net()), target);
        }
    }
    for (prefix, hops) in &plan.reserve {
        // What is wrong with a way matters once packets take it.
        let next_hops =
            hops.iter().filter_map(|hop| site.next_hop(*prefix, hop, &mut wanted.state).ok()?);
        wanted.reserve.extend(next_hops.map(|(_, next_hop)| next_hop));
    }
    if !plan.is_complete {
        // Any of the routes may belong to an object that cannot be read.
        let State { routes, rules, neighbours, forwarding } = found.clone();
        let state = &mut wanted.state;
        state.rules.extend(rules);
        let planned: BTreeSet<_> = plan.hops.keys().map(Prefix::to_net).collect();
        let parts = planned.iter().flat_map(|net| found.parts(*net)).map(|(part, _)| part);
        let planned: BTreeSet<_> = planned.iter().copied().chain(parts).collect();
        for (key, target) in routes.iter().filter(|(key, _)| !planned.contains(&key.prefix)) {
            state.routes.extend(kept(target, &plan.other_places).map(|target| (*key, target)));
        }
        for (ip, mac) in neighbours {
            state.neighbours.entry(ip).or_insert(mac);
        }
        for (mac, ip) in forwarding {
            state.forwarding.entry(mac).or_insert(ip);
        }
    }

    wanted
}

/// The former target of `prefix` with those next hops that the gateway may still be behind, if there are any.
fn may_go_on(plan: &Plan, prefix: Prefix, before: &Target) -> Option<Target> {
    kept(before, plan.places.get(&prefix)?)
}

/// `target` with those of its next hops that lead to one of `places`, if there are any.
fn kept(target: &Target, places: &Places) -> Option<Target> {
    let Target::Via { hops, source } = target else { return Some(Target::Unreachable) };
    let hops: BTreeSet<_> =
        hops.iter().filter(|hop| leads_to(hop.gateway, places)).copied().collect();

    (!hops.is_empty()).then_some(Target::Via { hops, source: *source })
}

/// Whether `next_hop` leads to one of `places`.
fn leads_to(next_hop: IpAddr, places: &Places) -> bool {
    let is_there =
        |place: &IpAddr| next_hop == *place || next_hop == Mac::of_node(*place).link_local();

    places.is_incomplete || places.addresses.iter().any(is_there)
}

/// Everything that determines the target of a hop.
#[derive(Clone, Copy)]
struct Site<'a> {
    plan: &'a Plan,
    view: &'a NetworkView,
    vxlan: Vxlan,
    device: Option<VxlanDevice>,
}

impl Site<'_> {
    /// The target of packets for `prefix` and the paths to it, as far as they are known. What else it needs, and what is
    /// wrong with a hop, is added to `wanted`.
    fn target(
        &self,
        prefix: Prefix,
        hops: &BTreeSet<Hop>,
        wanted: &mut Desired,
    ) -> Option<(BTreeSet<Path>, Target)> {
        let (mut paths, mut next_hops) = (BTreeSet::new(), BTreeSet::new());
        for hop in hops {
            match self.next_hop(prefix, hop, &mut wanted.state) {
                Ok(Some((path, next_hop))) => {
                    paths.insert(path);
                    next_hops.insert(next_hop);
                }
                Ok(None) => {}
                Err(problem) => wanted.problems.push(problem),
            }
        }
        let source = self.source(prefix);

        (!next_hops.is_empty()).then_some((paths, Target::Via { hops: next_hops, source }))
    }

    /// The next hop of packets for `prefix`, if it is known; the entries that it needs beside the route are added to
    /// `state`.
    fn next_hop(
        &self,
        prefix: Prefix,
        hop: &Hop,
        state: &mut State,
    ) -> Result<Option<(Path, NextHop)>, PathProblem> {
        let reach = |address: &IpAddr| self.view.reach.get(address).copied();
        let via = |gateway, device| NextHop { gateway, device };
        match hop {
            Hop::Pod(pod) => match reach(pod) {
                Some(Reach::Neighbour { device }) => Ok(Some((Path::Pod, via(*pod, device)))),
                Some(Reach::Routed) | None => Err(PathProblem::PodNotReached { prefix, pod: *pod }),
            },
            Hop::Node { name, address } => match (reach(address), self.vxlan) {
                (Some(Reach::Neighbour { device }), Vxlan::Auto | Vxlan::Never) => {
                    Ok(Some((Path::Direct, via(*address, device))))
                }
                (Some(Reach::Routed), Vxlan::Never) => {
                    Err(PathProblem::Far { prefix, node: name.clone() })
                }
                (None, _) => {
                    let (node, address) = (name.clone(), *address);
                    Err(PathProblem::NodeNotReached { prefix, node, address })
                }
                (Some(_), Vxlan::Auto | Vxlan::Always) => {
                    let Some(VxlanDevice { index, local: Some(local) }) = self.device else {
                        return Ok(None);
                    };
                    let all = self.plan.others.get(name).map(Vec::as_slice).unwrap_or_default();
                    let far = far_end(all, local).ok_or_else(|| PathProblem::NoCommonVersion {
                        prefix,
                        to: format!("node {name}"),
                        own: local,
                    })?;
                    let next = add_neighbour(*address, far, state);
                    Ok(Some((Path::Vxlan, via(next, index))))
                }
            },
            Hop::Overlay { pod, .. } if self.vxlan == Vxlan::Never => {
                Err(PathProblem::OverlayOnly { prefix, pod: pod.clone() })
            }
            Hop::Overlay { pod, addresses } => {
                let Some(VxlanDevice { index, local: Some(local) }) = self.device else {
                    return Ok(None);
                };
                let address = addresses.iter().find(|it| it.is_ipv4() == prefix.is_ipv4());
                let (Some(address), Some(far)) = (address, far_end(addresses, local)) else {
                    let to = format!("pod {pod}");
                    return Err(PathProblem::NoCommonVersion { prefix, to, own: local });
                };
                let next = add_neighbour(*address, far, state);
                Ok(Some((Path::Vxlan, via(next, index))))
            }
        }
    }

    /// The source for packets of this host: an address that the gateway accepts, of all those of the host.
    fn source(&self, prefix: Prefix) -> Option<IpAddr> {
        let own = self.view.own.iter().map(|own| own.address);

        own.into_iter().find(|address| address.is_ipv4() == prefix.is_ipv4())
    }
}

/// The outer address of the other end, of `addresses`, for datagrams from `own`.
fn far_end(addresses: &[IpAddr], own: IpAddr) -> Option<IpAddr> {
    addresses.iter().copied().find(|address| address.is_ipv4() == own.is_ipv4())
}

/// Adds the entries for the next hop with `address`, to which VXLAN goes in datagrams to `far`. Returns the next hop.
fn add_neighbour(address: IpAddr, far: IpAddr, state: &mut State) -> IpAddr {
    let mac = Mac::of_node(far);
    // The kernel refuses an IPv6 next hop that it has a route to on another interface, unless it is link-local.
    let next = match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(_) => IpAddr::V6(mac.link_local()),
    };
    state.neighbours.insert(next, mac);
    state.forwarding.insert(mac, far);

    next
}

/// Keeps the entries that the route to `target` needs on the VXLAN device.
fn keep_next_hops(target: &Target, vxlan: Option<VxlanDevice>, found: &State, state: &mut State) {
    let Some(vxlan) = vxlan else { return };
    for NextHop { gateway, .. } in target.hops().filter(|hop| hop.device == vxlan.index) {
        if let Some(mac) = found.neighbours.get(gateway) {
            state.neighbours.entry(*gateway).or_insert(*mac);
            if let Some(far) = found.forwarding.get(mac) {
                state.forwarding.entry(*mac).or_insert(*far);
            }
        }
    }
}

impl Mac {
    /// The MAC address of the VXLAN device of the node with this address.
    pub(super) fn of_node(address: IpAddr) -> Self {
        Self(vxlan::station(address))
    }

    /// The link-local address that an interface gives itself (RFC 4291 appendix A).
    fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let half = [a ^ 0b10, b, c, 0xff, 0xfe, d, e, f];

        Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(u64::from_be_bytes(half)))
    }
}

impl fmt::Display for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, vni, port, local, mac, mtu_bytes } = self;

        write!(f, "{device} VNI {vni} port {port} from {local} as {mac}, MTU {mtu_bytes}")
    }
}

#[cfg(test)]
mod tests;
