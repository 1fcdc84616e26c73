//! Packets of every kind that a prefix rule must let through, built from a description.
//!
//! Checksums are computed in full and by the book, not by the code under test.

use std::net::IpAddr;

use proptest::prelude::*;
use strait_lab::Realm;
use strait_lab::layout::host;

use super::kernel::Side;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT_HEADER: u8 = 44;
const GRE: u8 = 47;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;
const SCTP: u8 = 132;

/// Where the IPv4 header has its checksum.
const IP_CHECKSUM_AT: usize = 10;

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Tcp,
    Udp,
    Echo,
    Sctp,
    Gre,
}

impl Content {
    pub(crate) const ALL: [Self; 5] = [Self::Tcp, Self::Udp, Self::Echo, Self::Sctp, Self::Gre];

    const fn protocol(self, is_ipv6: bool) -> u8 {
        match self {
            Self::Tcp => TCP,
            Self::Udp => UDP,
            Self::Echo if is_ipv6 => ICMPV6,
            Self::Echo => ICMP,
            Self::Sctp => SCTP,
            Self::Gre => GRE,
        }
    }

    const fn checksum_at(self) -> Option<usize> {
        match self {
            Self::Tcp => Some(16),
            Self::Udp => Some(6),
            Self::Echo => Some(2),
            Self::Sctp | Self::Gre => None,
        }
    }
}

/// What the transport checksum field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Right,
    /// For UDP: there is none.
    Zero,
    Arbitrary(u16),
}

/// Which part of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    First,
    /// In units of eight bytes.
    Later {
        offset: u16,
    },
}

/// A packet, described.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: Side,
    pub(crate) is_ipv6: bool,
    pub(crate) content: Content,
    pub(crate) checksum: Checksum,
    pub(crate) part: Part,
    /// An IPv6 extension header, or an IPv4 option.
    pub(crate) has_options: bool,
    pub(crate) source_host: u32,
    pub(crate) destination_host: u32,
    pub(crate) ports: [u16; 2],
    pub(crate) id: u16,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub(crate) payload: Vec<u8>,
}

/// Any packet.
pub(crate) fn any_packet() -> impl Strategy<Value = Packet> {
    let checksum = prop_oneof![
        4 => Just(Checksum::Right),
        2 => Just(Checksum::Zero),
        2 => any::<u16>().prop_map(Checksum::Arbitrary),
        1 => Just(Checksum::Arbitrary(0xffff)),
    ];
    let part = prop_oneof![
        3 => Just(Part::Whole),
        1 => Just(Part::First),
        1 => (1_u16..1000).prop_map(|offset| Part::Later { offset }),
    ];
    let kind = (
        prop::sample::select(vec![Side::Cluster, Side::Tunnel]),
        any::<bool>(),
        prop::sample::select(Content::ALL.to_vec()),
        checksum,
        part,
        any::<bool>(),
    );
    let fields = (any::<[u32; 2]>(), any::<[u16; 2]>(), any::<u16>(), any::<u8>(), 2_u8..);
    let payload = prop::collection::vec(any::<u8>(), 0..256);

    (kind, fields, payload).prop_map(|(kind, fields, payload)| {
        let (from, is_ipv6, content, checksum, part, has_options) = kind;
        let ([source_host, destination_host], ports, id, traffic_class, hop_limit) = fields;

        Packet {
            from,
            is_ipv6,
            content,
            checksum,
            part,
            has_options,
            source_host,
            destination_host,
            ports,
            id,
            traffic_class,
            hop_limit,
            payload,
        }
    })
}

impl Packet {
    /// The bytes, as they arrive at the gateway of the cluster `own` that sees the pods of `remote`.
    pub(crate) fn to_bytes(&self, own: &[Realm], remote: &[Realm]) -> Vec<u8> {
        let of_family = |realms: &[Realm]| {
            let realm = realms.iter().find(|realm| realm.pods.addr().is_ipv6() == self.is_ipv6);
            *realm.unwrap()
        };
        let (own, remote) = (of_family(own), of_family(remote));
        let within = |prefix: ipnet::IpNet, number: u32| {
            let free = u32::from(prefix.max_prefix_len() - prefix.prefix_len());
            host(prefix, number & 1_u32.checked_shl(free).map_or(u32::MAX, |size| size - 1))
        };
        let (source, destination) = match self.from {
            Side::Cluster => {
                (within(own.pods, self.source_host), within(own.remapped, self.destination_host))
            }
            Side::Tunnel => {
                (within(remote.pods, self.source_host), within(own.pods, self.destination_host))
            }
        };

        self.between(source, destination)
    }

