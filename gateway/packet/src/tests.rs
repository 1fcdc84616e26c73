use proptest::prelude::*;

use super::fixtures::{Extension, Packet, any_packet, noise, put, tcp, udp};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn parsing_restores_the_built_fields(packet in any_packet()) {
        let bytes = packet.build();

        let header = Header::parse(&bytes).unwrap();

        prop_assert_eq!(header.source(), packet.source);
        prop_assert_eq!(header.destination(), packet.destination);
        prop_assert_eq!(header.protocol(), packet.protocol);
        prop_assert_eq!(header.traffic_class(), packet.traffic_class);
        prop_assert_eq!(header.packet_len(), bytes.len());
        prop_assert_eq!(header.transport_offset(), packet.transport_offset());
        prop_assert_eq!(header.fragment() == Fragment::Later, packet.is_later_fragment());
        prop_assert_eq!(header.dont_fragment(), header.is_ipv6() || packet.fragment & 0x4000 != 0);
        prop_assert_eq!(header.transport(), expected_transport(&packet));
    }

    #[test]
    fn padding_changes_nothing(packet in any_packet(), padding in 1_usize..40, seed: u64) {
        let bytes = packet.build();
        let padded = [bytes.clone(), noise(padding, seed)].concat();

        prop_assert_eq!(Header::parse(&padded), Header::parse(&bytes));
    }

    #[test]
    fn truncated_packet_is_malformed(packet in any_packet(), cut: prop::sample::Index) {
        let bytes = packet.build();

        let parsed = Header::parse(&bytes[..cut.index(bytes.len())]);

        let is_truncated = matches!(parsed, Err(Malformed::Truncated { .. }));
        prop_assert!(is_truncated, "{:?}", parsed);
    }

    #[test]
    fn arbitrary_bytes_parse_within_bounds(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        version in prop_oneof![Just(0x45), Just(0x46), Just(0x4f), Just(0x60), any::<u8>()],
        len in 0_u8..120,
        next in prop_oneof![Just(0), Just(43), Just(44), Just(60), Just(6), any::<u8>()],
    ) {
        if let Some(first) = bytes.get_mut(..10) {
            first[0] = version;
            first[6] = next;
            put(first, if version >> 4 == 4 { 2 } else { 4 }, u16::from(len));
        }

        let parsed = Header::parse(&bytes);
        let quoted = Header::parse_quoted(&bytes);

        if let Ok(header) = parsed {
            prop_assert!(header.transport_offset() <= header.packet_len());
        }
        for header in [parsed, quoted].into_iter().flatten() {
            prop_assert!(header.packet_len() <= bytes.len());
            if let Some(at) = header.transport().checksum_offset() {
                prop_assert!(header.transport_offset() + at + 2 <= header.packet_len());
            }
        }
    }
}

#[test]
fn other_versions_and_empty_input_are_malformed() {
    assert_eq!(Header::parse(&[0x55; 60]), Err(Malformed::Version { version: 5 }));
    assert_eq!(Header::parse(&[]), Err(Malformed::Truncated { needed: 1, available: 0 }));
}

#[test]
fn contradictory_lengths_are_malformed() {
    let mut short_header = v4(udp([1, 2], b"x")).build();
    short_header[0] = 0x44;
    let mut short_packet = v4(udp([1, 2], b"x")).build();
    put(&mut short_packet, 2, 19);

    assert_eq!(Header::parse(&short_header), Err(Malformed::Length { stated: 16, least: 20 }));
    assert_eq!(Header::parse(&short_packet), Err(Malformed::Length { stated: 19, least: 20 }));
}

#[test]
fn atomic_fragment_is_a_whole_packet() {
    let mut packet = v6(tcp([1, 2], 3, 0x10, &[], b"x"));
    packet.extensions = vec![Extension::Fragment { field: 0 }];

    let header = Header::parse(&packet.build()).unwrap();

    assert_eq!(header.fragment(), Fragment::None);
    assert_eq!(header.transport(), Transport::Tcp);
}

