use proptest::prelude::*;

use super::super::fixtures::{Packet, any_address, any_packet, naive_sum, noise, put, word};
use super::super::icmp::embedded;
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]

    #[test]
    fn rewriting_equals_rebuilding_with_new_address(
        (packet, to) in packet_and_address(),
        side in any_side(),
    ) {
        let mut bytes = packet.build();
        let mut header = Header::parse(&bytes).unwrap();

        address(&mut bytes, &mut header, side, to, Checksum::Complete).unwrap();

        let expected = with_address(&packet, side, to).build();
        prop_assert_eq!(header, Header::parse(&expected).unwrap());
        prop_assert_eq!(bytes, expected);
    }

    #[test]
    fn wrong_checksums_keep_their_difference(
        (packet, to) in packet_and_address(),
        side in any_side(),
        garbage in 1_u16..,
    ) {
        let mut bytes = packet.build();
        let mut header = Header::parse(&bytes).unwrap();
        if !header.is_ipv6() {
            put(&mut bytes, 10, garbage);
        }
        if let Some(at) = checksum_at(&header) && word(&bytes, at) != 0 {
            put(&mut bytes, at, garbage);
        }
        let before = checksum_errors(&packet, &bytes, &header);

        address(&mut bytes, &mut header, side, to, Checksum::Complete).unwrap();

        prop_assert_eq!(checksum_errors(&with_address(&packet, side, to), &bytes, &header), before);
    }

    #[test]
    fn quoted_packets_are_rewritten_with_the_error(
        (quoted, to) in packet_and_address(),
        side in any_side(),
        kept: prop::sample::Index,
        kind: prop::sample::Index,
    ) {
        let least = if quoted.source.is_ipv6() { 40 } else { 20 + quoted.options.len() };
        let mut kept = least + kept.index(quoted.build().len() - least + 1);
        if checksum_at(&Header::parse(&quoted.build()).unwrap()) == Some(kept - 1) {
            kept -= 1; // Half a checksum cannot be adjusted.
        }
        let (router, host) = (quoted.destination, quoted.source);
        let error = |quoted: &Packet| error(router, host, &quoted.build()[..kept], kind);
        let mut bytes = error(&quoted).build();
        let mut header = Header::parse(&bytes).unwrap();

        let mut inner = embedded(&bytes, &header).unwrap();
        prop_assert_eq!((inner.source(), inner.destination()), (quoted.source, quoted.destination));
        embedded_address(&mut bytes, &header, &mut inner, side, to).unwrap();
        address(&mut bytes, &mut header, Side::Source, to, Checksum::Complete).unwrap();

        let quoted = with_address(&quoted, side, to);
        prop_assert_eq!((inner.source(), inner.destination()), (quoted.source, quoted.destination));
        prop_assert_eq!(bytes, with_address(&error(&quoted), Side::Source, to).build());
    }

    #[test]
    fn garbage_quotes_keep_error_checksums_right(
        (packet, to) in packet_and_address(),
        side in any_side(),
        seed: u64,
        len in 40_usize..140,
        kind: prop::sample::Index,
    ) {
        let mut quoted = noise(len, seed);
        quoted[0] = if packet.source.is_ipv6() { 0x60 } else { 0x45 + quoted[0] % 4 };
        let error = error(packet.source, packet.destination, &quoted, kind);
        let mut bytes = error.build();
        let header = Header::parse(&bytes).unwrap();

        let mut inner = embedded(&bytes, &header).unwrap();
        embedded_address(&mut bytes, &header, &mut inner, side, to).unwrap();

        prop_assert_eq!(checksum_errors(&error, &bytes, &header), [0, 0]);
        let quoted = Header::parse_quoted(&bytes[inner.offset..]).unwrap();
        prop_assert_eq!(quoted, inner.header);
    }

    #[test]
    fn marking_equals_rebuilding_with_the_mark(packet in any_packet(), bits in 0_u8..4) {
        let mut bytes = packet.build();
        let mut header = Header::parse(&bytes).unwrap();
        let mark = Ecn::from_traffic_class(bits);

        set_ecn(&mut bytes, &mut header, mark).unwrap();

        let mut expected = packet;
        expected.traffic_class = (expected.traffic_class & 0xfc) | bits;
        prop_assert_eq!(header.ecn(), mark);
        prop_assert_eq!(bytes, expected.build());
    }

    #[test]
    fn partial_checksum_stays_the_pseudo_header_sum(
        (packet, to) in packet_and_address(),
        side in any_side(),
    ) {
        let mut bytes = packet.build();
        let mut header = Header::parse(&bytes).unwrap();
        let Some(at) = checksum_at(&header) else { return Ok(()) };
        if !header.transport().has_pseudo_header() {
            return Ok(());
        }
        let len = u32::try_from(packet.transport.len()).unwrap();
        put(&mut bytes, at, naive_sum(&packet.pseudo_header(len)));

        address(&mut bytes, &mut header, side, to, Checksum::Partial).unwrap();

        let expected = naive_sum(&with_address(&packet, side, to).pseudo_header(len));
        prop_assert_eq!(word(&bytes, at), expected);
    }

    #[test]
    fn garbage_bytes_do_not_panic(
        packet in any_packet(),
        seed: u64,
        at: prop::sample::Index,
        cut: prop::sample::Index,
    ) {
        let mut bytes = packet.build();
        let at = at.index(bytes.len());
        let garbage = noise(bytes.len() - at, seed);
        bytes[at..].copy_from_slice(&garbage);
        let Ok(mut header) = Header::parse(&bytes) else { return Ok(()) };
        bytes.truncate(cut.index(2 * bytes.len()));
        let to = header.destination();

        let inner = embedded(&bytes, &header);
        let _ = address(&mut bytes, &mut header, Side::Source, to, Checksum::Complete);
        let _ = set_ecn(&mut bytes, &mut header, Ecn::Ce);
        if let Some(mut inner) = inner {
            let _ = embedded_address(&mut bytes, &header, &mut inner, Side::Source, to);
        }
    }
}

