//! What a reader makes of datagrams that a socket on this host has sent to it.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Socket, Type};
use strait_packet::fixtures::{Packet as Built, TCP, UDP, noise, tcp, udp};
use strait_packet::overlay::Vni;
use strait_packet::overlay::ethernet::{Content as Kind, Ethernet, Mac};
use strait_packet::segment::Segments;
use strait_packet::virtio::Gso;

use super::super::{Node, NodeTraffic, Settings};
use super::*;
use crate::Offload;

const ACK: u8 = 0x10;
const PAYLOAD_BYTES: usize = 1_000;

/// The outer address of a node, on the port of the gateway's socket.
const NODE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);

/// The address of the gateway in the tunnel.
const HOST: Ipv4Addr = Ipv4Addr::new(169, 254, 18, 1);

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

/// The answer goes to the node that asked, and nothing goes into the tunnel.
#[test]
fn packets_to_the_gateway_reach_its_socket() {
    let free = UdpSocket::bind((NODE, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let [gateway, inner] = [[10, 80, 0, 9], [10, 80, 0, 1]].map(Ipv4Addr::from);
    let of_node = Node { gateway: Some(gateway.into()), inner: Some(inner.into()), ..of(NODE) };
    let settings = Settings { port, host: Some(HOST.into()), ..settings(of_node) };
    let overlay = Overlay::bind(&settings, 1_420, Offload::ON).unwrap();
    let sockets = overlay.host_sockets().unwrap().unwrap();
    let node = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    node.set_reuse_port(true).unwrap();
    node.bind(&SocketAddr::from((NODE, port)).into()).unwrap();
    let node = UdpSocket::from(node);
    let question = datagram_between([inner, gateway], b"question");
    let answer = datagram_between([gateway, inner], b"answer");

    node.send_to(&datagram(&question, 83), (Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut reader = Reader::new(Arc::clone(&overlay));
    let reads = read_all(&mut reader, overlay.sockets.len());

    let [Received::Unread(unread)] = &reads[..] else { panic!("{} reads", reads.len()) };
    assert_eq!(unread.outcome, Outcome::Answered);
    let mut received = [0; 256];
    let len = sockets.nodes.recv(&mut received).unwrap();
    assert_eq!(received[..len], question);
    sockets.nodes.send(&answer).unwrap();
    let mut buffer = FrameBuffer::new();
    let error = reader.read(overlay.sockets.len() + 1, &mut buffer).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let len = node.recv(&mut received).unwrap();
    assert!(received[..len].ends_with(&answer));
    let traffic = NodeTraffic {
        address: NODE.into(),
        received_bytes: as_u64(question.len()),
        sent_bytes: as_u64(answer.len()),
    };
    assert_eq!(overlay.traffic(), [traffic]);
}

/// A node on the same host may leave the checksum to the receiver.
#[test]
fn packets_to_the_gateway_are_complete() {
    let [gateway, inner] = [[10, 80, 0, 9], [10, 80, 0, 1]].map(Ipv4Addr::from);
    let host = Host::new(HOST.into()).unwrap();
    let whole = datagram_between([inner, gateway], b"question");
    let mut partial = whole.clone();
    let header = Header::parse(&partial).unwrap();
    // The sum of the pseudo-header alone.
    let words = [inner.octets(), gateway.octets(), [0, UDP, 0, 16]].concat();
    partial[26..28].copy_from_slice(&remap::checksum::sum(&words).to_be_bytes());
    let limits = || Limits { packet_len: 1_420, mss: None, datagram_len: None };
    let virtio = describe(&partial, &header, limits);
    assert!(virtio.needs_checksum);

    deliver(&host, &mut partial, &header, &virtio).unwrap();

    let mut received = [0; 64];
    let len = host.sockets().unwrap().nodes.recv(&mut received).unwrap();
    assert_eq!(received[..len], whole);
}

/// What a read has returned.
enum Received {
    Frame(VirtioHeader, Vec<u8>),
    Unread(Unread),
}

/// Sends `packets` from one socket, then reads until nothing is left.
fn read(packets: &[Vec<u8>], datagram: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Received> {
    let overlay = Overlay::bind(&settings(of(Ipv4Addr::LOCALHOST)), 1_420, Offload::ON).unwrap();
    let port = overlay.sockets[0].local_addr().unwrap().as_socket().unwrap().port();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for packet in packets {
        sender.send_to(&datagram(packet), (Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    read_all(&mut Reader::new(Arc::clone(&overlay)), overlay.sockets.len())
}

/// Reads from the first `inputs` until nothing is left.
fn read_all(reader: &mut Reader, inputs: usize) -> Vec<Received> {
    let mut buffer = FrameBuffer::new();
    let mut reads = Vec::new();
    for input in 0..inputs {
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

/// On any free port, with one node.
fn settings(node: Node) -> Settings {
    Settings {
        encapsulation: Encapsulation::Vxlan,
        port: 0,
        mac: None,
        nodes: vec![node],
        host: None,
    }
}

fn of(address: Ipv4Addr) -> Node {
    Node::new(address.into(), Vni::new(83).unwrap())
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

/// A packet with a datagram of UDP.
fn datagram_between([source, destination]: [Ipv4Addr; 2], payload: &[u8]) -> Vec<u8> {
    Built::new(source.into(), destination.into(), UDP, udp([9, 9], payload)).build()
}

fn datagram(packet: &[u8], vni: u32) -> Vec<u8> {
    let [destination, source] = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last]));
    let ethernet = Ethernet { destination, source, content: Kind::Ipv4 };
    let prefix = Encapsulation::Vxlan.prefix(Vni::new(vni).unwrap(), &ethernet);

    [&prefix[..], packet].concat()
}
