//! From a remote to the cluster.

use std::net::IpAddr;

use remap::policy::Way;
use remap::{Destination, PeerId};

use super::policy::{self, Facts};
use super::{Context, Endpoint, clamp, write, write_embedded};
use crate::flows::OriginalPacket;
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::icmp::{self, Embedded};
use strait_packet::ports::Side;
use strait_packet::rewrite::Checksum;
use strait_wg::Peer;

/// Checks that the peer may send `packet`, and translates it to the addresses that this cluster knows.
///
/// # Errors
///
/// The reason why the packet is dropped. It may have been changed by then.
#[inline]
pub fn inbound(
    context: &Context<'_>,
    id: PeerId,
    peer: &Peer,
    packet: &mut [u8],
    header: &mut Header,
) -> Result<(), DropReason> {
    if header.is_source_routed() {
        return Err(DropReason::SourceRouted);
    }
    let local = context.forwarding.inbound(id, header.source())?;
    let facts = Facts::read(context, packet, header);

    let quoted = match icmp::embedded(packet, header) {
        Some(mut embedded) => Some(quoted(context, id, peer, packet, header, &mut embedded)?),
        None => None,
    };
    destination(context, peer, packet, header, quoted)?;
    let passing = policy::forward(context, Way::Inbound, facts, header.destination())?;
    write(packet, header, Side::Source, (local, None), Checksum::Complete)?;
    policy::leave(passing, packet, header, Checksum::Complete)?;

    Ok(clamp(packet, header, peer, Checksum::Complete)?)
}

/// Translates the packet that an ICMP error quotes, which is one of ours, back to its addresses here. Returns its
/// source.
fn quoted(
    context: &Context<'_>,
    id: PeerId,
    peer: &Peer,
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

/// Translates the destination to the address of one of our hosts.
fn destination(
    context: &Context<'_>,
    peer: &Peer,
    packet: &mut [u8],
    header: &mut Header,
    quoted: Option<IpAddr>,
) -> Result<(), DropReason> {
    let Context { forwarding, flows, flow_access, now } = context;
    let external = header.destination();

    let internal: Endpoint = match forwarding.table().destination(external) {
        Destination::Known => return Ok(()),
        Destination::UnmappedReplies => {
            if quoted.is_none() {
                flows.unpin(peer.realm, OriginalPacket { packet, header }, *flow_access, *now);
            }
            return Ok(());
        }
        Destination::Mapped(internal) => (internal, None),
        Destination::MappedReplies(internal) => {
            if quoted.is_none() {
                flows.pin(
                    peer.realm,
                    OriginalPacket { packet, header },
                    internal,
                    *flow_access,
                    *now,
                )?;
            }
            (internal, None)
        }
        // An ICMP error goes to the sender of the packet that it quotes.
        Destination::Shared => match quoted {
            Some(quoted) => (quoted, None),
            None => flows.map_inbound(
                peer.realm,
                OriginalPacket { packet, header },
                *flow_access,
                *now,
            )?,
        },
    };

    write(packet, header, Side::Destination, internal, Checksum::Complete)
}
