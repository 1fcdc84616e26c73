//! What a reader makes of datagrams that a socket on this host has sent to it.

use std::net::{Ipv4Addr, UdpSocket};

use strait_packet::fixtures::{Packet as Built, TCP, noise, tcp};
use strait_packet::overlay::Vni;
use strait_packet::overlay::ethernet::{Content as Kind, Ethernet, Mac};
use strait_packet::segment::Segments;
use strait_packet::virtio::Gso;

use super::super::{Node, Settings};
use super::*;
use crate::Offload;

const ACK: u8 = 0x10;
const PAYLOAD_BYTES: usize = 1_000;

#[test]
fn consecutive_segments_become_one_frame() {
    let packets: Vec<_> = (0..20).map(segment).collect();

    let reads = read(&packets, |packet| datagram(packet, 83));

    let [Received::Frame(virtio, frame)] = &reads[..] else { panic!("{} reads", reads.len()) };
    assert_eq!((virtio.gso, virtio.gso_size), (Gso::TcpV4, 1_000));
    assert_eq!(frame.len(), 40 + 20 * PAYLOAD_BYTES);
    assert_eq!(restored(&reads), packets);
}

#[test]
fn what_does_not_belong_together_keeps_its_order() {
    let mut packets: Vec<_> = (0..12).map(segment).collect();
    packets.swap(3, 4);
    packets[8][50] ^= 1;

    let reads = read(&packets, |packet| datagram(packet, 83));

    assert_eq!(restored(&reads), packets);
    assert!(reads.len() < packets.len(), "{}", reads.len());
}

/// It ends the frame, and is counted after it.
#[test]
fn a_drop_between_segments_is_reported() {
    let packets: Vec<_> = (0..3).map(segment).collect();
    let is_second = |packet: &[u8]| packet == packets[1];

    let reads = read(&packets, |packet| datagram(packet, if is_second(packet) { 84 } else { 83 }));

    let [Received::Frame(..), Received::Unread(unread), Received::Frame(..)] = &reads[..] else {
        panic!("{} reads", reads.len())
    };
    assert_eq!((unread.outcome, unread.packets), (Outcome::Dropped(DropReason::OverlayVni), 1));
}

/// What a read has returned.
enum Received {
    Frame(VirtioHeader, Vec<u8>),
    Unread(Unread),
}

/// Sends `packets` from one socket, then reads until nothing is left.
fn read(packets: &[Vec<u8>], datagram: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Received> {
    let node = Node {
        address: Ipv4Addr::LOCALHOST.into(),
        vni: Vni::new(83).unwrap(),
        mac: None,
        pods: Vec::new(),
        sources: Vec::new(),
        inner: None,
        shared_source: None,
    };
    let settings = Settings {
        encapsulation: Encapsulation::Vxlan,
        port: 0,
        mac: None,
        nodes: vec![node],
        host: None,
    };
    let overlay = Overlay::bind(&settings, 1_420, Offload::ON).unwrap();
    let port = overlay.sockets[0].local_addr().unwrap().as_socket().unwrap().port();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for packet in packets {
        sender.send_to(&datagram(packet), (Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    let mut reader = Reader::new(Arc::clone(&overlay));
    let mut buffer = FrameBuffer::new();
    let mut reads = Vec::new();
    for input in 0..overlay.sockets.len() {
        loop {
            reads.push(match reader.read(input, &mut buffer) {
                Ok(Read::Packet(virtio, len)) => {
                    Received::Frame(virtio, buffer.packet_mut()[..len].to_vec())
                }
                Ok(Read::Unread(unread)) => Received::Unread(unread),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            });
        }
    }

    reads
}

/// The packets of all frames.
fn restored(reads: &[Received]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for read in reads {
        let Received::Frame(virtio, frame) = read else { continue };
        let mut frame = frame.clone();
        let header = Header::parse(&frame).unwrap();
        let mut segments = Segments::new(&mut frame, virtio, &header).unwrap();
        while let Some(packet) = segments.next_segment() {
            packets.push(packet.to_vec());
        }
    }

    packets
}

/// A segment of a stream of TCP.
fn segment(number: u16) -> Vec<u8> {
    let sequence = u32::from(number) * 1_000;
    let payload = noise(PAYLOAD_BYTES, number.into());
    let transport = tcp([40_000, 80], sequence, ACK, &[], &payload);
    let [source, destination] = [[10, 244, 1, 5], [10, 71, 2, 7]].map(Ipv4Addr::from);

    Built {
        identification: number,
        ..Built::new(source.into(), destination.into(), TCP, transport)
    }
    .build()
}

fn datagram(packet: &[u8], vni: u32) -> Vec<u8> {
    let [destination, source] = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last]));
    let ethernet = Ethernet { destination, source, content: Kind::Ipv4 };
    let prefix = Encapsulation::Vxlan.prefix(Vni::new(vni).unwrap(), &ethernet);

    [&prefix[..], packet].concat()
}
