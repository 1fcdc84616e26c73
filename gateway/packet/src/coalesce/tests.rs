use std::collections::HashMap;
use std::net::IpAddr;

use proptest::prelude::*;

use super::super::fixtures::{
    Extension, Packet, any_address, any_packet, cut, naive_sum, noise, put, tcp, udp, word,
};
use super::super::segment::Segments;
use super::super::virtio::{Gso, VirtioHeader};
use super::*;

const BOTH: Merge = Merge { tcp: true, udp: true };
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

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

#[test]
fn bulk_stream_becomes_one_frame() {
    let packets: Vec<_> = (0..40).map(|index| segment(index * 1000, 1000).build()).collect();

    let batch = Batch::of(&packets, BOTH);

    let [frame] = &batch.frames[..] else { panic!("{} frames", batch.frames.len()) };
    assert_eq!((frame.packet_count, frame.byte_count), (40, 40 + 40_000));
    assert_eq!(
        frame.virtio,
        VirtioHeader {
            needs_checksum: true,
            gso: Gso::TcpV4,
            header_len: 40,
            gso_size: 1000,
            checksum_start: 20,
            checksum_offset: 16,
        }
    );
    let pseudo = segment(0, 0).pseudo_header(20 + 40_000);
    assert_eq!(word(&frame.bytes, 36), naive_sum(&pseudo));
    assert_eq!(naive_sum(&frame.bytes[..20]), 0xffff);
}

#[test]
fn push_flag_ends_the_frame() {
    let mut second = segment(100, 100);
    second.transport[13] = ACK | PSH;
    let packets = [segment(0, 100), second, segment(200, 100)].map(|packet| packet.build());

    let batch = Batch::of(&packets, BOTH);

    assert_eq!(batch.packet_counts(), [2, 1]);
    assert_eq!(batch.frames[0].bytes[33], ACK | PSH);
}

#[test]
fn segment_length_change_ends_the_group() {
    let shorter = [segment(0, 100), segment(100, 60), segment(160, 60)];
    let longer = [segment(0, 60), segment(60, 100)];

    let shorter = Batch::of(&shorter.map(|packet| packet.build()), BOTH);
    let longer = Batch::of(&longer.map(|packet| packet.build()), BOTH);

    assert_eq!(shorter.packet_counts(), [2, 1]);
    assert_eq!(longer.packet_counts(), [1, 1]);
}

#[test]
fn ipv4_packets_with_different_headers_stay_apart() {
    let changes: [fn(&mut Packet); 15] = [
        |packet| packet.traffic_class = 1,
        |packet| packet.traffic_class = 4,
        |packet| packet.hop_limit = 63,
        |packet| packet.fragment = 0x4000,
        |packet| packet.fragment = 0x8000,
        |packet| packet.fragment = 0x2000,
        |packet| packet.identification = 7,
        |packet| packet.options = vec![1; 4],
        |packet| packet.transport[3] ^= 1,
        |packet| packet.transport[7] ^= 1,
        |packet| packet.transport[11] ^= 1,
        |packet| packet.transport[12] |= 1,
        |packet| packet.transport[13] |= 0x40,
        |packet| packet.transport[15] ^= 1,
        |packet| packet.transport[19] ^= 1,
    ];

    for (index, change) in changes.iter().enumerate() {
        let mut second = segment(100, 100);
        change(&mut second);
        let packets = [segment(0, 100), second].map(|packet| packet.build());

        let batch = Batch::of(&packets, BOTH);

        assert_eq!(batch.packet_counts(), [1, 1], "change {index}");
    }
}

