//! Solicitations and advertisements of IPv6 neighbor discovery (RFC 4861 sections 4.3 and 4.4).
//!
//! Extension headers are not expected in front of them: RFC 6980 forbids fragments, and nothing sends others.

use std::net::Ipv6Addr;

use remap::checksum::{add, complete, pseudo_header, sum};

use super::super::ethernet::{Ethernet, Mac};
use super::{Binding, Message, Question};
use crate::{field, ipv6};

/// The length of the packets that are written here, in bytes.
pub(super) const PACKET_LEN: usize = ipv6::FIXED_LEN + MESSAGE_LEN + OPTION_LEN;

/// The length of a message without options, in bytes.
const MESSAGE_LEN: usize = 24;

/// The length of an option with the address of a station, and the unit of lengths of options, in bytes.
const OPTION_LEN: usize = 8;

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

const SOURCE_STATION: u8 = 1;
const TARGET_STATION: u8 = 2;

/// The flags of an advertisement. This gateway is a router, and its own address overrides older entries.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A message that a router has forwarded does not have the largest hop limit any more.
const HOP_LIMIT: u8 = 255;

/// The link-local address of all nodes, and the first 13 bytes of solicited-node addresses (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const SOLICITED_NODE: [u8; 13] = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];

/// Whether `packet` is a solicitation or an advertisement, valid or not.
#[inline]
pub(super) fn is_message(packet: &[u8]) -> bool {
    packet.get(6) == Some(&ICMPV6)
        && matches!(packet.get(ipv6::FIXED_LEN), Some(&(SOLICITATION | ADVERTISEMENT)))
}

/// `None` if the message violates RFC 4861 section 7.1.1 or 7.1.2.
pub(super) fn parse(packet: &[u8], ethernet: &Ethernet) -> Option<Message> {
    let (header, rest) = packet.split_first_chunk::<{ ipv6::FIXED_LEN }>()?;
    let len = field::word(header, 4)?;
    let message = rest.get(..usize::from(len))?;
    let (&[kind, code, _, _, flags, ..], options) = message.split_first_chunk::<MESSAGE_LEN>()?;
    let source = address(header, 8)?;
    let destination = address(header, 24)?;
    let target = address(message, 8)?;
    let sum = add(pseudo_sum(source, destination, len.into()), sum(message));
    let is_valid = header.first()? >> 4 == 6
        && *header.get(7)? == HOP_LIMIT
        && code == 0
        && complete(sum) == 0
        && !target.is_multicast()
        && !source.is_multicast();
    if !is_valid {
        return None;
    }

    if kind == ADVERTISEMENT {
        if destination.is_multicast() && flags & SOLICITED != 0 {
            return None;
        }
        let announced = station(options, TARGET_STATION)?;
        let announced = announced.map(|mac| Binding { address: target.into(), mac });
        return Some(Message { announced, question: None });
    }

    let mac = station(options, SOURCE_STATION)?;
    let is_probe = source.is_unspecified();
    if is_probe && (mac.is_some() || !destination.octets().starts_with(&SOLICITED_NODE)) {
        return None;
    }

    Some(Message {
        announced: mac.map(|mac| Binding { address: source.into(), mac }),
        question: Some(Question {
            target: target.into(),
            from: source.into(),
            to: mac.unwrap_or(ethernet.source),
        }),
    })
}

/// The station in the option of `kind`, if there is one; `None` if an option is truncated or has no length.
fn station(mut options: &[u8], kind: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let Some(&[option, units]) = options.first_chunk() {
        let (bytes, rest) = options.split_at_checked(usize::from(units) * OPTION_LEN)?;
        if option == kind {
            let mac = Mac(*bytes.get(2..)?.first_chunk()?);
            found = mac.is_station().then_some(mac);
        } else if bytes.is_empty() {
            return None;
        }
        options = rest;
    }

    options.is_empty().then_some(found)
}

/// The question of `own`, and the group of stations that it is sent to (RFC 4861 section 7.2.2).
pub(super) fn solicitation(own: Mac, from: Ipv6Addr, target: Ipv6Addr) -> (Mac, [u8; PACKET_LEN]) {
    let to = solicited_node(target);

    (group(to), packet((from, to), [SOLICITATION, 0], target, (SOURCE_STATION, own)))
}

/// The answer that `own` has `target`, and the stations that it is sent to (RFC 4861 section 7.2.4): all of them if the
/// question was one without address.
pub(super) fn advertisement(
    own: Mac,
    target: Ipv6Addr,
    to: Mac,
    from: Ipv6Addr,
) -> (Mac, [u8; PACKET_LEN]) {
    let (mac, to, solicited) = if from.is_unspecified() {
        (group(ALL_NODES), ALL_NODES, 0)
    } else {
        (to, from, SOLICITED)
    };
    let kind = [ADVERTISEMENT, ROUTER | OVERRIDE | solicited];

    (mac, packet((target, to), kind, target, (TARGET_STATION, own)))
}

fn packet(
    (source, destination): (Ipv6Addr, Ipv6Addr),
    [kind, flags]: [u8; 2],
    target: Ipv6Addr,
    (option, mac): (u8, Mac),
) -> [u8; PACKET_LEN] {
    const LEN: u16 = 32;
    const _: () = assert!(PACKET_LEN == ipv6::FIXED_LEN + 32);

    let [l0, l1] = LEN.to_be_bytes();
    let Mac([m0, m1, m2, m3, m4, m5]) = mac;
    let mut packet = [0; PACKET_LEN];
    let mut rest = packet.as_mut_slice();
    put(&mut rest, &[0x60, 0, 0, 0, l0, l1, ICMPV6, HOP_LIMIT]);
    put(&mut rest, &source.octets());
    put(&mut rest, &destination.octets());
    put(&mut rest, &[kind, 0, 0, 0, flags, 0, 0, 0]);
    put(&mut rest, &target.octets());
    put(&mut rest, &[option, 1, m0, m1, m2, m3, m4, m5]);

    let message = packet.get(ipv6::FIXED_LEN..).unwrap_or_default();
    let sum = add(pseudo_sum(source, destination, LEN.into()), sum(message));
    field::put_word(&mut packet, ipv6::FIXED_LEN + 2, complete(sum));

    packet
}

/// Writes `bytes` to the front of `rest`, and takes them off it.
fn put(rest: &mut &mut [u8], bytes: &[u8]) {
    if let Some(front) = rest.split_off_mut(..bytes.len()) {
        front.copy_from_slice(bytes);
    }
}

fn pseudo_sum(source: Ipv6Addr, destination: Ipv6Addr, len: u32) -> u16 {
    pseudo_header(source.into(), destination.into(), ICMPV6, len)
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    bytes.get(at..)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
}

/// The group in which a node with `target` is asked for it: its last three bytes (RFC 4291 section 2.7.1).
const fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    const PREFIX: u128 = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();

    Ipv6Addr::from_bits(PREFIX | (target.to_bits() & 0x00ff_ffff))
}

/// The group of stations of a multicast address: its last four bytes (RFC 2464 section 7).
const fn group(address: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = address.octets();

    Mac([0x33, 0x33, a, b, c, d])
}
