//! The error is compared with the same packet built by the fixtures; the exceptions of the RFCs are in a
//! table.

use proptest::prelude::*;

use super::*;
use crate::fixtures::{Extension, Packet, TCP, UDP, any_packet, noise, put, tcp, udp};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn error_equals_a_rebuilt_one(
        packet in any_packet(),
        payload_len in prop_oneof![Just(0_usize), 0_usize..3_000],
        cause in any_cause(),
    ) {
        let packet = with_payload(packet, payload_len);
        let bytes = packet.build();
        let mut buffer = [0x5a; MAX_ERROR_BYTES];

        let expected = expected(&packet, &bytes, cause);
        let error = write(&bytes, cause, &mut buffer);

        prop_assert_eq!(error, expected.as_deref());
        if let Some(error) = error {
            let limit = if packet.source.is_ipv6() { 1280 } else { 576 };
            prop_assert!(error.len() <= limit);
            let header = Header::parse(error).unwrap();
            let quoted = icmp::embedded(error, &header).unwrap();
            prop_assert_eq!(quoted.source(), header.destination());
            prop_assert_eq!(quoted.destination(), header.source());
        }
    }

    #[test]
    fn no_error_answers_an_error(packet in any_packet(), cause in any_cause()) {
        let (mut first, mut second) = ([0; MAX_ERROR_BYTES], [0; MAX_ERROR_BYTES]);

        if let Some(error) = write(&packet.build(), cause, &mut first) {
            prop_assert_eq!(write(error, cause, &mut second), None);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        version in prop_oneof![Just(0x45), Just(0x46), Just(0x60), any::<u8>()],
        len in 20_u8..120,
    ) {
        if let Some(first) = bytes.get_mut(..10) {
            first[0] = version;
            put(first, if version >> 4 == 4 { 2 } else { 4 }, u16::from(len));
        }
        let mut buffer = [0; MAX_ERROR_BYTES];

        if let Some(error) = write(&bytes, Cause::Unreachable, &mut buffer) {
            let header = Header::parse(&bytes).unwrap();
            let in_front = if header.is_ipv6() { 48 } else { 28 };
            prop_assert_eq!(error.len(), in_front + header.packet_len());
        }
    }
}

#[test]
fn rfc_exceptions_get_no_error() {
    let v4 = || Packet::new(ip("10.1.0.9"), ip("10.71.2.7"), UDP, udp([1, 2], b"x"));
    let v6 = || Packet::new(ip("fd00:1::9"), ip("fd00:71::7"), UDP, udp([1, 2], b"x"));
    let icmp =
        |kind: u8| Packet { protocol: 1, transport: vec![kind, 0, 0, 0, 0, 0, 0, 0], ..v4() };
    let icmpv6 =
        |kind: u8| Packet { protocol: 58, transport: vec![kind, 0, 0, 0, 0, 0, 0, 0], ..v6() };
    let fragment = |field| Extension::Fragment { field };

    for (packet, is_permitted, what) in [
        (v4(), true, "UDP"),
        (v6(), true, "UDP"),
        (icmp(8), true, "an echo request"),
        (icmp(0), true, "an echo reply"),
        (icmp(3), false, "destination unreachable"),
        (icmp(4), false, "source quench"),
        (icmp(5), false, "a redirect"),
        (icmp(11), false, "time exceeded"),
        (icmp(12), false, "a parameter problem"),
        (icmp(40), false, "Photuris, which is an error"),
        (icmp(200), false, "an unassigned type"),
        (icmpv6(128), true, "an echo request"),
        (icmpv6(1), false, "destination unreachable"),
        (icmpv6(2), false, "packet too big"),
        (icmpv6(100), false, "an experimental error"),
        (icmpv6(137), false, "a redirect"),
        (Packet { fragment: 0x2000, ..v4() }, true, "a first fragment"),
        (Packet { fragment: 0x2001, ..v4() }, false, "a later fragment"),
        (Packet { fragment: 0x0001, ..v4() }, false, "the last fragment"),
        (Packet { extensions: vec![fragment(0x0001)], ..v6() }, true, "a first fragment"),
        (Packet { extensions: vec![fragment(0x0008)], ..v6() }, false, "the last fragment"),
        (Packet { transport: vec![0; 7], ..v4() }, false, "half a UDP header"),
        (Packet { protocol: 1, transport: vec![], ..v4() }, false, "ICMP without a type"),
        (Packet { protocol: TCP, transport: vec![0; 4], ..v6() }, false, "a truncated TCP header"),
        (Packet { protocol: 47, transport: vec![], ..v4() }, true, "GRE, of any length"),
    ] {
        assert_eq!(gets_error(&packet), is_permitted, "{what}");
    }
}

