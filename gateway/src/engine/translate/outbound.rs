//! From the cluster to a remote.

use std::net::IpAddr;

use remap::Source;

use super::hairpin::hairpin;
use super::{Context, Outgoing, check_authenticated, clamp, has_address, write, write_embedded};
use crate::DropReason;
use crate::engine::Route;
use crate::engine::flows::Seen;
use crate::packet::icmp::{self, Embedded};
use crate::packet::rewrite::{Checksum, Side};
use crate::packet::{Header, ports::Ports};

/// Gives `packet` the addresses that the remote knows, and says which peer it is for.
///
/// # Errors
///
/// Why it goes nowhere. The packet may have been changed by then.
#[inline]
pub fn outbound<'a>(
    context: &Context<'a>,
    packet: &mut [u8],
    header: &mut Header,
    checksum: Checksum,
) -> Result<Outgoing<'a>, DropReason> {
    if header.is_source_routed() {
        return Err(DropReason::SourceRouted);
    }
    let before = *header;
    let route = match context.forwarding.outbound(header.destination()) {
        Ok(route) => route,
        Err(DropReason::NoRoute) => {
            hairpin(context, packet, header, checksum)?;
            check_authenticated(&before, header)?;
            return Ok(Outgoing::Hairpin);
        }
        Err(reason) => return Err(reason),
    };

    let quoted = match icmp::embedded(packet, header) {
        Some(mut embedded) => Some(quoted(context, &route, packet, header, &mut embedded)?),
        None => None,
    };
    source(context, &route, packet, header, checksum, quoted)?;
    write(packet, header, Side::Destination, (route.destination, None), checksum)?;

    check_authenticated(&before, header)?;
    clamp(packet, header, route.peer, checksum)?;
    Ok(Outgoing::Peer(route))
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

    Ok(write(packet, header, Side::Source, external, checksum)?)
}
