//! Longest-prefix match, built once and then only read.
//!
//! Nested prefixes are flattened when the map is built: the address space is cut wherever a prefix
//! begins or ends, and each piece remembers the longest prefix over it, so nothing depends on how deep
//! the prefixes nest. n prefixes make at most 2n + 1 pieces. A lookup finds its piece through
//! stages: as many slots as there are cuts, over just what the cuts span, and in a slot that is cut
//! a few times more a block of one or two cache lines. A map of one prefix takes 64 bytes, so every
//! peer can have its own.
//!
//! # Why this one
//!
//! Nanoseconds a lookup, sixteen at once, for IPv4 keys that a prefix covers (`any` address in
//! brackets), and bytes of index for each prefix; `benches/benches/lookup.rs`, two shared cores of a
//! Xeon, all in one run:
//!
//! | prefixes | these stages | prefix-trie 0.10 | treebitmap | index |
//! |---|---|---|---|---|
//! | 1,000 at random | 6.3 (8.2) | 36 (13) | 71 (22) | 58 |
//! | 100,000 at random | 15 (12) | 75 (26) | 125 (57) | 60 |
//! | 100,000 of 1,000 clusters | 17 (3.8) | 44 (3.6) | 75 (7.8) | 12 |
//! | 1,000,000 at random | 25 (18) | 152 (64) | 233 (109) | 56 |
//!
//! A binary search over the same pieces, which this replaces, took 19 ns at 1,000 prefixes and 94 at
//! 100,000.

mod address;
mod cut;
mod stages;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use self::cut::Cutter;
use self::stages::{StagesV4, StagesV6};
use crate::Prefix;
use crate::prefix::{host_mask_v4, host_mask_v6};

/// A map from prefixes to values.
#[derive(Clone, Debug)]
pub struct Lpm<T> {
    v4: StagesV4,
    v6: StagesV6,
    /// Sorted. The owner of a piece is a place in here, and in `values`.
    prefixes: Box<[Prefix]>,
    /// Apart from their prefixes, which no lookup reads: so more of them fit into a cache.
    values: Box<[T]>,
}

impl<T> Lpm<T> {
    /// Builds the map. It has room for about 2^28 prefixes.
    ///
    /// # Errors
    ///
    /// [`Duplicate`] if one prefix is there twice; the longest match would be ambiguous.
    pub fn new(entries: impl IntoIterator<Item = (Prefix, T)>) -> Result<Self, Duplicate> {
        let mut entries: Vec<(Prefix, T)> = entries.into_iter().collect();
        // An outer prefix sorts before the prefixes inside it.
        entries.sort_unstable_by_key(|(prefix, _)| order(*prefix));
        let (prefixes, values): (Vec<Prefix>, Vec<T>) = entries.into_iter().unzip();
        let mut pairs = prefixes.iter().zip(prefixes.iter().skip(1));
        if let Some((prefix, _)) = pairs.find(|(a, b)| a == b) {
            return Err(Duplicate { prefix: *prefix });
        }

        let v4_count = prefixes.partition_point(Prefix::is_ipv4);
        let mut v4 = Cutter::new(v4_count);
        let mut v6 = Cutter::new(prefixes.len() - v4_count);
        for (owner, prefix) in (0..).zip(&prefixes) {
            match prefix.network() {
                IpAddr::V4(network) => {
                    let first = network.to_bits();
                    v4.prefix(first, first | host_mask_v4(prefix.len_bits()), owner);
                }
                IpAddr::V6(network) => {
                    let first = network.to_bits();
                    v6.prefix(first, first | host_mask_v6(prefix.len_bits()), owner);
                }
            }
        }

        Ok(Self {
            v4: StagesV4::new(&v4.finish()),
            v6: StagesV6::new(&v6.finish()),
            prefixes: prefixes.into(),
            values: values.into(),
        })
    }

    /// The value of the longest prefix that contains `address`.
    #[must_use]
    #[inline]
    pub fn get(&self, address: IpAddr) -> Option<&T> {
        let owner = match address {
            IpAddr::V4(address) => self.v4.owner(address.to_bits()),
            IpAddr::V6(address) => self.v6.owner(address.to_bits()),
        };

        self.values.get(usize::try_from(owner).ok()?)
    }

    /// [`Self::get`] for several addresses at once, which takes less time than one after the other:
    /// while one waits for memory the next is under way. Sixteen are enough.
    #[must_use]
    #[inline]
    pub fn get_each_v4<const N: usize>(&self, addresses: &[Ipv4Addr; N]) -> [Option<&T>; N] {
        self.values_of(self.v4.owners(addresses.map(Ipv4Addr::to_bits)))
    }

    /// [`Self::get_each_v4`] for IPv6.
    #[must_use]
    #[inline]
    pub fn get_each_v6<const N: usize>(&self, addresses: &[Ipv6Addr; N]) -> [Option<&T>; N] {
        self.values_of(self.v6.owners(addresses.map(Ipv6Addr::to_bits)))
    }

    #[inline]
    fn values_of<const N: usize>(&self, owners: [u32; N]) -> [Option<&T>; N] {
        let mut found = [None; N];
        for (found, owner) in found.iter_mut().zip(owners) {
            *found = self.values.get(usize::try_from(owner).unwrap_or(usize::MAX));
        }

        found
    }

    /// All prefixes with their values, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, &T)> {
        self.prefixes.iter().copied().zip(&self.values)
    }

    /// How many prefixes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no address has a value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The memory that lookups use besides the prefixes and values themselves, in bytes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.v4.memory_bytes() + self.v6.memory_bytes()
    }
}

impl<T: Copy> Lpm<T> {
    /// A copy of what [`Self::get`] finds.
    #[must_use]
    #[inline]
    pub fn lookup(&self, address: IpAddr) -> Option<T> {
        self.get(address).copied()
    }
}

impl<T> Default for Lpm<T> {
    fn default() -> Self {
        Self {
            v4: StagesV4::new(&[]),
            v6: StagesV6::new(&[]),
            prefixes: Box::default(),
            values: Box::default(),
        }
    }
}

/// The order of prefixes, as numbers: they compare faster than addresses do.
fn order(prefix: Prefix) -> (bool, u128, u8) {
    match prefix.network() {
        IpAddr::V4(network) => (false, network.to_bits().into(), prefix.len_bits()),
        IpAddr::V6(network) => (true, network.to_bits(), prefix.len_bits()),
    }
}

/// One prefix was given two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{prefix} is there twice")]
pub struct Duplicate {
    /// The prefix.
    pub prefix: Prefix,
}
