//! One IP packet: parsing and rewriting its headers.
//!
//! All functions work on byte slices: no I/O, no clock, no allocation on the packet path. A packet
//! is parsed once into a [`Header`], a small value of offsets and addresses; every later step uses
//! that value instead of reading the bytes again.
//!
//! # Invariants
//!
//! - Nothing reads or writes past the length in the IP header. The bytes after it are
//!   padding and are ignored.
//! - A wrong checksum is never repaired: [`rewrite`] adjusts by difference, and [`coalesce`] merges
//!   only what it has verified.
//!
//! # Not here
//!
//! The translation of addresses (see `remap`), the arithmetic of checksums (see `remap::checksum`),
//! and I/O.
//!
//! # Sources
//!
//! RFC 791 and RFC 8200 for the headers, RFC 1624 and RFC 5508 for checksums after a rewrite,
//! RFC 6040 for congestion marks.

#![forbid(unsafe_code)]

use std::net::IpAddr;

pub mod bucket;
pub mod buffer;
pub mod coalesce;
pub mod counters;
pub mod ecn;
pub mod icmp;
pub mod icmp_error;
pub mod mss;
pub mod overlay;
pub mod path;
pub mod ports;
pub mod rewrite;
pub mod segment;
pub mod verdict;
pub mod virtio;

mod field;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod ipv4;
mod ipv6;
#[cfg(test)]
mod tests;
mod transport;

pub use transport::Transport;
pub use verdict::DropReason;

use ecn::Ecn;

/// The parsed headers of one IP packet: addresses, offsets and the upper-layer protocol.
///
/// Cheap to copy: it borrows nothing and fits in one cache line. It stays valid as long as the packet
/// is changed only through [`rewrite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    source: IpAddr,
    destination: IpAddr,
    packet_len: usize,
    transport_offset: usize,
    transport: Transport,
    protocol: u8,
    traffic_class: u8,
    fragment: Fragment,
    dont_fragment: bool,
    routed: bool,
    source_routed: bool,
}

const _: () = assert!(size_of::<Header>() <= 64);

impl Header {
    /// Reads the headers of `packet`, which starts with the IP header.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the bytes are no IP packet, or if a length field contradicts them.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        Self::read(packet, Extent::Whole)
    }

    /// Reads the headers of a packet that an ICMP error quotes, usually truncated.
    fn parse_quoted(packet: &[u8]) -> Result<Self, Malformed> {
        Self::read(packet, Extent::Quoted)
    }

    #[inline]
    fn read(packet: &[u8], extent: Extent) -> Result<Self, Malformed> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => ipv4::parse(packet, extent),
            Some(6) => ipv6::parse(packet, extent),
            Some(version) => Err(Malformed::Version { version }),
            None => Err(Malformed::Truncated { needed: 1, available: 0 }),
        }
    }

    /// The source address in the IP header.
    #[must_use]
    #[inline]
    pub const fn source(&self) -> IpAddr {
        self.source
    }

    /// The destination address in the IP header. With a routing header, that is the next hop on the route.
    #[must_use]
    #[inline]
    pub const fn destination(&self) -> IpAddr {
        self.destination
    }

    /// Whether this is an IPv6 packet; it is an IPv4 packet otherwise.
    #[must_use]
    #[inline]
    pub const fn is_ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// The length of the packet in bytes, IP header included, from the IP header.
    #[must_use]
    #[inline]
    pub const fn packet_len(&self) -> usize {
        self.packet_len
    }

    /// The number of the upper-layer protocol, after all IPv6 extension headers.
    #[must_use]
    #[inline]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The upper-layer protocol, if the packet contains its header.
    #[must_use]
    #[inline]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// The offset of the upper-layer header, in bytes from the start of the packet.
    #[must_use]
    #[inline]
    pub const fn transport_offset(&self) -> usize {
        self.transport_offset
    }

    /// Which part of a datagram this packet is.
    #[must_use]
    #[inline]
    pub const fn fragment(&self) -> Fragment {
        self.fragment
    }

    /// The identification of a fragmented datagram: 16 bits in IPv4, 32 in IPv6. `None` if
    /// `packet` is no fragment, or not the one that this header describes.
    #[must_use]
    pub fn identification(&self, packet: &[u8]) -> Option<u32> {
        if self.is_ipv6() {
            ipv6::identification(packet)
        } else {
            field::word(packet, ipv4::IDENTIFICATION_AT).map(u32::from)
        }
    }

    /// The IPv4 type of service or the IPv6 traffic class: DSCP in the upper six bits, ECN below.
    #[must_use]
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        self.traffic_class
    }

    /// The congestion mark.
    #[must_use]
    #[inline]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_traffic_class(self.traffic_class)
    }

    /// Time to live (IPv4) or hop limit (IPv6), read from `packet`.
    #[must_use]
    pub fn hop_limit(&self, packet: &[u8]) -> u8 {
        let at = if self.is_ipv6() { 7 } else { 8 };

        packet.get(at).copied().unwrap_or_default()
    }

    /// Whether routers must not fragment this packet: the DF bit of IPv4, always so in IPv6
    /// (RFC 8200 section 4.5).
    #[must_use]
    #[inline]
    pub const fn dont_fragment(&self) -> bool {
        self.dont_fragment
    }

    /// Whether an IPv6 routing header has segments left.
    ///
    /// The routing header then contains the final destination, which the pseudo-header of the
    /// transport checksum uses (RFC 8200 section 8.1).
    #[must_use]
    #[inline]
    pub const fn is_routed(&self) -> bool {
        self.routed
    }

    /// Whether there is an IPv6 routing header of type 0, also without segments left. Such packets can be
    /// made to loop between two gateways, so no node may forward them (RFC 5095 section 3).
    #[must_use]
    #[inline]
    pub const fn is_source_routed(&self) -> bool {
        self.source_routed
    }

    /// Whether there are neither IPv4 options nor IPv6 extension headers.
    const fn is_plain(&self) -> bool {
        self.transport_offset == if self.is_ipv6() { ipv6::FIXED_LEN } else { ipv4::FIXED_LEN }
    }
}

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The whole datagram, or an *atomic fragment*: an IPv6 packet with a fragment header, offset 0 and no
    /// more fragments (RFC 6946).
    None,
    /// The first fragment, with the transport header.
    First,
    /// A fragment without transport header.
    Later,
}

/// How much of the packet the bytes must contain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of it, as on a wire.
    Whole,
    /// The part that an ICMP error quotes. Its lengths cannot be trusted: some
    /// systems quote the header as their stack had changed it.
    Quoted,
}

/// Why bytes cannot be processed as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Malformed {
    /// Neither IPv4 nor IPv6.
    #[error("IP version {version}")]
    Version { version: u8 },
    /// A header or the packet is longer than the bytes. Both counts in bytes.
    #[error("needs {needed} bytes, has {available}")]
    Truncated { needed: usize, available: usize },
    /// A length field is less than the length of its header. Both counts in bytes.
    #[error("a length of {stated} bytes, less than the {least} of its header")]
    Length { stated: usize, least: usize },
    /// More IPv6 extension headers than legitimate packets have.
    #[error("more than {} IPv6 extension headers", ipv6::MAX_EXTENSIONS)]
    ExtensionChain,
    /// The offload header requests a segmentation that does not fit the packet.
    #[error("the offload header contradicts the packet")]
    Offload,
}
