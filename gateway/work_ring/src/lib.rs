//! Parallel work on items whose order is kept.
//!
//! Answers one question: *which thread works on an item, and when may the item go on?* An [`Owner`] fills slots in
//! order and retires them in the same order. In between, each slot is worked on once, by the first free thread: one
//! of the [`Worker`]s, or the owner.
//!
//! ```text
//!               ┌── tail: retired next               head: filled next ──┐
//!               ▼                                                        ▼
//!   ... free │ done │ taken by a worker │ taken by the owner │ ready │ free ...
//! ```
//!
//! # Invariants
//!
//! - Slots are retired in the order in which they were filled, independent of the thread that worked on them.
//! - Each filled slot is worked on once, and retired once.
//! - A worker that was woken for a ready slot does not sleep while a slot is ready. The owner can finish all work
//!   without workers.
//! - No thread waits for a lock. After [`new`] only the list of threads allocates.
//!
//! # Not here
//!
//! The work itself (closures of the caller), the start of threads, packets.
//!
//! # Sources
//!
//! The lap in the state of a slot is the sequence number of D. Vyukov's bounded queue. `tests/it/model.rs` explores
//! the interleavings with loom.

#![forbid(unsafe_code)]

mod slot;
mod sync;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slot::{Slot, Stamp};
use sync::AtomicBool;
use sync::thread::{self, Thread};

/// Creates a ring of `slots`, at least one. The calling thread owns it. Each worker is for another thread, which
/// must be passed to [`Owner::attach`].
#[must_use]
pub fn new<T>(slots: impl IntoIterator<Item = T>, workers: usize) -> (Owner<T>, Vec<Worker<T>>) {
    let shared = Arc::new(Shared {
        slots: slots.into_iter().map(Slot::new).collect(),
        is_closed: AtomicBool::new(false),
        owner: thread::current(),
    });
    let workers = (0..workers).map(|_| Worker { shared: Arc::clone(&shared), next: 0 }).collect();

    (Owner { shared, head: 0, tail: 0, threads: Vec::new(), is_bound: PhantomData }, workers)
}

struct Shared<T> {
    slots: Box<[Slot<T>]>,
    is_closed: AtomicBool,
    owner: Thread,
}

impl<T> Shared<T> {
    fn len(&self) -> u64 {
        u64::try_from(self.slots.len()).unwrap_or(u64::MAX)
    }

    /// The slot at `position`, and its lap. `None` if there are no slots.
    #[inline]
    fn slot(&self, position: u64) -> Option<(&Slot<T>, u64)> {
        let index = usize::try_from(position.checked_rem(self.len())?).ok()?;

        Some((self.slots.get(index)?, position / self.len()))
    }

    /// Takes the slot at `position`, if it is ready, and works on it. Returns whether it did.
    #[inline]
    fn work(&self, position: u64, work: impl FnOnce(&mut T)) -> bool {
        let Some((slot, lap)) = self.slot(position) else { return false };
        if !slot.take(lap) {
            return false;
        }

        // On a panic too: the owner must not wait without end.
        let _finish = Finish { slot, lap, owner: &self.owner };
        slot.contents(work);

        true
    }
}

/// Marks a taken slot as done.
struct Finish<'a, T> {
    slot: &'a Slot<T>,
    lap: u64,
    owner: &'a Thread,
}

impl<T> Drop for Finish<'_, T> {
    fn drop(&mut self) {
        self.slot.advance(Stamp::done(self.lap));
        self.owner.unpark();
    }
}

/// Fills and retires slots. Stays on the thread that created it: that thread is woken when work is done.
///
/// Dropping it ends the workers; slots that are not yet taken are not worked on any more.
pub struct Owner<T> {
    shared: Arc<Shared<T>>,
    /// Position that is filled next.
    head: u64,
    /// Position that is retired next.
    tail: u64,
    threads: Vec<Thread>,
    is_bound: PhantomData<*const ()>,
}

impl<T> Owner<T> {
    /// Registers the thread of a [`Worker`], to be woken when a slot is ready. A worker whose thread is not
    /// registered finds only slots that are ready when it looks.
    pub fn attach(&mut self, thread: Thread) {
        self.threads.push(thread);
    }

