//! Instructions for the programs in the kernel that look at what comes in, and how these know who sent it.
//!
//! Source: the kernel's documentation, networking/filter, which has the instructions and the extensions
//! `SKF_NET_OFF` and `SKF_AD_RANDOM`. Integers are as the network orders bytes.

use std::net::IpAddr;

use libc::sock_filter;

use crate::path::network;

/// Loads how long the datagram is.
pub(super) const LOAD_LENGTH: u16 = 0x80;
/// Loads four bytes from the place that follows.
pub(super) const LOAD_WORD: u16 = 0x20;
/// Loads a byte likewise.
pub(super) const LOAD_BYTE: u16 = 0x30;
pub(super) const ADD: u16 = 0x04;
pub(super) const MULTIPLY: u16 = 0x24;
pub(super) const AND: u16 = 0x54;
pub(super) const SHIFT_RIGHT: u16 = 0x74;
/// Copies what was loaded.
const PUT_ASIDE: u16 = 0x07;
/// Joins what was put aside to what was loaded since.
const EXCLUSIVE_OR_ASIDE: u16 = 0xac;
/// Skips so many instructions as follows.
pub(super) const JUMP: u16 = 0x05;
/// Skips so many instructions if what was loaded is what follows, and so many if not.
pub(super) const IS_EQUAL: u16 = 0x15;
pub(super) const IS_NOT_LESS: u16 = 0x35;
/// Ends with what follows.
pub(super) const ANSWER: u16 = 0x06;
/// Ends with what was loaded.
pub(super) const ANSWER_LOADED: u16 = 0x16;

/// Something else each time.
pub(super) const RANDOM: u32 = libc::SKF_AD_OFF.wrapping_add(libc::SKF_AD_RANDOM).cast_unsigned();

/// The first byte of the IP header, of which one half says the version.
const VERSION: u32 = libc::SKF_NET_OFF.cast_unsigned();
const IPV4_SOURCE: u32 = VERSION + 12;
const IPV6_SOURCE: u32 = VERSION + 8;

/// What asks nothing.
pub(super) const fn step(code: u16, operand: u32) -> sock_filter {
    branch(code, operand, 0, 0)
}

/// What skips so many instructions if what it asks is so, and so many if not.
pub(super) const fn branch(code: u16, operand: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code, jt: yes, jf: no, k: operand }
}

/// Gives each source a key of 32 bits: an IPv4 address is its own, a network of IPv6 has a hash of its eight bytes.
///
/// Networks that differ have keys that differ in bits that nobody can foresee who does not know the seed, wherever
/// they differ themselves: that two have the same is a matter of a few billionths.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceKey {
    multipliers: [u32; 2],
}

impl SourceKey {
    pub(super) fn new(seed: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = seed.to_ne_bytes();
        // Even ones would lose bits.
        let multipliers = [[a, b, c, d], [e, f, g, h]].map(|half| u32::from_ne_bytes(half) | 1);

        Self { multipliers }
    }

    /// The key of whoever sends from `source`.
    pub(super) fn of(self, source: IpAddr) -> u32 {
        match network(source) {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                let [first, second] = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
                let [one, other] = self.multipliers;
                // What differs in the upper half does so in both now, and in all of it after the next.
                let spread = first.wrapping_mul(one);

                (spread ^ spread >> 16).wrapping_mul(other) ^ second
            }
        }
    }

    /// Loads the key of who has sent the datagram.
    pub(super) const fn load(self) -> [sock_filter; 14] {
        let [one, other] = self.multipliers;

        [
            step(LOAD_BYTE, VERSION),
            step(SHIFT_RIGHT, 4),
            branch(IS_EQUAL, 4, 0, 2),
            step(LOAD_WORD, IPV4_SOURCE),
            step(JUMP, 9),
            step(LOAD_WORD, IPV6_SOURCE),
            step(MULTIPLY, one),
            step(PUT_ASIDE, 0),
            step(SHIFT_RIGHT, 16),
            step(EXCLUSIVE_OR_ASIDE, 0),
            step(MULTIPLY, other),
            step(PUT_ASIDE, 0),
            step(LOAD_WORD, IPV6_SOURCE + 4),
            step(EXCLUSIVE_OR_ASIDE, 0),
        ]
    }
}

/// A socket that sends from `address`, which nobody needs to have.
#[cfg(test)]
pub(super) fn caller(address: IpAddr) -> std::net::UdpSocket {
    use std::net::SocketAddr;
    use std::os::fd::AsFd as _;

    use socket2::{Domain, Socket, Type};

    let at = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None).unwrap();
    if address.is_ipv6() {
        let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND);
        super::sys::set_option(socket.as_fd(), level, name, 1).unwrap();
    }
    socket.bind(&at.into()).unwrap();

    socket.into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Multiplied once, those that differ in their first bits alone would share all others, and a key with each that
    /// differs likewise in the second half. Of so many there are a few pairs at the most.
    #[test]
    fn networks_that_differ_in_some_bits_only_have_keys_of_their_own() {
        // As they come from the system: none of few bits.
        for seed in (1..=20_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let key = SourceKey::new(seed);
            for shift in [(112, 80), (96, 64), (112, 64)] {
                let networks = (0..256_u128)
                    .flat_map(|first| {
                        (0..256_u128).map(move |second| first << shift.0 | second << shift.1)
                    })
                    .map(|bits| IpAddr::V6(bits.into()))
                    .collect::<HashSet<_>>();
                let keys: HashSet<_> = networks.iter().map(|network| key.of(*network)).collect();
                assert!(networks.len() - keys.len() <= 8, "{shift:?}: {}", keys.len());
            }
        }
    }
}