#[test]
fn ipv6_packets_with_different_headers_stay_apart() {
    let changes: [fn(&mut Packet); 5] = [
        |packet| packet.traffic_class = 0x11,
        |packet| packet.hop_limit = 63,
        |packet| packet.flow_label = 1,
        |packet| packet.extensions = vec![Extension::Options { kind: 60, units: 0, seed: 1 }],
        |packet| packet.extensions = vec![Extension::Fragment { field: 0 }],
    ];
    let ipv6 = |packet: Packet| Packet {
        source: [1_u16; 8].into(),
        destination: [2_u16; 8].into(),
        ..packet
    };

    let equal = [ipv6(segment(0, 100)), ipv6(segment(100, 100))].map(|packet| packet.build());
    assert_eq!(Batch::of(&equal, BOTH).packet_counts(), [2]);

    for (index, change) in changes.iter().enumerate() {
        let mut second = ipv6(segment(100, 100));
        change(&mut second);
        let packets = [ipv6(segment(0, 100)), second].map(|packet| packet.build());

        assert_eq!(Batch::of(&packets, BOTH).packet_counts(), [1, 1], "change {index}");
    }
}

#[test]
fn options_and_extension_headers_are_never_merged() {
    let options = [segment(0, 100), segment(100, 100)].map(|mut packet| {
        packet.options = vec![1; 4];
        packet.build()
    });
    let extensions = [segment(0, 100), segment(100, 100)].map(|mut packet| {
        packet.extensions = vec![Extension::Options { kind: 60, units: 0, seed: 1 }];
        (packet.source, packet.destination) = ([1_u16; 8].into(), [2_u16; 8].into());
        packet.build()
    });

    assert_eq!(Batch::of(&options, BOTH).packet_counts(), [1, 1]);
    assert_eq!(Batch::of(&extensions, BOTH).packet_counts(), [1, 1]);
}

#[test]
fn wrong_checksum_stays_alone_and_wrong() {
    for (broken, expected) in [(0, [1, 2]), (1, [1, 1]), (2, [2, 1])] {
        for at in [10, 36, 60] {
            let mut packets = [0, 100, 200].map(|sequence| segment(sequence, 100).build()).to_vec();
            packets[broken][at] ^= 0x55;

            let batch = Batch::of(&packets, BOTH);

            assert_eq!(batch.packet_counts()[..2], expected, "packet {broken}, byte {at}");
            batch.assert_restores(&packets);
        }
    }
}

#[test]
fn datagrams_without_checksum_are_not_merged() {
    let datagram = || {
        let mut packet = datagram(100);
        packet.without_checksum = true;
        packet.build()
    };

    let batch = Batch::of(&[datagram(), datagram()], BOTH);

    assert_eq!(batch.packet_counts(), [1, 1]);
}

#[test]
fn at_most_64_datagrams_are_merged() {
    let packets: Vec<_> = (0..130).map(|id| with_id(datagram(100), id).build()).collect();

    let batch = Batch::of(&packets, BOTH);

    assert_eq!(batch.packet_counts(), [64, 64, 2]);
    assert_eq!(batch.frames[0].virtio.gso, Gso::UdpL4);
    assert_eq!(batch.frames[0].virtio.checksum_offset, 6);
}

#[test]
fn identification_matters_only_without_df() {
    let pair = |fragment: u16, second: u16| {
        [65_535, second].map(|id| {
            let mut packet = with_id(datagram(100), id);
            packet.fragment = fragment;
            packet.build()
        })
    };

    assert_eq!(Batch::of(&pair(0, 0), BOTH).packet_counts(), [2]);
    assert_eq!(Batch::of(&pair(0, 1), BOTH).packet_counts(), [1, 1]);
    assert_eq!(Batch::of(&pair(0x4000, 500), BOTH).packet_counts(), [2]);
}

#[test]
fn no_frame_exceeds_65535_bytes() {
    let packets: Vec<_> = (0..60).map(|index| segment(index * 1400, 1400).build()).collect();

    let batch = Batch::of(&packets, BOTH);

    assert_eq!(batch.packet_counts(), [46, 14]);
    assert!(batch.frames[0].byte_count <= 65_535);
    batch.assert_restores(&packets);
}

#[test]
fn later_fragments_are_not_overtaken() {
    let mut fragment = segment(0, 100);
    (fragment.fragment, fragment.protocol) = (3, 17);
    let packets = [segment(0, 100), fragment, segment(100, 100)].map(|packet| packet.build());

    let batch = Batch::of(&packets, BOTH);

    assert_eq!(batch.packet_counts(), [1, 1, 1]);
}

