//! The remedy for a drop: one sentence with the values that caused it.

use std::net::IpAddr;

use remap::{Destination, PeerId, Rule};

use super::{Direction, Question};
use crate::Forwarding;
use strait_packet::DropReason;

/// Why the packet of `question`, to or from `peer`, was dropped, and what helps.
pub(super) fn remedy(
    forwarding: &Forwarding,
    question: &Question,
    peer: Option<PeerId>,
    reason: DropReason,
) -> String {
    let Question { source, destination, content, .. } = question;
    let name = peer.and_then(|id| forwarding.name(id)).unwrap_or("the peer");

    match reason {
        DropReason::NoRoute => no_route(forwarding, *source, *destination),
        DropReason::SourceNotAllowed => source_not_allowed(forwarding, *source, peer),
        DropReason::Untranslatable => untranslatable(forwarding, question, peer),
        DropReason::NoEndpoint => format!(
            "{name} has no known endpoint: wait until it sends a handshake, or configure an endpoint that resolves"
        ),
        DropReason::AddressAuthenticated => {
            "an authentication header (AH) covers the addresses that would change: use ESP"
                .to_owned()
        }
        DropReason::NoMapping => {
            let port = content.destination_port();
            let port = port.map_or_else(String::new, |port| format!(" port {port}"));
            format!(
                "no flow from the cluster to {name} uses {destination}{port}: \
                 the first packet must come from the cluster, or give the host a host_map"
            )
        }
        DropReason::MasqueradeFull if question.direction == Direction::Inbound => format!(
            "{destination} is the external address of a host that is also reachable by its own address, and \
             no flow entry is left to record which of them {source} uses: raise max_flows"
        ),
        DropReason::MasqueradeShare if question.direction == Direction::Inbound => format!(
            "{source} has reached the limit of flows from one remote address to hosts that, like \
             {destination}, have two addresses: end some of them"
        ),
        DropReason::MasqueradeFull => format!(
            "{source} needs a port of a shared address and none is left: \
             raise max_flows, or add an address to masquerade"
        ),
        DropReason::MasqueradeShare => format!(
            "{source} has reached the limit of masqueraded flows of one source: \
             end some of them, or give it a host_map"
        ),
        DropReason::MasqueradeProtocol => format!(
            "{source} would share an external address, but this protocol has no ports to distinguish \
             sources: give it a host_map"
        ),
        DropReason::SourceRouted => {
            "an IPv6 routing header of type 0 may not be forwarded (RFC 5095)".to_owned()
        }
        DropReason::RoutingLoop => format!(
            "this is a datagram of the tunnel, which cannot carry itself: give {destination} a route of \
             its own that does not lead to the device"
        ),
        DropReason::Filtered | DropReason::Rejected => format!(
            "a rule of a FirewallConfiguration for this gateway drops packets from {source} to {destination}: \
             change or delete it"
        ),
        // Not possible for the packet of a question.
        DropReason::Malformed
        | DropReason::StagingFull
        | DropReason::HandshakeTimeout
        | DropReason::UnknownIndex
        | DropReason::NoSession
        | DropReason::Unauthenticated
        | DropReason::Replayed
        | DropReason::UnderLoad
        | DropReason::CongestionUnmarkable
        | DropReason::WriteFailed
        | DropReason::HandshakeQueueFull
        | DropReason::PeerRemoved
        | DropReason::FragmentUnknown
        | DropReason::OverlaySource
        | DropReason::OverlayVni
        | DropReason::OverlayHeader
        | DropReason::OverlayFrame
        | DropReason::NoNode => {
            format!("this packet is counted under reason={:?}", reason.label())
        }
    }
}

fn no_route(forwarding: &Forwarding, source: IpAddr, destination: IpAddr) -> String {
    if !matches!(
        forwarding.table().destination(destination),
        Destination::Known | Destination::UnmappedReplies
    ) {
        return format!(
            "{destination} is an external address of this cluster, but {source} has no external address \
             for the answers: give it a host_map, or list an address in masquerade"
        );
    }
    if let Some((peer, rule, local)) = remapped(forwarding, destination) {
        return format!("{destination} is the real address at {peer}: send to {local} ({rule})");
    }

    format!(
        "no remap covers {destination} and it is in no peer's allowed_ips: \
         add it to the peer that has it"
    )
}

/// The peer with this real address, the rule that remaps it, and the remapped address.
fn remapped(forwarding: &Forwarding, real: IpAddr) -> Option<(&str, Rule, IpAddr)> {
    (0..).map(PeerId).zip(forwarding.named_peers()).find_map(|(id, (name, _))| {
        let rule = forwarding.table().inbound_rule(id, real)?;
        Some((name, *rule, rule.to_local(real)?))
    })
}

fn source_not_allowed(forwarding: &Forwarding, source: IpAddr, peer: Option<PeerId>) -> String {
    let named = |id: PeerId| forwarding.name(id).unwrap_or("a peer");
    if let Some((owner, rule)) = forwarding.table().outbound_rule(source) {
        let real = rule.to_remote(source).map_or_else(String::new, |real| format!(" {real}"));
        return format!(
            "{source} is a remapped address of {} ({rule}): \
             on the wire it is{real}",
            named(owner)
        );
    }
    let Some(peer) = peer else {
        return format!("{source} is in no peer's allowed_ips: add it to the peer that has it");
    };

    match forwarding.allowed_ips().owner(source) {
        Some(owner) if owner != peer => {
            let prefix = forwarding.allowed_ips().covering(owner, source);
            let prefix = prefix.map_or_else(String::new, |prefix| format!("{prefix} of "));
            format!(
                "{source} belongs to {prefix}{}, not to {}: list it in the allowed_ips of one of them",
                named(owner),
                named(peer)
            )
        }
        _ => format!("{source} is not in the allowed_ips of {0}: add it to {0}", named(peer)),
    }
}

fn untranslatable(forwarding: &Forwarding, question: &Question, peer: Option<PeerId>) -> String {
    let Question { direction, source, destination, .. } = question;
    let table = forwarding.table();
    let (address, rule) = match direction {
        Direction::Outbound => {
            (destination, table.outbound_rule(*destination).map(|(_, rule)| rule))
        }
        Direction::Inbound => (source, peer.and_then(|id| table.inbound_rule(id, *source))),
    };
    let rule = rule.map_or_else(|| "its rule".to_owned(), |rule| rule.to_string());

    format!(
        "{address} has no counterpart in {rule}: \
         use another address, or a rule that is not checksum-neutral (RFC 6296)"
    )
}
