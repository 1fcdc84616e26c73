//! From the hash of a tuple to the number of an entry, read without a lock.
//!
//! Each hash has two buckets of eight slots, half a cache line each. A slot holds the number of an
//! entry and eight bits of its hash, so that nearly every entry that is read is the right one.
//! An entry goes into its first bucket until that is nearly full, and then into the emptier of the
//! two, so a lookup mostly reads one bucket. With three slots an entry and two buckets to choose
//! from, both are never full in practice; if they are, the insertion fails.
//!
//! A slot is never moved. So every lookup finds an entry that stays in the index, independently of
//! concurrent insertions and removals.
//!
//! The buckets are allocated with the first entry, all at once: megabytes for a gateway that masquerades,
//! nothing for one that does not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::entry::low_u32;
use super::slab::index;

#[derive(Debug)]
pub(super) struct Index {
    buckets: OnceLock<Box<[Bucket]>>,
    /// The number of buckets, also before they are allocated.
    len: u32,
}

#[derive(Debug, Default)]
#[repr(align(32))]
struct Bucket([AtomicU32; SLOTS]);

const SLOTS: usize = 8;
/// With so many used slots in the first bucket, the second is considered.
const CROWDED: usize = 5;
/// With fewer, the two buckets of different hashes would coincide too often.
const FEWEST_BUCKETS: u32 = 16;
const NUMBER: u32 = (1 << 24) - 1;

impl Index {
    /// `entries` is at most 2^24 - 2.
    pub(super) fn new(entries: u32) -> Self {
        let len = (entries.saturating_mul(3) / 8).max(FEWEST_BUCKETS);

        Self { buckets: OnceLock::new(), len }
    }

    /// Calls `look` with each entry that may have this hash, until it returns `Some`.
    #[inline]
    pub(super) fn find<T>(&self, hash: u64, mut look: impl FnMut(u32) -> Option<T>) -> Option<T> {
        let tag = tag(hash);
        for bucket in self.pair(self.buckets.get()?, hash) {
            let slots = bucket?.load();
            // Compares all slots before branching: a branch for each would be mispredicted
            // while the bucket is still loading, and delay the lookups of the next packets.
            let mut matches = 0u32;
            for (n, slot) in (0..).zip(slots) {
                matches |= u32::from(slot & !NUMBER == tag) << n;
            }
            while matches != 0 {
                let slot = slots.get(index(matches.trailing_zeros()))?;
                if let Some(number) = (slot & NUMBER).checked_sub(1)
                    && let Some(found) = look(number)
                {
                    return Some(found);
                }
                matches &= matches - 1;
            }
        }

        None
    }

    /// Whether there was a free slot. The caller ensures that the tuple is not there yet, and
    /// that no other thread inserts it; other tuples may be inserted into the same buckets concurrently.
    #[must_use]
    pub(super) fn insert(&self, hash: u64, number: u32) -> bool {
        let buckets =
            self.buckets.get_or_init(|| (0..self.len).map(|_| Bucket::default()).collect());
        let [Some(first), Some(second)] = self.pair(buckets, hash) else {
            return false;
        };
        let order = if first.used() < CROWDED || first.used() <= second.used() {
            [first, second]
        } else {
            [second, first]
        };
        let slot = tag(hash) | (number + 1);

        order.into_iter().flat_map(|bucket| &bucket.0).any(|cell| {
            cell.compare_exchange(0, slot, Ordering::Release, Ordering::Relaxed).is_ok()
        })
    }

    /// Removes an entry, which is there at most once.
    pub(super) fn remove(&self, hash: u64, number: u32) {
        let Some(buckets) = self.buckets.get() else { return };
        let slot = tag(hash) | (number + 1);
        let mut slots = self.pair(buckets, hash).into_iter().flatten().flat_map(|bucket| &bucket.0);

        slots.any(|cell| {
            cell.compare_exchange(slot, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.get().map_or(0, |buckets| size_of_val(&**buckets))
    }

    /// The upper bound of [`Self::memory_bytes`].
    pub(super) fn max_memory_bytes(&self) -> usize {
        index(self.len) * size_of::<Bucket>()
    }

    /// The two different buckets that the halves of the hash select.
    #[inline]
    fn pair<'a>(&self, buckets: &'a [Bucket], hash: u64) -> [Option<&'a Bucket>; 2] {
        let len = u64::from(self.len);
        let scaled = |half: u32| low_u32((u64::from(half) * len) >> 32);
        let first = index(scaled(low_u32(hash >> 32)));
        let second = index(scaled(low_u32(hash)));
        let second = if second == first { first ^ 1 } else { second };

        [buckets.get(first), buckets.get(second).or_else(|| buckets.first())]
    }
}

impl Bucket {
    /// All slots. Pairs with the release in `insert`: the entries were written before it.
    #[inline]
    fn load(&self) -> [u32; SLOTS] {
        let [a, b, c, d, e, f, g, h] = &self.0;

        [a, b, c, d, e, f, g, h].map(|slot| slot.load(Ordering::Acquire))
    }

    fn used(&self) -> usize {
        self.load().iter().filter(|slot| **slot != 0).count()
    }
}

/// The low bits have the least influence on the choice of the bucket.
#[inline]
fn tag(hash: u64) -> u32 {
    low_u32(hash) << 24
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masquerade::hash::Hash;

    #[test]
    fn every_entry_is_inserted_and_found() {
        for entries in [1, 100, 100_000] {
            let (index, hash) = (Index::new(entries), Hash::new(7));

            for number in 0..entries {
                assert!(index.insert(hash.random(number.into()), number), "{number} of {entries}");
            }

            for number in 0..entries {
                let found = index.find(hash.random(number.into()), |n| (n == number).then_some(n));
                assert_eq!(found, Some(number));
            }
        }
    }

    #[test]
    fn removing_an_entry_keeps_the_others() {
        let (index, hash) = (Index::new(1), 0x1234_5678_9abc_def0);
        for number in 0..16 {
            assert!(index.insert(hash, number));
        }
        assert!(!index.insert(hash, 16), "both buckets are full");

        index.remove(hash, 3);

        let mut seen = Vec::new();
        index.find(hash, |number| {
            seen.push(number);
            None::<()>
        });
        seen.sort_unstable();
        assert_eq!(seen, (0..16).filter(|number| *number != 3).collect::<Vec<_>>());
        assert!(index.insert(hash, 16), "a slot is free again");
    }
}