#[test]
fn disabled_protocols_are_not_merged() {
    let segments = [segment(0, 100), segment(100, 100)].map(|packet| packet.build());
    let datagrams = [0, 1].map(|id| with_id(datagram(100), id).build());

    assert_eq!(Batch::of(&segments, Merge { tcp: false, udp: true }).packet_counts(), [1, 1]);
    assert_eq!(Batch::of(&datagrams, Merge { tcp: true, udp: false }).packet_counts(), [1, 1]);
}

#[test]
fn more_flows_than_slots_stay_ordered() {
    let mut packets = Vec::new();
    for round in 0..4 {
        for flow in 0..12 {
            let mut packet = segment(round * 200, 100);
            packet.transport[1] = flow;
            packets.push(packet.build());
            packet = segment(round * 200 + 100, 100);
            packet.transport[1] = flow;
            packets.push(packet.build());
        }
    }

    let batch = Batch::of(&packets, BOTH);

    batch.assert_restores(&packets);
    assert_eq!(batch.packet_counts(), [2; 48]);
}

#[test]
fn full_batch_rejects_packets_until_cleared() {
    let arena = datagram(10).build();
    let header = Header::parse(&arena).unwrap();
    let mut coalescer = Coalescer::new();
    let memory =
        [coalescer.members.as_ptr_range().start.cast::<u8>(), coalescer.groups.as_ptr().cast()];
    let push = |coalescer: &mut Coalescer| coalescer.push(&arena, 0..arena.len(), &header, BOTH);

    for _ in 0..MAX_PACKETS {
        assert!(push(&mut coalescer));
    }
    assert!(!push(&mut coalescer));
    assert_eq!(coalescer.frames().map(|frame| frame.packet_count()).sum::<usize>(), MAX_PACKETS);
    coalescer.clear();
    assert_eq!(coalescer.frames().count(), 0);
    assert!(push(&mut coalescer));

    let now =
        [coalescer.members.as_ptr_range().start.cast::<u8>(), coalescer.groups.as_ptr().cast()];
    assert_eq!(now, memory);
}

#[test]
fn reading_frames_closes_all_groups() {
    let arena: Vec<_> = (0..3).flat_map(|index| segment(index * 100, 100).build()).collect();
    let header = Header::parse(&arena).unwrap();
    let mut coalescer = Coalescer::new();
    let push = |coalescer: &mut Coalescer, index: usize| {
        assert!(coalescer.push(&arena, index * 140..(index + 1) * 140, &header, BOTH));
    };
    push(&mut coalescer, 0);
    push(&mut coalescer, 1);

    let once: Vec<_> = coalescer.frames().map(|frame| frame.header_bytes().to_vec()).collect();
    push(&mut coalescer, 2);
    let twice: Vec<_> = coalescer.frames().map(|frame| frame.header_bytes().to_vec()).collect();

    assert_eq!(twice, [once[0].clone(), Vec::new()]);
}

#[test]
fn padding_is_left_out() {
    let packet = segment(0, 100).build();
    let padded = [packet.clone(), vec![0; 4]].concat();

    let batch = Batch::of(&[padded], BOTH);

    assert_eq!(batch.frames[0].bytes, packet);
}

/// A copy of a frame's public content.
struct FrameCopy {
    virtio: VirtioHeader,
    bytes: Vec<u8>,
    members: Vec<Vec<u8>>,
    packet_count: usize,
    byte_count: usize,
}

struct Batch {
    frames: Vec<FrameCopy>,
}

impl Batch {
    fn of(packets: &[Vec<u8>], merge: Merge) -> Self {
        let arena = packets.concat();
        let mut coalescer = Coalescer::new();
        let mut start = 0;
        for packet in packets {
            let header = Header::parse(packet).unwrap();
            assert!(coalescer.push(&arena, start..start + packet.len(), &header, merge));
            start += packet.len();
        }

        let frames = coalescer.frames().map(|frame| {
            let mut bytes = frame.header_bytes().to_vec();
            frame.payloads().for_each(|range| bytes.extend(&arena[range]));
            FrameCopy {
                virtio: frame.virtio(),
                bytes,
                members: frame.members().map(|range| arena[range].to_vec()).collect(),
                packet_count: frame.packet_count(),
                byte_count: frame.byte_count(),
            }
        });

        Self { frames: frames.collect() }
    }

