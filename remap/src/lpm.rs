//! Longest-prefix match, built once and then only read.
//!
//! Nested prefixes are flattened when the map is built: the address space is cut wherever a prefix
//! begins or ends, and each piece remembers the longest prefix over it. A lookup is then one binary
//! search over the sorted beginnings of the pieces: no pointer is chased and nothing depends on how
//! deep the prefixes nest. n prefixes make at most 2n + 1 pieces.

use std::net::IpAddr;

use crate::Prefix;
use crate::prefix::{host_mask_v4, host_mask_v6};

/// A map from prefixes to values.
#[derive(Clone, Debug)]
pub struct Lpm<T> {
    v4: Pieces<u32>,
    v6: Pieces<u128>,
    values: Box<[(Prefix, T)]>,
}

/// The cut address space of one version. `begins` is sorted and starts with 0.
#[derive(Clone, Debug)]
struct Pieces<A> {
    begins: Box<[A]>,
    /// For each piece the place of its value in `values`, or [`NONE`].
    owners: Box<[u32]>,
}

const NONE: u32 = u32::MAX;

impl<T> Lpm<T> {
    /// Builds the map.
    ///
    /// # Errors
    ///
    /// [`Duplicate`] if one prefix is there twice; the longest match would be ambiguous.
    pub fn new(entries: impl IntoIterator<Item = (Prefix, T)>) -> Result<Self, Duplicate> {
        let mut values: Vec<(Prefix, T)> = entries.into_iter().collect();
        // An outer prefix sorts before the prefixes inside it.
        values.sort_by_key(|(prefix, _)| *prefix);
        let pairs = values.iter().zip(values.iter().skip(1));
        if let Some(((prefix, _), _)) = pairs.into_iter().find(|(a, b)| a.0 == b.0) {
            return Err(Duplicate { prefix: *prefix });
        }

        let mut v4 = Cutter::new();
        let mut v6 = Cutter::new();
        for (index, (prefix, _)) in (0..).zip(&values) {
            match prefix.network() {
                IpAddr::V4(network) => {
                    let first = network.to_bits();
                    v4.begin(first, first | host_mask_v4(prefix.len_bits()), index);
                }
                IpAddr::V6(network) => {
                    let first = network.to_bits();
                    v6.begin(first, first | host_mask_v6(prefix.len_bits()), index);
                }
            }
        }

        Ok(Self { v4: v4.finish(), v6: v6.finish(), values: values.into_boxed_slice() })
    }

    /// The value of the longest prefix that contains `address`.
    #[must_use]
    #[inline]
    pub fn get(&self, address: IpAddr) -> Option<&T> {
        let owner = match address {
            IpAddr::V4(address) => self.v4.owner(address.to_bits()),
            IpAddr::V6(address) => self.v6.owner(address.to_bits()),
        };

        self.values.get(usize::try_from(owner?).ok()?).map(|(_, value)| value)
    }

    /// All prefixes with their values, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, &T)> {
        self.values.iter().map(|(prefix, value)| (*prefix, value))
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
        Self { v4: Cutter::new().finish(), v6: Cutter::new().finish(), values: Box::default() }
    }
}

/// One prefix was given two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{prefix} is there twice")]
pub struct Duplicate {
    /// The prefix.
    pub prefix: Prefix,
}

impl<A: Ord + Copy> Pieces<A> {
    #[inline]
    fn owner(&self, address: A) -> Option<u32> {
        let after = self.begins.partition_point(|begin| *begin <= address);

        self.owners.get(after.checked_sub(1)?).copied().filter(|owner| *owner != NONE)
    }
}

/// Cuts the address space while walking over it once, from prefix to prefix in ascending order.
struct Cutter<A> {
    begins: Vec<A>,
    owners: Vec<u32>,
    /// The prefixes that contain the current address, the longest last: last address and index.
    open: Vec<(A, u32)>,
}

impl<A: Address> Cutter<A> {
    fn new() -> Self {
        Self { begins: vec![A::ZERO], owners: vec![NONE], open: Vec::new() }
    }

    fn begin(&mut self, first: A, last: A, index: u32) {
        self.close_before(first);
        self.cut(first, index);
        self.open.push((last, index));
    }

    fn finish(mut self) -> Pieces<A> {
        while let Some((last, _)) = self.open.pop() {
            self.close(last);
        }

        Pieces { begins: self.begins.into_boxed_slice(), owners: self.owners.into_boxed_slice() }
    }

    /// Ends every open prefix that does not reach to `address`.
    fn close_before(&mut self, address: A) {
        while let Some((last, _)) = self.open.pop_if(|(last, _)| *last < address) {
            self.close(last);
        }
    }

