use std::net::IpAddr;

use proptest::prelude::*;

use super::super::fixtures::{
    Extension, Packet, any_address, any_frame, cut, naive_sum, noise, put, tcp, udp, word,
};
use super::super::ports::Side;
use super::super::rewrite::{self, Checksum};
use super::super::virtio::VIRTIO_LEN;
use super::*;

mod overlay;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn segments_equal_those_of_the_oracle(
        frame in any_frame(),
        size in 1_u16..2000,
        stale_checksum: u16,
    ) {
        let mut bytes = frame.build();
        let header = Header::parse(&bytes).unwrap();
        let checksum_at = if header.protocol() == 6 { 16 } else { 6 };
        put(&mut bytes, header.transport_offset() + checksum_at, stale_checksum);
        let expected = cut(&bytes, usize::from(size));

        let mut segments = Segments::new(&mut bytes, &offload(&header, size), &header).unwrap();

        prop_assert_eq!(segments.count(), expected.len());
        prop_assert_eq!(segments.total_bytes(), expected.iter().map(Vec::len).sum::<usize>());
        prop_assert_eq!(collect(&mut segments), expected);
    }

    #[test]
    fn rewriting_a_frame_rewrites_its_segments(
        (frame, to) in frame_and_address(),
        size in 1_u16..2000,
    ) {
        let mut bytes = frame.build();
        let mut header = Header::parse(&bytes).unwrap();
        let expected = cut(&Packet { destination: to, ..frame }.build(), usize::from(size));

        let virtio = offload(&header, size);
        let checksum = virtio.checksum(&header);
        rewrite::address(&mut bytes, &mut header, Side::Destination, to, checksum).unwrap();
        let mut segments = Segments::new(&mut bytes, &virtio, &header).unwrap();

        prop_assert_eq!(checksum, Checksum::Partial);
        prop_assert_eq!(collect(&mut segments), expected);
    }

    #[test]
    fn routing_header_checksums_cover_the_final_destination(
        mut frame in any_frame(),
        last: u128,
        size in 1_u16..2000,
    ) {
        (frame.source, frame.destination) = ([1_u16; 8].into(), [2_u16; 8].into());
        frame.options.clear();
        frame.extensions = vec![Extension::Routing { segments_left: 1, last: last.into() }];
        let mut bytes = frame.build();
        let header = Header::parse(&bytes).unwrap();
        let len = u32::try_from(frame.transport.len()).unwrap();
        let checksum_at = if header.protocol() == 6 { 16 } else { 6 };
        let checksum_at = header.transport_offset() + checksum_at;
        put(&mut bytes, checksum_at, naive_sum(&frame.pseudo_header(len)));

        let mut segments = Segments::new(&mut bytes, &offload(&header, size), &header).unwrap();

        while let Some(segment) = segments.next_segment() {
            let transport = &segment[header.transport_offset()..];
            let pseudo = frame.pseudo_header(u32::try_from(transport.len()).unwrap());
            prop_assert_eq!(naive_sum(&[&pseudo, transport].concat()), 0xffff);
        }
    }

    #[test]
    fn arbitrary_offload_headers_do_not_panic(
        frame in any_frame(),
        virtio: [u8; VIRTIO_LEN],
        kind in 0_u8..6,
        noise_from: prop::sample::Index,
        seed: u64,
    ) {
        let mut bytes = frame.build();
        let from = noise_from.index(bytes.len());
        let garbage = noise(bytes.len() - from, seed);
        bytes[from..].copy_from_slice(&garbage);
        let Ok(header) = Header::parse(&bytes) else { return Ok(()) };
        let Ok(mut virtio) = VirtioHeader::parse(&virtio) else { return Ok(()) };
        virtio.gso = [Gso::None, Gso::TcpV4, Gso::TcpV6, Gso::UdpL4, Gso::UdpFragment, Gso::None]
            [usize::from(kind)];

        if let Ok(mut segments) = Segments::new(&mut bytes, &virtio, &header) {
            let (count, total) = (segments.count(), segments.total_bytes());
            let all = collect(&mut segments);
            prop_assert_eq!(count, all.len());
            prop_assert_eq!(total, all.iter().map(Vec::len).sum::<usize>());
        }
    }

    #[test]
    fn partial_checksum_is_completed(frame in any_frame()) {
        let expected = frame.build();
        let mut bytes = expected.clone();
        let header = Header::parse(&bytes).unwrap();
        let virtio = VirtioHeader { gso: Gso::None, ..offload(&header, 0) };
        let len = u32::try_from(frame.transport.len()).unwrap();
        let at = usize::from(virtio.checksum_start + virtio.checksum_offset);
        put(&mut bytes, at, naive_sum(&frame.pseudo_header(len)));
        bytes.extend([0xee; 3]);

        let mut segments = Segments::new(&mut bytes, &virtio, &header).unwrap();

        let mut completed = segments.next_segment().unwrap().to_vec();
        prop_assert_eq!(segments.next_segment(), None);
        if word(&expected, at) == 0 {
            put(&mut completed, at, 0);
        }
        prop_assert_eq!(completed, expected);
    }
}

