//! A slow packet parser written from the RFCs, without code of the tested implementation.

mod checksum;

use std::net::IpAddr;

pub use checksum::{Covered, checksums, recompute, sum, with_canonical_zeros};

use strait_packet::Fragment;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const UDP_LITE: u8 = 136;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// Extension headers that a packet may have before it counts as malformed.
const MAX_EXTENSIONS: usize = 8;

/// The fields of the headers of a packet. Offsets and lengths in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The length that the IP header states.
    pub len: usize,
    /// The offset of the upper-layer header.
    pub transport_at: usize,
    /// The upper-layer protocol.
    pub protocol: u8,
    /// Which fragment of a datagram this is.
    pub fragment: Fragment,
    /// Whether a routing header has segments left.
    pub is_routed: bool,
    /// The offset of the transport checksum, if the packet contains all of it.
    pub checksum_at: Option<usize>,
}

impl Layout {
    /// Parses the headers of a whole packet; `None` if lengths contradict each other.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        if version(packet)? == 6 {
            let len = 40 + usize::from(word(packet, 4)?);
            let mut layout = Self::of_v6(packet.get(..len)?, len)?;
            layout.walk(packet).then_some(())?;
            layout.find_checksum();

            return Some(layout);
        }
        let len = usize::from(word(packet, 2)?);
        packet.get(..len)?;
        let layout = Self::of_v4(packet, len)?;

        (layout.transport_at <= len).then_some(layout)
    }

    /// Parses the headers of a packet quoted by an ICMP error, of which only the addresses are required
    /// and lengths are ignored.
    #[must_use]
    pub fn of_quoted(packet: &[u8]) -> Option<Self> {
        if version(packet)? == 6 {
            let len = packet.len().min(40 + usize::from(word(packet, 4)?));
            let mut layout = Self::of_v6(packet, len)?;
            if layout.walk(packet) {
                layout.find_checksum();
            }

            return Some(layout);
        }
        let header_len = usize::from(packet.first()? & 0x0f) * 4;
        let stated = usize::from(word(packet, 2)?);
        let len = if stated < header_len { packet.len() } else { stated.min(packet.len()) };

        Self::of_v4(packet, len)
    }

    /// The packet quoted by this one, if it is an ICMP error, and its offset.
    #[must_use]
    pub fn quoted(&self, packet: &[u8]) -> Option<(usize, Self)> {
        self.checksum_at?;
        let kind = *packet.get(self.transport_at)?;
        let is_error = match self.protocol {
            ICMP => [3, 4, 5, 11, 12].contains(&kind),
            ICMPV6 => [1, 2, 3, 4].contains(&kind),
            _ => false,
        };
        let at = self.transport_at + 8;
        let quoted = Self::of_quoted(packet.get(at..self.len)?)?;

        (is_error && quoted.is_ipv6() == self.is_ipv6()).then_some((at, quoted))
    }

    /// Whether this is an IPv6 packet.
    #[must_use]
    pub const fn is_ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// The offsets of source and destination.
    #[must_use]
    pub const fn addresses_at(&self) -> [usize; 2] {
        if self.is_ipv6() { [8, 24] } else { [12, 16] }
    }

    /// Whether a checksum field of zero means that there is no checksum.
    #[must_use]
    pub const fn reserves_zero(&self) -> bool {
        matches!(self.protocol, UDP | UDP_LITE)
    }

    /// The sum of all present bytes that the transport checksum covers, including the checksum. All ones
    /// if the checksum is correct.
    ///
    /// For UDP-Lite, full coverage is assumed. With segments left in a routing header, the pseudo-header
    /// has another destination, which does not matter here: zero stands for it.
    #[must_use]
    pub fn transport_sum(&self, packet: &[u8]) -> u16 {
        let transport = packet.get(self.transport_at..self.len).unwrap_or_default();
        if self.protocol == ICMP {
            return sum(transport);
        }

        let len = u32::try_from(transport.len()).unwrap_or(u32::MAX);
        let [source_at, destination_at] = self.addresses_at();
        let end = if self.is_ipv6() { 40 } else { 20 };
        let addresses = source_at..if self.is_routed { destination_at } else { end };
        // From the bytes, because the addresses may have been changed.
        let mut covered = packet.get(addresses).unwrap_or_default().to_vec();
        covered.extend(len.to_be_bytes());
        covered.extend([0, 0, 0, self.protocol]);
        covered.extend(transport);

        sum(&covered)
    }

    fn of_v4(packet: &[u8], len: usize) -> Option<Self> {
        let fixed = packet.get(..20)?;
        let transport_at = usize::from(fixed.first()? & 0x0f) * 4;
        let flags = word(fixed, 6)?;
        let mut layout = Self {
            source: IpAddr::from(*fixed.get(12..16)?.first_chunk::<4>()?),
            destination: IpAddr::from(*fixed.get(16..20)?.first_chunk::<4>()?),
            len,
            transport_at,
            protocol: *fixed.get(9)?,
            fragment: fragment(flags & 0x1fff, flags & 0x2000),
            is_routed: false,
            checksum_at: None,
        };
        layout.find_checksum();

        (transport_at >= 20).then_some(layout)
    }

    fn of_v6(packet: &[u8], len: usize) -> Option<Self> {
        let fixed = packet.get(..40)?;

        Some(Self {
            source: IpAddr::from(*fixed.get(8..24)?.first_chunk::<16>()?),
            destination: IpAddr::from(*fixed.get(24..40)?.first_chunk::<16>()?),
            len,
            transport_at: 40,
            protocol: *fixed.get(6)?,
            fragment: Fragment::None,
            is_routed: false,
            checksum_at: None,
        })
    }

    /// Skips IPv6 extension headers, up to a fragment other than the first; returns whether the end of
    /// the chain was found.
    fn walk(&mut self, packet: &[u8]) -> bool {
        let mut steps = 0;
        while [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS].contains(&self.protocol)
            && self.fragment != Fragment::Later
        {
            let rest = packet.get(self.transport_at..self.len).unwrap_or_default();
            let Some(&[next, units, high, low, ..]) = rest.first_chunk::<8>() else {
                return false;
            };
            let len = if self.protocol == FRAGMENT { 8 } else { 8 + usize::from(units) * 8 };
            steps += 1;
            if len > rest.len() || steps > MAX_EXTENSIONS {
                return false;
            }

            if self.protocol == FRAGMENT {
                let field = u16::from_be_bytes([high, low]);
                self.fragment = fragment(field >> 3, field & 1);
            }
            self.is_routed |= self.protocol == ROUTING && low > 0;
            self.protocol = next;
            self.transport_at += len;
        }

        true
    }

    fn find_checksum(&mut self) {
        let offset = match (self.protocol, self.is_ipv6()) {
            (TCP, _) => 16,
            (UDP | UDP_LITE, _) => 6,
            (ICMP, false) | (ICMPV6, true) => 2,
            _ => return,
        };
        let at = self.transport_at + offset;
        if self.fragment != Fragment::Later && at + 2 <= self.len {
            self.checksum_at = Some(at);
        }
    }
}

/// The big-endian 16-bit word at offset `at`.
#[must_use]
pub fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|field| u16::from_be_bytes(*field))
}

/// Writes the big-endian 16-bit word at offset `at`, if there is one.
pub fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value.to_be_bytes();
    }
}

/// The bytes of an address.
#[must_use]
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn version(packet: &[u8]) -> Option<u8> {
    let version = packet.first()? >> 4;

    [4, 6].contains(&version).then_some(version)
}

const fn fragment(offset: u16, more: u16) -> Fragment {
    match (offset, more) {
        (0, 0) => Fragment::None,
        (0, _) => Fragment::First,
        (_, _) => Fragment::Later,
    }
}
