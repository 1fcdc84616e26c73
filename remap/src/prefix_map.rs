//! A map from prefixes to values that finds the prefixes around and inside a prefix.
//!
//! For building tables. Lookups of addresses, for packets, use [`Lpm`](crate::lpm::Lpm).

use crate::Prefix;

/// A sorted map from prefixes to values. Prefixes may repeat.
#[derive(Clone, Debug)]
pub struct PrefixMap<T> {
    entries: Vec<Entry<T>>,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    prefix: Prefix,
    value: T,
    /// The longest entry that contains this one.
    parent: Option<usize>,
}

impl<T> PrefixMap<T> {
    /// Builds the map. Entries with equal prefixes keep their order.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = (Prefix, T)>) -> Self {
        let entries = entries.into_iter();
        let mut entries: Vec<_> =
            entries.map(|(prefix, value)| Entry { prefix, value, parent: None }).collect();
        // A prefix sorts before those inside it, so the ones around an entry are open when it is reached.
        entries.sort_by_key(|entry| entry.prefix);

        let mut open: Vec<(usize, Prefix)> = Vec::new();
        for (index, entry) in entries.iter_mut().enumerate() {
            while open.pop_if(|(_, outer)| !outer.covers(entry.prefix)).is_some() {}
            entry.parent = open.last().map(|(outer, _)| *outer);
            open.push((index, entry.prefix));
        }

        Self { entries }
    }

    /// Entries that contain `prefix`, the longest first.
    pub fn covering(&self, prefix: Prefix) -> impl Iterator<Item = (Prefix, &T)> {
        let before = self.entries.partition_point(|entry| entry.prefix <= prefix).checked_sub(1);
        let chain = std::iter::successors(before, |index| self.entries.get(*index)?.parent);

        chain
            .filter_map(|index| self.entries.get(index))
            .filter(move |entry| entry.prefix.covers(prefix))
            .map(|entry| (entry.prefix, &entry.value))
    }

    /// Entries that lie inside `prefix`, in ascending order.
    pub fn inside(&self, prefix: Prefix) -> impl Iterator<Item = (Prefix, &T)> {
        let from = self.entries.partition_point(|entry| entry.prefix < prefix);

        self.entries
            .get(from..)
            .unwrap_or_default()
            .iter()
            .take_while(move |entry| prefix.covers(entry.prefix))
            .map(|entry| (entry.prefix, &entry.value))
    }

    /// Entries that share an address with `prefix`. One that equals it may be returned twice.
    pub fn overlapping(&self, prefix: Prefix) -> impl Iterator<Item = (Prefix, &T)> {
        self.covering(prefix).chain(self.inside(prefix))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

        /// The oracle scans every entry.
        #[test]
        fn queries_equal_a_scan(
            prefixes in prop::collection::vec(narrow_prefix(), 0..40),
            query in narrow_prefix(),
        ) {
            let map = PrefixMap::new(prefixes.iter().copied().zip(0..));
            let scan = |is_in: &dyn Fn(Prefix) -> bool| -> BTreeSet<(Prefix, usize)> {
                prefixes.iter().copied().zip(0..).filter(|(prefix, _)| is_in(*prefix)).collect()
            };
            let set = |found: Vec<(Prefix, &usize)>| -> BTreeSet<(Prefix, usize)> {
                found.into_iter().map(|(prefix, n)| (prefix, *n)).collect()
            };

            prop_assert_eq!(set(map.covering(query).collect()), scan(&|p| p.covers(query)));
            prop_assert_eq!(set(map.inside(query).collect()), scan(&|p| query.covers(p)));
            prop_assert_eq!(set(map.overlapping(query).collect()), scan(&|p| p.overlaps(query)));
            let lens: Vec<_> = map.covering(query).map(|(prefix, _)| prefix.len_bits()).collect();
            prop_assert!(lens.is_sorted_by(|a, b| a >= b));
        }
    }

    /// Few distinct bits, so that prefixes nest.
    fn narrow_prefix() -> impl Strategy<Value = Prefix> {
        (0u8..4, 0u8..4, 0u8..=24).prop_map(|(a, b, len)| {
            let bits = u32::from_be_bytes([a, b, 0, 0]);
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);

            Prefix::new(std::net::IpAddr::V4((bits & mask).into()), len).unwrap()
        })
    }
}
