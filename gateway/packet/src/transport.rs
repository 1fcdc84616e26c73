//! Upper-layer protocols, and whether their checksums cover the addresses.

/// TCP flags in byte 13 of the header (RFC 9293 section 3.1).
pub(super) const FIN: u8 = 0x01;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
pub(super) const CWR: u8 = 0x80;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const AUTHENTICATION_HEADER: u8 = 51;
const ICMPV6: u8 = 58;
const UDP_LITE: u8 = 136;

/// The upper-layer protocol of a packet.
///
/// A named protocol means that the packet contains its header at least up to the end of the checksum
/// field, ports included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
    /// UDP-Lite (RFC 3828).
    UdpLite,
    /// ICMP in an IPv4 packet (RFC 792).
    Icmp,
    /// ICMPv6 in an IPv6 packet (RFC 4443).
    Icmpv6,
    /// An authentication header (RFC 4302). It covers the addresses, so they cannot be changed.
    AuthenticationHeader,
    /// Any other protocol, by its number. No checksum of it covers the addresses.
    Other(u8),
    /// No transport header: a fragment other than the first, or a packet too short for one.
    None,
}

impl Transport {
    /// The transport of `protocol`, given the number of bytes after the IP header.
    #[inline]
    pub(super) const fn of(protocol: u8, is_ipv6: bool, available: usize) -> Self {
        let known = match protocol {
            TCP => Self::Tcp,
            UDP => Self::Udp,
            UDP_LITE => Self::UdpLite,
            ICMP if !is_ipv6 => Self::Icmp,
            ICMPV6 if is_ipv6 => Self::Icmpv6,
            AUTHENTICATION_HEADER => return Self::AuthenticationHeader,
            other => return Self::Other(other),
        };

        match known.checksum_offset() {
            Some(offset) if offset + 2 > available => Self::None,
            _ => known,
        }
    }

    /// The offset of the checksum, in bytes from the start of the transport header.
    #[inline]
    pub(super) const fn checksum_offset(self) -> Option<usize> {
        match self {
            Self::Tcp => Some(16),
            Self::Udp | Self::UdpLite => Some(6),
            Self::Icmp | Self::Icmpv6 => Some(2),
            Self::AuthenticationHeader | Self::Other(_) | Self::None => None,
        }
    }

    /// Whether the checksum covers the addresses, through the pseudo-header.
    #[inline]
    pub(super) const fn has_pseudo_header(self) -> bool {
        match self {
            Self::Tcp | Self::Udp | Self::UdpLite | Self::Icmpv6 => true,
            Self::Icmp | Self::AuthenticationHeader | Self::Other(_) | Self::None => false,
        }
    }

    /// Whether a checksum field of zero means that there is no checksum: in UDP (RFC 768, for IPv6
    /// RFC 6935). UDP-Lite forbids zero (RFC 3828 section 3.1), so an invalid zero must stay zero.
    #[inline]
    pub(super) const fn reserves_zero(self) -> bool {
        matches!(self, Self::Udp | Self::UdpLite)
    }
}
