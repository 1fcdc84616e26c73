//! Locks by hash, for those who change the table. Lookups take none.

use parking_lot::{Mutex, MutexGuard};

use super::entry::low_u32;
use super::slab::index;

#[derive(Debug)]
pub(super) struct Locks(Box<[Lock]>);

/// One cache line each, so that neighbours do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Lock(Mutex<()>);

/// Which lock a hash belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(usize);

/// A lock that is held, until it is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) place: Place,
    _guard: Option<MutexGuard<'a, ()>>,
}

/// More than there will be threads, many times.
const LOCKS: u64 = 64;

impl Locks {
    pub(super) fn new() -> Self {
        Self((0..LOCKS).map(|_| Lock::default()).collect())
    }

    pub(super) fn place(hash: u64) -> Place {
        Place(index(low_u32(hash % LOCKS)))
    }

    /// Waits for the lock.
    pub(super) fn hold(&self, place: Place) -> Held<'_> {
        let guard = self.0.get(place.0).map(|Lock(mutex)| mutex.lock());

        Held { place, _guard: guard }
    }

    /// Takes the lock if it is free, or if it is the one that the caller has already. Never waits:
    /// whoever holds one lock and waited for another could wait forever.
    pub(super) fn try_hold(&self, place: Place, held: Option<Place>) -> Option<Held<'_>> {
        if held == Some(place) {
            return Some(Held { place, _guard: None });
        }

        let guard = self.0.get(place.0)?.0.try_lock()?;

        Some(Held { place, _guard: Some(guard) })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
