//! An overlay that ends in this gateway: nodes send the packets of their pods as Ethernet frames inside UDP datagrams, and the
//! gateway parses and builds what is in such a datagram.
//!
//! ```text
//!   datagram   [ VXLAN or Geneve ][ Ethernet ][ IP packet ]
//!                encapsulation      ethernet    offload: what the sender left to be done
//!                                   neighbor: ARP and neighbor discovery instead of a packet
//! ```
//!
//! # Not here
//!
//! Sockets and the table of nodes: a caller checks the outer source and the identifier. Overlays *between pods*, whose
//! datagrams pass through the tunnel like any others: see [`segment`](crate::segment).
//!
//! # Sources
//!
//! RFC 7348 for VXLAN, RFC 8926 for Geneve, RFC 826 for ARP, RFC 4861 for neighbor discovery.

use std::fmt::{self, Display, Formatter};

use super::DropReason;

pub use ethernet::{Cast, Content, Ethernet, Mac};
pub use merged::{Merged, merged};
pub use neighbor::{Binding, Message, Question};
pub use offload::{Limits, describe};
pub use shared_source::SharedSource;

pub mod ethernet;
mod geneve;
mod merged;
pub mod neighbor;
mod offload;
mod shared_source;
#[cfg(test)]
mod tests;
mod vxlan;

/// The length of the header of either overlay without options, in bytes.
pub const HEADER_LEN: usize = 8;

/// The bytes in front of each IP packet in a datagram that is sent: the header of the overlay and that of Ethernet.
pub const PREFIX_LEN: usize = HEADER_LEN + ethernet::HEADER_LEN;

/// The identifier of a virtual network (VNI): 24 bits, zero included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vni(u32);

impl Vni {
    /// The identifier `number`; `None` if it has more than 24 bits.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number >> 24 == 0 { Some(Self(number)) } else { None }
    }

    /// The identifier as a number.
    #[must_use]
    pub const fn to_number(self) -> u32 {
        self.0
    }

    const fn from_bytes([high, middle, low]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, high, middle, low]))
    }

    const fn to_bytes(self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();

        [high, middle, low]
    }
}

impl Display for Vni {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, formatter)
    }
}

/// The protocol between the outer UDP header and the inner Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// VXLAN (RFC 7348).
    Vxlan,
    /// Geneve (RFC 8926).
    Geneve,
}

impl Display for Encapsulation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
        })
    }
}

impl Encapsulation {
    /// Reads the header of a received `datagram`, the payload of UDP. Returns the identifier, and the offset of the Ethernet
    /// frame in bytes.
    ///
    /// # Errors
    ///
    /// [`DropReason::OverlayHeader`] if the header is truncated or invalid, or requires the receiver to do more than to
    /// forward the frame.
    #[inline]
    pub fn parse(self, datagram: &[u8]) -> Result<(Vni, usize), DropReason> {
        let parsed = match self {
            Self::Vxlan => vxlan::parse(datagram),
            Self::Geneve => geneve::parse(datagram),
        };

        parsed.ok_or(DropReason::OverlayHeader)
    }

    /// The header in front of a frame that is sent with identifier `vni`.
    #[must_use]
    #[inline]
    pub const fn header(self, vni: Vni) -> [u8; HEADER_LEN] {
        match self {
            Self::Vxlan => vxlan::header(vni),
            Self::Geneve => geneve::header(vni),
        }
    }

    /// The bytes in front of an IP packet: the same for every packet of one IP version to one station.
    #[must_use]
    #[inline]
    pub fn prefix(self, vni: Vni, ethernet: &Ethernet) -> [u8; PREFIX_LEN] {
        let mut prefix = [0; PREFIX_LEN];
        if let Some((header, frame)) = prefix.split_first_chunk_mut() {
            *header = self.header(vni);
            if let Some(header) = frame.first_chunk_mut() {
                *header = ethernet.to_bytes();
            }
        }

        prefix
    }
}
