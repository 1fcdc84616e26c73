//! From the cluster to a remote.

use std::net::IpAddr;

use remap::Source;
use remap::policy::Way;

use super::hairpin::hairpin;
use super::policy::{self, Facts};
use super::{Context, Outgoing, clamp, has_address, write, write_embedded};
use crate::Route;
use crate::flows::{Answer, OriginalPacket};
use strait_packet::DropReason;
use strait_packet::icmp::{self, Embedded};
use strait_packet::ports::Side;
use strait_packet::rewrite::Checksum;
use strait_packet::{Header, ports::Ports};

/// Where a packet goes, if it can be translated. Changes neither the packet nor the flows.
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
    if context.forwarding.is_routing_loop(packet, header, context.now, context.flow_access) {
        return Err(DropReason::RoutingLoop);
    }

    match context.forwarding.outbound(header.destination()) {
        Ok(route) => Ok(Outgoing::Peer(route)),
        Err(DropReason::NoRoute) => Ok(Outgoing::Hairpin),
        Err(reason) => Err(reason),
    }
}

/// Translates `packet` for the destination that [`route`] returned.
///
/// # Errors
///
/// The reason why the packet is dropped. An ICMP error may have been changed by then, and a packet that a rule drops at
/// the last hook; any other packet is unchanged, so that an ICMP error can quote it.
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
    let facts = Facts::read(context, packet, header);
    let passing = policy::forward(context, Way::Outbound, facts, route.destination)?;

    let quoted = match icmp::embedded(packet, header) {
        Some(mut embedded) => Some(quoted(context, route, packet, header, &mut embedded)?),
        None => None,
    };
    source(context, route, packet, header, checksum, quoted)?;
    write(packet, header, Side::Destination, (route.destination, None), checksum)?;
    policy::leave(passing, packet, header, checksum)?;

    Ok(clamp(packet, header, route.peer, checksum)?)
}

/// Translates the packet that an ICMP error quotes, which came from the remote, back to its addresses on the wire.
/// Returns its destination there.
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
        Source::MappedReplies(external) => {
            let ports = ports.map(|Ports { source, destination }| Ports {
                source: destination,
                destination: source,
            });
            let answer = Answer { protocol: embedded.protocol(), internal, remote, ports };
            let is_answer = flows.would_answer(route.peer.realm, &answer, external, *now);
            (if is_answer { external } else { internal }, None)
        }
        Source::Shared if !has_address(table.masquerade(), internal) => (internal, None),
        Source::Shared => {
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

/// Translates the source to an address that the remote knows.
fn source(
    context: &Context<'_>,
    route: &Route<'_>,
    packet: &mut [u8],
    header: &mut Header,
    checksum: Checksum,
    quoted: Option<IpAddr>,
) -> Result<(), DropReason> {
    let Context { forwarding, flows, flow_access, now } = context;
    let table = forwarding.table();
    let internal = header.source();
    let realm = route.peer.realm;
    let original = OriginalPacket { packet, header };

    let external = match table.source(internal) {
        Source::Known => return Ok(()),
        Source::Mapped(external) => (external, None),
        Source::MappedReplies(external) => {
            // An ICMP error answers the packet it quotes, regardless of its port.
            let is_answer = match quoted {
                Some(quoted) => quoted == external,
                None => flows.is_answer(
                    realm,
                    original,
                    route.destination,
                    external,
                    *flow_access,
                    *now,
                )?,
            };
            if !is_answer {
                return Ok(());
            }
            (external, None)
        }
        Source::Shared if !has_address(table.masquerade(), internal) => return Ok(()),
        // The source of an ICMP error may be a router, which is unknown to the remote and has no port.
        Source::Shared => match quoted {
            Some(quoted) => (quoted, None),
            None => {
                let pool = table.masquerade();
                flows.map_outbound(realm, original, route.destination, pool, *flow_access, *now)?
            }
        },
    };

    write(packet, header, Side::Source, external, checksum)
}
