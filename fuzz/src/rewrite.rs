//! Compares rewritten addresses and congestion marks with checksums computed in full.

use std::net::{IpAddr, Ipv6Addr};

use strait_packet::ecn::Ecn;
use strait_packet::ports::Side;
use strait_packet::rewrite::{self, Checksum};
use strait_packet::{Header, icmp};

use crate::oracle::{Covered, Layout, checksums, octets, recompute, with_canonical_zeros};

/// A rewrite of a packet with correct checksums equals, byte for byte, the packet with the new address
/// and all checksums computed in full. Wrong checksums stay wrong by the same difference. Restoring
/// the old addresses restores the old packet. The two zeros of one's complement count as equal. The
/// header that was parsed before stays valid.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn rewrite(bytes: &[u8]) {
    let Ok(header) = Header::parse(bytes) else {
        return;
    };

    for side in [Side::Source, Side::Destination] {
        assert_reversible(bytes, header, side);
        assert_correct_stays_correct(bytes, header, side);
    }
    for mark in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        assert_mark(bytes, header, mark);
    }
}

fn assert_reversible(bytes: &[u8], mut header: Header, side: Side) {
    let mut packet = bytes.to_vec();
    let old = addresses(bytes, &header, side);
    let new = new_addresses(bytes, &header);
    let before = residues(bytes);

    translate(&mut packet, &mut header, side, new);
    assert_eq!(Header::parse(&packet), Ok(header));
    assert_eq!(residues(&packet), before);

    translate(&mut packet, &mut header, side, old);
    assert_eq!(Header::parse(&packet), Ok(header));
    assert_eq!(with_canonical_zeros(&packet), with_canonical_zeros(bytes));
}

fn assert_correct_stays_correct(bytes: &[u8], mut header: Header, side: Side) {
    let mut packet = bytes.to_vec();
    recompute(&mut packet);
    let new = new_addresses(bytes, &header);
    let expected = expected_packet(&packet, side, new);

    translate(&mut packet, &mut header, side, new);

    assert_eq!(with_canonical_zeros(&packet), with_canonical_zeros(&expected));
}

fn assert_mark(bytes: &[u8], mut header: Header, mark: Ecn) {
    let mut packet = bytes.to_vec();
    let (old, before) = (header.ecn(), residues(bytes));

    let there = rewrite::set_ecn(&mut packet, &mut header, mark);
    assert_eq!((there, header.ecn()), (Ok(()), mark));
    assert_eq!(Header::parse(&packet), Ok(header));
    assert_eq!(residues(&packet), before);

    let back = rewrite::set_ecn(&mut packet, &mut header, old);
    assert_eq!(back, Ok(()));
    assert_eq!(with_canonical_zeros(&packet), with_canonical_zeros(bytes));
}

/// An address of the packet and one of the quoted packet.
#[derive(Clone, Copy)]
struct Addresses {
    outer: IpAddr,
    embedded: IpAddr,
}

/// Translates as a gateway does: one address of the packet, the opposite one of the quoted packet.
fn translate(packet: &mut [u8], header: &mut Header, side: Side, to: Addresses) {
    if let Some(mut embedded) = icmp::embedded(packet, header) {
        let side = opposite(side);
        let result = rewrite::embedded_address(packet, header, &mut embedded, side, to.embedded);
        assert_eq!(result, Ok(()));
    }

    let result = rewrite::address(packet, header, side, to.outer, Checksum::Complete);
    assert_eq!(result, Ok(()));
}

fn expected_packet(packet: &[u8], side: Side, to: Addresses) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let Some(layout) = Layout::of(&packet) else {
        return packet;
    };

    if let Some((at, quoted)) = layout.quoted(&packet) {
        put_address(&mut packet, at, &quoted, opposite(side), to.embedded);
    }
    put_address(&mut packet, 0, &layout, side, to.outer);
    recompute(&mut packet);

    packet
}

fn put_address(bytes: &mut [u8], packet_at: usize, layout: &Layout, side: Side, to: IpAddr) {
    let [source, destination] = layout.addresses_at();
    let at = packet_at + if side == Side::Source { source } else { destination };
    let octets = octets(to);
    if let Some(field) = bytes.get_mut(at..at + octets.len()) {
        field.copy_from_slice(&octets);
    }
}

/// The deviation of each checksum of the packet from the correct one.
fn residues(packet: &[u8]) -> Vec<Option<u16>> {
    let residue =
        |checksum: Covered| (!checksum.is_absent(packet)).then(|| checksum.residue(packet));

    checksums(packet).into_iter().map(residue).collect()
}

fn addresses(packet: &[u8], header: &Header, side: Side) -> Addresses {
    let outer = match side {
        Side::Source => header.source(),
        Side::Destination => header.destination(),
    };
    let embedded = icmp::embedded(packet, header).map(|embedded| match opposite(side) {
        Side::Source => embedded.source(),
        Side::Destination => embedded.destination(),
    });

    Addresses { outer, embedded: embedded.unwrap_or(outer) }
}

/// Addresses from the last bytes of the input, so that extreme ones occur.
fn new_addresses(bytes: &[u8], header: &Header) -> Addresses {
    let bits = bytes.last_chunk::<16>().map_or(0, |last| u128::from_be_bytes(*last));
    let address = |bits: u128| match header.is_ipv6() {
        true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        false => IpAddr::V4(u32::try_from(bits >> 96).unwrap_or_default().into()),
    };

    Addresses { outer: address(bits), embedded: address(bits.rotate_left(32)) }
}

const fn opposite(side: Side) -> Side {
    match side {
        Side::Source => Side::Destination,
        Side::Destination => Side::Source,
    }
}
