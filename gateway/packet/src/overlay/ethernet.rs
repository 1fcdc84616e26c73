//! The inner Ethernet header: stations, and what a frame holds.
//!
//! Sources: IEEE 802.3 for the header, RFC 7348 section 6.1 for tags, RFC 1812 section 5.3.4 for broadcasts.

use std::fmt::{self, Display, Formatter};

use crate::{DropReason, Header};

/// The length of the header in bytes.
pub const HEADER_LEN: usize = 14;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

/// The address of a station (MAC address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address of all stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Which stations the address stands for.
    #[must_use]
    #[inline]
    pub const fn cast(self) -> Cast {
        match self.0 {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => Cast::Broadcast,
            [first, ..] if first & 1 != 0 => Cast::Multicast,
            _ => Cast::Unicast,
        }
    }

    /// Whether the address can be that of one station: neither that of a group nor zero.
    #[must_use]
    #[inline]
    pub const fn is_station(self) -> bool {
        matches!(self.cast(), Cast::Unicast) && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl Display for Mac {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;

        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// The stations that a frame is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// One station.
    Unicast,
    /// A group.
    Multicast,
    /// All stations.
    Broadcast,
}

/// What a frame holds after its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// An IPv4 packet.
    Ipv4,
    /// An IPv6 packet.
    Ipv6,
    /// A message of the Address Resolution Protocol.
    Arp,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// The station or the group that the frame is sent to.
    pub destination: Mac,
    /// The station that sent the frame.
    pub source: Mac,
    /// What follows the header.
    pub content: Content,
}

impl Ethernet {
    /// Reads the header of `frame`. What follows it starts at [`HEADER_LEN`].
    ///
    /// # Errors
    ///
    /// [`DropReason::OverlayFrame`] if the frame is truncated, was sent by a group, has a VLAN tag (RFC 7348 section 6.1), or
    /// holds neither an IP packet nor an ARP message.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, DropReason> {
        let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) =
            frame.first_chunk::<HEADER_LEN>()
        else {
            return Err(DropReason::OverlayFrame);
        };
        let content = match u16::from_be_bytes([t0, t1]) {
            IPV4 => Content::Ipv4,
            IPV6 => Content::Ipv6,
            ARP => Content::Arp,
            _ => return Err(DropReason::OverlayFrame),
        };
        let source = Mac([s0, s1, s2, s3, s4, s5]);
        if source.cast() != Cast::Unicast {
            return Err(DropReason::OverlayFrame);
        }

        Ok(Self { destination: Mac([d0, d1, d2, d3, d4, d5]), source, content })
    }

    /// Reads the headers of the IP packet in `frame`, whose header this is. The packet starts at [`HEADER_LEN`].
    ///
    /// # Errors
    ///
    /// [`DropReason::OverlayFrame`] if the frame holds no IP packet, or if it was sent to more than one station and the packet
    /// to no group (RFC 1812 section 5.3.4). [`DropReason::Malformed`] if the packet is, or has another version than the frame
    /// says.
    #[inline]
    pub fn packet(&self, frame: &[u8]) -> Result<Header, DropReason> {
        let is_ipv6 = match self.content {
            Content::Ipv4 => false,
            Content::Ipv6 => true,
            Content::Arp => return Err(DropReason::OverlayFrame),
        };
        let packet = frame.get(HEADER_LEN..).ok_or(DropReason::Malformed)?;
        let header = Header::parse(packet).map_err(|_| DropReason::Malformed)?;
        if header.is_ipv6() != is_ipv6 {
            return Err(DropReason::Malformed);
        }

        if self.destination.cast() == Cast::Unicast || header.destination().is_multicast() {
            Ok(header)
        } else {
            Err(DropReason::OverlayFrame)
        }
    }

    /// The bytes of the header.
    #[must_use]
    #[inline]
    pub const fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let Mac([d0, d1, d2, d3, d4, d5]) = self.destination;
        let Mac([s0, s1, s2, s3, s4, s5]) = self.source;
        let kind = match self.content {
            Content::Ipv4 => IPV4,
            Content::Ipv6 => IPV6,
            Content::Arp => ARP,
        };
        let [t0, t1] = kind.to_be_bytes();

        [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]
    }
}
