//! Frames that grow in one buffer.

use proptest::prelude::*;

use super::streams::{any_step, segments, stream};
use super::*;
use crate::rewrite::Checksum;

const ROOM_BYTES: usize = 65_535;

#[test]
fn a_grown_frame_equals_the_coalesced_one() {
    let packets: Vec<_> = (0..40).map(|index| segment(index * 1000, 1000).build()).collect();

    let grown = grow(&packets, ROOM_BYTES);

    let [(virtio, bytes)] = &grown[..] else { panic!("{} frames", grown.len()) };
    let coalesced = Batch::of(&packets, BOTH);
    assert_eq!((virtio, bytes), (&coalesced.frames[0].virtio, &coalesced.frames[0].bytes));
}

#[test]
fn partial_checksums_are_not_verified() {
    let packets: Vec<_> = (0..3).map(|index| segment(index * 100, 100).build()).collect();
    let mut room = vec![0; ROOM_BYTES];
    let mut partial = packets.clone();
    for packet in &mut partial {
        put(packet, 36, naive_sum(&segment(0, 100).pseudo_header(120)));
    }
    room[..140].copy_from_slice(&partial[0]);
    let header = Header::parse(&partial[0]).unwrap();

    let mut frame = GrowingFrame::start(&partial[0], &header, Checksum::Partial).unwrap();
    for next in &partial[1..] {
        assert!(frame.append(&mut room, next, &header, Checksum::Partial));
    }
    assert!(!frame.append(&mut room, &partial[1], &header, Checksum::Complete));

    let (virtio, len) = frame.finish(&mut room).unwrap();
    assert_eq!(restored(&[(virtio, room[..len].to_vec())]), comparables(&packets));
}

#[test]
fn a_frame_does_not_outgrow_its_buffer() {
    let packets: Vec<_> = (0..10).map(|index| segment(index * 1000, 1000).build()).collect();

    let lens = |room| grow(&packets, room).iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>();

    assert_eq!(lens(4_039), [3_040, 3_040, 3_040, 1_040]);
    assert_eq!(lens(4_040), [4_040, 4_040, 2_040]);
}

#[test]
fn datagrams_without_checksum_stay_single() {
    for without_checksum in [false, true] {
        let packets: Vec<_> = (0..3)
            .map(|id| Packet { without_checksum, ..with_id(datagram(100), id) }.build())
            .collect();

        let frames = grow(&packets, ROOM_BYTES).len();

        assert_eq!(frames, if without_checksum { 3 } else { 1 });
    }
}

#[test]
fn a_wrong_checksum_ends_the_frame() {
    for (broken, expected) in [(0, vec![1, 2]), (1, vec![1, 1, 1]), (2, vec![2, 1])] {
        let mut packets = [0, 100, 200].map(|sequence| segment(sequence, 100).build()).to_vec();
        packets[broken][60] ^= 0x55;

        let grown = grow(&packets, ROOM_BYTES);

        let counts: Vec<_> = grown.iter().map(|(_, bytes)| (bytes.len() - 40) / 100).collect();
        assert_eq!(counts[..2], expected[..2], "packet {broken}");
        assert_eq!(restored(&grown), comparables(&packets), "packet {broken}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// All packets, in their order, also of different flows.
    #[test]
    fn segmenting_grown_frames_restores_the_packets(
        steps in prop::collection::vec(any_step(), 1..60),
        is_one_flow: bool,
    ) {
        let mut packets = stream(&steps);
        if is_one_flow {
            packets.sort_by_key(|packet| flow(packet));
        }

        let grown = grow(&packets, ROOM_BYTES);

        prop_assert_eq!(restored(&grown), comparables(&packets));
        for (virtio, bytes) in grown.iter().filter(|(virtio, _)| virtio.gso == Gso::None) {
            prop_assert_eq!(virtio, &VirtioHeader::default());
            prop_assert!(packets.contains(bytes));
        }
    }
}

/// The frames of a reader with a buffer of `room_bytes`.
fn grow(packets: &[Vec<u8>], room_bytes: usize) -> Vec<(VirtioHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut room = vec![0; room_bytes];
    let mut packets = packets.iter().peekable();
    while let Some(first) = packets.next() {
        let header = Header::parse(first).unwrap();
        room[..first.len()].copy_from_slice(first);
        let complete = Checksum::Complete;
        let Some(mut frame) = GrowingFrame::start(first, &header, complete) else {
            frames.push((VirtioHeader::default(), first.clone()));
            continue;
        };
        let mut append =
            |next: &Vec<u8>| frame.append(&mut room, next, &Header::parse(next).unwrap(), complete);
        while packets.next_if(|next| append(next)).is_some() {}

        let (virtio, len) =
            frame.finish(&mut room).unwrap_or((VirtioHeader::default(), first.len()));
        frames.push((virtio, room[..len].to_vec()));
    }

    frames
}

fn restored(frames: &[(VirtioHeader, Vec<u8>)]) -> Vec<Vec<u8>> {
    let packets = frames.iter().flat_map(|(virtio, bytes)| {
        if virtio.gso == Gso::None {
            vec![bytes.clone()]
        } else {
            segments(&mut bytes.clone(), virtio.gso_size)
        }
    });

    packets.map(|packet| identified(&packet)).collect()
}

fn comparables(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| identified(packet)).collect()
}

/// As [`comparable`], but a UDP datagram without checksum stays without.
fn identified(packet: &[u8]) -> Vec<u8> {
    let header = Header::parse(packet).unwrap();
    let is_whole = header.fragment() == Fragment::None;
    let has_none = header.transport() == Transport::Udp
        && is_whole
        && word(packet, header.transport_offset() + 6) == 0;

    if has_none || !is_whole || naive_sum(&packet[..header.transport_offset()]) != 0xffff {
        packet.to_vec()
    } else {
        comparable(packet)
    }
}