#[test]
fn only_unicast_addresses_get_errors() {
    let hosts = ["10.1.0.9", "169.254.18.1", "223.255.255.255", "fd00:1::9", "fe80::1"];
    let others = [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "ff02::1",
        "ff0e::9",
    ];

    for (addresses, is_permitted) in [(&hosts[..], true), (&others, false)] {
        for address in addresses {
            let address = ip(address);
            let other = ip(if address.is_ipv6() { "fd00:71::7" } else { "10.71.2.7" });
            for (source, destination) in [(address, other), (other, address)] {
                let packet = Packet::new(source, destination, UDP, udp([1, 2], b"x"));
                assert_eq!(gets_error(&packet), is_permitted, "{source} to {destination}");
            }
        }
    }
}

#[test]
fn codes_match_kernel_and_rfc_5508() {
    let of = |destination, source, cause| {
        let segment = tcp([1, 2], 3, 2, &[], b"");
        let packet = Packet::new(ip(source), ip(destination), TCP, segment).build();
        let mut buffer = [0; MAX_ERROR_BYTES];
        let error = write(&packet, cause, &mut buffer).unwrap();
        let at = Header::parse(error).unwrap().transport_offset();
        let mtu = u32::from_be_bytes([error[at + 4], error[at + 5], error[at + 6], error[at + 7]]);
        (error[at], error[at + 1], mtu)
    };

    assert_eq!(of("10.71.2.7", "10.1.0.9", Cause::Unreachable), (3, 1, 0));
    assert_eq!(of("10.71.2.7", "10.1.0.9", Cause::Prohibited), (3, 13, 0));
    assert_eq!(of("fd00:71::7", "fd00:1::9", Cause::Unreachable), (1, 3, 0));
    assert_eq!(of("fd00:71::7", "fd00:1::9", Cause::Prohibited), (1, 1, 0));
    assert_eq!(of("10.71.2.7", "10.1.0.9", Cause::Rejected), (3, 0, 0));
    assert_eq!(of("fd00:71::7", "fd00:1::9", Cause::Rejected), (1, 0, 0));
    assert_eq!(of("10.71.2.7", "10.1.0.9", Cause::TooBig(1220)), (3, 4, 1220));
    assert_eq!(of("fd00:71::7", "fd00:1::9", Cause::TooBig(1280)), (2, 0, 1280));
}

/// The error about `packet`, whose bytes are `bytes`.
fn expected(packet: &Packet, bytes: &[u8], cause: Cause) -> Option<Vec<u8>> {
    let least = match packet.protocol {
        TCP => 18,
        UDP | 136 => 8,
        1 if packet.source.is_ipv4() => 4,
        58 if packet.source.is_ipv6() => 4,
        _ => 0,
    };
    let is_permitted = !packet.is_later_fragment()
        && packet.transport.len() >= least
        && [packet.source, packet.destination].into_iter().all(|address| match address {
            IpAddr::V4(address) => {
                (1..224).contains(&address.octets()[0]) && !address.is_loopback()
            }
            IpAddr::V6(address) => address.to_bits() > 1 && address.octets()[0] != 0xff,
        });
    if !is_permitted {
        return None;
    }

    let (protocol, room) = if packet.source.is_ipv6() { (58, 1280 - 48) } else { (1, 576 - 28) };
    let mut message = match (cause, packet.source.is_ipv6()) {
        (Cause::Unreachable, false) => vec![3, 1, 0, 0, 0, 0, 0, 0],
        (Cause::Unreachable, true) => vec![1, 3, 0, 0, 0, 0, 0, 0],
        (Cause::Prohibited, false) => vec![3, 13, 0, 0, 0, 0, 0, 0],
        (Cause::Prohibited, true) => vec![1, 1, 0, 0, 0, 0, 0, 0],
        (Cause::Rejected, false) => vec![3, 0, 0, 0, 0, 0, 0, 0],
        (Cause::Rejected, true) => vec![1, 0, 0, 0, 0, 0, 0, 0],
        (Cause::TooBig(mtu), false) => [&[3, 4, 0, 0, 0, 0][..], &mtu.to_be_bytes()].concat(),
        (Cause::TooBig(mtu), true) => [&[2, 0, 0, 0, 0, 0][..], &mtu.to_be_bytes()].concat(),
    };
    message.extend(bytes.iter().take(room));

    Some(
        Packet {
            traffic_class: 0xc0,
            hop_limit: 64,
            fragment: 0x4000,
            ..Packet::new(packet.destination, packet.source, protocol, message)
        }
        .build(),
    )
}

fn any_cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        Just(Cause::Unreachable),
        Just(Cause::Prohibited),
        Just(Cause::Rejected),
        any::<u16>().prop_map(Cause::TooBig),
    ]
}

fn with_payload(mut packet: Packet, len: usize) -> Packet {
    if packet.transport.is_empty() && matches!(packet.protocol, 1 | 58) {
        packet.transport.push(if packet.protocol == 1 { 8 } else { 128 });
    }
    packet.transport.extend(noise(len, 7));

    packet
}

fn gets_error(packet: &Packet) -> bool {
    write(&packet.build(), Cause::Unreachable, &mut [0; MAX_ERROR_BYTES]).is_some()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
