//! The reasons for which packets are dropped.

use crate::rewrite::Mismatch;

/// Why a packet was dropped. One counter per variant, one variant per cause that an operator can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropReason {
    /// Truncated, or a header field contradicts the length of the packet.
    Malformed,
    /// No rule and no peer covers the destination. Usually a missing or rejected remap rule.
    NoRoute,
    /// The inner source is outside the allowed IPs of the sending peer (cryptokey routing).
    SourceNotAllowed,
    /// The peer has no endpoint yet: none configured, not resolved, or none learned.
    NoEndpoint,
    /// More packets wait for a handshake than may be staged.
    StagingFull,
    /// A staged packet was dropped because no handshake completed in time.
    HandshakeTimeout,
    /// The receiver index belongs to no peer.
    UnknownIndex,
    /// No session has that receiver index any more.
    NoSession,
    /// The authentication tag, or the MAC of a handshake message, is wrong.
    Unauthenticated,
    /// The counter was seen before or is older than the replay window; for a handshake, its timestamp.
    Replayed,
    /// A handshake message arrived under load and without a valid cookie.
    UnderLoad,
    /// Congestion was experienced on the path or in the receive queue, but the inner packet is not ECN-capable (RFC 6040).
    CongestionUnmarkable,
    /// The kernel refused the datagram or the frame.
    WriteFailed,
    /// An authentication header (AH) covers the addresses that would have to change.
    AddressAuthenticated,
    /// The handshake thread could not keep up.
    HandshakeQueueFull,
    /// A staged packet was dropped because its peer, or the peer's keys, were removed.
    PeerRemoved,
    /// An IPv6 routing header of type 0, which must not be forwarded (RFC 5095).
    SourceRouted,
    /// A checksum-neutral rule covers the address but has no counterpart for it (RFC 6296).
    Untranslatable,
    /// A packet for a shared external address, or an error about one, that belongs to no flow.
    NoMapping,
    /// Masquerade has no free external port, or no room for another flow.
    MasqueradeFull,
    /// One source has as many masqueraded flows as one source may have.
    MasqueradeShare,
    /// The source would have to share an address, but the protocol has no ports to distinguish flows.
    MasqueradeProtocol,
    /// A fragment for a shared address or host map arrived before the first one, which has the ports.
    FragmentUnknown,
    /// A datagram of this gateway came back from the device: the route to an endpoint leads into the tunnel.
    RoutingLoop,
    /// A datagram for an overlay whose outer source is no known node.
    OverlaySource,
    /// A datagram of an overlay with an identifier (VNI) that the sending node does not have.
    OverlayVni,
    /// The header of an overlay is truncated, or requires what this gateway does not support.
    OverlayHeader,
    /// A frame in an overlay holds no IP packet that may be forwarded: it has another EtherType or a VLAN tag, or a packet
    /// for one host was sent to all stations (RFC 1812 section 5.3.4).
    OverlayFrame,
    /// No node of the overlay has the destination.
    NoNode,
    /// A rule of a `FirewallConfiguration` drops the packet.
    Filtered,
    /// A rule of a `FirewallConfiguration` rejects the packet; its sender gets an ICMP error.
    Rejected,
}

impl DropReason {
    /// Every reason, in the order of [`Self::index`].
    pub const ALL: [Self; 31] = [
        Self::Malformed,
        Self::NoRoute,
        Self::SourceNotAllowed,
        Self::NoEndpoint,
        Self::StagingFull,
        Self::HandshakeTimeout,
        Self::UnknownIndex,
        Self::NoSession,
        Self::Unauthenticated,
        Self::Replayed,
        Self::UnderLoad,
        Self::CongestionUnmarkable,
        Self::WriteFailed,
        Self::AddressAuthenticated,
        Self::HandshakeQueueFull,
        Self::PeerRemoved,
        Self::SourceRouted,
        Self::Untranslatable,
        Self::NoMapping,
        Self::MasqueradeFull,
        Self::MasqueradeShare,
        Self::MasqueradeProtocol,
        Self::FragmentUnknown,
        Self::RoutingLoop,
        Self::OverlaySource,
        Self::OverlayVni,
        Self::OverlayHeader,
        Self::OverlayFrame,
        Self::NoNode,
        Self::Filtered,
        Self::Rejected,
    ];

    /// The value of the `reason` label. Part of our public interface: renaming one breaks alerts.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoRoute => "no_route",
            Self::SourceNotAllowed => "source_not_allowed",
            Self::NoEndpoint => "no_endpoint",
            Self::StagingFull => "staging_full",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::UnknownIndex => "unknown_index",
            Self::NoSession => "no_session",
            Self::Unauthenticated => "unauthenticated",
            Self::Replayed => "replayed",
            Self::UnderLoad => "under_load",
            Self::CongestionUnmarkable => "congestion_unmarkable",
            Self::WriteFailed => "write_failed",
            Self::AddressAuthenticated => "address_authenticated",
            Self::HandshakeQueueFull => "handshake_queue_full",
            Self::PeerRemoved => "peer_removed",
            Self::SourceRouted => "source_routed",
            Self::Untranslatable => "untranslatable",
            Self::NoMapping => "no_mapping",
            Self::MasqueradeFull => "masquerade_full",
            Self::MasqueradeShare => "masquerade_share",
            Self::MasqueradeProtocol => "masquerade_protocol",
            Self::FragmentUnknown => "fragment_unknown",
            Self::RoutingLoop => "routing_loop",
            Self::OverlaySource => "overlay_source",
            Self::OverlayVni => "overlay_vni",
            Self::OverlayHeader => "overlay_header",
            Self::OverlayFrame => "overlay_frame",
            Self::NoNode => "no_node",
            Self::Filtered => "filtered",
            Self::Rejected => "rejected",
        }
    }

    /// The index of this reason in [`Self::ALL`] and in arrays of counters.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant of a field-less enum fits")]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl From<Mismatch> for DropReason {
    fn from(_: Mismatch) -> Self {
        Self::Malformed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reason_has_its_index_and_label() {
        let labels: HashSet<_> = DropReason::ALL.iter().map(|reason| reason.label()).collect();

        assert_eq!(labels.len(), DropReason::ALL.len());
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }
}