    /// Behind a prefix that ended, the next longer one rules again. At the end of the address space
    /// there is nothing behind.
    fn close(&mut self, last: A) {
        if let Some(behind) = last.successor() {
            self.cut(behind, self.open.last().map_or(NONE, |(_, outer)| *outer));
        }
    }

    fn cut(&mut self, begin: A, owner: u32) {
        if let (Some(last), Some(last_owner)) = (self.begins.last(), self.owners.last_mut())
            && *last == begin
        {
            *last_owner = owner;
            return;
        }

        self.begins.push(begin);
        self.owners.push(owner);
    }
}

trait Address: Ord + Copy {
    const ZERO: Self;

    fn successor(self) -> Option<Self>;
}

impl Address for u32 {
    const ZERO: Self = 0;

    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }
}

impl Address for u128 {
    const ZERO: Self = 0;

    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let map = map(&["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "fd00::/8"]);

        let found = |address: &str| map.get(address.parse().unwrap()).map(String::as_str);
        assert_eq!(found("10.1.2.3"), Some("10.1.2.3/32"));
        assert_eq!(found("10.1.2.4"), Some("10.1.0.0/16"));
        assert_eq!(found("10.2.0.0"), Some("10.0.0.0/8"));
        assert_eq!(found("255.255.255.255"), Some("0.0.0.0/0"));
        assert_eq!(found("fdff::1"), Some("fd00::/8"));
        assert_eq!(found("fe00::"), None);
    }

    #[test]
    fn a_prefix_that_is_there_twice_is_named() {
        let prefix: Prefix = "10.0.0.0/8".parse().unwrap();

        let error = Lpm::new([(prefix, 1), (prefix, 2)]).unwrap_err();

        assert_eq!(error.to_string(), "10.0.0.0/8 is there twice");
    }

    #[test]
    fn an_empty_map_finds_nothing() {
        assert_eq!(Lpm::<u8>::default().lookup("0.0.0.0".parse().unwrap()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        /// The oracle is the definition: look at every prefix and keep the longest.
        #[test]
        fn a_lookup_equals_a_scan(
            prefixes in prop::collection::btree_set(narrow_prefix(), 0..40),
            addresses in prop::collection::vec(narrow_address(), 20),
        ) {
            let map = Lpm::new(prefixes.iter().map(|prefix| (*prefix, *prefix))).unwrap();

            // Random addresses, and every edge of every prefix.
            let edges = prefixes.iter().flat_map(edges);
            for address in addresses.into_iter().chain(edges) {
                let scan = prefixes
                    .iter()
                    .filter(|prefix| prefix.contains(address))
                    .max_by_key(|prefix| prefix.len_bits());

                prop_assert_eq!(map.get(address), scan, "{}", address);
            }
        }
    }

    /// Few distinct bits, so that prefixes nest and addresses hit.
    fn narrow_prefix() -> impl Strategy<Value = Prefix> {
        (narrow_address(), 0u8..=128).prop_map(|(address, len)| match address {
            IpAddr::V4(v4) => {
                let len = len % 33;
                Prefix::new((v4.to_bits() & !host_mask_v4(len)).to_v4(), len).unwrap()
            }
            IpAddr::V6(v6) => {
                Prefix::new(IpAddr::V6((v6.to_bits() & !host_mask_v6(len)).into()), len).unwrap()
            }
        })
    }

    fn narrow_address() -> impl Strategy<Value = IpAddr> {
        (any::<bool>(), 0u32..16, 0u32..16).prop_map(|(is_ipv4, high, low)| {
            if is_ipv4 {
                ((high << 28) | low).to_v4()
            } else {
                IpAddr::V6(((u128::from(high) << 124) | u128::from(low)).into())
            }
        })
    }

    fn edges(prefix: &Prefix) -> Vec<IpAddr> {
        match prefix.network() {
            IpAddr::V4(network) => {
                let (first, mask) = (network.to_bits(), host_mask_v4(prefix.len_bits()));
                let last = first | mask;
                [first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(ToV4::to_v4).into()
            }
            IpAddr::V6(network) => {
                let (first, mask) = (network.to_bits(), host_mask_v6(prefix.len_bits()));
                let last = first | mask;
                [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                    .map(|bits| IpAddr::V6(bits.into()))
                    .into()
            }
        }
    }

    fn map(prefixes: &[&str]) -> Lpm<String> {
        Lpm::new(prefixes.iter().map(|text| (text.parse().unwrap(), (*text).to_owned()))).unwrap()
    }

    trait ToV4 {
        fn to_v4(self) -> IpAddr;
    }

    impl ToV4 for u32 {
        fn to_v4(self) -> IpAddr {
            IpAddr::V4(self.into())
        }
    }
}