    /// The bytes of the packet from `source` to `destination`.
    pub(crate) fn between(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let protocol = self.content.protocol(self.is_ipv6);
        let transport = match self.part {
            // Any bytes: they must not be taken for a header.
            Part::Later { .. } => self.payload.clone(),
            Part::Whole | Part::First => self.transport(source, destination),
        };

        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let options: &[u8] = if self.has_options { &[1, 1, 1, 0] } else { &[] };
                let offset_field: u16 = match self.part {
                    Part::Whole => 0,
                    Part::First => 0x2000,
                    Part::Later { offset } => offset,
                };
                let mut packet = vec![0x45 + u8::try_from(options.len() / 4).unwrap()];
                packet.push(self.traffic_class);
                packet.extend(length(20 + options.len() + transport.len()));
                packet.extend(self.id.to_be_bytes());
                packet.extend(offset_field.to_be_bytes());
                packet.extend([self.hop_limit, protocol, 0, 0]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(options);
                let checksum = !sum(&packet);
                packet[IP_CHECKSUM_AT..][..2].copy_from_slice(&checksum.to_be_bytes());
                packet.extend(transport);
                packet
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (first, extensions) = self.extensions(protocol);
                let mut packet =
                    vec![0x60 | (self.traffic_class >> 4), self.traffic_class << 4, 0, 0];
                packet.extend(length(extensions.len() + transport.len()));
                packet.extend([first, self.hop_limit]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(extensions);
                packet.extend(transport);
                packet
            }
            _ => panic!("two addresses of one family"),
        }
    }

    /// The transport header and the payload.
    fn transport(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let [one, other] = self.ports.map(u16::to_be_bytes);
        let mut bytes = match self.content {
            Content::Tcp => {
                let mut header = [one, other].concat();
                // Sequence and acknowledgement number, then a header without options, SYN.
                header.extend([7, 7, 7, 7, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
                header
            }
            Content::Udp => [one, other, length(8 + self.payload.len()), [0, 0]].concat(),
            Content::Echo => {
                let kind = if self.is_ipv6 { 128 } else { 8 };
                [[kind, 0], [0, 0], one, other].concat()
            }
            // Verification tag and CRC32c, which covers no address.
            Content::Sctp => [one, other, [1, 2], [3, 4], [5, 6], [7, 8]].concat(),
            Content::Gre => vec![0, 0, 8, 0],
        };
        bytes.extend(&self.payload);

        let Some(at) = self.content.checksum_at() else {
            return bytes;
        };
        let is_covered = self.is_ipv6 || self.content != Content::Echo;
        let right = match self.checksum {
            Checksum::Zero => 0,
            Checksum::Arbitrary(value) => value,
            Checksum::Right => {
                let protocol = self.content.protocol(self.is_ipv6);
                let pseudo = pseudo_header(source, destination, protocol, bytes.len());
                let parts = if is_covered { [&pseudo[..], &bytes].concat() } else { bytes.clone() };
                match !sum(&parts) {
                    0 if self.content == Content::Udp => 0xffff,
                    checksum => checksum,
                }
            }
        };
        bytes[at..][..2].copy_from_slice(&right.to_be_bytes());

        bytes
    }

    /// IPv6 extension headers in front of `protocol`, and the number of the first header.
    fn extensions(&self, protocol: u8) -> (u8, Vec<u8>) {
        let mut first = protocol;
        let mut headers = Vec::new();
        let fragment = match self.part {
            Part::Whole => None,
            Part::First => Some(1),
            Part::Later { offset } => Some(offset << 3),
        };
        if let Some(offset_field) = fragment {
            let mut header = vec![first, 0];
            header.extend(offset_field.to_be_bytes());
            header.extend([self.id.to_be_bytes(), self.id.to_be_bytes()].concat());
            (first, headers) = (FRAGMENT_HEADER, header);
        }
        if self.has_options {
            // Six bytes of padding.
            let mut header = vec![first, 0, 1, 4, 0, 0, 0, 0];
            header.append(&mut headers);
            (first, headers) = (DESTINATION_OPTIONS, header);
        }

        (first, headers)
    }
}

/// An ICMP error of the receiver of `offending`, which quotes `quoted` bytes of it.
pub(crate) fn error_about(
    offending: &[u8],
    kind: u8,
    code: u8,
    rest: u32,
    quoted: usize,
) -> Vec<u8> {
    let is_ipv6 = offending[0] >> 4 == 6;
    let (source, destination) = addresses(offending);
    let quote = &offending[..quoted.min(offending.len())];
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(quote);

    // From the receiver of the quoted packet to its sender.
    let protocol = if is_ipv6 { ICMPV6 } else { ICMP };
    let pseudo = pseudo_header(destination, source, protocol, message.len());
    let covered = if is_ipv6 { [&pseudo[..], &message].concat() } else { message.clone() };
    let checksum = (!sum(&covered)).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);

    match (destination, source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![0x45, 0xc0];
            packet.extend(length(20 + message.len()));
            packet.extend([0, 0, 0, 0, 64, ICMP, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let checksum = (!sum(&packet)).to_be_bytes();
            packet[IP_CHECKSUM_AT..][..2].copy_from_slice(&checksum);
            packet.extend(message);
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend(length(message.len()));
            packet.extend([ICMPV6, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet.extend(message);
            packet
        }
        _ => unreachable!("two addresses of one family"),
    }
}

/// Source and destination.
fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    if packet[0] >> 4 == 6 {
        let address = |at| <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap().into();
        return (address(8), address(24));
    }
    let address = |at| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap().into();

    (address(12), address(16))
}

/// The pseudo-header in the form of IPv6 (RFC 8200 section 8.1), which has the same sum as that of
/// IPv4.
fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend(u32::try_from(len).unwrap().to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);

    bytes
}

/// The sum in one's complement arithmetic (RFC 1071 section 1).
fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum: u16, pair| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap().to_be_bytes()
}
