//! Datagrams that kernels sent to a socket of the same host.

use std::net::IpAddr;

use crate::fixtures::{naive_sum, pseudo_header};
use crate::segment::Segments;
use crate::virtio::{Gso, VirtioHeader};

use super::*;

/// What a node sends to the gateway, in hexadecimal: from 10.9.0.1 and fd09::1 to 10.9.0.2 and fd09::2.
struct Capture {
    encapsulation: Encapsulation,
    vni: u32,
    arp_request: &'static str,
    /// Duplicate address detection.
    probe: &'static str,
    solicitation: &'static str,
    router_solicitation: &'static str,
    multicast_report: &'static str,
    /// UDP, with an incomplete checksum.
    datagram: &'static str,
    /// TCP, with an incomplete checksum.
    syn: &'static str,
    /// The headers of a frame of three datagrams with 1000 bytes each, for which `UDP_GRO` reported 1000.
    frame_header: &'static str,
}

/// Linux 6.18.
const VXLAN: Capture = Capture {
    encapsulation: Encapsulation::Vxlan,
    vni: 83,
    arp_request: "0800000000005300 ffffffffffffcef29c7175dd0806 \
         0001080006040001cef29c7175dd0a0900010000000000000a090002",
    probe: "0800000000005300 3333ff7175ddcef29c7175dd86dd \
         6000000000203aff00000000000000000000000000000000ff0200000000000000000001ff7175dd \
         8700c2aa00000000fe80000000000000ccf29cfffe7175dd0e015d152370d65d",
    solicitation: "0800000000005300 3333ff000002cef29c7175dd86dd \
         6000000000203afffd090000000000000000000000000001ff0200000000000000000001ff000002 \
         87009e4400000000fd0900000000000000000000000000020101cef29c7175dd",
    router_solicitation: "0800000000005300 333300000002cef29c7175dd86dd \
         6000000000103afffe80000000000000ccf29cfffe7175ddff020000000000000000000000000002 \
         8500bcaa000000000101cef29c7175dd",
    multicast_report: "0800000000005300 333300000016cef29c7175dd86dd \
         6000000000380001fe80000000000000ccf29cfffe7175ddff020000000000000000000000000016 \
         3a000502000001008f001a5e0000000204000000ff0200000000000000000001ff7175dd04000000 \
         ff0200000000000000000001ff000001",
    datagram: "0800000000005300 020000000002cef29c7175dd0800 \
         45000027895d400040119d540a0900010a090002c6a71e610013143968656c6c6f206669727374",
    syn: "0800000000005300 020000000002cef29c7175dd0800 \
         4500003c76c940004006afde0a0900010a090002a5680050ed0ef8b500000000a002fd5c14430000 \
         020405820402080a8a3c55d3000000000103030a",
    frame_header: "0800000000005300 020000000002cef29c7175dd0800 \
         45000bd489a300004011d1610a0900010a090002c6a71e610bc01fe6",
};

/// Linux 6.1 (User Mode Linux).
const GENEVE: Capture = Capture {
    encapsulation: Encapsulation::Geneve,
    vni: 4711,
    arp_request: "0000655800126700 ffffffffffff06ea080d05ae0806 \
         000108000604000106ea080d05ae0a0900010000000000000a090002",
    probe: "0000655800126700 3333ff0d05ae06ea080d05ae86dd \
         6000000000203aff00000000000000000000000000000000ff0200000000000000000001ff0d05ae \
         87004f3e00000000fe8000000000000004ea08fffe0d05ae0e019811fa0c7561",
    solicitation: "0000655800126700 3333ff00000206ea080d05ae86dd \
         6000000000203afffd090000000000000000000000000001ff0200000000000000000001ff000002 \
         87006ae100000000fd090000000000000000000000000002010106ea080d05ae",
    router_solicitation: "0000655800126700 33330000000206ea080d05ae86dd \
         6000000000103afffe8000000000000004ea08fffe0d05aeff020000000000000000000000000002 \
         850055e400000000010106ea080d05ae",
    multicast_report: "0000655800126700 33330000001606ea080d05ae86dd \
         6000000000380001fe8000000000000004ea08fffe0d05aeff020000000000000000000000000016 \
         3a000502000001008f00578e0000000204000000ff0200000000000000000001ff0d05ae04000000 \
         ff0200000000000000000001ff000001",
    datagram: "0000655800126700 02000000000206ea080d05ae0800 \
         4500002770bc40004011b5f50a0900010a09000292bd1e610013143968656c6c6f206669727374",
    syn: "0000655800126700 02000000000206ea080d05ae0800 \
         4500003c9b0a400040068b9d0a0900010a090002c8200050b56ba9e000000000a002fd5c14430000 \
         020405820402080ade3710d50000000001030305",
    frame_header: "0000655800126700 02000000000206ea080d05ae0800 \
         45000bd470d100004011ea330a0900010a09000292bd1e610bc01fe6",
};

