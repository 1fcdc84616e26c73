//! Frames of overlays.

use super::super::super::virtio::Overlay;
use super::*;

/// The port of VXLAN.
const PORT: u16 = 4789;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn overlay_segments_equal_those_of_the_oracle(
        frame in any_overlay(),
        size in 1_u16..2000,
        stale_checksum: u16,
    ) {
        let mut bytes = frame.outer.build();
        let header = Header::parse(&bytes).unwrap();
        put(&mut bytes, header.transport_offset() + 6, stale_checksum);
        let expected = frame.cut(size);

        let virtio = frame.offload(size);
        let longest = longest_packet(&bytes, &virtio, &header);
        let mut segments = Segments::new(&mut bytes, &virtio, &header).unwrap();

        prop_assert!(longest >= expected.iter().map(Vec::len).max());
        prop_assert_eq!(segments.count(), expected.len());
        prop_assert_eq!(segments.total_bytes(), expected.iter().map(Vec::len).sum::<usize>());
        prop_assert_eq!(collect(&mut segments), expected);
    }

    #[test]
    fn rewriting_outer_addresses_rewrites_overlay_segments(
        (frame, to) in any_overlay().prop_flat_map(|frame| {
            let address = any_address(frame.outer.source.is_ipv6());
            (Just(frame), address)
        }),
        size in 1_u16..2000,
    ) {
        let mut bytes = frame.outer.build();
        let mut header = Header::parse(&bytes).unwrap();
        let virtio = frame.offload(size);
        let checksum = virtio.checksum(&header);
        rewrite::address(&mut bytes, &mut header, Side::Destination, to, checksum).unwrap();
        let outer = Packet { destination: to, ..frame.outer.clone() };
        let expected = OverlayFrame { outer, ..frame }.cut(size);

        let mut segments = Segments::new(&mut bytes, &virtio, &header).unwrap();

        prop_assert_eq!(checksum, Checksum::Complete);
        prop_assert_eq!(collect(&mut segments), expected);
    }

    #[test]
    fn arbitrary_overlay_offsets_do_not_panic(
        frame in any_overlay(),
        size: u16,
        offsets: (u16, u16),
        noise_from: prop::sample::Index,
        seed: u64,
    ) {
        let mut bytes = frame.outer.build();
        let from = noise_from.index(bytes.len());
        let garbage = noise(bytes.len() - from, seed);
        bytes[from..].copy_from_slice(&garbage);
        let Ok(header) = Header::parse(&bytes) else { return Ok(()) };
        let mut virtio = frame.offload(size);
        if let Some(overlay) = &mut virtio.overlay && seed.is_multiple_of(2) {
            (overlay.transport_offset, overlay.inner_offset) = offsets;
        }

        if let Ok(mut segments) = Segments::new(&mut bytes, &virtio, &header) {
            let (count, total) = (segments.count(), segments.total_bytes());
            let all = collect(&mut segments);
            prop_assert_eq!(count, all.len());
            prop_assert_eq!(total, all.iter().map(Vec::len).sum::<usize>());
        }
    }
}

#[test]
fn overlay_offsets_must_fit_the_packet() {
    let refused = |change: fn(&mut Overlay)| {
        let frame = vxlan();
        let mut bytes = frame.outer.build();
        let header = Header::parse(&bytes).unwrap();
        let mut virtio = frame.offload(100);
        change(virtio.overlay.as_mut().unwrap());
        Segments::new(&mut bytes, &virtio, &header).err()
    };

    assert_eq!(refused(|_| {}), None);
    assert_eq!(refused(|overlay| overlay.is_ipv6 = true), Some(Malformed::Offload));
    assert_eq!(refused(|overlay| overlay.transport_offset = 24), Some(Malformed::Offload));
    assert_eq!(refused(|overlay| overlay.inner_offset = 0), Some(Malformed::Offload));
    assert_eq!(refused(|overlay| overlay.inner_offset = u16::MAX), Some(Malformed::Offload));
    assert!(refused(|overlay| overlay.inner_offset += 1).is_some());
}

/// A frame of an overlay, and the part of it that has to be cut.
#[derive(Clone, Debug)]
struct OverlayFrame {
    outer: Packet,
    /// The headers between UDP and the inner packet.
    between: Vec<u8>,
    inner: Packet,
}

impl OverlayFrame {
    fn new(addresses: (IpAddr, IpAddr), between: Vec<u8>, inner: Packet) -> Self {
        let transport = udp([50_000, PORT], &[&between[..], &inner.build()].concat());

        Self { outer: Packet::new(addresses.0, addresses.1, 17, transport), between, inner }
    }

    fn offload(&self, gso_size: u16) -> VirtioHeader {
        let inner = Header::parse(&self.inner.build()).unwrap();
        let transport_offset = u16::try_from(self.outer.transport_offset()).unwrap();
        let inner_offset = transport_offset + 8 + u16::try_from(self.between.len()).unwrap();
        let offload = offload(&inner, gso_size);

        VirtioHeader {
            checksum_start: inner_offset + offload.checksum_start,
            overlay: Some(Overlay {
                is_ipv6: self.outer.source.is_ipv6(),
                has_checksum: !self.outer.without_checksum,
                transport_offset,
                inner_offset,
            }),
            ..offload
        }
    }

    /// The packets with `size` bytes of payload each.
    fn cut(&self, size: u16) -> Vec<Vec<u8>> {
        let packets = cut(&self.inner.build(), size.into()).into_iter().enumerate();
        let packets = packets.map(|(index, packet)| {
            let payload = [&self.between[..], &packet].concat();
            let step = u16::try_from(index).unwrap();
            let outer = Packet {
                identification: self.outer.identification.wrapping_add(step),
                transport: udp([50_000, PORT], &payload),
                ..self.outer.clone()
            };
            outer.build()
        });

        packets.collect()
    }
}

fn any_overlay() -> impl Strategy<Value = OverlayFrame> {
    let addresses =
        any::<bool>().prop_flat_map(|is_ipv6| (any_address(is_ipv6), any_address(is_ipv6)));
    let inner = any_frame()
        .prop_filter("room for the outer headers", |inner| inner.transport.len() < 65_000);
    let between = (4_usize..40, any::<u64>()).prop_map(|(units, seed)| noise(units * 2, seed));

    (addresses, between, inner, any::<bool>(), any::<u16>()).prop_map(
        |(addresses, between, inner, without_checksum, identification)| {
            let mut frame = OverlayFrame::new(addresses, between, inner);
            frame.outer.without_checksum = without_checksum;
            frame.outer.identification = identification;
            frame
        },
    )
}

fn vxlan() -> OverlayFrame {
    let inner = Packet::new([3; 4].into(), [4; 4].into(), 6, tcp([1, 2], 9, 0x18, &[], &[7; 1000]));

    OverlayFrame::new(([1; 4].into(), [2; 4].into()), noise(22, 1), inner)
}
