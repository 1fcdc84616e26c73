//! From the hash of a tuple to the number of an entry, read without a lock.
//!
//! Each hash has two buckets of eight slots, half a cache line each. A slot holds the number of an
//! entry and eight bits of its hash, so that nearly every entry that is looked at is the right one.
//! An entry goes into its first bucket until that is nearly full, and then into the emptier of the
//! two: hence a lookup mostly reads one bucket. With three slots an entry and two buckets to choose
//! from, both are never full in practice; if they are, the entry finds no place.
//!
//! A slot is never moved. So what is in the index and stays in it is found by every lookup, whatever
//! else comes and goes meanwhile.
//!
//! The buckets are taken up with the first entry, all at once: megabytes for a gateway that masquerades,
//! nothing for one that does not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::entry::low_u32;
use super::slab::index;

#[derive(Debug)]
pub(super) struct Index {
    buckets: OnceLock<Box<[Bucket]>>,
    /// How many buckets there are, or will be.
    len: u32,
}

#[derive(Debug, Default)]
#[repr(align(32))]
struct Bucket([AtomicU32; SLOTS]);

const SLOTS: usize = 8;
/// From here on the second bucket is considered.
const CROWDED: usize = 5;
/// Below this many, two buckets a hash would not be enough of a choice.
const FEWEST_BUCKETS: u32 = 16;
const NUMBER: u32 = (1 << 24) - 1;

impl Index {
    /// For so many entries; at most 2^24 - 2.
    pub(super) fn new(entries: u32) -> Self {
        let len = (entries.saturating_mul(3) / 8).max(FEWEST_BUCKETS);

        Self { buckets: OnceLock::new(), len }
    }

    /// Shows the entries that may have this hash to `look`, until it answers.
    #[inline]
    pub(super) fn find<T>(&self, hash: u64, mut look: impl FnMut(u32) -> Option<T>) -> Option<T> {
        let sign = sign(hash);
        for bucket in self.pair(self.buckets.get()?, hash) {
            let slots = bucket?.load();
            // All slots are compared before any is chosen: a branch at each would be guessed wrong
            // while the bucket is still on its way from memory, and stop the next packets' lookups
            // from starting meanwhile.
            let mut matches = 0u32;
            for (n, slot) in (0..).zip(slots) {
                matches |= u32::from(slot & !NUMBER == sign) << n;
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

    /// Whether there was a place. The caller has made sure that the tuple is not there yet, and
    /// keeps others from inserting it; other tuples may go into the same buckets meanwhile.
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
        let slot = sign(hash) | (number + 1);

        order.into_iter().flat_map(|bucket| &bucket.0).any(|place| {
            place.compare_exchange(0, slot, Ordering::Release, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes an entry out. It is there once at most.
    pub(super) fn remove(&self, hash: u64, number: u32) {
        let Some(buckets) = self.buckets.get() else { return };
        let slot = sign(hash) | (number + 1);
        let mut places =
            self.pair(buckets, hash).into_iter().flatten().flat_map(|bucket| &bucket.0);

        places.any(|place| {
            place.compare_exchange(slot, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.get().map_or(0, |buckets| size_of_val(&**buckets))
    }

    /// What [`Self::memory_bytes`] cannot exceed.
    pub(super) fn max_memory_bytes(&self) -> usize {
        index(self.len) * size_of::<Bucket>()
    }

    /// Both halves of the hash choose one of `buckets` each; they differ.
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
    /// All slots. Pairs with the release in `insert`: the entries were written before.
    #[inline]
    fn load(&self) -> [u32; SLOTS] {
        let [a, b, c, d, e, f, g, h] = &self.0;

        [a, b, c, d, e, f, g, h].map(|slot| slot.load(Ordering::Acquire))
    }

    fn used(&self) -> usize {
        self.load().iter().filter(|slot| **slot != 0).count()
    }
}

/// The low bits decide least about the bucket.
#[inline]
fn sign(hash: u64) -> u32 {
    low_u32(hash) << 24
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masquerade::hash::Hash;

    #[test]
    fn every_entry_finds_a_place_and_is_found() {
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
    fn what_was_removed_is_gone_and_its_neighbours_stay() {
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
        assert!(index.insert(hash, 16), "there is a place again");
    }
}
