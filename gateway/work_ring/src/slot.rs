//! One slot: its contents, and the state that says which thread may use them.
//!
//! ```text
//!          fill            take             finish           retire
//!   Free ────────▶ Ready ────────▶ Taken ────────────▶ Done ────────▶ Free, of the next lap
//!    └───────────────── fill, no work needed ───────────▶┘
//! ```
//!
//! Several threads may try to take a ready slot: the first one gets it. Each other step belongs to one thread, so the
//! mutex around the contents is never contended: it is there because the compiler cannot know that.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicU64, Mutex};

/// The state of a slot in one lap. Later states are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(u64);

impl Stamp {
    pub(crate) const fn free(lap: u64) -> Self {
        Self(lap * 4)
    }

    pub(crate) const fn ready(lap: u64) -> Self {
        Self(lap * 4 + 1)
    }

    pub(crate) const fn taken(lap: u64) -> Self {
        Self(lap * 4 + 2)
    }

    pub(crate) const fn done(lap: u64) -> Self {
        Self(lap * 4 + 3)
    }

    pub(crate) const fn lap(self) -> u64 {
        self.0 / 4
    }
}

pub(crate) struct Slot<T> {
    stamp: AtomicU64,
    contents: Mutex<T>,
}

impl<T> Slot<T> {
    pub(crate) fn new(contents: T) -> Self {
        Self { stamp: AtomicU64::new(Stamp::free(0).0), contents: Mutex::new(contents) }
    }

    /// The current state. Acquires what was written before [`Self::advance`] to it.
    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp(self.stamp.load(Ordering::Acquire))
    }

    /// Stores the next state. Only for steps that belong to the calling thread.
    #[inline]
    pub(crate) fn advance(&self, stamp: Stamp) {
        self.stamp.store(stamp.0, Ordering::Release);
    }

    /// Takes the slot if it is ready in this lap. Returns whether it did.
    #[inline]
    pub(crate) fn take(&self, lap: u64) -> bool {
        let (ready, taken) = (Stamp::ready(lap).0, Stamp::taken(lap).0);

        self.stamp.compare_exchange(ready, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Visits the contents. Only for the thread that the state allows to.
    #[inline]
    pub(crate) fn contents<R>(&self, visit: impl FnOnce(&mut T) -> R) -> R {
        match self.contents.try_lock() {
            Ok(mut contents) => visit(&mut contents),
            // The work panicked: the contents are as it left them.
            Err(TryLockError::Poisoned(poisoned)) => visit(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                if cfg!(any(loom, debug_assertions)) {
                    unreachable!("two threads use one slot");
                }
                visit(&mut self.contents.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}
