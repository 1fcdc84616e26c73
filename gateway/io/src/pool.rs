//! Worker threads that seal and open for the packet threads under backlog.
//!
//! Without backlog they cost nothing: they are not started. Backlog is input that does not end after a few frames in a
//! row. If the host has the cores, a packet thread then goes on reading and leaves the part of large frames that needs
//! no order to workers: [`sealers`] for the outbound thread, [`openers`] for the inbound thread. Where it would have to
//! wait, it does that part itself. Frames that need no worker take their place in the order between the others.

#[cfg(test)]
mod fixtures;
pub(super) mod openers;
pub(super) mod sealers;

use std::fmt;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use work_ring::{Owner, Worker};

pub(super) use openers::Openers;
pub(super) use sealers::Sealers;

use strait_packet::counters::Counters;

/// More frames than this without a pause are backlog: a quarter of a MiB, more than one TCP window of a quick
/// request.
const BACKLOG_FRAMES: usize = 4;

/// Frames under way: enough for a worker to find the next one while the previous one is sent.
const SLOTS: usize = 8;

/// With fewer cores none is free for workers: one reads, one writes, the others run the applications.
const CORES_MIN: usize = 4;

/// More workers gain nothing, because one thread reads, translates and sends.
const AUTO_MAX: usize = 2;

/// The maximum number of worker threads of each packet thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// By the cores that this process may use: none below four, one below six, else two.
    Auto,
    /// This number, independent of the cores; 0 is none.
    Exactly(u8),
}

impl Workers {
    /// Upper limit of [`Self::Exactly`].
    pub const MAX: u8 = 16;

    /// The number on this host. Respects CPU affinity and the quota of the control group.
    pub(super) fn count(self) -> usize {
        match self {
            Self::Auto => Self::fitting(thread::available_parallelism().map_or(1, NonZero::get)),
            Self::Exactly(count) => count.into(),
        }
    }

    fn fitting(cores: usize) -> usize {
        if cores < CORES_MIN { 0 } else { ((cores - 2) / 2).min(AUTO_MAX) }
    }
}

impl Default for Workers {
    /// None: their gain has not been measured on four cores or more.
    fn default() -> Self {
        Self::Exactly(0)
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Exactly(count) => write!(f, "{count}"),
        }
    }
}

/// Contents of a slot of the ring: one frame.
pub(super) trait Work: Send {
    /// An empty slot with its buffers.
    fn new() -> Self;

    /// Does the part of the work that needs no order.
    fn work(&mut self);
}

/// A slot of the ring, with a note whether a worker has worked on it.
pub(super) struct Slot<W> {
    work: W,
    is_by_worker: bool,
}

/// Processes one slot on a worker thread.
pub(super) fn work<W: Work>(slot: &mut Slot<W>) {
    slot.work.work();
    slot.is_by_worker = true;
}

/// Starts a thread that calls [`Worker::work`] with [`work`] until it returns `false`.
pub(super) type Start<'a, W> = &'a dyn Fn(Worker<Slot<W>>) -> io::Result<JoinHandle<()>>;

/// The ring and its worker threads, as a packet thread uses them.
struct Pool<'a, W> {
    /// Number of workers to start; 0 if there are none.
    workers: usize,
    start: Start<'a, W>,
    counters: Arc<Counters>,
    /// Created at the first backlog.
    ring: Option<Owner<Slot<W>>>,
    threads: Vec<JoinHandle<()>>,
    /// Frames read since the input was last empty.
    frames: usize,
}

impl<'a, W: Work> Pool<'a, W> {
    /// With up to `workers` threads. Their frames are counted in `counters`.
    const fn new(workers: usize, counters: Arc<Counters>, start: Start<'a, W>) -> Self {
        Self { workers, start, counters, ring: None, threads: Vec::new(), frames: 0 }
    }

    /// Counts `count` more frames. Returns whether there is backlog that workers may take.
    const fn has_backlog(&mut self, count: usize) -> bool {
        self.frames = self.frames.saturating_add(count);

        self.workers > 0 && self.frames > BACKLOG_FRAMES
    }

