//! A fixed number of entries, in memory that is allocated on demand.
//!
//! Entries never move and are never returned to the allocator, so a number that a reader found in
//! an index always refers to an entry; its content shows whether it is still the same record.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::entry::{Entry, low_u32};

/// 256 KiB: few flows need little memory, and a million need few allocations.
const SEGMENT: u32 = 4096;

#[derive(Debug)]
pub(super) struct Slab {
    segments: Box<[OnceLock<Box<[Entry]>>]>,
    capacity: u32,
    /// The first entry that was never used.
    fresh: AtomicU32,
    /// The free list: a version that changes with every take, and the first entry plus one.
    /// The version prevents the ABA problem.
    free: AtomicU64,
}

impl Slab {
    pub(super) fn new(capacity: u32) -> Self {
        let segments = (0..capacity.div_ceil(SEGMENT)).map(|_| OnceLock::new()).collect();

        Self { segments, capacity, fresh: AtomicU32::new(0), free: AtomicU64::new(0) }
    }

    /// The entry of this number, if it was ever taken.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Entry> {
        let segment = self.segments.get(index(number / SEGMENT))?.get()?;

        segment.get(index(number % SEGMENT))
    }

    /// Takes a free entry, which then belongs to the caller.
    pub(super) fn take(&self) -> Option<u32> {
        let mut free = self.free.load(Ordering::Acquire);
        while let Some(first) = low_u32(free).checked_sub(1) {
            let next = self.get(first)?.link().load(Ordering::Relaxed);
            let version = (free >> 32).wrapping_add(1) << 32;
            match self.free.compare_exchange_weak(
                free,
                version | u64::from(low_u32(next)),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(first),
                Err(changed) => free = changed,
            }
        }

        let number = self
            .fresh
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |fresh| {
                (fresh < self.capacity).then_some(fresh + 1)
            })
            .ok()?;
        self.segments.get(index(number / SEGMENT))?.get_or_init(segment);

        Some(number)
    }

    /// Returns an entry to the free list. Its record must be retired and removed from every index.
    pub(super) fn release(&self, number: u32) {
        let Some(entry) = self.get(number) else {
            return;
        };

        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            entry.link().store(u64::from(low_u32(free)), Ordering::Relaxed);
            let first = (free & !0xffff_ffff) | u64::from(number + 1);
            match self.free.compare_exchange_weak(free, first, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(changed) => free = changed,
            }
        }
    }

    /// The number of entries that were ever taken; a walk over all of them ends here.
    pub(super) fn used(&self) -> u32 {
        self.fresh.load(Ordering::Relaxed)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let segments = self.segments.iter().filter(|segment| segment.get().is_some()).count();

        size_of_val(&*self.segments) + segments * index(SEGMENT) * size_of::<Entry>()
    }

    /// The upper bound of [`Self::memory_bytes`].
    pub(super) fn max_memory_bytes(&self) -> usize {
        size_of_val(&*self.segments) + self.segments.len() * index(SEGMENT) * size_of::<Entry>()
    }
}

fn segment() -> Box<[Entry]> {
    (0..SEGMENT).map(|_| Entry::default()).collect()
}

/// A number of 32 bits as an index, on platforms of 64 bits.
#[inline]
pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_is_taken_once() {
        let slab = Slab::new(SEGMENT + 3);

        let taken: BTreeSet<_> = std::iter::from_fn(|| slab.take()).collect();

        assert_eq!(taken.len(), index(SEGMENT + 3));
        assert_eq!(slab.take(), None);
    }

    #[test]
    fn freed_entries_are_reused() {
        let slab = Slab::new(3);
        let taken: Vec<_> = std::iter::from_fn(|| slab.take()).collect();

        for number in &taken {
            slab.release(*number);
        }

        let again: BTreeSet<_> = std::iter::from_fn(|| slab.take()).collect();
        assert_eq!(again, taken.into_iter().collect());
    }

    #[test]
    fn memory_is_allocated_on_demand() {
        let slab = Slab::new(16 * SEGMENT);
        let empty = slab.memory_bytes();

        slab.take();

        assert_eq!(slab.memory_bytes() - empty, 256 << 10);
        assert!(slab.memory_bytes() < slab.max_memory_bytes());
    }

    /// Threads take and return entries as fast as they can; no entry may have two owners.
    #[test]
    fn threads_never_own_the_same_entry() {
        let slab = Slab::new(64);
        let owned: Vec<_> = (0..64).map(|_| AtomicU32::new(0)).collect();

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50_000u32 {
                        let taken: Vec<_> = (0..round % 7).filter_map(|_| slab.take()).collect();
                        for number in &taken {
                            assert_eq!(owned[index(*number)].swap(1, Ordering::Relaxed), 0);
                        }
                        for number in taken {
                            owned[index(number)].store(0, Ordering::Relaxed);
                            slab.release(number);
                        }
                    }
                });
            }
        });
    }
}
