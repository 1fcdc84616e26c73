//! What the sender of a packet left to be done.

use std::net::IpAddr;

use crate::fixtures::{
    Extension, Packet, TCP, UDP, any_address, any_frame, any_packet, cut, naive_sum, noise, put,
    tcp, udp, word,
};
use crate::segment::Segments;
use crate::virtio::{Gso, VirtioHeader};
use crate::{Fragment, Header};

use super::*;

const ACK_PSH: u8 = 0x18;
const SYN: u8 = 0x02;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// As a card of the sender would have cut it.
    #[test]
    fn frames_of_tcp_are_cut_to_what_fits(
        packet in any_stream(),
        packet_len in 200_usize..9000,
        mss: Option<u16>,
    ) {
        let mut bytes = left_incomplete(&packet);
        let header = Header::parse(&bytes).unwrap();
        let header_len = bytes.len() - payload_len(&packet);
        let options_len = header_len - header.transport_offset() - 20;
        let accepted = mss.map_or(usize::MAX, |mss| usize::from(mss.max(48)) - options_len);
        let size = accepted.min(packet_len - header_len);
        let expected = cut(&packet.build(), size);

        let virtio = describe(&bytes, &header, || Limits { mss, ..limits(packet_len) });

        prop_assert!(virtio.needs_checksum);
        prop_assert_eq!(virtio.gso == Gso::None, expected.len() == 1);
        prop_assert_eq!(collect(&mut bytes, &virtio), expected);
    }

    #[test]
    fn incomplete_packets_are_completed(
        packet in any_packet().prop_filter("a known checksum", is_left_incomplete),
    ) {
        let mut bytes = left_incomplete(&packet);
        let header = Header::parse(&bytes).unwrap();

        let virtio = describe(&bytes, &header, || limits(1 << 16));

        prop_assert!(virtio.needs_checksum);
        prop_assert_eq!(collect(&mut bytes, &virtio), [packet.build()]);
    }

    /// Right ones, wrong ones, and absent ones.
    #[test]
    fn other_checksums_stay_as_they_are(packet in any_packet(), wrong: Option<u16>, len: u16) {
        let mut bytes = packet.build();
        let header = Header::parse(&bytes).unwrap();
        if let Some((at, partial)) = checksum(&packet) {
            if let Some(wrong) = wrong {
                put(&mut bytes, at, wrong);
            }
            prop_assume!(word(&bytes, at) != partial);
        }

        let virtio = describe(&bytes, &header, || limits(len.into()));

        prop_assert_eq!(virtio, VirtioHeader::default());
    }

    /// The packet is changed until its checksum is that of its pseudo-header.
    #[test]
    fn right_checksums_that_look_incomplete_stay(
        addresses in any::<bool>().prop_flat_map(|is_ipv6| (any_address(is_ipv6), any_address(is_ipv6))),
        is_tcp: bool,
        payload in prop::collection::vec(any::<u8>(), 2..100),
    ) {
        let (protocol, transport) = if is_tcp {
            (TCP, tcp([1, 2], 3, ACK_PSH, &[], &payload))
        } else {
            (UDP, udp([1, 2], &payload))
        };
        let mut packet = Packet::new(addresses.0, addresses.1, protocol, transport);
        let payload_at = packet.transport.len() - payload.len();
        let bytes = packet.build();
        let (at, partial) = checksum(&packet).unwrap();
        // What the first word of the payload must add, so that the checksum is `partial`.
        let missing = naive_sum(&[word(&bytes, at).to_be_bytes(), (!partial).to_be_bytes()].concat());
        let first = naive_sum(&[word(&packet.transport, payload_at).to_be_bytes(), missing.to_be_bytes()].concat());
        put(&mut packet.transport, payload_at, first);
        let mut bytes = packet.build();
        prop_assert_eq!(word(&bytes, at), partial);
        let header = Header::parse(&bytes).unwrap();

        let virtio = describe(&bytes, &header, || limits(1 << 16));

        prop_assert!(virtio.needs_checksum);
        prop_assert_eq!(collect(&mut bytes, &virtio), [packet.build()]);
    }

    #[test]
    fn frames_of_datagrams_are_cut_as_reported(
        packet in any_frame().prop_filter("a known checksum", |packet| {
            packet.protocol == UDP && is_left_incomplete(packet)
        }),
        size in 1_u16..2000,
    ) {
        let mut bytes = left_incomplete(&packet);
        let header = Header::parse(&bytes).unwrap();
        let expected = cut(&packet.build(), size.into());

        let reported = Limits { datagram_len: Some(size), ..limits(100) };
        let virtio = describe(&bytes, &header, || reported);

        prop_assert_eq!(collect(&mut bytes, &virtio), expected);
    }

    #[test]
    fn unreported_datagrams_are_never_cut(seed: u64, len in 0_usize..60_000, packet_len in 0_usize..2000) {
        let transport = udp([1, 2], &noise(len, seed));
        let packet = Packet::new([1; 4].into(), [2; 4].into(), UDP, transport);
        let mut bytes = left_incomplete(&packet);
        let header = Header::parse(&bytes).unwrap();

        let virtio = describe(&bytes, &header, || limits(packet_len));

        prop_assert_eq!(collect(&mut bytes, &virtio), [packet.build()]);
    }

    #[test]
    fn bytes_behind_a_packet_change_nothing(
        packet in any_stream(),
        padding in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let bytes = left_incomplete(&packet);
        let padded = [&bytes[..], &padding].concat();
        let header = Header::parse(&padded).unwrap();

        prop_assert_eq!(
            describe(&padded, &header, || limits(1400)),
            describe(&bytes, &header, || limits(1400))
        );
    }

    /// The segments account for all bytes, with any TCP header.
    #[test]
    fn arbitrary_packets_are_cut_or_refused(
        packet in any_stream(),
        noise_from: prop::sample::Index,
        seed: u64,
        packet_len in 0_usize..2000,
        mss: Option<u16>,
    ) {
        let mut bytes = left_incomplete(&packet);
        let from = 40.max(noise_from.index(bytes.len()));
        let (at, partial) = checksum(&packet).unwrap();
        let garbage = noise(bytes.len().saturating_sub(from), seed);
        bytes[from..].copy_from_slice(&garbage);
        let Ok(header) = Header::parse(&bytes) else { return Ok(()) };
        put(&mut bytes, at, partial);

        let virtio = describe(&bytes, &header, || Limits { mss, ..limits(packet_len) });
        let len = bytes.len();
        let segments = Segments::new(&mut bytes, &virtio, &header);

        prop_assert!(segments.is_ok_and(|segments| segments.total_bytes() >= len));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The kernel reports the same size for both.
    #[test]
    fn merged_datagrams_differ_from_frames(
        size in 1_u16..1500,
        count in 2_usize..20,
        last in 1_usize..1500,
        is_ipv6: bool,
        options in any_options(252),
    ) {
        let size = usize::from(size);
        let last = last.min(size);
        let reported = |len: usize| u16::try_from(len).unwrap();
        let vxlan = Encapsulation::Vxlan.header(vni()).to_vec();
        let geneve = geneve(vni(), &options, &[]);
        for (encapsulation, header) in BOTH.into_iter().zip([vxlan, geneve]) {
            let datagram = |len: usize| overlay(&header, is_ipv6, len);
            let frame = datagram(size * (count - 1) + last);
            let one = datagram(size);
            let datagrams = [one.repeat(count - 1), datagram(last)].concat();

            prop_assert_eq!(
                merged(encapsulation, &frame, reported(size)),
                Merged::Frame(reported(size))
            );
            prop_assert_eq!(
                merged(encapsulation, &datagrams, reported(one.len())),
                Merged::Datagrams(reported(one.len()))
            );
        }
    }

    #[test]
    fn arbitrary_buffers_count_as_datagrams(bytes in prop::collection::vec(any::<u8>(), 0..60), size: u16) {
        prop_assume!(bytes.first() != Some(&0x08));

        prop_assert_eq!(merged(Encapsulation::Vxlan, &bytes, size), Merged::Datagrams(size));
    }
}

