//! From the cluster to an external address of its own: there and back (RFC 4787 section 6).

use std::net::IpAddr;

use remap::{Arrival, Source};

use super::{Context, Endpoint, has_address, write};
use crate::DropReason;
use crate::engine::flows::{OWN_REALM, Seen};
use crate::packet::rewrite::{Checksum, Side};
use crate::packet::{Header, icmp, ports::Ports};

/// Gives `packet` the addresses with which it comes back into the cluster: the host behind the
/// external address as its destination, and an external source, so that the answer comes this way too.
///
/// # Errors
///
/// [`DropReason::NoRoute`] if the destination is no external address of ours, or the source cannot
/// have one.
pub(super) fn hairpin(
    context: &Context<'_>,
    packet: &mut [u8],
    header: &mut Header,
    checksum: Checksum,
) -> Result<(), DropReason> {
    let Context { forwarding, flows, memory, now } = context;
    let table = forwarding.table();
    let (source, destination) = (header.source(), header.destination());

    let to: Endpoint = match table.arrival(destination) {
        Arrival::Known => return Err(DropReason::NoRoute),
        Arrival::Mapped(internal) | Arrival::Answered(internal) => (internal, None),
        Arrival::Shared => {
            let ports = Ports::read(packet, header).ok_or(DropReason::NoMapping)?;
            let (address, port) = whoever_has(context, header, (destination, ports.destination))?;
            (address, Some(port))
        }
    };
    if icmp::embedded(packet, header).is_some() {
        return Err(DropReason::NoRoute);
    }
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
    write(packet, header, Side::Source, from, checksum)?;
    Ok(())
}

/// Which of our hosts uses a shared address and port, towards whichever remote.
fn whoever_has(
    context: &Context<'_>,
    header: &Header,
    external: (IpAddr, u16),
) -> Result<(IpAddr, u16), DropReason> {
    let realms = context.forwarding.peers().iter().map(|peer| peer.realm);

    std::iter::once(OWN_REALM)
        .chain(realms)
        .find_map(|realm| {
            context.flows.internal_of(realm, header.protocol(), external, context.now)
        })
        .ok_or(DropReason::NoMapping)
}
