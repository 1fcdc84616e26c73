//! Longest-prefix match, immutable after construction.
//!
//! Nested prefixes are flattened when the map is built: the address space is cut at the beginning and
//! end of each prefix, and each piece stores the longest prefix over it, so the nesting depth does not
//! matter. n prefixes make at most 2n + 1 pieces. A lookup finds its piece through
//! stages: a stage has as many slots as cuts, over the range that the cuts span, and a slot with
//! a few more cuts has a block of one or two cache lines. A map of one prefix takes 64 bytes, so every
//! peer can have one.
//!
//! # Comparison with other structures
//!
//! Nanoseconds a lookup, for addresses that a prefix covers, and bytes of index for each of 100,000
//! random prefixes. *Random*: half of the prefixes are hosts. *Clusters*: pod CIDRs, node CIDRs inside
//! them, dense blocks of host maps. Two shared cores of a Xeon, built for any x86-64. These stages and
//! the crates: `benches/benches/lookup.rs`, the best of three runs. The others were measured earlier, on
//! the same kinds of prefixes, in one run, and are not in the repository.
//!
//! | | IPv4: 1,000 random | 100,000 random | 100,000 clusters | 1,000,000 random | index | IPv6: 100,000 random | 100,000 clusters | index |
//! |---|---|---|---|---|---|---|---|---|
//! | these stages, sixteen at once | 6.1 | 13 | 10 | 34 | 60 | 23 | 8.1 | 118 |
//! | these stages, one by one | 7.4 | 21 | 15 | 51 | 60 | 33 | 11 | 118 |
//! | binary search over the pieces | 13 | 71 | 39 | 226 | 16 | 191 | 150 | 40 |
//! | the same behind an index of 16 bits | 4.9 | 22 | 29 | 52 | 18 | 122 | 133 | 43 |
//! | B-tree with nodes of 16 | 21 | 65 | 35 | 120 | 16 | 200 | 166 | 42 |
//! | tables of 16, 8 and 8 bits | 11 | 19 | 5.2 | 57 | 1,107 | | | |
//! | tables of 24 and 8 bits | 11 | 18 | 3.3 | 33 | 1,268 | | | |
//! | poptrie of 16 and then 6 bits | 16 | 47 | 20 | 188 | 62 | 541 | 147 | 342 |
//! | crate prefix-trie 0.10 | 35 | 76 | 39 | 232 | | 333 | 164 | |
//! | crate treebitmap 0.5 | 70 | 125 | 72 | 284 | 67 | 456 | 312 | 284 |
//!
//! A structure with a first table of fixed size costs a peer with one rule 256 KiB or more. A structure
//! with a fixed number of bits per step is slow for IPv6, where the bits that differ are
//! far from the first. Stages have neither disadvantage.
//!
//! For `any` address, mostly one that no prefix covers, sixteen at once take 5.3, 7.8, 2.9 and 18 ns (IPv4,
//! in the order above) and prefix-trie takes 14, 27, 3.3 and 79: where one step shows that no prefix covers
//! an address, no structure is much faster.

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
    /// In the order of their prefixes; the owner of a piece is an index into it. Lookups do not need the
    /// prefixes, so they are not stored.
    values: Box<[T]>,
}

impl<T> Lpm<T> {
    /// Builds the map. It can hold about 2^28 prefixes.
    ///
    /// # Errors
    ///
    /// [`Duplicate`] if a prefix repeats: the longest match would be ambiguous.
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

    /// [`Self::get`] for several addresses at once, which is faster than one after the other because
    /// their memory accesses overlap. Sixteen are enough.
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

    /// The value of every prefix, in ascending order of the prefixes.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }

    /// The number of prefixes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no address has a value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The memory that lookups use besides the values themselves, in bytes.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.v4.memory_bytes() + self.v6.memory_bytes()
    }
}

impl<T: Copy> Lpm<T> {
    /// A copy of the value that [`Self::get`] returns.
    #[must_use]
    #[inline]
    pub fn lookup(&self, address: IpAddr) -> Option<T> {
        self.get(address).copied()
    }
}

impl<T> Default for Lpm<T> {
    fn default() -> Self {
        Self { v4: StagesV4::new(&[]), v6: StagesV6::new(&[]), values: Box::default() }
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
#[error("{prefix} is listed twice")]
pub struct Duplicate {
    /// The prefix.
    pub prefix: Prefix,
}
