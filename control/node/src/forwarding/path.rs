//! How packets reach a gateway, and what prevents it.

use std::net::IpAddr;

use remap::Prefix;

/// The path of packets for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Path {
    /// To the pod of the gateway, on this node.
    Pod,
    /// To its node, a neighbour.
    Direct,
    /// To its node, inside VXLAN.
    Vxlan,
    /// To the former next hops, as no gateway is known.
    Former,
    /// The packets are rejected as unreachable.
    Unreachable,
}

/// Why packets are rejected, or go to the former next hop, though a gateway is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathProblem {
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

impl PathProblem {
    /// The prefix that it concerns, if not all.
    pub(crate) const fn prefix(&self) -> Option<Prefix> {
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
    pub(crate) const ALL: [Self; 5] =
        [Self::Pod, Self::Direct, Self::Vxlan, Self::Former, Self::Unreachable];

    /// The value of the label `path`. Part of our public interface.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Direct => "direct",
            Self::Vxlan => "vxlan",
            Self::Former => "as_before",
            Self::Unreachable => "unreachable",
        }
    }
}
