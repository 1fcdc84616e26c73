//! One slot: what it holds, and whose turn it is.
//!
//! ```text
//!          fill            take             finish           retire
//!   Free ────────▶ Ready ────────▶ Taken ────────────▶ Done ────────▶ Free, of the next lap
//!    └───────────────── fill, nothing to be done ───────▶┘
//! ```
//!
//! Ready is the only state that two may want to end: whoever does so first has the slot. Every other step
//! is one thread's alone, so the mutex around the contents is never found locked: it is there because the
//! compiler cannot know that.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicU64, Mutex};

/// A state of a slot in one lap: later ones are greater.
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

    /// What came before the answer has been written by then.
    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp(self.stamp.load(Ordering::Acquire))
    }

    /// The next state, which nobody else can bring about.
    #[inline]
    pub(crate) fn advance(&self, stamp: Stamp) {
        self.stamp.store(stamp.0, Ordering::Release);
    }

    /// Takes the slot of this lap, unless somebody has.
    #[inline]
    pub(crate) fn take(&self, lap: u64) -> bool {
        let (ready, taken) = (Stamp::ready(lap).0, Stamp::taken(lap).0);

        self.stamp.compare_exchange(ready, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The contents, for the one whose turn it is.
    #[inline]
    pub(crate) fn contents<R>(&self, visit: impl FnOnce(&mut T) -> R) -> R {
        match self.contents.try_lock() {
            Ok(mut contents) => visit(&mut contents),
            // Whoever had it has panicked, and what is there is as far as it had come.
            Err(TryLockError::Poisoned(poisoned)) => visit(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                if cfg!(any(loom, debug_assertions)) {
                    unreachable!("two have one slot");
                }
                visit(&mut self.contents.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}
