//! From the cluster to a remote.

use std::net::IpAddr;

use remap::Source;

use super::hairpin::hairpin;
use super::{Context, Outgoing, clamp, has_address, write, write_embedded};
use crate::Route;
use crate::flows::Seen;
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::icmp::{self, Embedded};
use strait_packet::ports::Ports;
use strait_packet::rewrite::{Checksum, Side};

/// Where a packet goes, if it can be translated. Changes nothing and remembers nothing.
///
/// # Errors
///
/// [`DropReason::SourceRouted`], [`DropReason::RoutingLoop`], or [`DropReason::Untranslatable`] if the rule that
/// covers the destination has no counterpart for it.
#[inline]
pub fn route<'a>(
    context: &Context<'a>,
    packet: &[u8],
    header: &Header,
) -> Result<Outgoing<'a>, DropReason> {
    if header.is_source_routed() {
        return Err(DropReason::SourceRouted);
    }
    if context.forwarding.is_routing_loop(packet, header, (context.now, context.memory)) {
        return Err(DropReason::RoutingLoop);
    }

    match context.forwarding.outbound(header.destination()) {
        Ok(route) => Ok(Outgoing::Peer(route)),
        Err(DropReason::NoRoute) => Ok(Outgoing::Hairpin),
        Err(reason) => Err(reason),
    }
}

/// Gives `packet` the addresses with which it goes where [`route`] says.
///
/// # Errors
///
/// Why it goes nowhere. An ICMP error may have been changed by then; any other packet is as it was, for
/// an error that quotes it.
#[inline]
pub fn outbound(
    context: &Context<'_>,
    outgoing: &Outgoing<'_>,
    packet: &mut [u8],
    header: &mut Header,
    checksum: Checksum,
) -> Result<(), DropReason> {
    let route = match outgoing {
        Outgoing::Peer(route) => route,
        Outgoing::Hairpin => return hairpin(context, packet, header, checksum),
    };

    let quoted = match icmp::embedded(packet, header) {
        Some(mut embedded) => Some(quoted(context, route, packet, header, &mut embedded)?),
        None => None,
    };
    source(context, route, packet, header, checksum, quoted)?;
    write(packet, header, Side::Destination, (route.destination, None), checksum)?;

    Ok(clamp(packet, header, route.peer, checksum)?)
}

/// The packet that an ICMP error quotes came from the remote. Gives it the addresses that it had on
/// the wire, and tells under which one of ours it came.
fn quoted(
    context: &Context<'_>,
    route: &Route<'_>,
    packet: &mut [u8],
    header: &Header,
    embedded: &mut Embedded,
) -> Result<IpAddr, DropReason> {
    let Context { forwarding, flows, now, .. } = context;
    let table = forwarding.table();
    let (internal, ports) = (embedded.destination(), embedded.ports(packet));
    let remote = match table.outbound(embedded.source()) {
        Some(real) => real.destination,
        None => embedded.source(),
    };

    let external = match table.source(internal) {
        Source::Known => (internal, None),
        Source::Mapped(external) => (external, None),
        Source::Answering(external) => {
            let answer = ports.map(|Ports { source, destination }| Ports {
                source: destination,
                destination: source,
            });
            let is_answer = flows.would_answer(
                route.peer.realm,
                embedded.protocol(),
                (internal, remote),
                answer,
                external,
                *now,
            );
            (if is_answer { external } else { internal }, None)
        }
        Source::Unknown if !has_address(table.masquerade(), internal) => (internal, None),
        Source::Unknown => {
            let port = ports.ok_or(DropReason::NoMapping)?.destination;
            let (address, port) = flows
                .external_of(route.peer.realm, embedded.protocol(), (internal, port), *now)
                .ok_or(DropReason::NoMapping)?;
            (address, Some(port))
        }
    };
    write_embedded(packet, header, embedded, Side::Destination, external)?;
    write_embedded(packet, header, embedded, Side::Source, (remote, None))?;

    Ok(external.0)
}

/// Gives the packet a source that the remote knows.
fn source(
    context: &Context<'_>,
    route: &Route<'_>,
    packet: &mut [u8],
    header: &mut Header,
    checksum: Checksum,
    quoted: Option<IpAddr>,
) -> Result<(), DropReason> {
    let Context { forwarding, flows, memory, now } = context;
    let table = forwarding.table();
    let internal = header.source();
    let realm = route.peer.realm;
    let seen = Seen { packet, header };

    let external = match table.source(internal) {
        Source::Known => return Ok(()),
        Source::Mapped(external) => (external, None),
        Source::Answering(external) => {
            // An error answers the packet it quotes, whatever port that had.
            let is_answer = match quoted {
                Some(quoted) => quoted == external,
                None => flows.is_answer(realm, seen, route.destination, external, *memory, *now)?,
            };
            if !is_answer {
                return Ok(());
            }
            (external, None)
        }
        Source::Unknown if !has_address(table.masquerade(), internal) => return Ok(()),
        // Routers of ours that report an error are as unknown as hosts, and have no port.
        Source::Unknown => match quoted {
            Some(quoted) => (quoted, None),
            None => {
                let pool = table.masquerade();
                flows.leave(realm, seen, route.destination, pool, *memory, *now)?
            }
        },
    };

    write(packet, header, Side::Source, external, checksum)
}
