mod growing;
mod streams;

use std::collections::HashMap;
use std::net::IpAddr;

use super::super::fixtures::{
    Extension, Packet, cut, naive_sum, noise, pseudo_header, put, tcp, udp, word,
};
use super::super::virtio::{Gso, VirtioHeader};
use super::*;
use crate::Fragment;

const BOTH: Merge = Merge { tcp: true, udp: true };
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

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
            overlay: None,
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
fn datagrams_merge_by_having_a_checksum() {
    let datagram = |id, without_checksum| {
        let packet = Packet { without_checksum, ..with_id(datagram(100), id) };
        packet.build()
    };
    let packets = [
        datagram(0, true),
        datagram(1, true),
        datagram(2, false),
        datagram(3, false),
        datagram(4, true),
    ];

    let batch = Batch::of(&packets, BOTH);

    assert_eq!(batch.packet_counts(), [2, 2, 1]);
    batch.assert_restores(&packets);
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
                    cut(&frame.bytes, size).iter().map(|packet| comparable(packet)).collect();
                let members: Vec<_> =
                    frame.members.iter().map(|packet| comparable(packet)).collect();
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

/// The packet without the identification where it has no meaning, with the checksum over it, and with a UDP checksum.
fn comparable(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let header = Header::parse(&packet).unwrap();
    if !header.is_ipv6() && header.dont_fragment() {
        assert_eq!(naive_sum(&packet[..header.transport_offset()]), 0xffff);
        put(&mut packet, 4, 0);
        put(&mut packet, 10, 0);
    }
    let at = header.transport_offset() + 6;
    if header.transport() == Transport::Udp && word(&packet, at) == 0 {
        let datagram = &packet[header.transport_offset()..];
        let len = u32::try_from(datagram.len()).unwrap();
        let pseudo = pseudo_header(header.source(), header.destination(), 17, len);
        let checksum = !naive_sum(&[&pseudo, datagram].concat());
        put(&mut packet, at, if checksum == 0 { 0xffff } else { checksum });
    }

    packet
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
