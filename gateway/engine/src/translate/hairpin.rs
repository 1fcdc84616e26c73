//! Hairpinning: packets from the cluster to an external address of its own (RFC 4787 section 6).

use std::net::IpAddr;

use remap::{Destination, Source};

use super::{Context, Endpoint, has_address, write, write_embedded};
use crate::flows::{OWN_REALM, OriginalPacket};
use strait_packet::DropReason;
use strait_packet::icmp::{self, Embedded};
use strait_packet::ports::Side;
use strait_packet::rewrite::Checksum;
use strait_packet::{Header, ports::Ports};

/// How many realms are searched for the host behind a shared address: that of this cluster and those of the first
/// peers. It bounds the cost of a packet without mapping, also with ten thousand peers.
pub(super) const REALMS_MAX: usize = 64;

/// Translates `packet` for its way back into the cluster: the destination becomes the host behind the external
/// address, the source becomes an external address, so that the answer takes the hairpin too.
///
/// # Errors
///
/// [`DropReason::NoRoute`] if the destination is no external address of ours, or the source cannot have one;
/// [`DropReason::NoMapping`] if the shared address and port is not mapped; or the reason why a new mapping was refused.
pub(super) fn hairpin(
    context: &Context<'_>,
    packet: &mut [u8],
    header: &mut Header,
    checksum: Checksum,
) -> Result<(), DropReason> {
    if let Some(mut embedded) = icmp::embedded(packet, header) {
        return error(context, packet, header, &mut embedded, checksum);
    }
    let Context { forwarding, flows, flow_access, now } = context;
    let table = forwarding.table();
    let (source, destination) = (header.source(), header.destination());

    let (realm, to): (u32, Endpoint) = match table.destination(destination) {
        Destination::Known | Destination::UnmappedReplies => return Err(DropReason::NoRoute),
        Destination::Mapped(internal) | Destination::MappedReplies(internal) => {
            (OWN_REALM, (internal, None))
        }
        Destination::Shared => {
            let ports = Ports::read(packet, header).ok_or(DropReason::NoMapping)?;
            let (external, sender) = ((destination, ports.destination), (source, ports.source));
            owner_of_shared(context, header.protocol(), external, sender)?
        }
    };
    let from: Endpoint = match table.source(source) {
        Source::Mapped(external) | Source::MappedReplies(external) => (external, None),
        Source::Known | Source::Shared => {
            let pool = table.masquerade();
            if !has_address(pool, source) {
                return Err(DropReason::NoRoute);
            }
            flows.map_outbound(
                realm,
                OriginalPacket { packet, header },
                to.0,
                pool,
                *flow_access,
                *now,
            )?
        }
    };

    write(packet, header, Side::Destination, to, checksum)?;
    write(packet, header, Side::Source, from, checksum)
}

/// An ICMP error about a hairpinned packet goes back to the sender of that packet, and quotes it as it was sent
/// (RFC 5508 section 5, REQ-7).
fn error(
    context: &Context<'_>,
    packet: &mut [u8],
    header: &mut Header,
    embedded: &mut Embedded,
    checksum: Checksum,
) -> Result<(), DropReason> {
    let table = context.forwarding.table();
    let (sender, target) = (embedded.source(), embedded.destination());
    if header.destination() != sender {
        return Err(DropReason::NoRoute);
    }
    let (protocol, ports) = (embedded.protocol(), embedded.ports(packet));

    let (realm, to): (Option<u32>, Endpoint) = match table.destination(sender) {
        Destination::Known | Destination::UnmappedReplies => return Err(DropReason::NoRoute),
        Destination::Mapped(internal) | Destination::MappedReplies(internal) => {
            (None, (internal, None))
        }
        Destination::Shared => {
            let ports = ports.ok_or(DropReason::NoMapping)?;
            let (external, other) = ((sender, ports.source), (target, ports.destination));
            let (realm, internal) = owner_of_shared(context, protocol, external, other)?;
            (Some(realm), internal)
        }
    };
    let external_target: Endpoint = match table.source(target) {
        Source::Mapped(external) | Source::MappedReplies(external) => (external, None),
        Source::Known | Source::Shared => {
            let port = ports.ok_or(DropReason::NoMapping)?.destination;
            shared_address_of(context, realm, protocol, (target, port))?
        }
    };
    // A router of ours without an external address reports with that of the target.
    let reporter = match table.source(header.source()) {
        Source::Mapped(external) | Source::MappedReplies(external) => external,
        Source::Known | Source::Shared => external_target.0,
    };

    write_embedded(packet, header, embedded, Side::Source, to)?;
    write_embedded(packet, header, embedded, Side::Destination, external_target)?;
    write(packet, header, Side::Destination, (to.0, None), checksum)?;
    write(packet, header, Side::Source, (reporter, None), checksum)
}

/// The realm whose mappings a packet from `sender` to `external` uses on its way back into the cluster: that in which
/// the host behind a shared address has its mapping.
pub(super) fn realm(
    context: &Context<'_>,
    protocol: u8,
    external: (IpAddr, u16),
    sender: (IpAddr, u16),
) -> u32 {
    match context.forwarding.table().destination(external.0) {
        Destination::Shared => owner_of_shared(context, protocol, external, sender)
            .map_or(OWN_REALM, |(realm, _)| realm),
        Destination::Known
        | Destination::UnmappedReplies
        | Destination::Mapped(_)
        | Destination::MappedReplies(_) => OWN_REALM,
    }
}

/// The host of ours behind a shared address and port, and the realm of its mapping.
///
/// Two hosts may have the same port towards different remotes. `other` is the sender of the packet: a realm in which
/// it has a mapping too is preferred, since only there the answers have the port that the question was sent to.
fn owner_of_shared(
    context: &Context<'_>,
    protocol: u8,
    external: (IpAddr, u16),
    other: (IpAddr, u16),
) -> Result<(u32, Endpoint), DropReason> {
    let Context { flows, now, .. } = context;
    let mut first = None;
    for realm in realms(context) {
        let Some((address, port)) = flows.internal_of(realm, protocol, external, *now) else {
            continue;
        };
        let found = (realm, (address, Some(port)));
        if flows.external_of(realm, protocol, other, *now).is_some() {
            return Ok(found);
        }
        first = first.or(Some(found));
    }

    first.ok_or(DropReason::NoMapping)
}

/// The shared address and port of one of our hosts, in `realm` or in the first realm that has a mapping for it.
fn shared_address_of(
    context: &Context<'_>,
    realm: Option<u32>,
    protocol: u8,
    internal: (IpAddr, u16),
) -> Result<Endpoint, DropReason> {
    realms(context)
        .filter(|of| realm.is_none_or(|realm| realm == *of))
        .find_map(|realm| context.flows.external_of(realm, protocol, internal, context.now))
        .map(|(address, port)| (address, Some(port)))
        .ok_or(DropReason::NoMapping)
}

/// The realms that are searched. Our own first: it has the mappings of packets to hosts with an external address.
fn realms(context: &Context<'_>) -> impl Iterator<Item = u32> {
    let peers = context.forwarding.peers().iter().map(|peer| peer.realm);

    std::iter::once(OWN_REALM).chain(peers).take(REALMS_MAX)
}