#[test]
fn frame_without_offload_is_unchanged() {
    let mut bytes = datagram().build();
    let expected = bytes.clone();
    let header = Header::parse(&bytes).unwrap();

    let mut segments = Segments::new(&mut bytes, &VirtioHeader::default(), &header).unwrap();

    assert_eq!((segments.count(), segments.total_bytes()), (1, expected.len()));
    assert_eq!(collect(&mut segments), [expected]);
}

#[test]
fn largest_frame_is_cut_into_single_bytes() {
    let payload = noise(65_535 - 40, 3);
    let mut frame =
        Packet::new([1; 4].into(), [2; 4].into(), 6, tcp([1, 2], 9, 0x10, &[], &payload));
    frame.identification = 0xfff0;
    let mut bytes = frame.build();
    let expected = cut(&bytes, 1);
    let header = Header::parse(&bytes).unwrap();

    let mut segments = Segments::new(&mut bytes, &offload(&header, 1), &header).unwrap();

    assert_eq!(collect(&mut segments), expected);
}

#[test]
fn zero_udp_checksum_becomes_all_ones() {
    let mut frame = datagram();
    let at = 28;
    let bytes = frame.build();
    frame.transport[8..10].copy_from_slice(&bytes[at - 2..at]);
    let mut bytes = frame.build();
    let header = Header::parse(&bytes).unwrap();

    let mut segments = Segments::new(&mut bytes, &offload(&header, 100), &header).unwrap();

    assert_eq!(word(segments.next_segment().unwrap(), at - 2), 0xffff);
}

#[test]
fn offload_headers_must_fit_the_packet() {
    let refused = |frame: &Packet, change: fn(&mut VirtioHeader)| {
        let mut bytes = frame.build();
        let header = Header::parse(&bytes).unwrap();
        let mut virtio = offload(&header, 100);
        change(&mut virtio);
        Segments::new(&mut bytes, &virtio, &header).err()
    };
    let mut fragment = datagram();
    fragment.fragment = 0x2000;
    let mut cut_header = Packet::new([1; 4].into(), [2; 4].into(), 6, tcp([1, 2], 3, 16, &[], &[]));
    cut_header.transport[12] = 0x60;

    let answers = [
        refused(&datagram(), |virtio| virtio.gso_size = 0),
        refused(&datagram(), |virtio| virtio.gso = Gso::TcpV4),
        refused(&datagram(), |virtio| virtio.gso = Gso::UdpFragment),
        refused(&fragment, |_| {}),
        refused(&cut_header, |_| {}),
        refused(&cut_header, |virtio| virtio.gso = Gso::TcpV6),
        refused(&datagram(), |virtio| {
            virtio.gso = Gso::None;
            virtio.checksum_start = 38;
        }),
        refused(&datagram(), |virtio| {
            virtio.gso = Gso::None;
            virtio.checksum_offset = 19;
        }),
    ];

    assert_eq!(answers, [Some(Malformed::Offload); 8]);
}

/// A frame that could come from the device, checksums complete.
fn frame_and_address() -> impl Strategy<Value = (Packet, IpAddr)> {
    any_frame().prop_flat_map(|frame| {
        let address = any_address(frame.source.is_ipv6());
        (Just(frame), address)
    })
}

fn datagram() -> Packet {
    Packet::new([1; 4].into(), [2; 4].into(), 17, udp([1, 2], &[0; 11]))
}

fn offload(header: &Header, gso_size: u16) -> VirtioHeader {
    VirtioHeader {
        needs_checksum: true,
        gso: match (header.transport(), header.is_ipv6()) {
            (Transport::Tcp, false) => Gso::TcpV4,
            (Transport::Tcp, true) => Gso::TcpV6,
            _ => Gso::UdpL4,
        },
        header_len: 0xdead,
        gso_size,
        checksum_start: u16::try_from(header.transport_offset()).unwrap(),
        checksum_offset: if header.transport() == Transport::Tcp { 16 } else { 6 },
        overlay: None,
    }
}

fn collect(segments: &mut Segments<'_>) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(segment) = segments.next_segment() {
        all.push(segment.to_vec());
    }
    all
}