    /// The input is empty: ends the backlog.
    const fn end_backlog(&mut self) {
        self.frames = 0;
    }

    fn is_empty(&self) -> bool {
        self.ring.as_ref().is_none_or(Owner::is_empty)
    }

    /// Fills a slot for a worker. Call it only when [`Self::ensure_started`] returned `true`.
    fn fill(&mut self, fill: impl FnOnce(&mut W), retire: impl FnMut(&mut W)) {
        self.make_room(retire);
        if let Some(ring) = &mut self.ring {
            ring.fill(|slot| fill(&mut slot.work));
        }
    }

    /// Fills a slot that needs no work, only its place in the order.
    fn fill_done(&mut self, fill: impl FnOnce(&mut W), retire: impl FnMut(&mut W)) {
        self.make_room(retire);
        if let Some(ring) = &mut self.ring {
            ring.fill_done(|slot| fill(&mut slot.work));
        }
    }

    /// Takes one step: retires the oldest slot, or works on a slot, or waits for a worker. Returns `false` if no slot
    /// is filled.
    fn advance(&mut self, retire: impl FnMut(&mut W)) -> bool {
        if self.retire(retire) {
            return true;
        }
        let Some(ring) = self.ring.as_ref().filter(|ring| !ring.is_empty()) else {
            return false;
        };
        if !ring.help(|slot| slot.work.work()) {
            ring.wait();
        }

        true
    }

    /// Completes and retires all filled slots.
    fn finish(&mut self, mut retire: impl FnMut(&mut W)) {
        while self.advance(&mut retire) {}
    }

    /// Retires the oldest slot if it is done.
    fn retire(&mut self, mut retire: impl FnMut(&mut W)) -> bool {
        let Self { ring, counters, .. } = self;
        let Some(ring) = ring else { return false };

        ring.retire(|slot| {
            retire(&mut slot.work);
            counters.worker_frames.add(std::mem::take(&mut slot.is_by_worker).into());
        })
    }

    /// Retires all slots that are done, up to the first that is not.
    fn retire_all(&mut self, mut retire: impl FnMut(&mut W)) {
        while self.retire(&mut retire) {}
    }

    fn make_room(&mut self, mut retire: impl FnMut(&mut W)) {
        while self.ring.as_ref().is_some_and(Owner::is_full) {
            self.advance(&mut retire);
        }
    }

    /// Starts the workers if they do not run yet. Returns whether any runs. If no thread can be started, there are no
    /// workers from then on.
    fn ensure_started(&mut self) -> bool {
        if self.ring.is_some() {
            return true;
        }
        if self.workers == 0 {
            return false;
        }

        let slots = SLOTS.max(2 * self.workers);
        let slot = |_| Slot { work: W::new(), is_by_worker: false };
        let (mut ring, workers) = work_ring::new((0..slots).map(slot), self.workers);
        for worker in workers {
            match (self.start)(worker) {
                Ok(thread) => {
                    ring.attach(thread.thread().clone());
                    self.threads.push(thread);
                }
                Err(error) => tracing::warn!(%error, "cannot start a worker"),
            }
        }
        if self.threads.is_empty() {
            self.workers = 0;
            return false;
        }
        tracing::debug!(workers = self.threads.len(), "backlog: workers started");
        self.ring = Some(ring);

        true
    }
}

impl<W> Drop for Pool<'_, W> {
    fn drop(&mut self) {
        self.ring = None;
        for thread in self.threads.drain(..) {
            // A panic has been reported by its hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_need_cores_to_spare() {
        let counts = [1, 2, 3, 4, 5, 6, 7, 8, 64].map(Workers::fitting);

        assert_eq!(counts, [0, 0, 0, 1, 1, 2, 2, 2, 2]);
        assert_eq!(Workers::Exactly(3).count(), 3);
    }

    #[test]
    fn workers_are_off_by_default() {
        assert_eq!(Workers::default().count(), 0);
    }
}
