//! Packets for tests, built by an oracle: every checksum is computed in full, by code that shares
//! nothing with the tested code.

#![expect(
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    missing_docs,
    reason = "a test may panic, and the names are documentation enough"
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// The parts of a packet. [`Packet::build`] computes checksums and lengths.
#[derive(Clone, Debug)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// IPv4 only.
    pub identification: u16,
    /// IPv4 flags and fragment offset.
    pub fragment: u16,
    /// IPv4 options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv6 flow label.
    pub flow_label: u16,
    /// IPv6 extension headers, in order.
    pub extensions: Vec<Extension>,
    pub protocol: u8,
    /// Transport header and payload; the checksum field is overwritten.
    pub transport: Vec<u8>,
    /// Leave the checksum field zero.
    pub without_checksum: bool,
}

#[derive(Clone, Debug)]
pub enum Extension {
    /// Hop-by-hop (0) or destination (60) options.
    Options {
        kind: u8,
        units: u8,
        seed: u64,
    },
    Routing {
        segments_left: u8,
        last: Ipv6Addr,
    },
    Fragment {
        field: u16,
    },
}

impl Packet {
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, transport: Vec<u8>) -> Self {
        Self {
            source,
            destination,
            traffic_class: 0,
            hop_limit: 64,
            identification: 0,
            fragment: 0,
            options: Vec::new(),
            flow_label: 0,
            extensions: Vec::new(),
            protocol,
            transport,
            without_checksum: false,
        }
    }

    pub fn build(&self) -> Vec<u8> {
        let mut transport = self.transport.clone();
        if let Some((at, covered)) = self.checksum(&transport) {
            let checksum = match !naive_sum(&covered) {
                0 if self.protocol == UDP || self.protocol == 136 => 0xffff,
                checksum => checksum,
            };
            put(&mut transport, at, checksum);
        }

        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.build_v4(source, destination, &transport)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.build_v6(source, destination, &transport)
            }
            _ => panic!("mixed IP versions"),
        }
    }

    /// Whether this is a fragment without transport header.
    pub fn is_later_fragment(&self) -> bool {
        let offset_v6 = |extension: &Extension| matches!(extension, Extension::Fragment { field } if field & 0xfff8 != 0);
        match self.source {
            IpAddr::V4(_) => self.fragment & 0x1fff != 0,
            IpAddr::V6(_) => self.extensions.iter().any(offset_v6),
        }
    }

    /// The offset of the transport header.
    pub fn transport_offset(&self) -> usize {
        self.build().len() - self.transport.len()
    }

    /// The offset of the checksum and the bytes that it covers, its own field zeroed; if there is one.
    fn checksum(&self, transport: &[u8]) -> Option<(usize, Vec<u8>)> {
        let (at, has_pseudo_header) = match (self.protocol, self.source.is_ipv6()) {
            (TCP, _) => (16, true),
            (UDP | 136, _) => (6, true),
            (58, true) => (2, true),
            (1, false) => (2, false),
            _ => return None,
        };
        if at + 2 > transport.len() || self.is_later_fragment() {
            return None;
        }

        let mut covered = transport.to_vec();
        put(&mut covered, at, 0);
        if self.protocol == 136 {
            let coverage = usize::from(word(transport, 4));
            covered.truncate(if coverage == 0 { transport.len() } else { coverage });
        }
        if has_pseudo_header {
            let len = u32::try_from(transport.len()).unwrap();
            let mut all = self.pseudo_header(len);
            all.extend(covered);
            covered = all;
        }
        if self.without_checksum {
            return None;
        }

        Some((at, covered))
    }

    /// The pseudo-header with the final destination.
    pub(crate) fn pseudo_header(&self, len: u32) -> Vec<u8> {
        let mut last = self.destination;
        for extension in &self.extensions {
            if let Extension::Routing { segments_left: 1.., last: address } = extension {
                last = IpAddr::V6(*address);
            }
        }

        pseudo_header(self.source, last, self.protocol, len)
    }

    fn build_v4(&self, source: Ipv4Addr, destination: Ipv4Addr, transport: &[u8]) -> Vec<u8> {
        let header_len = 20 + self.options.len();
        let mut packet = vec![0; header_len];
        packet[0] = 0x40 | u8::try_from(header_len / 4).unwrap();
        packet[1] = self.traffic_class;
        put(&mut packet, 2, u16::try_from(header_len + transport.len()).unwrap());
        put(&mut packet, 4, self.identification);
        put(&mut packet, 6, self.fragment);
        packet[8] = self.hop_limit;
        packet[9] = self.protocol;
        packet[12..16].copy_from_slice(&source.octets());
        packet[16..20].copy_from_slice(&destination.octets());
        packet[20..].copy_from_slice(&self.options);
        let checksum = !naive_sum(&packet);
        put(&mut packet, 10, checksum);
        packet.extend(transport);

        packet
    }

    fn build_v6(&self, source: Ipv6Addr, destination: Ipv6Addr, transport: &[u8]) -> Vec<u8> {
        let mut extensions = Vec::new();
        for (index, extension) in self.extensions.iter().enumerate() {
            let next = self.extensions.get(index + 1).map_or(self.protocol, Extension::kind);
            extensions.extend(extension.build(next));
        }

        let mut packet = vec![0; 40];
        packet[0] = 0x60 | (self.traffic_class >> 4);
        packet[1] = self.traffic_class << 4;
        put(&mut packet, 2, self.flow_label);
        put(&mut packet, 4, u16::try_from(extensions.len() + transport.len()).unwrap());
        packet[6] = self.extensions.first().map_or(self.protocol, Extension::kind);
        packet[7] = self.hop_limit;
        packet[8..24].copy_from_slice(&source.octets());
        packet[24..40].copy_from_slice(&destination.octets());
        packet.extend(extensions);
        packet.extend(transport);

        packet
    }
}

