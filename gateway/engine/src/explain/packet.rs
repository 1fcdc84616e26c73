//! The packet that a question describes: built, checked and read.

use std::net::IpAddr;

use remap::checksum;

use super::{Content, Question, QuestionError, Summary};
use strait_packet::Header;
use strait_packet::Transport;
use strait_packet::ports::Ports;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const UDP_LITE: u8 = 136;

/// What the SYN offers: the most there is, so that any clamp shows.
pub(super) const MSS: u16 = u16::MAX;

/// Where the value of its only option stands, in bytes from the start of the TCP header.
const MSS_AT: usize = 22;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;

/// Of the packet; nobody looks at it here.
const HOP_LIMIT: u8 = 64;

/// The "don't fragment" flag: what does not fit is to be reported, not cut.
const DONT_FRAGMENT: u16 = 0x4000;

impl Question {
    /// The bytes of the packet. Its checksums are right.
    ///
    /// # Errors
    ///
    /// [`QuestionError`] if there is no such packet.
    pub fn packet(&self) -> Result<Vec<u8>, QuestionError> {
        let Self { source, destination, content, size, .. } = self;
        let mut transport = content.header(source.is_ipv6());
        let ip_len = if source.is_ipv6() { IPV6_LEN } else { IPV4_LEN };
        let least = ip_len + transport.len();
        if let Some(size) = *size {
            let padding = usize::from(size)
                .checked_sub(least)
                .ok_or(QuestionError::TooSmall { size, least })?;
            transport.resize(transport.len() + padding, 0);
        }
        if let Content::Udp { .. } = content {
            let len = word(transport.len());
            put(&mut transport, 4, len);
        }

        let protocol = content.protocol(source.is_ipv6());
        let mut packet = match (*source, *destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let len = word(IPV4_LEN + transport.len()).to_be_bytes();
                let flags = DONT_FRAGMENT.to_be_bytes();
                let mut packet = [[0x45, 0], len, [0, 0], flags, [HOP_LIMIT, protocol], [0, 0]]
                    .as_flattened()
                    .to_vec();
                packet.extend(source.octets());
                packet.extend(destination.octets());
                let sum = checksum::sum(&packet);
                put(&mut packet, 10, checksum::complete(sum));
                packet
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let len = word(transport.len()).to_be_bytes();
                let mut packet =
                    [[0x60, 0], [0, 0], len, [protocol, HOP_LIMIT]].as_flattened().to_vec();
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet
            }
            (origin, destination) => {
                return Err(QuestionError::MixedVersions { origin, destination });
            }
        };
        if let Some(at) = content.checksum_at() {
            let sum = covered_sum((*source, *destination), protocol, &transport);
            put(&mut transport, at, not_none(protocol, checksum::complete(sum)));
        }
        packet.append(&mut transport);

        Ok(packet)
    }
}

impl Content {
    /// The number of the upper-layer protocol.
    #[must_use]
    pub const fn protocol(self, is_ipv6: bool) -> u8 {
        match self {
            Self::Tcp { .. } => TCP,
            Self::Udp { .. } => UDP,
            Self::UdpLite { .. } => UDP_LITE,
            Self::Echo { .. } if is_ipv6 => ICMPV6,
            Self::Echo { .. } => ICMP,
            Self::Other { protocol } => protocol,
        }
    }

    /// The source port, or the identifier of an echo.
    #[must_use]
    pub const fn source_port(self) -> Option<u16> {
        match self {
            Self::Tcp { source_port, .. }
            | Self::Udp { source_port, .. }
            | Self::UdpLite { source_port, .. } => Some(source_port),
            Self::Echo { identifier } => Some(identifier),
            Self::Other { .. } => None,
        }
    }

    /// The destination port, or the identifier of an echo.
    #[must_use]
    pub const fn destination_port(self) -> Option<u16> {
        match self {
            Self::Tcp { destination_port, .. }
            | Self::Udp { destination_port, .. }
            | Self::UdpLite { destination_port, .. } => Some(destination_port),
            Self::Echo { identifier } => Some(identifier),
            Self::Other { .. } => None,
        }
    }

