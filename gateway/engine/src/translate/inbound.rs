//! From a remote to the cluster.

use std::net::IpAddr;

use remap::{Destination, PeerId};

use super::{Context, Endpoint, clamp, write, write_embedded};
use crate::flows::Seen;
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::icmp::{self, Embedded};
use strait_packet::rewrite::{Checksum, Side};
use strait_wg::Peer;

/// Checks that the peer may send `packet`, and gives it the addresses that this cluster knows.
///
/// # Errors
///
/// Why it goes nowhere. The packet may have been changed by then.
#[inline]
pub fn inbound(
    context: &Context<'_>,
    (id, peer): (PeerId, &Peer),
    packet: &mut [u8],
    header: &mut Header,
) -> Result<(), DropReason> {
    if header.is_source_routed() {
        return Err(DropReason::SourceRouted);
    }
    let local = context.forwarding.inbound(id, header.source())?;

    let quoted = match icmp::embedded(packet, header) {
        Some(mut embedded) => Some(quoted(context, (id, peer), packet, header, &mut embedded)?),
        None => None,
    };
    destination(context, peer, packet, header, quoted)?;
    write(packet, header, Side::Source, (local, None), Checksum::Complete)?;

    Ok(clamp(packet, header, peer, Checksum::Complete)?)
}

/// The packet that an ICMP error quotes was ours. Gives it the addresses that it had here, and tells
/// who sent it.
fn quoted(
    context: &Context<'_>,
    (id, peer): (PeerId, &Peer),
    packet: &mut [u8],
    header: &Header,
    embedded: &mut Embedded,
) -> Result<IpAddr, DropReason> {
    let Context { forwarding, flows, now, .. } = context;
    let table = forwarding.table();
    let external = embedded.source();

    let internal: Endpoint = match table.destination(external) {
        Destination::Known | Destination::UnmappedReplies => (external, None),
        Destination::Mapped(internal) | Destination::MappedReplies(internal) => (internal, None),
        Destination::Shared => {
            let ports = embedded.ports(packet).ok_or(DropReason::NoMapping)?;
            let (address, port) = flows
                .internal_of(peer.realm, embedded.protocol(), (external, ports.source), *now)
                .ok_or(DropReason::NoMapping)?;
            (address, Some(port))
        }
    };
    write_embedded(packet, header, embedded, Side::Source, internal)?;
    if let Some(local) = table.inbound(id, embedded.destination()) {
        write_embedded(packet, header, embedded, Side::Destination, (local, None))?;
    }

    Ok(internal.0)
}

/// Finds out which of our hosts the packet is for.
fn destination(
    context: &Context<'_>,
    peer: &Peer,
    packet: &mut [u8],
    header: &mut Header,
    quoted: Option<IpAddr>,
) -> Result<(), DropReason> {
    let Context { forwarding, flows, memory, now } = context;
    let external = header.destination();

    let internal: Endpoint = match forwarding.table().destination(external) {
        Destination::Known => return Ok(()),
        Destination::UnmappedReplies => {
            if quoted.is_none() {
                flows.unpin(peer.realm, Seen { packet, header }, *memory, *now);
            }
            return Ok(());
        }
        Destination::Mapped(internal) => (internal, None),
        Destination::MappedReplies(internal) => {
            if quoted.is_none() {
                flows.pin(peer.realm, Seen { packet, header }, internal, *memory, *now)?;
            }
            (internal, None)
        }
        // An error goes to whoever sent the packet that it quotes.
        Destination::Shared => match quoted {
            Some(quoted) => (quoted, None),
            None => flows.arrive(peer.realm, Seen { packet, header }, *memory, *now)?,
        },
    };

    write(packet, header, Side::Destination, internal, Checksum::Complete)
}
