//! From the cluster to an external address of its own: there and back (RFC 4787 section 6).

use std::net::IpAddr;

use remap::{Arrival, Source};

use super::{Context, Endpoint, has_address, write, write_embedded};
use crate::flows::{OWN_REALM, Seen};
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::icmp::{self, Embedded};
use strait_packet::ports::Ports;
use strait_packet::rewrite::{Checksum, Side};

/// How many port spaces are searched for the host behind a shared address: that of this cluster and those of the
/// first peers. A packet whose host none of them has costs as much with ten thousand peers as with these.
pub(super) const REALMS_MAX: usize = 64;

/// Gives `packet` the addresses with which it comes back into the cluster: the host behind the
/// external address as its destination, and an external source, so that the answer comes this way too.
///
/// # Errors
///
/// [`DropReason::NoRoute`] if the destination is no external address of ours, or the source cannot
/// have one; [`DropReason::NoMapping`] if nobody has the shared address and port; and why a new mapping
/// was refused.
pub(super) fn hairpin(
    context: &Context<'_>,
    packet: &mut [u8],
    header: &mut Header,
    checksum: Checksum,
) -> Result<(), DropReason> {
    if let Some(mut embedded) = icmp::embedded(packet, header) {
        return error(context, packet, header, &mut embedded, checksum);
    }
    let Context { forwarding, flows, memory, now } = context;
    let table = forwarding.table();
    let (source, destination) = (header.source(), header.destination());

    let (realm, to): (u32, Endpoint) = match table.arrival(destination) {
        Arrival::Known | Arrival::Named => return Err(DropReason::NoRoute),
        Arrival::Mapped(internal) | Arrival::Answered(internal) => (OWN_REALM, (internal, None)),
        Arrival::Shared => {
            let ports = Ports::read(packet, header).ok_or(DropReason::NoMapping)?;
            let (external, sender) = ((destination, ports.destination), (source, ports.source));
            whoever_has(context, header.protocol(), external, sender)?
        }
    };
    let from: Endpoint = match table.source(source) {
        Source::Mapped(external) | Source::Answering(external) => (external, None),
        Source::Known | Source::Unknown => {
            let pool = table.masquerade();
            if !has_address(pool, source) {
                return Err(DropReason::NoRoute);
            }
            flows.leave(realm, Seen { packet, header }, to.0, pool, *memory, *now)?
        }
    };

    write(packet, header, Side::Destination, to, checksum)?;
    write(packet, header, Side::Source, from, checksum)
}

/// An ICMP error about a packet that came this way goes back to who sent that, and quotes it as it
/// was sent (RFC 5508 section 5, REQ-7).
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

    let (realm, to): (Option<u32>, Endpoint) = match table.arrival(sender) {
        Arrival::Known | Arrival::Named => return Err(DropReason::NoRoute),
        Arrival::Mapped(internal) | Arrival::Answered(internal) => (None, (internal, None)),
        Arrival::Shared => {
            let ports = ports.ok_or(DropReason::NoMapping)?;
            let (external, other) = ((sender, ports.source), (target, ports.destination));
            let (realm, internal) = whoever_has(context, protocol, external, other)?;
            (Some(realm), internal)
        }
    };
    let called: Endpoint = match table.source(target) {
        Source::Mapped(external) | Source::Answering(external) => (external, None),
        Source::Known | Source::Unknown => {
            let port = ports.ok_or(DropReason::NoMapping)?.destination;
            known_as(context, realm, protocol, (target, port))?
        }
    };
    // A router of ours that nobody has a name for reports under that of the target.
    let reporter = match table.source(header.source()) {
        Source::Mapped(external) | Source::Answering(external) => external,
        Source::Known | Source::Unknown => called.0,
    };

    write_embedded(packet, header, embedded, Side::Source, to)?;
    write_embedded(packet, header, embedded, Side::Destination, called)?;
    write(packet, header, Side::Destination, (to.0, None), checksum)?;
    write(packet, header, Side::Source, (reporter, None), checksum)
}

/// In whose port space a packet from `sender` to `external` comes back into the cluster: that in which
/// the host behind a shared address has it.
pub(super) fn realm(
    context: &Context<'_>,
    protocol: u8,
    external: (IpAddr, u16),
    sender: (IpAddr, u16),
) -> u32 {
    match context.forwarding.table().arrival(external.0) {
        Arrival::Shared => {
            whoever_has(context, protocol, external, sender).map_or(OWN_REALM, |(realm, _)| realm)
        }
        Arrival::Known | Arrival::Named | Arrival::Mapped(_) | Arrival::Answered(_) => OWN_REALM,
    }
}

/// Which of our hosts uses a shared address and port, and towards which remote.
///
/// The same port may be another host's towards another remote. `other` is whom it is to talk to: where
/// that one has a port too, the two may know each other from there, and only there would the answers
/// have the port that they were asked at.
fn whoever_has(
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

/// Which shared address and port one of our hosts has, towards the remote of `realm` or whichever.
fn known_as(
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

/// The port spaces that are searched. Our own first: packets to hosts with an address of their own make their
/// mappings there.
fn realms(context: &Context<'_>) -> impl Iterator<Item = u32> {
    let peers = context.forwarding.peers().iter().map(|peer| peer.realm);

    std::iter::once(OWN_REALM).chain(peers).take(REALMS_MAX)
}
