//! ARP messages about IPv4 addresses in Ethernet (RFC 826).

use std::net::Ipv4Addr;

use super::super::ethernet::Mac;
use super::{Binding, Message, Question};

/// The length of a message, in bytes.
const MESSAGE_LEN: usize = 28;

/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const TYPES: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

const REQUEST: u8 = 1;
const REPLY: u8 = 2;

/// `None` if `message` is truncated, not about IPv4 in Ethernet, neither a request nor a reply, or sent by a group.
///
/// A sender without address announces none: it probes whether the target is in use (RFC 5227 section 2.1.1).
pub(super) fn parse(message: &[u8]) -> Option<Message> {
    let (types, rest) = message.split_first_chunk::<6>()?;
    let ([0, operation], rest) = rest.split_first_chunk::<2>()? else {
        return None;
    };
    let (mac, rest) = rest.split_first_chunk::<6>()?;
    let (from, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<6>()?;
    let target = Ipv4Addr::from(*rest.first_chunk::<4>()?);
    let (mac, from) = (Mac(*mac), Ipv4Addr::from(*from));
    if *types != TYPES || !mac.is_station() {
        return None;
    }

    let is_host = !(from.is_unspecified() || from.is_multicast() || from.is_broadcast());
    let announced = is_host.then_some(Binding { address: from.into(), mac });
    let question = match *operation {
        REQUEST => Some(Question { target: target.into(), from: from.into(), to: mac }),
        REPLY => None,
        _ => return None,
    };

    Some(Message { announced, question })
}

pub(super) fn request(own: Mac, from: Ipv4Addr, target: Ipv4Addr) -> [u8; MESSAGE_LEN] {
    message(REQUEST, (own, from), (Mac([0; 6]), target))
}

pub(super) fn reply(own: Mac, target: Ipv4Addr, to: Mac, from: Ipv4Addr) -> [u8; MESSAGE_LEN] {
    message(REPLY, (own, target), (to, from))
}

fn message(operation: u8, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> [u8; MESSAGE_LEN] {
    let [h0, h1, p0, p1, h, p] = TYPES;
    let [[a0, a1, a2, a3, a4, a5], [b0, b1, b2, b3, b4, b5]] = [sender.0.0, target.0.0];
    let [[s0, s1, s2, s3], [t0, t1, t2, t3]] = [sender.1, target.1].map(|address| address.octets());

    [
        h0, h1, p0, p1, h, p, 0, operation, //
        a0, a1, a2, a3, a4, a5, s0, s1, s2, s3, //
        b0, b1, b2, b3, b4, b5, t0, t1, t2, t3,
    ]
}