#[test]
fn kernels_write_the_same_overlay_headers() {
    for capture in [VXLAN, GENEVE] {
        let datagram = bytes(capture.datagram);
        let vni = Vni::new(capture.vni).unwrap();
        let ethernet = Ethernet::parse(&datagram[HEADER_LEN..]).unwrap();

        assert_eq!(capture.encapsulation.parse(&datagram), Ok((vni, HEADER_LEN)));
        assert_eq!(capture.encapsulation.prefix(vni, &ethernet)[..], datagram[..PREFIX_LEN]);
    }
}

#[test]
fn questions_of_kernels_are_understood() {
    for capture in [VXLAN, GENEVE] {
        for (question, announced, target) in [
            (capture.arp_request, Some("10.9.0.1"), Some("10.9.0.2")),
            (capture.solicitation, Some("fd09::1"), Some("fd09::2")),
            (capture.probe, None, None),
        ] {
            let datagram = bytes(question);
            let frame = &datagram[HEADER_LEN..];
            let ethernet = Ethernet::parse(frame).unwrap();
            let address = |text: &str| text.parse::<IpAddr>().unwrap();

            let message = Message::parse(frame, &ethernet).unwrap().unwrap();

            let binding =
                Binding { address: address(announced.unwrap_or("::")), mac: ethernet.source };
            assert_eq!(message.announced, announced.map(|_| binding));
            let asked = message.question.unwrap().target();
            assert!(target.is_none_or(|target| address(target) == asked));
        }
    }
}

#[test]
fn other_discovery_of_kernels_is_multicast() {
    for capture in [VXLAN, GENEVE] {
        for text in [capture.router_solicitation, capture.multicast_report] {
            let datagram = bytes(text);
            let frame = &datagram[HEADER_LEN..];
            let ethernet = Ethernet::parse(frame).unwrap();

            assert_eq!(Message::parse(frame, &ethernet), Ok(None));
            assert_eq!(ethernet.destination.cast(), Cast::Multicast);
            assert!(ethernet.packet(frame).unwrap().destination().is_multicast());
        }
    }
}

#[test]
fn incomplete_packets_of_kernels_are_completed() {
    for capture in [VXLAN, GENEVE] {
        for text in [capture.datagram, capture.syn] {
            let mut datagram = bytes(text);

            let (virtio, packets) = cut(&mut datagram, None);

            assert!(virtio.needs_checksum);
            let [packet] = &packets[..] else { panic!("{} packets", packets.len()) };
            assert_checksum(packet);
        }
    }
}

#[test]
fn frames_of_kernels_are_cut_as_reported() {
    for capture in [VXLAN, GENEVE] {
        let mut datagram = [bytes(capture.frame_header), vec![b'H'; 3000]].concat();
        assert_eq!(merged(capture.encapsulation, &datagram, 1000), Merged::Frame(1000));

        let (virtio, packets) = cut(&mut datagram, Some(1000));

        assert_eq!((virtio.gso, packets.len()), (Gso::UdpL4, 3));
        for packet in &packets {
            assert_eq!(packet.len(), 20 + 8 + 1000);
            assert_checksum(packet);
        }
    }
}

/// The packets in `datagram`.
fn cut(datagram: &mut [u8], datagram_len: Option<u16>) -> (VirtioHeader, Vec<Vec<u8>>) {
    let frame = &mut datagram[HEADER_LEN..];
    let header = Ethernet::parse(frame).unwrap().packet(frame).unwrap();
    let packet = &mut frame[ethernet::HEADER_LEN..];
    let limits = || Limits { packet_len: 1400, mss: None, datagram_len };
    let virtio = describe(packet, &header, limits);
    let mut segments = Segments::new(packet, &virtio, &header).unwrap();
    let mut packets = Vec::new();
    while let Some(segment) = segments.next_segment() {
        packets.push(segment.to_vec());
    }

    (virtio, packets)
}

fn assert_checksum(packet: &[u8]) {
    let header = Header::parse(packet).unwrap();
    let transport = &packet[header.transport_offset()..];
    let len = u32::try_from(transport.len()).unwrap();
    let pseudo = pseudo_header(header.source(), header.destination(), header.protocol(), len);

    assert_eq!(naive_sum(&[&pseudo, transport].concat()), 0xffff);
}

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();

    digits.chunks(2).map(|pair| (pair[0] << 4) | pair[1]).collect()
}
