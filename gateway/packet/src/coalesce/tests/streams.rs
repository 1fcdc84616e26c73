//! Segmenting the frames of random streams restores the packets.

use proptest::prelude::*;

use super::*;
use crate::fixtures::{any_address, any_packet};
use crate::segment::Segments;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    /// On streams with loss, reordering and every difference between consecutive packets that matters.
    #[test]
    fn segmenting_frames_restores_the_packets(
        steps in prop::collection::vec(any_step(), 1..60),
        tcp: bool,
        udp: bool,
    ) {
        let packets = stream(&steps);

        let batch = Batch::of(&packets, Merge { tcp, udp });

        batch.assert_restores(&packets);
    }

    #[test]
    fn segmenting_coalesced_segments_is_the_identity(
        (addresses, is_tcp) in (any::<bool>().prop_flat_map(|is_ipv6| {
            (any_address(is_ipv6), any_address(is_ipv6))
        }), any::<bool>()),
        (size, count, tail) in (1_u16..1400, 2_usize..44, any::<prop::sample::Index>()),
        (seed, sequence, id, flags) in any::<(u64, u32, u16, bool)>(),
    ) {
        let payload_len = usize::from(size) * (count - 1) + 1 + tail.index(usize::from(size));
        let payload = noise(payload_len, seed);
        let flags = if flags { ACK | PSH } else { ACK };
        let (protocol, transport) = if is_tcp {
            (6, tcp([1, 2], sequence, flags, &noise(12, seed), &payload))
        } else {
            (17, udp([1, 2], &payload))
        };
        let mut frame = Packet::new(addresses.0, addresses.1, protocol, transport);
        frame.identification = id;
        let cut_once = segments(&mut frame.build(), size);

        let batch = Batch::of(&cut_once, BOTH);

        prop_assert_eq!(batch.frames.len(), 1);
        let frame = &batch.frames[0];
        prop_assert_eq!(frame.virtio.gso_size, size);
        prop_assert_eq!(segments(&mut frame.bytes.clone(), size), cut_once);
    }

    #[test]
    fn any_packets_are_restored(packets in prop::collection::vec(any_packet(), 1..20)) {
        let packets: Vec<_> = packets.iter().map(Packet::build).collect();

        let batch = Batch::of(&packets, BOTH);

        batch.assert_restores(&packets);
    }
}

/// One packet of a random stream: its flow, payload length and anomaly.
#[derive(Clone, Debug)]
pub(super) struct Step {
    flow: u8,
    full: bool,
    payload_len: usize,
    anomaly: Anomaly,
    seed: u64,
}

#[derive(Clone, Debug)]
enum Anomaly {
    None,
    Lost,
    Repeated,
    SwappedWithPrevious,
    Flags(u8),
    AckOnly,
    WrongChecksum(prop::sample::Index),
    Field(u8),
}

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    let anomaly = prop_oneof![
        30 => Just(Anomaly::None),
        1 => Just(Anomaly::Lost),
        1 => Just(Anomaly::Repeated),
        1 => Just(Anomaly::SwappedWithPrevious),
        1 => Just(Anomaly::Flags(ACK | PSH)),
        1 => any::<u8>().prop_map(Anomaly::Flags),
        1 => Just(Anomaly::AckOnly),
        2 => any::<prop::sample::Index>().prop_map(Anomaly::WrongChecksum),
        2 => (0_u8..9).prop_map(Anomaly::Field),
    ];

    (0_u8..16, prop::bool::weighted(0.9), 1_usize..60, anomaly, any::<u64>()).prop_map(
        |(flow, full, payload_len, anomaly, seed)| Step { flow, full, payload_len, anomaly, seed },
    )
}