    /// Number of slots that are filled and not retired.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        usize::try_from(self.head - self.tail).unwrap_or(usize::MAX)
    }

    /// Whether all filled slots are retired.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether a slot must be retired before another can be filled.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.head - self.tail >= self.shared.len()
    }

    /// Fills the next slot with work, and wakes a worker. Returns `false` without effect if all slots are filled.
    #[inline]
    pub fn fill(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        let position = self.head;
        if !self.put(fill, Stamp::ready) {
            return false;
        }
        // Round robin: a busy worker looks again by itself.
        let count = u64::try_from(self.threads.len()).unwrap_or(u64::MAX);
        let turn = position.checked_rem(count).and_then(|turn| usize::try_from(turn).ok());
        if let Some(thread) = turn.and_then(|turn| self.threads.get(turn)) {
            thread.unpark();
        }

        true
    }

    /// Fills the next slot with an item that needs no work, only its place in the order. Returns `false` without
    /// effect if all slots are filled.
    #[inline]
    pub fn fill_done(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        self.put(fill, Stamp::done)
    }

    /// Retires the oldest slot if the work on it is done. Returns whether it did.
    #[inline]
    pub fn retire(&mut self, retire: impl FnOnce(&mut T)) -> bool {
        let Some((slot, lap)) =
            self.oldest().filter(|(slot, lap)| slot.stamp() == Stamp::done(*lap))
        else {
            return false;
        };

        slot.contents(retire);
        slot.advance(Stamp::free(lap + 1));
        self.tail += 1;

        true
    }

    /// Works on the oldest slot that is ready, if there is one. Returns whether it did.
    #[inline]
    pub fn help(&self, work: impl FnOnce(&mut T)) -> bool {
        let mut work = Some(work);

        (self.tail..self.head).any(|position| {
            self.shared.work(position, |contents| {
                if let Some(work) = work.take() {
                    work(contents);
                }
            })
        })
    }

    /// Waits until the work on the oldest slot is done. Returns at once if no slot is filled.
    ///
    /// # Caller's duty
    ///
    /// A worker must have taken that slot, or be about to: otherwise this waits without end.
    pub fn wait(&self) {
        while self.oldest().is_some_and(|(slot, lap)| slot.stamp() != Stamp::done(lap)) {
            thread::park();
        }
    }

    fn oldest(&self) -> Option<(&Slot<T>, u64)> {
        if self.is_empty() { None } else { self.shared.slot(self.tail) }
    }

    #[inline]
    fn put(&mut self, fill: impl FnOnce(&mut T), stamp: fn(u64) -> Stamp) -> bool {
        if self.is_full() {
            return false;
        }
        let Some((slot, lap)) = self.shared.slot(self.head) else { return false };

        slot.contents(fill);
        slot.advance(stamp(lap));
        self.head += 1;

        true
    }
}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.unpark();
        }
    }
}

/// Works on ready slots, the oldest first. For one thread.
pub struct Worker<T> {
    shared: Arc<Shared<T>>,
    /// All positions before this one are taken.
    next: u64,
}

impl<T> Worker<T> {
    /// Waits for a ready slot, and works on it. Returns `false` once the owner is dropped.
    pub fn work(&mut self, work: impl FnOnce(&mut T)) -> bool {
        let mut work = Some(work);
        while !self.shared.is_closed.load(Ordering::Acquire) {
            let Some(position) = self.ready() else {
                thread::park();
                continue;
            };
            let is_done = self.shared.work(position, |contents| {
                if let Some(work) = work.take() {
                    work(contents);
                }
            });
            self.next = position + 1;
            if is_done {
                return true;
            }
        }

        false
    }

    /// The first ready position from [`Self::next`] on. Another thread may take it at any moment.
    fn ready(&mut self) -> Option<u64> {
        loop {
            let (slot, lap) = self.shared.slot(self.next)?;
            let stamp = slot.stamp();
            if stamp == Stamp::ready(lap) {
                return Some(self.next);
            }
            if stamp < Stamp::ready(lap) {
                return None;
            }
            // Taken by other threads, maybe some laps ago: all laps but the last are retired.
            let laps = stamp.lap().saturating_sub(lap + 1);
            self.next += laps * self.shared.len() + 1;
        }
    }
}

impl<T> std::fmt::Debug for Owner<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { head, tail, .. } = self;

        f.debug_struct("Owner").field("head", head).field("tail", tail).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("next", &self.next).finish_non_exhaustive()
    }
}
