//! Comparison with an independent packet library, byte by byte.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, Icmpv6Type, PacketBuilder, PacketBuilderStep, SlicedPacket,
    TransportSlice, VlanId,
};

use crate::fixtures::put;
use crate::segment::Segments;

use super::super::neighbor::{MAX_FRAME_LEN, ask};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn frames_are_parsed_as_the_library_wrote_them(
        source in any_station(),
        destination in any_station(),
        addresses: (u128, u128),
        is_ipv6: bool,
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let written = udp(source, destination, addresses, is_ipv6, &payload);

        let ethernet = Ethernet::parse(&written).unwrap();
        let header = ethernet.packet(&written).unwrap();

        prop_assert_eq!((ethernet.source, ethernet.destination), (source, destination));
        prop_assert_eq!(&ethernet.to_bytes()[..], &written[..ethernet::HEADER_LEN]);
        prop_assert_eq!(header.packet_len(), written.len() - ethernet::HEADER_LEN);
        prop_assert_eq!(header.is_ipv6(), is_ipv6);
    }

    #[test]
    fn tagged_frames_are_refused(
        macs in (any_station(), any_station()),
        tags in (0_u16..4096, prop::option::of(0_u16..4096)),
    ) {
        let tag = |number: u16| VlanId::try_new(number).unwrap();
        let builder = PacketBuilder::ethernet2(macs.0.0, macs.1.0);
        let builder = match tags {
            (outer, Some(inner)) => builder.double_vlan(tag(outer), tag(inner)),
            (one, None) => builder.single_vlan(tag(one)),
        };
        let mut written = Vec::new();
        builder.ipv4([1; 4], [2; 4], 64).udp(1, 2).write(&mut written, &[]).unwrap();

        prop_assert_eq!(Ethernet::parse(&written), Err(DropReason::OverlayFrame));
    }

    #[test]
    fn arp_messages_equal_those_of_the_library(
        macs in (any_station(), any_station()),
        own: u32,
        target: u32,
    ) {
        let (own, target) = (Ipv4Addr::from_bits(own), Ipv4Addr::from_bits(target));
        let question = Binding { address: own.into(), mac: macs.0 };
        let (mut asked, mut answered) = ([0; MAX_FRAME_LEN], [0; MAX_FRAME_LEN]);

        let asked = ask(question, target.into(), &mut asked).unwrap();
        let message = Message::parse(asked, &Ethernet::parse(asked).unwrap()).unwrap().unwrap();
        let answer = message.question.unwrap().answer(macs.1, &mut answered);

        let request = ArpEthIpv4Packet {
            operation: ArpOperation::REQUEST,
            sender_mac: macs.0.0,
            sender_ipv4: own.octets(),
            target_mac: [0; 6],
            target_ipv4: target.octets(),
        };
        prop_assert_eq!(asked, arp(macs.0, Mac::BROADCAST, &request));
        let reply = ArpEthIpv4Packet {
            operation: ArpOperation::REPLY,
            sender_mac: macs.1.0,
            sender_ipv4: target.octets(),
            target_mac: macs.0.0,
            target_ipv4: own.octets(),
        };
        prop_assert_eq!(answer, arp(macs.1, macs.0, &reply));
    }

    #[test]
    fn discovery_messages_equal_those_of_the_library(
        macs in (any_station(), any_station()),
        own: u128,
        target: u128,
    ) {
        let (own, target) = (Ipv6Addr::from_bits(own), Ipv6Addr::from_bits(target));
        prop_assume!(![own, target].iter().any(Ipv6Addr::is_multicast) && !own.is_unspecified());
        let question = Binding { address: own.into(), mac: macs.0 };
        let (mut asked, mut answered) = ([0; MAX_FRAME_LEN], [0; MAX_FRAME_LEN]);

        let asked = ask(question, target.into(), &mut asked).unwrap();
        let message = Message::parse(asked, &Ethernet::parse(asked).unwrap()).unwrap().unwrap();
        let answer = message.question.unwrap().answer(macs.1, &mut answered);

        let [.., a, b, c] = target.octets();
        let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
        let solicitation = discovery(
            [macs.0, Mac([0x33, 0x33, 0xff, a, b, c])],
            [own, group],
            Icmpv6Type::NeighborSolicitation,
            target,
            (1, macs.0),
        );
        prop_assert_eq!(asked, solicitation);
        let flags = NeighborAdvertisementHeader { router: true, solicited: true, r#override: true };
        let advertisement = discovery(
            [macs.1, macs.0],
            [target, own],
            Icmpv6Type::NeighborAdvertisement(flags),
            target,
            (2, macs.1),
        );
        prop_assert_eq!(answer, advertisement);
    }

    /// The library computes each checksum from the segment.
    #[test]
    fn cut_frames_have_checksums_of_the_library(
        addresses: (u128, u128),
        is_ipv6: bool,
        payload in prop::collection::vec(any::<u8>(), 1..8000),
        packet_len in 100_usize..2000,
    ) {
        let macs = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let mut written = tcp(macs.0, macs.1, addresses, is_ipv6, &payload);
        let header = Ethernet::parse(&written).unwrap().packet(&written).unwrap();
        let packet = &mut written[ethernet::HEADER_LEN..];
        let len = u32::try_from(header.packet_len() - header.transport_offset()).unwrap();
        let partial =
            remap::checksum::pseudo_header(header.source(), header.destination(), 6, len);
        put(packet, header.transport_offset() + 16, partial);

        let limits = Limits { packet_len, mss: None, datagram_len: None };
        let virtio = describe(packet, &header, || limits);
        let mut segments = Segments::new(packet, &virtio, &header).unwrap();

        let mut joined: Vec<u8> = Vec::new();
        while let Some(segment) = segments.next_segment() {
            prop_assert!(segment.len() <= packet_len);
            let parsed = SlicedPacket::from_ip(segment).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = parsed.transport else {
                panic!("not TCP");
            };
            let expected = if is_ipv6 {
                let (source, destination) = (&segment[8..24], &segment[24..40]);
                tcp.calc_checksum_ipv6(source.try_into().unwrap(), destination.try_into().unwrap())
            } else {
                let (source, destination) = (&segment[12..16], &segment[16..20]);
                tcp.calc_checksum_ipv4(source.try_into().unwrap(), destination.try_into().unwrap())
            };
            // Both zeros are the same sum.
            prop_assert_eq!(tcp.checksum() % 0xffff, expected.unwrap() % 0xffff);
            joined.extend(tcp.payload());
        }
        prop_assert_eq!(joined, payload);
    }
}

