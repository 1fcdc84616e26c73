//! A mutex whose holder yields to brief users between two packets.
//!
//! A thread that opens or seals a batch holds the mutex for tens of microseconds. A thread that waits for so long
//! with a packet or two, such as acknowledgements beside a stream, goes to sleep and has to be woken, which costs
//! both threads more than these packets. One packet takes less time than a thread spins before it goes to sleep.
//!
//! Two batches do not yield to each other: they would alternate at every packet, and each would spin while the other
//! works.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// How often a thread that yielded checks whether the waiting threads have the lock. They take it at once, or not for
/// a while because they sleep.
const CHECKS: u32 = 24;

/// A mutex with two kinds of users: batches, and brief ones.
pub(super) struct YieldingMutex<T> {
    value: Mutex<T>,
    /// The number of brief users that wait.
    waiting: AtomicU32,
}

impl<T> YieldingMutex<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    /// Locks the mutex for a batch.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex for a packet or two: the holder of a batch yields.
    #[inline]
    pub(super) fn lock_briefly(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait_briefly())
    }

    /// Locks the mutex if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Yields to brief users that wait. Call it between two packets.
    #[inline]
    pub(super) fn yield_to_brief<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return guard;
        }

        self.unlock_and_wait(guard)
    }

    #[cold]
    fn wait_briefly(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);

        guard
    }

    #[cold]
    fn unlock_and_wait<'a>(&'a self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        drop(guard);
        for _ in 0..CHECKS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            hint::spin_loop();
        }

        self.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_batch_yields_to_a_brief_user() {
        let mutex = YieldingMutex::new(false);
        let mut guard = mutex.lock();

        thread::scope(|scope| {
            scope.spawn(|| *mutex.lock_briefly() = true);
            // Ends only if the other thread gets the lock.
            while !*guard {
                guard = mutex.yield_to_brief(guard);
            }
        });

        assert_eq!(mutex.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_batch_does_not_yield_to_another() {
        let mutex = YieldingMutex::new(0);

        thread::scope(|scope| {
            let mut guard = mutex.lock();
            let other = scope.spawn(|| *mutex.lock());
            for packet in 1..=PACKETS {
                *guard = packet;
                guard = mutex.yield_to_brief(guard);
            }
            drop(guard);

            assert_eq!(other.join().unwrap(), PACKETS);
        });
    }

    /// Enough for the other thread to start.
    const PACKETS: u32 = 1_000_000;
}
