//! Fuzz target bodies as plain functions.
//!
//! Each takes any bytes and must neither panic nor break the promise in its description. `cargo
//! test` replays the corpora, every crash ever found, and random bytes; a fuzzing engine calls the
//! same functions.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use strait_gateway::packet::coalesce::{Coalescer, Merge};
use strait_gateway::packet::rewrite::{self, Checksum, Side};
use strait_gateway::packet::segment::Segments;
use strait_gateway::packet::virtio::{VIRTIO_LEN, VirtioHeader};
use strait_gateway::packet::{Header, icmp};
use strait_gateway::wg::message::Message;

/// A fuzz target: its name, as the folder of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 4] = [
    ("message", message),
    ("rewrite", rewrite_packet),
    ("segment", segment),
    ("coalesce", coalesce),
];

/// Telling messages apart never reads past the end.
pub fn message(datagram: &[u8]) {
    let _ = Message::classify(datagram);
}

/// Rewriting an address and writing the old one back leaves every byte as it was, but for the form of
/// zero in a checksum.
///
/// # Panics
///
/// If it does not.
pub fn rewrite_packet(bytes: &[u8]) {
    for side in [Side::Source, Side::Destination] {
        let mut packet = bytes.to_vec();
        let Ok(mut header) = Header::parse(&packet) else {
            return;
        };
        let (old, new) = addresses(&header, side);

        let there = rewrite::address(&mut packet, &mut header, side, new, Checksum::Complete);
        if let Some(mut embedded) = icmp::embedded(&packet, &header) {
            let was = embedded.source();
            for to in [new, was] {
                let _ = rewrite::embedded_address(
                    &mut packet,
                    &header,
                    &mut embedded,
                    Side::Source,
                    to,
                );
            }
        }
        let back = rewrite::address(&mut packet, &mut header, side, old, Checksum::Complete);

        assert_eq!(there.is_ok(), back.is_ok());
        let changed = packet.iter().zip(bytes).filter(|(now, before)| now != before).count();
        // A checksum of 0xffff may come back as 0x0000: in the IP header, the transport header, and
        // the same two of an embedded packet.
        assert!(changed <= 8, "{changed} bytes differ");
    }
}

/// Whatever the offload header says, the segments hold what was announced.
///
/// # Panics
///
/// If they do not.
pub fn segment(bytes: &[u8]) {
    let Ok(virtio) = VirtioHeader::parse(bytes) else {
        return;
    };
    let mut frame = bytes.get(VIRTIO_LEN..).unwrap_or_default().to_vec();
    let Ok(header) = Header::parse(&frame) else {
        return;
    };
    let Ok(mut segments) = Segments::new(&mut frame, &virtio, &header) else {
        return;
    };

    let (announced, total) = (segments.count(), segments.total_bytes());
    let (mut count, mut sum) = (0, 0);
    while let Some(len) = segments.next_len() {
        let segment_len = segments.next_segment().map(<[u8]>::len);
        assert_eq!(segment_len, Some(len));
        count += 1;
        sum += len;
    }
    assert_eq!((count, sum), (announced, total));
}

/// Every packet that is pushed leaves in exactly one frame. The bytes are cut into packets by a
/// leading length byte each.
///
/// # Panics
///
/// If one is lost or doubled.
pub fn coalesce(bytes: &[u8]) {
    let mut coalescer = Coalescer::new();
    let mut pushed = 0;
    let mut at = 0;
    while let Some(len) = bytes.get(at) {
        let packet = at + 1..(at + 1 + usize::from(*len)).min(bytes.len());
        at = packet.end;
        let header = bytes.get(packet.clone()).and_then(|packet| Header::parse(packet).ok());
        if let Some(header) = header
            && coalescer.push(bytes, packet, &header, Merge { tcp: true, udp: true })
        {
            pushed += 1;
        }
    }

    let left: usize = coalescer.frames().map(|frame| frame.members().count()).sum();
    assert_eq!(left, pushed);
}

fn addresses(header: &Header, side: Side) -> (IpAddr, IpAddr) {
    let old = match side {
        Side::Source => header.source(),
        Side::Destination => header.destination(),
    };
    let new = match old {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(10, 71, 2, 7)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0xfd00, 0x71, 0, 0, 0, 0, 2, 7)),
    };

    (old, new)
}