    fn packet_counts(&self) -> Vec<usize> {
        self.frames.iter().map(|frame| frame.packet_count).collect()
    }

    /// Asserts that each frame, segmented by the oracle, is its members; that all members
    /// are the packets of the batch; and that those of one flow are in order.
    fn assert_restores(&self, packets: &[Vec<u8>]) {
        let mut seen = HashMap::<_, Vec<&[u8]>>::new();
        for frame in &self.frames {
            assert_eq!(frame.bytes.len(), frame.byte_count);
            assert_eq!(frame.members.len(), frame.packet_count);
            assert!(frame.bytes.len() <= 65_535 || frame.packet_count == 1);

            if frame.packet_count == 1 {
                assert_eq!(frame.virtio, VirtioHeader::default());
                assert_eq!(frame.bytes, frame.members[0]);
            } else {
                let size = usize::from(frame.virtio.gso_size);
                let restored: Vec<_> =
                    cut(&frame.bytes, size).iter().map(|packet| without_idle_id(packet)).collect();
                let members: Vec<_> =
                    frame.members.iter().map(|packet| without_idle_id(packet)).collect();
                assert_eq!(restored, members);
            }
            for member in &frame.members {
                seen.entry(flow(member)).or_default().push(member);
            }
        }

        let mut expected = HashMap::<_, Vec<&[u8]>>::new();
        for packet in packets {
            expected.entry(flow(packet)).or_default().push(packet);
        }
        assert_eq!(seen, expected);
    }
}

/// Addresses, protocol, and ports if there are any.
fn flow(packet: &[u8]) -> (IpAddr, IpAddr, u8, Vec<u8>) {
    let header = Header::parse(packet).unwrap();
    let has_ports = matches!(header.transport(), Transport::Tcp | Transport::Udp);
    let ports = &packet[header.transport_offset()..][..if has_ports { 4 } else { 0 }];

    (header.source(), header.destination(), header.protocol(), ports.to_vec())
}

/// The packet without the identification where it has no meaning, with the checksum over it.
fn without_idle_id(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let header = Header::parse(&packet).unwrap();
    if !header.is_ipv6() && header.dont_fragment() {
        assert_eq!(naive_sum(&packet[..header.transport_offset()]), 0xffff);
        put(&mut packet, 4, 0);
        put(&mut packet, 10, 0);
    }

    packet
}

/// One packet of a random stream: its flow, payload length and anomaly.
#[derive(Clone, Debug)]
struct Step {
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

fn any_step() -> impl Strategy<Value = Step> {
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

    (0_u8..12, prop::bool::weighted(0.9), 1_usize..60, anomaly, any::<u64>()).prop_map(
        |(flow, full, payload_len, anomaly, seed)| Step { flow, full, payload_len, anomaly, seed },
    )
}

/// The packets of a random stream: flows 0 to 3 often, TCP and UDP, IPv4 with and without DF, IPv6.
fn stream(steps: &[Step]) -> Vec<Vec<u8>> {
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
        Anomaly::Field(6) => packet.without_checksum = true,
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

fn segment(sequence: u32, len: usize) -> Packet {
    let transport = tcp([1, 2], sequence, ACK, &[], &noise(len, u64::from(sequence)));
    let mut packet = Packet::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, transport);
    // Consecutive, as from a sender without DF.
    packet.identification = u16::try_from(sequence / u32::try_from(len.max(1)).unwrap()).unwrap();
    packet
}

fn datagram(len: usize) -> Packet {
    Packet::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, udp([1, 2], &noise(len, 1)))
}

fn with_id(mut packet: Packet, id: u16) -> Packet {
    packet.identification = id;
    packet
}

fn segments(frame: &mut [u8], size: u16) -> Vec<Vec<u8>> {
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