impl Extension {
    fn kind(&self) -> u8 {
        match self {
            Self::Options { kind, .. } => *kind,
            Self::Routing { .. } => 43,
            Self::Fragment { .. } => 44,
        }
    }

    fn build(&self, next: u8) -> Vec<u8> {
        match self {
            Self::Options { units, seed, .. } => {
                let mut header = noise(8 + 8 * usize::from(*units), *seed);
                header[0] = next;
                header[1] = *units;
                header
            }
            Self::Routing { segments_left, last } => {
                let mut header = vec![next, 2, 4, *segments_left, 0, 0, 0, 0];
                header.extend(last.octets());
                header
            }
            Self::Fragment { field } => {
                let [high, low] = field.to_be_bytes();
                vec![next, 0, high, low, 1, 2, 3, 4]
            }
        }
    }
}

/// A TCP header and payload. `options` is a multiple of four bytes, at most 40.
pub fn tcp(ports: [u16; 2], sequence: u32, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 20];
    put(&mut segment, 0, ports[0]);
    put(&mut segment, 2, ports[1]);
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&0x0102_0304_u32.to_be_bytes());
    segment[12] = u8::try_from((20 + options.len()) / 4).unwrap() << 4;
    segment[13] = flags;
    put(&mut segment, 14, 502);
    segment.extend(options);
    segment.extend(payload);

    segment
}

/// A UDP header and payload.
pub fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 8];
    put(&mut datagram, 0, ports[0]);
    put(&mut datagram, 2, ports[1]);
    put(&mut datagram, 4, u16::try_from(8 + payload.len()).unwrap());
    datagram.extend(payload);

    datagram
}

