//! Hashing of tuples, keyed with the seed so that remote hosts cannot provoke collisions.
//!
//! Two multiplications to 128 bits, folded to 64. Not cryptography: a collision costs time, never a
//! wrong answer, because every answer is compared with the whole tuple.

use std::net::IpAddr;

use super::entry::{Kind, halves};

/// The hash function of one masquerade, with its secret keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hash {
    keys: [u64; 3],
}

/// Stands for the port in the tuple of a record without one; larger than any port.
pub(super) const NO_PORT: u32 = 1 << 16;

impl Hash {
    pub(super) const fn new(seed: u64) -> Self {
        let first = scramble(seed);
        let second = scramble(first);

        Self { keys: [first, second, scramble(second) | 1] }
    }

    /// An endpoint within a realm.
    #[inline]
    pub(super) fn tuple(&self, realm: u32, kind: Kind, address: u128, port: u32) -> u64 {
        let [a, b, c] = self.keys;
        let (high, low) = halves(address);
        let scope = (u64::from(realm) << 32) | (u64::from(kind.bits()) << 17) | u64::from(port);

        fold(fold(high ^ a, low ^ b) ^ scope, c)
    }

    /// An endpoint within a realm together with a remote endpoint.
    #[inline]
    pub(super) fn pair(
        &self,
        realm: u32,
        kind: Kind,
        addresses: [u128; 2],
        ports: [u16; 2],
    ) -> u64 {
        let [near, far] = addresses;
        let [near_port, far_port] = ports.map(u32::from);

        fold(self.tuple(realm, kind, near, near_port), self.tuple(0, kind, far, far_port) | 1)
    }

    /// Identifies the remote endpoint that a mapping tracks. Two endpoints have the same tag with
    /// probability 2^-32; then a FIN of one counts as a FIN of the other.
    #[inline]
    pub(super) fn tag(&self, kind: Kind, address: u128, port: u16) -> u64 {
        self.tuple(0, kind, address, port.into()) >> 32
    }

    /// Pseudo-random number `number` of the sequence that the seed determines.
    pub(super) const fn random(&self, number: u64) -> u64 {
        let [first, second, _] = self.keys;

        scramble(first ^ scramble(number ^ second))
    }
}

/// The weight of a pool address for a source, the same in every gateway and every run.
pub(super) fn weight(source: IpAddr, address: IpAddr) -> u64 {
    let fixed = Hash::new(0);
    let [source, address] = [source, address].map(|address| {
        let (high, low) = halves(super::entry::bits(address));
        scramble(fold(high ^ fixed.random(1), low ^ fixed.random(2)))
    });

    scramble(source ^ address.rotate_left(32))
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let (high, low) = halves(u128::from(a) * u128::from(b));

    high ^ low
}

/// A bijection of 64 bits in which every input bit reaches every output bit: two rounds of xor-shift
/// and multiplication by an odd number.
const fn scramble(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);

    mixed ^ (mixed >> 32)
}
