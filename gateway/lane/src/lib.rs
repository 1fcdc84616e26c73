//! Work that others do, in an order that is kept.
//!
//! Answers one question: *who works on this, and when may it go on?* An [`Owner`] fills slots in order and
//! retires them in the same order. In between each is worked on once, by one of the [`Worker`]s or by the
//! owner itself, whoever is free first.
//!
//! ```text
//!               ┌── tail: retired next               head: filled next ──┐
//!               ▼                                                        ▼
//!   ... free │ done │ taken by a worker │ taken by the owner │ ready │ free ...
//! ```
//!
//! # Invariants
//!
//! - What is filled first is retired first, whoever worked on it.
//! - Each slot that is filled is worked on once, and retired once.
//! - While something is ready, no worker sleeps that was woken for it; the owner can finish everything
//!   without any.
//! - Nobody waits for a lock. Nothing is allocated after [`new`], but for the list of threads.
//!
//! # Not here
//!
//! What is done (the closures know), who starts the threads, packets.
//!
//! # Sources
//!
//! The lap in the state of a slot is the sequence number of D. Vyukov's bounded queue. `tests/model.rs` has
//! loom try the interleavings.

#![forbid(unsafe_code)]

mod slot;
mod sync;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slot::{Slot, Stamp};
use sync::AtomicBool;
use sync::thread::{self, Thread};

/// A lane of these slots, at least one. The thread that calls this owns it; the workers are for other
/// threads, which [`Owner::attach`] is to be told of.
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

    /// The slot that a position has, and the lap. `None` if there are no slots.
    #[inline]
    fn place(&self, position: u64) -> Option<(&Slot<T>, u64)> {
        let index = usize::try_from(position.checked_rem(self.len())?).ok()?;

        Some((self.slots.get(index)?, position / self.len()))
    }

    /// Takes what is ready at `position`, unless somebody has, and works on it.
    #[inline]
    fn work(&self, position: u64, work: impl FnOnce(&mut T)) -> bool {
        let Some((slot, lap)) = self.place(position) else { return false };
        if !slot.take(lap) {
            return false;
        }

        // Also if the work panics: the owner must not wait for ever.
        let _finish = Finish { slot, lap, owner: &self.owner };
        slot.contents(work);

        true
    }
}

/// Declares the work done that somebody has taken.
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

/// Fills and retires. Stays with the thread that made it, which is the one that is woken.
///
/// When it is dropped the workers end; what was not retired is not worked on any more.
pub struct Owner<T> {
    shared: Arc<Shared<T>>,
    /// What is filled next.
    head: u64,
    /// What is retired next.
    tail: u64,
    threads: Vec<Thread>,
    is_bound: PhantomData<*const ()>,
}

impl<T> Owner<T> {
    /// `thread` has a [`Worker`]: it is woken when there is something to do. Without that a worker finds
    /// only what is there when it looks.
    pub fn attach(&mut self, thread: Thread) {
        self.threads.push(thread);
    }

    /// How many slots are filled and not retired.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        usize::try_from(self.head - self.tail).unwrap_or(usize::MAX)
    }

    /// Whether everything is retired.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether something must be retired before more can be filled.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.head - self.tail >= self.shared.len()
    }

    /// Fills the next slot with work, and wakes a worker. `false`, and nothing is done, if all slots are
    /// filled.
    #[inline]
    pub fn fill(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        let position = self.head;
        if !self.put(fill, Stamp::ready) {
            return false;
        }
        // In turn: one that is busy looks again by itself.
        let count = u64::try_from(self.threads.len()).unwrap_or(u64::MAX);
        let turn = position.checked_rem(count).and_then(|turn| usize::try_from(turn).ok());
        if let Some(thread) = turn.and_then(|turn| self.threads.get(turn)) {
            thread.unpark();
        }

        true
    }

    /// Fills the next slot with what is done already and only has its place in the order. `false`, and
    /// nothing is done, if all slots are filled.
    #[inline]
    pub fn fill_done(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        self.put(fill, Stamp::done)
    }

    /// Retires the oldest slot, if the work on it is done.
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

    /// Works on the oldest slot that nobody has taken, if there is one.
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

    /// Waits until the work on the oldest slot is done, which somebody must have taken or be about to.
    /// Returns at once if there is none.
    pub fn wait(&self) {
        while self.oldest().is_some_and(|(slot, lap)| slot.stamp() != Stamp::done(lap)) {
            thread::park();
        }
    }

    fn oldest(&self) -> Option<(&Slot<T>, u64)> {
        if self.is_empty() { None } else { self.shared.place(self.tail) }
    }

    #[inline]
    fn put(&mut self, fill: impl FnOnce(&mut T), stamp: fn(u64) -> Stamp) -> bool {
        if self.is_full() {
            return false;
        }
        let Some((slot, lap)) = self.shared.place(self.head) else { return false };

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

/// Works on what is ready, the oldest first. One thread has it.
pub struct Worker<T> {
    shared: Arc<Shared<T>>,
    /// Everything before was taken by somebody.
    next: u64,
}

impl<T> Worker<T> {
    /// Waits for something to do, and does it. `false` when the owner is gone.
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

    /// The first position from [`Self::next`] on that is ready, for a moment at least.
    fn ready(&mut self) -> Option<u64> {
        loop {
            let (slot, lap) = self.shared.place(self.next)?;
            let stamp = slot.stamp();
            if stamp == Stamp::ready(lap) {
                return Some(self.next);
            }
            if stamp < Stamp::ready(lap) {
                return None;
            }
            // Taken by others, who may have gone on for laps: all but the last of those are retired.
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