/// Segments a whole frame into packets with `size` bytes of payload each, by definition. The frame has
/// no routing header.
pub fn cut(frame: &[u8], size: usize) -> Vec<Vec<u8>> {
    let header = super::Header::parse(frame).unwrap();
    let offset = header.transport_offset();
    let is_tcp = header.protocol() == TCP;
    let header_len = offset + if is_tcp { usize::from(frame[offset + 12] >> 4) * 4 } else { 8 };
    let chunks: Vec<&[u8]> = match &frame[header_len..] {
        [] => vec![&[]],
        payload => payload.chunks(size).collect(),
    };

    let mut packets = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let mut packet = [&frame[..header_len], *chunk].concat();
        let len = packet.len();
        if frame[0] >> 4 == 4 {
            put(&mut packet, 2, u16::try_from(len).unwrap());
            let id = word(frame, 4).wrapping_add(u16::try_from(index).unwrap());
            put(&mut packet, 4, id);
            put(&mut packet, 10, 0);
            let checksum = !naive_sum(&packet[..offset]);
            put(&mut packet, 10, checksum);
        } else {
            put(&mut packet, 4, u16::try_from(len - 40).unwrap());
        }

        let transport = &mut packet[offset..];
        let checksum_at = if is_tcp {
            let sequence = u32::from_be_bytes(transport[4..8].try_into().unwrap());
            let sequence = sequence.wrapping_add(u32::try_from(index * size).unwrap());
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            if index > 0 {
                transport[13] &= !CWR;
            }
            if index + 1 < chunks.len() {
                transport[13] &= !FIN_PSH;
            }
            16
        } else {
            put(transport, 4, u16::try_from(transport.len()).unwrap());
            6
        };
        put(transport, checksum_at, 0);
        let len = u32::try_from(transport.len()).unwrap();
        let pseudo = pseudo_header(header.source(), header.destination(), header.protocol(), len);
        let checksum = !naive_sum(&[&pseudo, &*transport].concat());
        put(transport, checksum_at, if checksum == 0 && !is_tcp { 0xffff } else { checksum });
        packets.push(packet);
    }

    packets
}

pub(crate) fn pseudo_header(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    len: u32,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);

    bytes
}

/// The one's complement sum of 16-bit words, from its definition.
pub(crate) fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }

    u16::try_from(sum).unwrap()
}

/// `len` pseudo-random bytes, determined by the seed.
pub fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend((seed ^ (seed >> 29)).to_be_bytes());
    }
    bytes.truncate(len);

    bytes
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Any address of one version. Extreme words are the special cases of sums, so they are frequent.
pub(crate) fn any_address(is_ipv6: bool) -> BoxedStrategy<IpAddr> {
    let v4 = prop_oneof![4 => any::<u32>(), 1 => Just(0), 1 => Just(u32::MAX)];
    let v6 = prop_oneof![4 => any::<u128>(), 1 => Just(0), 1 => Just(u128::MAX)];
    if is_ipv6 {
        v6.prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))).boxed()
    } else {
        v4.prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))).boxed()
    }
}

/// Any well-formed packet: both versions, all protocols, options and extension headers, fragments,
/// odd lengths, and truncated transport headers.
pub fn any_packet() -> impl Strategy<Value = Packet> {
    any::<bool>().prop_flat_map(|is_ipv6| {
        let addresses = (any_address(is_ipv6), any_address(is_ipv6));
        let fields = (any::<u8>(), any::<u8>(), any::<[u16; 2]>(), any_fragment());
        let transport = (0..PROTOCOLS.len(), any::<u64>(), 0_usize..120, any::<u8>());

        (addresses, fields, transport, any_extensions()).prop_map(
            move |(addresses, fields, (protocol, seed, len, choice), extensions)| {
                let protocol = PROTOCOLS[protocol];
                let mut packet = Packet::new(addresses.0, addresses.1, protocol, noise(len, seed));
                (packet.traffic_class, packet.hop_limit) = (fields.0, fields.1);
                [packet.identification, packet.flow_label] = fields.2;
                packet.without_checksum = choice % 8 == 0 && matches!(protocol, UDP | 136);
                if is_ipv6 {
                    packet.extensions = extensions;
                } else {
                    packet.fragment = fields.3;
                    packet.options = noise(usize::from(choice % 4) * 4, seed);
                }
                if packet.without_checksum && len >= 8 {
                    put(&mut packet.transport, 6, 0);
                }
                if protocol == 136 && len >= 8 {
                    let coverage = 8 + seed % u64::try_from(len - 7).unwrap();
                    put(&mut packet.transport, 4, u16::try_from(coverage).unwrap());
                }
                if matches!(protocol, 1 | 58) && len > 0 {
                    packet.transport[0] = if protocol == 1 { 8 } else { 128 };
                }
                packet
            },
        )
    })
}

