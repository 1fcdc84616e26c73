//! Address translation between two realms: addresses, and for masqueraded flows ports, in all headers that carry them.
//!
//! The two directions mirror each other. Outbound, the destination belongs to a remote and selects the peer; the
//! source is ours and becomes the address that the remote knows. Inbound, the source belongs to the remote and must
//! be allowed; the destination is one of our addresses as the remote knows it. An ICMP error quotes a packet of the
//! other direction, so in the quoted headers source and destination are swapped.
//!
//! [`explain`](crate::explain) runs the same code on a packet that it builds, with [`FlowAccess::ReadOnly`].

mod hairpin;
mod inbound;
mod outbound;
mod policy;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use remap::masquerade::{Pool, Tick};

use super::flows::{FlowAccess, Flows};
use super::{Forwarding, Route};
use strait_packet::DropReason;
use strait_packet::icmp::Embedded;
use strait_packet::ports::Side;
use strait_packet::rewrite::{self, Checksum, Mismatch};
use strait_packet::{Header, Transport, mss};
use strait_wg::Peer;

pub use inbound::inbound;
pub use outbound::{outbound, route};

/// What a translation reads.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The generation in force.
    pub forwarding: &'a Forwarding,
    /// Masqueraded flows and host map bindings.
    pub flows: &'a Flows,
    /// Whether they may be changed.
    pub flow_access: FlowAccess,
    /// The current time.
    pub now: Tick,
}

impl Context<'_> {
    /// Whether `internal`, an address and port of ours, has a port of a shared address towards the remote of this
    /// realm. An address that is no longer shared does not count.
    #[must_use]
    pub fn has_mapping(&self, realm: u32, protocol: u8, internal: (IpAddr, u16)) -> bool {
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

/// Where a packet from the cluster goes.
#[derive(Clone, Copy, Debug)]
pub enum Outgoing<'a> {
    /// To a peer.
    Peer(Route<'a>),
    /// Back into the cluster, if the destination is an external address of ours.
    Hairpin,
}

/// Whether there is a shared address of the IP version of `internal`.
fn has_address(pool: &Pool, internal: IpAddr) -> bool {
    !pool.addresses(internal.is_ipv4()).is_empty()
}

/// A new address, and a new port if the port changes too.
type Endpoint = (IpAddr, Option<u16>);

/// Writes an address, and a port if there is one. An authentication header (AH) covers the addresses, so a packet with
/// AH cannot be changed.
fn write(
    packet: &mut [u8],
    header: &mut Header,
    side: Side,
    endpoint: Endpoint,
    checksum: Checksum,
) -> Result<(), DropReason> {
    let (address, port) = endpoint;
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
    endpoint: Endpoint,
) -> Result<(), Mismatch> {
    let (address, port) = endpoint;
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