#[test]
fn later_ipv6_fragment_ends_the_walk() {
    let mut packet = v6(noise(64, 1));
    packet.extensions = vec![Extension::Fragment { field: 0x0100 }];
    packet.protocol = 60;

    let header = Header::parse(&packet.build()).unwrap();

    assert_eq!(header.fragment(), Fragment::Later);
    assert_eq!((header.protocol(), header.transport_offset()), (60, 48));
    assert_eq!(header.transport(), Transport::None);
}

#[test]
fn first_routing_header_marks_packet_as_routed() {
    let routing = |segments_left| Extension::Routing { segments_left, last: [9_u16; 8].into() };
    let mut packet = v6(udp([1, 2], b"x"));

    packet.extensions = vec![routing(1), routing(0)];
    let routed = Header::parse(&packet.build()).unwrap();
    packet.extensions = vec![routing(0)];
    let arrived = Header::parse(&packet.build()).unwrap();

    assert_eq!((routed.is_routed(), arrived.is_routed()), (true, false));
}

#[test]
fn routing_type_0_is_source_routing() {
    let mut packet = v6(udp([1, 2], b"x"));
    packet.extensions = vec![Extension::Routing { segments_left: 0, last: [9_u16; 8].into() }];
    let mut bytes = packet.build();
    let harmless = Header::parse(&bytes).unwrap();

    bytes[42] = 0;
    let source_routed = Header::parse(&bytes).unwrap();

    assert_eq!((harmless.is_source_routed(), source_routed.is_source_routed()), (false, true));
}

#[test]
fn extension_header_count_is_bounded() {
    let mut packet = v6(udp([1, 2], b"x"));
    let option = Extension::Options { kind: 60, units: 0, seed: 7 };

    packet.extensions = vec![option.clone(); ipv6::MAX_EXTENSIONS];
    let longest = Header::parse(&packet.build());
    packet.extensions.push(option);
    let too_long = Header::parse(&packet.build());

    assert_eq!(longest.map(|header| header.transport()), Ok(Transport::Udp));
    assert_eq!(too_long, Err(Malformed::ExtensionChain));
}

#[test]
fn extension_header_past_packet_is_malformed() {
    let mut packet = v6(Vec::new());
    packet.extensions = vec![Extension::Options { kind: 0, units: 0, seed: 7 }];
    let mut bytes = packet.build();
    bytes[41] = 1;
    bytes.extend([0; 64]);

    let parsed = Header::parse(&bytes);

    assert_eq!(parsed, Err(Malformed::Truncated { needed: 56, available: 48 }));
}

#[test]
fn offload_frame_is_parsed() {
    let payload = noise(65_495, 1);
    let bytes = v4(tcp([1, 2], 3, 0x10, &[], &payload)).build();

    let header = Header::parse(&bytes).unwrap();

    assert_eq!(header.packet_len(), 65_535);
    assert_eq!(header.transport(), Transport::Tcp);
}

fn expected_transport(packet: &Packet) -> Transport {
    let len = packet.transport.len();
    match (packet.protocol, packet.source.is_ipv6()) {
        _ if packet.is_later_fragment() => Transport::None,
        (6, _) if len >= 18 => Transport::Tcp,
        (17, _) if len >= 8 => Transport::Udp,
        (136, _) if len >= 8 => Transport::UdpLite,
        (1, false) if len >= 4 => Transport::Icmp,
        (58, true) if len >= 4 => Transport::Icmpv6,
        (6 | 17 | 136, _) | (1, false) | (58, true) => Transport::None,
        (51, _) => Transport::AuthenticationHeader,
        (other, _) => Transport::Other(other),
    }
}

fn v4(transport: Vec<u8>) -> Packet {
    let protocol = if transport.len() >= 20 { 6 } else { 17 };
    Packet::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol, transport)
}

fn v6(transport: Vec<u8>) -> Packet {
    let protocol = if transport.len() >= 20 { 6 } else { 17 };
    Packet::new([1_u16; 8].into(), [2_u16; 8].into(), protocol, transport)
}