/// A frame of TCP or UDP of up to 64 KiB, with IPv4 options or an IPv6 extension header half of the time.
pub fn any_frame() -> impl Strategy<Value = Packet> {
    let addresses =
        any::<bool>().prop_flat_map(|is_ipv6| (any_address(is_ipv6), any_address(is_ipv6)));
    let payload = (prop_oneof![4 => 0_usize..3000, 1 => 0_usize..65_000], any::<u64>());
    let transport = (any::<bool>(), any::<[u16; 2]>(), any::<u32>(), any::<u8>(), 0_usize..11);

    (addresses, payload, transport, any::<u16>(), any::<bool>()).prop_map(
        |(addresses, (len, seed), (is_tcp, ports, sequence, flags, options), id, extended)| {
            let payload = noise(len, seed);
            let transport = if is_tcp {
                tcp(ports, sequence, flags, &noise(options * 4, seed), &payload)
            } else {
                udp(ports, &payload)
            };
            let protocol = if is_tcp { 6 } else { 17 };
            let mut packet = Packet::new(addresses.0, addresses.1, protocol, transport);
            packet.identification = id;
            if extended && packet.source.is_ipv6() {
                packet.extensions = vec![Extension::Options { kind: 60, units: 3, seed }];
            } else if extended {
                packet.options = noise(8, seed);
            }
            packet
        },
    )
}

/// TCP and UDP most often, then the other protocols with an Internet checksum, then GRE,
/// ESP, AH, SCTP and "no next header".
const PROTOCOLS: [u8; 14] = [TCP, TCP, TCP, UDP, UDP, UDP, 136, 1, 58, 47, 50, 51, 132, 59];

fn any_fragment() -> impl Strategy<Value = u16> {
    prop_oneof![
        4 => Just(0),
        2 => Just(0x4000),
        1 => Just(0x2000),
        1 => 1_u16..0x2000,
        1 => (1_u16..0x2000).prop_map(|offset| offset | 0x2000),
    ]
}

fn any_extensions() -> impl Strategy<Value = Vec<Extension>> {
    let options = (any::<bool>(), 0_u8..4, any::<u64>()).prop_map(|(is_hop, units, seed)| {
        Extension::Options { kind: if is_hop { 0 } else { 60 }, units, seed }
    });
    let routing = (0_u8..2, any::<u128>()).prop_map(|(segments_left, last)| Extension::Routing {
        segments_left,
        last: Ipv6Addr::from_bits(last),
    });
    let fragment = prop_oneof![Just(0), Just(1), any::<u16>().prop_map(|field| field & 0xfff9)]
        .prop_map(|field| Extension::Fragment { field });
    let chain = (
        prop::collection::vec(options.clone(), 0..2),
        prop::option::weighted(0.3, routing),
        prop::option::weighted(0.3, fragment),
        prop::option::weighted(0.3, options),
    );

    prop_oneof![
        1 => Just(Vec::new()),
        1 => chain.prop_map(|(mut all, routing, fragment, last)| {
            all.extend(routing);
            let ends = matches!(fragment, Some(Extension::Fragment { field }) if field & 0xfff8 != 0);
            all.extend(fragment);
            if !ends {
                all.extend(last);
            }
            all
        }),
    ]
}