#[test]
fn opening_segments_are_never_cut() {
    let transport = tcp([1, 2], 3, SYN, &[2, 4, 5, 180], &[7; 3000]);
    let packet = Packet::new([1; 4].into(), [2; 4].into(), TCP, transport);
    let bytes = left_incomplete(&packet);
    let header = Header::parse(&bytes).unwrap();

    let virtio = describe(&bytes, &header, || limits(1400));

    assert!(virtio.needs_checksum);
    assert_eq!(virtio.gso, Gso::None);
}

#[test]
fn frames_of_one_segment_are_not_cut() {
    let transport = tcp([1, 2], 3, ACK_PSH, &[], &[7; 1000]);
    let bytes = left_incomplete(&Packet::new([1; 4].into(), [2; 4].into(), TCP, transport));
    let header = Header::parse(&bytes).unwrap();

    assert_eq!(describe(&bytes, &header, || limits(1040)).gso, Gso::None);
    assert_eq!(describe(&bytes, &header, || limits(1039)).gso, Gso::TcpV4);
}

/// The checksum covers an address that is not in the IP header.
#[test]
fn routed_packets_count_as_complete() {
    let transport = tcp([1, 2], 3, ACK_PSH, &[], &[7; 1000]);
    let (source, destination) = ([1_u16; 8].into(), [2_u16; 8].into());
    let mut packet = Packet::new(source, destination, TCP, transport);
    packet.extensions = vec![Extension::Routing { segments_left: 1, last: [2_u16; 8].into() }];
    let bytes = left_incomplete(&packet);
    let header = Header::parse(&bytes).unwrap();

    assert_eq!(describe(&bytes, &header, || limits(1400)), VirtioHeader::default());
}

