//! Merges packets into offload frames and segments these again.

use std::ops::Range;

use strait_packet::Header;
use strait_packet::coalesce::{Coalescer, Frame, Merge};
use strait_packet::segment::Segments;
use strait_packet::virtio::VirtioHeader;

use crate::oracle::{checksums, put, recompute, word};

const MERGE_TCP: u8 = 1;
const MERGE_UDP: u8 = 2;
const CORRECT_CHECKSUMS: u8 = 4;

/// Every packet is in exactly one frame, frames have the order of their first packets, and segmentation
/// of a frame restores its packets, except for identifications without meaning.
///
/// The first byte selects the protocols to merge, and whether checksums are corrected first, which
/// mutations cannot do. The rest is a list of packets, each after a byte with its length.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn coalesce(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    let merge = Merge { tcp: choice & MERGE_TCP != 0, udp: choice & MERGE_UDP != 0 };
    let (arena, packets) = arena(bytes, choice & CORRECT_CHECKSUMS != 0);

    let mut coalescer = Coalescer::new();
    let mut pushed = Vec::new();
    for packet in packets {
        let header = arena.get(packet.clone()).and_then(|packet| Header::parse(packet).ok());
        if let Some(header) = header
            && coalescer.push(&arena, packet.clone(), &header, merge)
        {
            pushed.push(packet.start..packet.start + header.packet_len());
        }
    }

    let mut left = Vec::new();
    let mut last_first = None;
    for frame in coalescer.frames() {
        let first = frame.members().next().map(|packet| packet.start);
        assert!(last_first < first, "{last_first:?}, then {first:?}");
        last_first = first;
        assert_restores(&frame, &arena);
        left.extend(frame.members());
    }
    left.sort_unstable_by_key(|packet| packet.start);
    assert_eq!(left, pushed);
}

/// The packets in one buffer, and the range of each.
fn arena(bytes: &[u8], has_correct_checksums: bool) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut arena = bytes.to_vec();
    let mut packets = Vec::new();
    let mut at = 0;
    while let Some(len) = bytes.get(at) {
        let packet = at + 1..(at + 1 + usize::from(*len)).min(bytes.len());
        at = packet.end;
        if let Some(bytes) = arena.get_mut(packet.clone()).filter(|_| has_correct_checksums) {
            recompute(bytes);
        }
        packets.push(packet);
    }

    (arena, packets)
}

fn assert_restores(frame: &Frame<'_>, arena: &[u8]) {
    let at = |range: Range<usize>| arena.get(range).unwrap_or_default();
    let mut bytes = frame.header_bytes().to_vec();
    frame.payloads().for_each(|payload| bytes.extend(at(payload)));
    assert_eq!(bytes.len(), frame.byte_count());
    assert_eq!(frame.members().count(), frame.packet_count());

    let mut members = frame.members();
    if frame.packet_count() == 1 {
        assert_eq!(frame.virtio(), VirtioHeader::default());
        assert_eq!(members.next().map(at), Some(&*bytes));
        return;
    }
    let Ok(header) = Header::parse(&bytes) else { panic!("the frame is not a packet") };
    assert_eq!(header.packet_len(), bytes.len());
    let Ok(mut segments) = Segments::new(&mut bytes, &frame.virtio(), &header) else {
        panic!("the frame cannot be segmented: {:?}", frame.virtio())
    };
    while let Some(segment) = segments.next_segment() {
        assert!(checksums(segment).iter().all(|checksum| checksum.residue(segment) == 0));
        let member = members.next().map(at).unwrap_or_default();
        assert_eq!(with_meaning(segment), with_meaning(member));
    }
    assert_eq!(members.next(), None);
}

/// The packet with the identification zeroed if it has no meaning: with DF (RFC 6864 section 4.1), and with a UDP
/// checksum.
fn with_meaning(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let is_ipv4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    if is_ipv4 && word(&packet, 6).unwrap_or_default() & 0x4000 != 0 {
        put(&mut packet, 4, 0);
        put(&mut packet, 10, 0);
    }
    for checksum in checksums(&packet) {
        if checksum.is_absent(&packet) {
            checksum.fill(&mut packet);
        }
    }

    packet
}
