use proptest::prelude::*;

use super::super::Side;
use super::*;
use crate::fixtures::{Packet, any_packet, put, word};
use crate::icmp::embedded;
use crate::ports::Ports;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]

    #[test]
    fn rewriting_equals_rebuilding_with_new_port(
        packet in any_packet(),
        side in any_side(),
        to: u16,
    ) {
        let mut bytes = packet.build();
        let header = Header::parse(&bytes).unwrap();
        let Some(ports) = Ports::read(&bytes, &header) else {
            prop_assert_eq!(port(&mut bytes, &header, side, to, Checksum::Complete), Err(Mismatch));
            return Ok(());
        };
        let at = at(&packet, side);
        prop_assert_eq!(word(&packet.transport, at), of(ports, side));

        port(&mut bytes, &header, side, to, Checksum::Complete).unwrap();

        let expected = with_port(&packet, side, to);
        prop_assert_eq!(same_zero(bytes, &header), same_zero(expected.build(), &header));
    }

    #[test]
    fn quoted_packets_are_rewritten_with_the_error(
        quoted in any_packet(),
        side in any_side(),
        to: u16,
        kept: prop::sample::Index,
    ) {
        let whole = quoted.build();
        let header = Header::parse(&whole).unwrap();
        let Some(_) = Ports::read(&whole, &header) else { return Ok(()) };
        // From the ports alone to the whole packet, but never half a checksum, which cannot be adjusted.
        let least = header.transport_offset() + 8.min(quoted.transport.len());
        let mut kept = least + kept.index(whole.len() - least + 1);
        if header.transport().checksum_offset().map(|at| header.transport_offset() + at + 1) == Some(kept) {
            kept -= 1;
        }
        let error = |quoted: &Packet| {
            let mut message = vec![if quoted.source.is_ipv6() { 1 } else { 3 }, 1, 0, 0, 0, 0, 0, 0];
            message.extend(&quoted.build()[..kept]);
            let protocol = if quoted.source.is_ipv6() { 58 } else { 1 };
            Packet::new(quoted.destination, quoted.source, protocol, message)
        };
        let mut bytes = error(&quoted).build();
        let outer = Header::parse(&bytes).unwrap();

        let inner = embedded(&bytes, &outer).unwrap();
        embedded_port(&mut bytes, &outer, &inner, side, to).unwrap();

        let expected = error(&with_port(&quoted, side, to)).build();
        let at = outer.transport_offset() + 2;
        prop_assert_eq!(word(&bytes, at) % 0xffff, word(&expected, at) % 0xffff);
        prop_assert_eq!(&bytes[at + 2..], &expected[at + 2..]);
    }

    /// The device completes the checksum and then includes the port.
    #[test]
    fn partial_checksum_does_not_change(packet in any_packet(), side in any_side(), to: u16) {
        let mut bytes = packet.build();
        let header = Header::parse(&bytes).unwrap();
        let Some(_) = Ports::read(&bytes, &header) else { return Ok(()) };

        port(&mut bytes, &header, side, to, Checksum::Partial).unwrap();

        let start = header.transport_offset();
        let mut expected = packet.build();
        put(&mut expected, start + at(&packet, side), to);
        prop_assert_eq!(bytes, expected);
    }
}

/// Both zeros of one's complement are the same sum, except in UDP, where they are distinguished.
fn same_zero(mut bytes: Vec<u8>, header: &Header) -> Vec<u8> {
    if let Some(at) = header.transport().checksum_offset()
        && word(&bytes, header.transport_offset() + at) == 0xffff
        && !header.transport().reserves_zero()
    {
        put(&mut bytes, header.transport_offset() + at, 0);
    }

    bytes
}

fn with_port(packet: &Packet, side: Side, to: u16) -> Packet {
    let mut packet = packet.clone();
    let at = at(&packet, side);
    put(&mut packet.transport, at, to);

    packet
}

fn at(packet: &Packet, side: Side) -> usize {
    match (packet.protocol, side) {
        (1 | 58, _) => 4,
        (_, Side::Source) => 0,
        (_, Side::Destination) => 2,
    }
}

fn of(ports: Ports, side: Side) -> u16 {
    match side {
        Side::Source => ports.source,
        Side::Destination => ports.destination,
    }
}

fn any_side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Source), Just(Side::Destination)]
}