    /// The transport header, its length and its checksum left zero, and what the engine looks at behind it.
    fn header(self, is_ipv6: bool) -> Vec<u8> {
        match self {
            Self::Tcp { source_port, destination_port } => {
                let mut header = ports(source_port, destination_port);
                // Sequence and acknowledgement number; six words of header, SYN, window.
                header.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x60, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
                header.extend([2, 4]);
                header.extend(MSS.to_be_bytes());
                header
            }
            Self::Udp { source_port, destination_port } => {
                let mut header = ports(source_port, destination_port);
                header.extend([0; 4]);
                // WireGuard begins so, and nobody else is treated differently for it.
                header.extend([4, 0, 0, 0]);
                header
            }
            // A coverage of zero is all of it (RFC 3828 section 3.1).
            Self::UdpLite { source_port, destination_port } => {
                let mut header = ports(source_port, destination_port);
                header.extend([0; 4]);
                header
            }
            Self::Echo { identifier } => {
                let mut header = vec![if is_ipv6 { 128 } else { 8 }, 0, 0, 0];
                header.extend(identifier.to_be_bytes());
                header.extend([0, 1]);
                header
            }
            Self::Other { .. } => vec![0; 8],
        }
    }

    const fn checksum_at(self) -> Option<usize> {
        match self {
            Self::Tcp { .. } => Some(16),
            Self::Udp { .. } | Self::UdpLite { .. } => Some(6),
            Self::Echo { .. } => Some(2),
            Self::Other { .. } => None,
        }
    }
}

impl Summary {
    /// What `packet` is.
    pub(super) fn read(packet: &[u8], header: &Header) -> Self {
        let protocol = header.protocol();
        let content = match Ports::read(packet, header) {
            Some(Ports { source: source_port, destination: destination_port }) => match protocol {
                TCP => Content::Tcp { source_port, destination_port },
                UDP => Content::Udp { source_port, destination_port },
                UDP_LITE => Content::UdpLite { source_port, destination_port },
                _ => Content::Echo { identifier: source_port },
            },
            None => Content::Other { protocol },
        };

        Self { source: header.source(), destination: header.destination(), content }
    }
}

/// Reads the headers of the packet of `question`.
pub(super) fn parse(packet: &[u8], question: &Question) -> Result<Header, QuestionError> {
    let protocol = question.content.protocol(question.source.is_ipv6());

    match Header::parse(packet) {
        Ok(header) if header.protocol() == protocol => Ok(header),
        // Zeroes are no extension header.
        Ok(_) | Err(_) => Err(QuestionError::Extension { protocol }),
    }
}

/// The largest segment that a SYN of ours offers, in bytes.
pub(super) fn mss(packet: &[u8], header: &Header) -> Option<u16> {
    if header.transport() != Transport::Tcp {
        return None;
    }
    let value = packet.get(header.transport_offset() + MSS_AT..)?;

    value.first_chunk().map(|value| u16::from_be_bytes(*value))
}

/// Whether every checksum of a packet holds, computed in full.
pub(super) fn is_checksum_right(packet: &[u8], header: &Header) -> bool {
    let (ip, transport) = packet.split_at(header.transport_offset().min(packet.len()));
    let is_ip_right = header.is_ipv6() || checksum::sum(ip) == u16::MAX;
    let is_transport_right = match header.transport() {
        Transport::Tcp
        | Transport::Udp
        | Transport::UdpLite
        | Transport::Icmp
        | Transport::Icmpv6 => {
            let addresses = (header.source(), header.destination());
            covered_sum(addresses, header.protocol(), transport) == u16::MAX
        }
        Transport::AuthenticationHeader | Transport::Other(_) | Transport::None => true,
    };

    is_ip_right && is_transport_right
}

/// The sum of what the transport checksum covers.
fn covered_sum(addresses: (IpAddr, IpAddr), protocol: u8, transport: &[u8]) -> u16 {
    let own = checksum::sum(transport);
    if protocol == ICMP {
        return own;
    }
    let len = u32::try_from(transport.len()).unwrap_or(u32::MAX);

    checksum::add(own, checksum::pseudo_header(addresses.0, addresses.1, protocol, len))
}

/// UDP and UDP-Lite write a checksum of zero as its other form.
const fn not_none(protocol: u8, checksum: u16) -> u16 {
    if checksum == 0 && matches!(protocol, UDP | UDP_LITE) { u16::MAX } else { checksum }
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].as_flattened().to_vec()
}

/// A length that fits: no packet asked for is longer than 65535 bytes.
fn word(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