/// The checksum covers bytes that are in other packets.
#[test]
fn fragments_count_as_complete() {
    let transport = tcp([1, 2], 3, ACK_PSH, &[], &[7; 1000]);
    let mut packet = Packet::new([1; 4].into(), [2; 4].into(), TCP, transport);
    packet.fragment = 0x2000;
    let bytes = left_incomplete(&packet);
    let header = Header::parse(&bytes).unwrap();

    assert_eq!(describe(&bytes, &header, || limits(500)), VirtioHeader::default());
}

#[test]
fn tiny_maximum_segment_sizes_have_a_floor() {
    let transport = tcp([1, 2], 3, ACK_PSH, &[1; 40], &[7; 3000]);
    let packet = Packet::new([1; 4].into(), [2; 4].into(), TCP, transport);
    let bytes = left_incomplete(&packet);
    let header = Header::parse(&bytes).unwrap();

    for mss in [0, 1, 40, 48] {
        let virtio = describe(&bytes, &header, || Limits { mss: Some(mss), ..limits(1400) });

        assert_eq!(virtio.gso_size, 8);
    }
}

/// A datagram of an overlay with a UDP datagram of `len` bytes of payload.
fn overlay(header: &[u8], is_ipv6: bool, len: usize) -> Vec<u8> {
    let (addresses, content): ([IpAddr; 2], _) = if is_ipv6 {
        ([[1_u16; 8].into(), [2_u16; 8].into()], Content::Ipv6)
    } else {
        ([[1; 4].into(), [2; 4].into()], Content::Ipv4)
    };
    let packet = Packet::new(addresses[0], addresses[1], UDP, udp([1, 2], &vec![7; len])).build();
    let ethernet =
        Ethernet { destination: Mac([2, 0, 0, 0, 0, 1]), source: Mac([2, 0, 0, 0, 0, 2]), content };

    [header, &ethernet.to_bytes(), &packet].concat()
}

fn vni() -> Vni {
    Vni::new(83).unwrap()
}

fn limits(packet_len: usize) -> Limits {
    Limits { packet_len, mss: None, datagram_len: None }
}

fn collect(bytes: &mut [u8], virtio: &VirtioHeader) -> Vec<Vec<u8>> {
    let header = Header::parse(bytes).unwrap();
    let mut segments = Segments::new(bytes, virtio, &header).unwrap();
    let mut all = Vec::new();
    while let Some(segment) = segments.next_segment() {
        all.push(segment.to_vec());
    }

    all
}

/// Where the checksum of `packet` is, and the sum of its pseudo-header; `None` without a checksum over one.
fn checksum(packet: &Packet) -> Option<(usize, u16)> {
    let at = match packet.protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    if at + 2 > packet.transport.len() {
        return None;
    }
    let len = u32::try_from(packet.transport.len()).unwrap();

    Some((packet.transport_offset() + at, naive_sum(&packet.pseudo_header(len))))
}

/// Whether a kernel may leave the checksum of `packet` incomplete, and a receiver can know.
fn is_left_incomplete(packet: &Packet) -> bool {
    let header = Header::parse(&packet.build()).unwrap();

    checksum(packet).is_some()
        && !packet.without_checksum
        && header.fragment() == Fragment::None
        && !header.is_routed()
}

fn left_incomplete(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.build();
    let (at, partial) = checksum(packet).unwrap();
    put(&mut bytes, at, partial);

    bytes
}

fn payload_len(packet: &Packet) -> usize {
    packet.transport.len() - usize::from(packet.transport[12] >> 4) * 4
}

/// A frame of TCP that is not a SYN.
fn any_stream() -> impl Strategy<Value = Packet> {
    any_frame().prop_filter_map("a frame of TCP", |mut packet| {
        let flags = packet.transport.get_mut(13)?;
        *flags &= !SYN;

        (packet.protocol == TCP).then_some(packet)
    })
}