#[test]
fn other_version_is_refused_before_writing() {
    let packet = udp_packet(9, false).build();
    let mut bytes = packet.clone();
    let mut header = Header::parse(&bytes).unwrap();
    let to = IpAddr::from([1_u16; 8]);

    let refused = address(&mut bytes, &mut header, Side::Source, to, Checksum::Complete);

    assert_eq!(refused, Err(Mismatch));
    assert_eq!(bytes, packet);
}

#[test]
fn truncated_packet_is_refused_before_writing() {
    let packet = udp_packet(9, false).build();
    let mut header = Header::parse(&packet).unwrap();
    let mut bytes = packet[..packet.len() - 1].to_vec();

    let to = IpAddr::from([9; 4]);
    let refused = address(&mut bytes, &mut header, Side::Source, to, Checksum::Complete);

    assert_eq!(refused, Err(Mismatch));
    assert_eq!(bytes, packet[..packet.len() - 1]);
    assert_eq!(Ok(header), Header::parse(&packet));
}

#[test]
fn zero_udp_checksum_becomes_all_ones() {
    let mut met = 0;
    for last in 0..=u16::MAX {
        let mut bytes = udp_packet(9, false).build();
        let mut header = Header::parse(&bytes).unwrap();
        let [high, low] = last.to_be_bytes();

        let to = IpAddr::from([10, 0, high, low]);
        address(&mut bytes, &mut header, Side::Source, to, Checksum::Complete).unwrap();

        assert_ne!(word(&bytes, 26), 0);
        met += u32::from(word(&bytes, 26) == 0xffff);
    }
    assert!(met > 0);
}

#[test]
fn quote_of_other_version_is_ignored() {
    let quoted = Packet::new([1_u16; 8].into(), [2_u16; 8].into(), 17, vec![7; 9]).build();
    let message = [vec![3, 1, 0, 0, 0, 0, 0, 0], quoted].concat();
    let bytes = Packet::new([1; 4].into(), [2; 4].into(), 1, message).build();
    let header = Header::parse(&bytes).unwrap();

    assert_eq!(embedded(&bytes, &header), None);
}

#[test]
fn echo_and_short_messages_quote_nothing() {
    let echo = Packet::new([1; 4].into(), [2; 4].into(), 1, vec![8; 40]).build();
    let short = Packet::new([1; 4].into(), [2; 4].into(), 1, vec![3; 27]).build();

    for bytes in [echo, short] {
        let header = Header::parse(&bytes).unwrap();

        assert_eq!(embedded(&bytes, &header), None);
    }
}

fn udp_packet(len: usize, without_checksum: bool) -> Packet {
    let mut packet = Packet::new([1; 4].into(), [2; 4].into(), 17, vec![7; len]);
    packet.without_checksum = without_checksum;
    packet
}

fn packet_and_address() -> impl Strategy<Value = (Packet, IpAddr)> {
    any_packet().prop_flat_map(|packet| {
        let address = any_address(packet.source.is_ipv6());
        (Just(packet), address)
    })
}

fn any_side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Source), Just(Side::Destination)]
}

fn with_address(packet: &Packet, side: Side, to: IpAddr) -> Packet {
    let mut packet = packet.clone();
    match side {
        Side::Source => packet.source = to,
        Side::Destination => packet.destination = to,
    }
    packet
}

/// An ICMP error that quotes `quoted`.
fn error(source: IpAddr, to: IpAddr, quoted: &[u8], kind: prop::sample::Index) -> Packet {
    let (protocol, kinds): (u8, &[u8]) =
        if source.is_ipv6() { (58, &[1, 2, 3, 4]) } else { (1, &[3, 4, 5, 11, 12]) };
    let mut message = vec![*kind.get(kinds), 1, 0, 0, 0, 0, 5, 0x14];
    message.extend(quoted);

    Packet::new(source, to, protocol, message)
}

fn checksum_at(header: &Header) -> Option<usize> {
    header.transport().checksum_offset().map(|at| header.transport_offset() + at)
}

/// The errors of the checksums: the sums of all covered words, modulo negative zero.
fn checksum_errors(packet: &Packet, bytes: &[u8], header: &Header) -> [u16; 2] {
    let ip = if header.is_ipv6() { 0 } else { naive_sum(&bytes[..header.transport_offset()]) };
    // Zero means "no checksum" only in some protocols.
    let may_be_zero = !header.transport().reserves_zero();
    let has_checksum = checksum_at(header).is_some_and(|at| may_be_zero || word(bytes, at) != 0);
    let mut covered = Vec::new();
    if has_checksum {
        let transport = &bytes[header.transport_offset()..];
        if header.transport().has_pseudo_header() {
            covered = packet.pseudo_header(u32::try_from(transport.len()).unwrap());
        }
        covered.extend(transport);
    }

    [ip % 0xffff, naive_sum(&covered) % 0xffff]
}