fn arp(source: Mac, destination: Mac, message: &ArpEthIpv4Packet) -> Vec<u8> {
    let mut written = Vec::new();
    PacketBuilder::ethernet2(source.0, destination.0)
        .arp(message.clone().into())
        .write(&mut written)
        .unwrap();

    written
}

fn discovery(
    [source, destination]: [Mac; 2],
    [from, to]: [Ipv6Addr; 2],
    kind: Icmpv6Type,
    target: Ipv6Addr,
    (option, mac): (u8, Mac),
) -> Vec<u8> {
    let payload = [&target.octets()[..], &[option, 1], &mac.0].concat();
    let mut written = Vec::new();
    PacketBuilder::ethernet2(source.0, destination.0)
        .ipv6(from.octets(), to.octets(), 255)
        .icmpv6(kind)
        .write(&mut written, &payload)
        .unwrap();

    written
}

fn udp(
    source: Mac,
    destination: Mac,
    addresses: (u128, u128),
    is_ipv6: bool,
    payload: &[u8],
) -> Vec<u8> {
    let mut written = Vec::new();
    ip(source, destination, addresses, is_ipv6).udp(1, 2).write(&mut written, payload).unwrap();

    written
}

fn tcp(
    source: Mac,
    destination: Mac,
    addresses: (u128, u128),
    is_ipv6: bool,
    payload: &[u8],
) -> Vec<u8> {
    let mut written = Vec::new();
    ip(source, destination, addresses, is_ipv6)
        .tcp(1, 2, 3, 4)
        .write(&mut written, payload)
        .unwrap();

    written
}

fn ip(
    source: Mac,
    destination: Mac,
    addresses: (u128, u128),
    is_ipv6: bool,
) -> PacketBuilderStep<etherparse::IpHeaders> {
    let builder = PacketBuilder::ethernet2(source.0, destination.0);
    let (from, to) = (addresses.0.to_be_bytes(), addresses.1.to_be_bytes());
    let v4 = |octets: [u8; 16]| [octets[0], octets[1], octets[2], octets[3]];

    if is_ipv6 { builder.ipv6(from, to, 64) } else { builder.ipv4(v4(from), v4(to), 64) }
}
