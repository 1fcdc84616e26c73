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

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use remap::Prefix;
use strait_api::vxlan;

use super::flags::{OverlaySettings, Vxlan};
use super::state::{Mac, RouteKey, State, Target, Version};
use crate::plan::{Hop, Places, Plan};

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
    /// The path of each prefix.
    pub(super) paths: BTreeMap<Prefix, Path>,
    pub(super) problems: Vec<PathProblem>,
}

/// The path of packets for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// To the pod of the gateway, on this node.
    Pod,
    /// To its node, a neighbour.
    Direct,
    /// To its node, inside VXLAN.
    Vxlan,
    /// To the former next hop, as no gateway is known.
    Former,
    /// The packets are rejected as unreachable.
    Unreachable,
}

/// Why packets are rejected, or go to the former next hop, though a gateway is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PathProblem {
    /// There is no route to the pod.
    #[error(
        "{prefix}: no route leads to {pod}, the pod of the gateway: has the CNI made its network?"
    )]
    PodNotReached { prefix: Prefix, pod: IpAddr },
    /// There is no route to the node, not even a default route.
    #[error("{prefix}: no route leads to {address}, node {node} with the gateway")]
    NodeNotReached { prefix: Prefix, node: String, address: IpAddr },
    /// VXLAN is switched off.
    #[error(
        "{prefix}: node {node} with the gateway is behind a router, which does not know the prefix: do without --vxlan=never"
    )]
    Far { prefix: Prefix, node: String },
    /// VXLAN is switched off, and the pod of the gateway takes nothing else.
    #[error(
        "{prefix}: pod {pod}, the gateway, takes packets in VXLAN only: do without --vxlan=never"
    )]
    OverlayOnly { prefix: Prefix, pod: String },
    /// The two have no IP version in common.
    #[error("{prefix}: {to} has no address of the version of {own}, where VXLAN begins here")]
    NoCommonVersion { prefix: Prefix, to: String, own: IpAddr },
    /// Other nodes could not send to this one.
    #[error(
        "none of the addresses of the Node is on an interface here, so there is no VXLAN: is --node-name the name of this host's Node, and is this the network of the host?"
    )]
    NoOwnAddress,
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
    let need = |(prefix, hop): (&Prefix, &Hop)| match (hop, vxlan) {
        (Hop::Former, _) => {
            let before = before.and_then(|before| before.route(prefix.to_net()));
            let goes_on = before.is_some_and(|before| may_go_on(plan, *prefix, before));
            if goes_on { None } else { Some(false) }
        }
        (_, Vxlan::Never) => Some(false),
        (Hop::Overlay { .. }, Vxlan::Auto | Vxlan::Always)
        | (Hop::Pod(_) | Hop::Node { .. }, Vxlan::Always) => Some(true),
        (Hop::Pod(_), Vxlan::Auto) => view.has_far_nodes,
        (Hop::Node { address, .. }, Vxlan::Auto) => {
            view.reach.get(address).map(|reach| *reach == Reach::Routed)
        }
    };
    let needs: Vec<_> = plan.hops.iter().map(need).collect();
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
    for (prefix, hop) in &plan.hops {
        let target = match site.target(*prefix, hop, &mut wanted.state) {
            Ok(target) => target,
            Err(problem) => {
                wanted.problems.push(problem);
                None
            }
        };
        let net = prefix.to_net();
        let before = found.route(net).filter(|before| may_go_on(plan, *prefix, *before));
        let (path, target) = match (target, before) {
            (Some((path, target)), _) => (path, Some(target)),
            (None, Some(before)) => {
                keep_next_hop(before, device, found, &mut wanted.state);
                (Path::Former, Some(before))
            }
            (None, None) => (Path::Unreachable, None),
        };
        wanted.paths.insert(*prefix, path);
        let routes = &mut wanted.state.routes;
        routes.extend(target.map(|target| (RouteKey::of(net), target)));
        routes.insert(RouteKey::of_last_resort(net), Target::Unreachable);
        wanted.state.rules.insert(Version::of(net));
    }
    if !plan.is_complete {
        // Any of the routes may belong to an object that cannot be read.
        let State { routes, rules, neighbours, forwarding } = found.clone();
        let state = &mut wanted.state;
        state.rules.extend(rules);
        let missing = |net| plan.hops.keys().all(|prefix| prefix.to_net() != net);
        let kept = routes
            .into_iter()
            .filter(|(key, target)| missing(key.prefix) && leads_to(*target, &plan.other_places));
        state.routes.extend(kept);
        for (ip, mac) in neighbours {
            state.neighbours.entry(ip).or_insert(mac);
        }
        for (mac, ip) in forwarding {
            state.forwarding.entry(mac).or_insert(ip);
        }
    }

    wanted
}

/// Whether packets for `prefix` may go to the former next hop: the gateway may still be there.
fn may_go_on(plan: &Plan, prefix: Prefix, before: Target) -> bool {
    plan.places.get(&prefix).is_some_and(|places| leads_to(before, places))
}

/// Whether `target` leads to one of `places`, or is unreachable.
fn leads_to(target: Target, places: &Places) -> bool {
    let Target::Via { gateway, .. } = target else { return true };
    let is_there =
        |place: &IpAddr| gateway == *place || gateway == Mac::of_node(*place).link_local();

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
    /// The target of packets for `prefix`, if it is known; the entries that it needs beside the route are added to
    /// `state`.
    fn target(
        &self,
        prefix: Prefix,
        hop: &Hop,
        state: &mut State,
    ) -> Result<Option<(Path, Target)>, PathProblem> {
        let reach = |address: &IpAddr| self.view.reach.get(address).copied();
        let via = |gateway, device| Target::Via { gateway, device, source: self.source(prefix) };
        match hop {
            Hop::Former => Ok(None),
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
fn keep_next_hop(target: Target, vxlan: Option<VxlanDevice>, found: &State, state: &mut State) {
    let Target::Via { gateway, device, .. } = target else { return };
    if vxlan.is_none_or(|vxlan| vxlan.index != device) {
        return;
    }
    if let Some(mac) = found.neighbours.get(&gateway) {
        state.neighbours.entry(gateway).or_insert(*mac);
        if let Some(far) = found.forwarding.get(mac) {
            state.forwarding.entry(*mac).or_insert(*far);
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

impl PathProblem {
    /// The prefix that it concerns, if not all.
    pub(super) const fn prefix(&self) -> Option<Prefix> {
        match self {
            Self::PodNotReached { prefix, .. }
            | Self::NodeNotReached { prefix, .. }
            | Self::Far { prefix, .. }
            | Self::OverlayOnly { prefix, .. }
            | Self::NoCommonVersion { prefix, .. } => Some(*prefix),
            Self::NoOwnAddress => None,
        }
    }
}

impl Path {
    pub(super) const ALL: [Self; 5] =
        [Self::Pod, Self::Direct, Self::Vxlan, Self::Former, Self::Unreachable];

    /// The value of the label `path`. Part of our public interface.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Direct => "direct",
            Self::Vxlan => "vxlan",
            Self::Former => "as_before",
            Self::Unreachable => "unreachable",
        }
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
