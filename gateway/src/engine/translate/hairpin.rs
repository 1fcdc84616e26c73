//! From the cluster to an external address of its own: there and back (RFC 4787 section 6).

use std::net::IpAddr;

use remap::{Arrival, Source};

use super::{Context, Endpoint, has_address, write, write_embedded};
use crate::DropReason;
use crate::engine::flows::{OWN_REALM, Seen};
use crate::packet::icmp::{self, Embedded};
use crate::packet::rewrite::{Checksum, Side};
use crate::packet::{Header, ports::Ports};

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

    let to: Endpoint = match table.arrival(destination) {
        Arrival::Known => return Err(DropReason::NoRoute),
        Arrival::Mapped(internal) | Arrival::Answered(internal) => (internal, None),
        Arrival::Shared => {
            let ports = Ports::read(packet, header).ok_or(DropReason::NoMapping)?;
            whoever_has(context, header.protocol(), (destination, ports.destination))?
        }
    };
    let from: Endpoint = match table.source(source) {
        Source::Mapped(external) | Source::Answering(external) => (external, None),
        Source::Known | Source::Unknown => {
            let pool = table.masquerade();
            if !has_address(pool, source) {
                return Err(DropReason::NoRoute);
            }
            flows.leave(OWN_REALM, Seen { packet, header }, to.0, pool, *memory, *now)?
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

    let to: Endpoint = match table.arrival(sender) {
        Arrival::Known => return Err(DropReason::NoRoute),
        Arrival::Mapped(internal) | Arrival::Answered(internal) => (internal, None),
        Arrival::Shared => {
            let port = ports.ok_or(DropReason::NoMapping)?.source;
            whoever_has(context, protocol, (sender, port))?
        }
    };
    let called: Endpoint = match table.source(target) {
        Source::Mapped(external) | Source::Answering(external) => (external, None),
        Source::Known | Source::Unknown => {
            let port = ports.ok_or(DropReason::NoMapping)?.destination;
            known_as(context, protocol, (target, port))?
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

/// Which of our hosts uses a shared address and port, towards whichever remote.
fn whoever_has(
    context: &Context<'_>,
    protocol: u8,
    external: (IpAddr, u16),
) -> Result<Endpoint, DropReason> {
    realms(context)
        .find_map(|realm| context.flows.internal_of(realm, protocol, external, context.now))
        .map(|(address, port)| (address, Some(port)))
        .ok_or(DropReason::NoMapping)
}

/// Which shared address and port one of our hosts has, towards whichever remote.
fn known_as(
    context: &Context<'_>,
    protocol: u8,
    internal: (IpAddr, u16),
) -> Result<Endpoint, DropReason> {
    realms(context)
        .find_map(|realm| context.flows.external_of(realm, protocol, internal, context.now))
        .map(|(address, port)| (address, Some(port)))
        .ok_or(DropReason::NoMapping)
}

/// Our own first: packets that come this way make their mappings there.
fn realms(context: &Context<'_>) -> impl Iterator<Item = u32> {
    let peers = context.forwarding.peers().iter().map(|peer| peer.realm);

    std::iter::once(OWN_REALM).chain(peers)
}
