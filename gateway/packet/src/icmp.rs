//! The packet that an ICMP error quotes.
//!
//! An ICMP error quotes the beginning of the packet that caused it: the IP header and
//! at least eight more bytes. The receiver finds the flow by the quoted addresses, so they have to
//! be rewritten with the outer ones (RFC 5508 section 4.2).

use std::net::IpAddr;

use super::ports::Ports;
use super::{Header, Transport};

/// The type "destination unreachable" of ICMP.
pub(super) const UNREACHABLE_V4: u8 = 3;

/// The type "destination unreachable" of ICMPv6.
pub(super) const UNREACHABLE_V6: u8 = 1;

/// The type "packet too big" of ICMPv6.
pub(super) const TOO_BIG_V6: u8 = 2;

/// Length of the ICMP and ICMPv6 error header in front of the quoted packet, in bytes.
pub(super) const ERROR_HEADER_LEN: usize = 8;

/// The packet quoted by an ICMP error. Only its addresses are known to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedded {
    pub(super) offset: usize,
    pub(super) header: Header,
}

impl Embedded {
    /// The source address of the packet that caused the error.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        self.header.source()
    }

    /// The destination address of the packet that caused the error.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        self.header.destination()
    }

    /// The upper-layer protocol of the packet that caused the error.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header.protocol()
    }

    /// The ports of the packet that caused the error, which `packet` quotes.
    #[must_use]
    pub fn ports(&self, packet: &[u8]) -> Option<Ports> {
        Ports::read(packet.get(self.offset..)?, &self.header)
    }
}

/// Finds the packet that `packet` quotes; `None` if it is no ICMP error, or the quote does not contain
/// both addresses.
#[must_use]
#[inline]
pub fn embedded(packet: &[u8], header: &Header) -> Option<Embedded> {
    // A fragment without the ICMP header has no transport here.
    if !matches!(header.transport(), Transport::Icmp | Transport::Icmpv6) {
        return None;
    }

    find(packet, header)
}

/// The destination whose path carries packets of only so many bytes, if `packet` is the ICMP error that says so:
/// "fragmentation needed" (RFC 1191 section 4) or "packet too big" (RFC 4443 section 3.2).
#[must_use]
pub fn path_mtu(packet: &[u8], header: &Header) -> Option<(IpAddr, u16)> {
    const FRAGMENTATION_NEEDED: u8 = 4;

    let destination = embedded(packet, header)?.destination();
    let &[kind, code, _, _, a, b, c, d] = packet.get(header.transport_offset()..)?.first_chunk()?;
    let mtu = match (header.is_ipv6(), kind, code) {
        (false, UNREACHABLE_V4, FRAGMENTATION_NEEDED) => u32::from(u16::from_be_bytes([c, d])),
        (true, TOO_BIG_V6, _) => u32::from_be_bytes([a, b, c, d]),
        (false | true, _, _) => return None,
    };

    Some((destination, u16::try_from(mtu).ok().filter(|mtu| *mtu > 0)?))
}

fn find(packet: &[u8], header: &Header) -> Option<Embedded> {
    let kind = *packet.get(header.transport_offset())?;
    if !is_error(kind, header.is_ipv6()) {
        return None;
    }

    let offset = header.transport_offset() + ERROR_HEADER_LEN;
    let quoted = Header::parse_quoted(packet.get(offset..header.packet_len())?).ok()?;
    if quoted.is_ipv6() != header.is_ipv6() {
        return None;
    }

    Some(Embedded { offset, header: quoted })
}

/// Whether a message of this type quotes a packet: RFC 792, and RFC 4443 section 2.1.
const fn is_error(kind: u8, is_ipv6: bool) -> bool {
    match (is_ipv6, kind) {
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
        (false, 3 | 4 | 5 | 11 | 12) => true,
        // Destination unreachable, packet too big, time exceeded, parameter problem.
        (true, 1..=4) => true,
        (false | true, _) => false,
    }
}

/// Whether a message of this type is a request, reply or advertisement: neither an error nor a
/// redirect. An unassigned type of ICMP counts as an error.
pub(super) const fn is_informational(kind: u8, is_ipv6: bool) -> bool {
    const REDIRECT_V6: u8 = 137;

    match (is_ipv6, kind) {
        // Echo, routers, timestamp, information and address mask (RFC 792, 1256, 950), extended echo
        // (RFC 8335).
        (false, 0 | 8 | 9 | 10 | 13..=18 | 42 | 43) => true,
        (true, REDIRECT_V6) => false,
        // RFC 4443 section 2.1.
        (true, 128..) => true,
        (false | true, _) => false,
    }
}
