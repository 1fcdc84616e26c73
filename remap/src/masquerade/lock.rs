//! Locks by hash, for changes of the table. Lookups take none.

use parking_lot::{Mutex, MutexGuard};

use super::entry::low_u32;
use super::slab::index;

#[derive(Debug)]
pub(super) struct Locks(Box<[Lock]>);

/// One cache line each, against false sharing.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Lock(Mutex<()>);

/// Selects the lock of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockIndex(usize);

/// A lock that is held, until it is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) lock: LockIndex,
    _guard: Option<MutexGuard<'a, ()>>,
}

/// Many times the number of threads.
const LOCKS: u64 = 64;

impl Locks {
    pub(super) fn new() -> Self {
        Self((0..LOCKS).map(|_| Lock::default()).collect())
    }

    pub(super) fn index_of(hash: u64) -> LockIndex {
        LockIndex(index(low_u32(hash % LOCKS)))
    }

    /// Waits for the lock.
    pub(super) fn hold(&self, lock: LockIndex) -> Held<'_> {
        let guard = self.0.get(lock.0).map(|Lock(mutex)| mutex.lock());

        Held { lock, _guard: guard }
    }

    /// Takes the lock if it is free, or if the caller already holds it. Never waits, because waiting
    /// for a second lock could deadlock.
    pub(super) fn try_hold(&self, lock: LockIndex, held: Option<LockIndex>) -> Option<Held<'_>> {
        if held == Some(lock) {
            return Some(Held { lock, _guard: None });
        }

        let guard = self.0.get(lock.0)?.0.try_lock()?;

        Some(Held { lock, _guard: Some(guard) })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