/// The packets of a random stream: flows 0 to 3 often, TCP and UDP, IPv4 with and without DF, IPv6.
pub(super) fn stream(steps: &[Step]) -> Vec<Vec<u8>> {
    let mut sequences = HashMap::<u8, u32>::new();
    let mut ids = HashMap::<u8, u16>::new();
    let mut packets: Vec<Vec<u8>> = Vec::new();

    for step in steps {
        let flow = if step.seed % 3 == 0 { step.flow } else { step.flow % 4 };
        let payload_len = if step.full { 40 } else { step.payload_len };
        let payload_len = if matches!(step.anomaly, Anomaly::AckOnly) { 0 } else { payload_len };
        let payload = noise(payload_len, step.seed);
        let sequence = sequences.entry(flow).or_insert(u32::MAX - 100);
        let id = ids.entry(flow).or_insert(u16::MAX - 2);
        let ports = [1000, u16::from(flow)];
        let (protocol, transport) = if flow % 4 < 2 {
            (6, tcp(ports, *sequence, ACK, &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], &payload))
        } else {
            (17, udp(ports, &payload))
        };
        *sequence = sequence.wrapping_add(u32::try_from(payload_len).unwrap());
        *id = id.wrapping_add(1);

        let (source, destination): (IpAddr, IpAddr) = if flow % 2 == 0 {
            ([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        } else {
            ([1_u16; 8].into(), [2_u16; 8].into())
        };
        let mut packet = Packet::new(source, destination, protocol, transport);
        packet.identification = *id;
        packet.fragment = if flow >= 8 { 0x4000 } else { 0 };
        packet.without_checksum = protocol == 17 && flow >= 12;
        add_packet(&mut packets, packet, step);
    }

    packets
}

fn add_packet(packets: &mut Vec<Vec<u8>>, mut packet: Packet, step: &Step) {
    match step.anomaly {
        Anomaly::Flags(flags) if packet.protocol == 6 => packet.transport[13] = flags,
        Anomaly::Field(0) => packet.traffic_class = 3,
        Anomaly::Field(1) => packet.hop_limit = 3,
        Anomaly::Field(2) => packet.identification ^= 0x100,
        Anomaly::Field(3) if !packet.source.is_ipv6() => packet.options = vec![1; 4],
        Anomaly::Field(3) => packet.extensions = vec![Extension::Fragment { field: 1 }],
        Anomaly::Field(4) => packet.fragment = 0x2000,
        Anomaly::Field(5) => packet.flow_label = 9,
        Anomaly::Field(6) => packet.without_checksum ^= true,
        Anomaly::Field(7) if packet.protocol == 6 => packet.transport[15] = 9,
        Anomaly::Field(8) => packet.fragment = 5,
        Anomaly::Flags(_) | Anomaly::Field(_) | Anomaly::None | Anomaly::Lost => {}
        Anomaly::Repeated | Anomaly::SwappedWithPrevious => {}
        Anomaly::AckOnly | Anomaly::WrongChecksum(_) => {}
    }
    let mut bytes = packet.build();
    if let Anomaly::WrongChecksum(at) = step.anomaly {
        let from = packet.transport_offset() + 8;
        let at = from + at.index(bytes.len() - from);
        bytes[at] ^= 0x10;
        if Header::parse(&bytes).is_err() {
            return;
        }
    }

    if matches!(step.anomaly, Anomaly::Repeated) {
        packets.push(bytes.clone());
    }
    if matches!(step.anomaly, Anomaly::SwappedWithPrevious) {
        packets.insert(packets.len().saturating_sub(1), bytes);
    } else if !matches!(step.anomaly, Anomaly::Lost) {
        packets.push(bytes);
    }
}

pub(super) fn segments(frame: &mut [u8], size: u16) -> Vec<Vec<u8>> {
    let header = Header::parse(frame).unwrap();
    let gso = match (header.transport(), header.is_ipv6()) {
        (Transport::Tcp, false) => Gso::TcpV4,
        (Transport::Tcp, true) => Gso::TcpV6,
        _ => Gso::UdpL4,
    };
    let virtio =
        VirtioHeader { needs_checksum: true, gso, gso_size: size, ..VirtioHeader::default() };

    let mut segments = Segments::new(frame, &virtio, &header).unwrap();
    let mut all = Vec::new();
    while let Some(segment) = segments.next_segment() {
        all.push(segment.to_vec());
    }
    all
}
