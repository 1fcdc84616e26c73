//! What a packet becomes on its way between two realms: other addresses, now and then other ports,
//! in every header that names them.
//!
//! The two directions mirror each other. Outbound, the destination is a remote's and decides
//! everything; the source is ours, and leaves as the remote is to know it. Inbound, the source is the
//! remote's and must be allowed; the destination is ours, under whatever name the remote knows it. In
//! an ICMP error, which quotes a packet of the other direction, the two sides are swapped.
//!
//! Whoever explains a decision runs the same code on a packet of their own making, with
//! [`Memory::Unchanged`].

mod hairpin;
mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use remap::masquerade::{Pool, Tick};

use super::Forwarding;
use super::Route;
use super::flows::Flows;
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::Transport;
use strait_packet::icmp::Embedded;
use strait_packet::mss;
use strait_packet::rewrite::{self, Checksum, Mismatch, Side};
use strait_wg::Peer;

pub use inbound::inbound;
pub use outbound::{outbound, route};

/// What a translation looks at.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The generation in force.
    pub forwarding: &'a Forwarding,
    /// What is remembered of flows.
    pub flows: &'a Flows,
    /// Whether it may be added to.
    pub memory: Memory,
    /// The time.
    pub now: Tick,
}

impl Context<'_> {
    /// Whether `internal`, an address and port of ours, has a port of a shared address by now, towards
    /// the remote of this realm. An address that is shared no more does not count.
    #[must_use]
    pub fn remembers(&self, realm: u32, protocol: u8, internal: (IpAddr, u16)) -> bool {
        let external = self.flows.external_of(realm, protocol, internal, self.now);
        let pool = self.forwarding.table().masquerade();

        external.is_some_and(|(address, _)| pool.contains(address))
    }

    /// The realm in which a packet that comes back into the cluster is masqueraded.
    #[must_use]
    pub fn hairpin_realm(
        &self,
        protocol: u8,
        source: (IpAddr, u16),
        destination: (IpAddr, u16),
    ) -> u32 {
        hairpin::realm(self, protocol, destination, source)
    }
}

/// What a translation may do to the memory of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Add flows and keep them alive: packets that travel.
    Updated,
    /// Look only: packets that somebody asks about.
    Unchanged,
}

/// Where a packet from the cluster goes.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing<'a> {
    /// To a peer.
    Peer(Route<'a>),
    /// Back into the cluster, if it is for an external address of ours.
    Hairpin,
}

/// Whether there is a shared address of the IP version of `internal`.
fn has_address(pool: &Pool, internal: IpAddr) -> bool {
    !pool.addresses(internal.is_ipv4()).is_empty()
}

/// An address, and a port if the port changes too.
type Endpoint = (IpAddr, Option<u16>);

/// An authentication header (AH) covers the addresses, so a packet with one cannot change them.
fn write(
    packet: &mut [u8],
    header: &mut Header,
    side: Side,
    (address, port): Endpoint,
    checksum: Checksum,
) -> Result<(), DropReason> {
    let before = match side {
        Side::Source => header.source(),
        Side::Destination => header.destination(),
    };
    if header.transport() == Transport::AuthenticationHeader && address != before {
        return Err(DropReason::AddressAuthenticated);
    }
    if let Some(port) = port {
        rewrite::port(packet, header, side, port, checksum)?;
    }

    Ok(rewrite::address(packet, header, side, address, checksum)?)
}

fn write_embedded(
    packet: &mut [u8],
    header: &Header,
    embedded: &mut Embedded,
    side: Side,
    (address, port): Endpoint,
) -> Result<(), Mismatch> {
    if let Some(port) = port {
        rewrite::embedded_port(packet, header, embedded, side, port)?;
    }

    rewrite::embedded_address(packet, header, embedded, side, address)
}

#[inline]
fn clamp(
    packet: &mut [u8],
    header: &Header,
    peer: &Peer,
    checksum: Checksum,
) -> Result<(), Mismatch> {
    if mss::opens_connection(packet, header)
        && let Some(mtu) = peer.clamp_mtu()
    {
        mss::clamp(packet, header, mtu, checksum)?;
    }

    Ok(())
}
