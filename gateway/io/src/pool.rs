//! Threads that seal and open for the packet threads while more waits than one core can do.
//!
//! With little to do they cost nothing: they are not even started. When there is still something to read after
//! a few in a row, and there are cores, a packet thread goes on reading and leaves large frames to others, the
//! part that needs no order: [`sealers`] for the outbound thread, [`openers`] for the inbound one. Where it
//! would have to wait it does that part as well, and what needs no other thread takes its place in between.

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

/// Frames under way: enough for a worker to find the next one while what it did before is sent.
const SLOTS: usize = 8;

/// With fewer cores there is none to spare: one reads, one writes, the others run what the packets are for.
const CORES_MIN: usize = 4;

/// More gain nothing where one thread reads, translates and sends.
const AUTO_MAX: usize = 2;

/// How many threads may help each of the packet threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// As many as the cores that this process may use allow: none below four, one below six, else two.
    #[default]
    Auto,
    /// So many, whatever the cores; 0 is none.
    Exactly(u8),
}

impl Workers {
    /// The most that can be asked for.
    pub const MAX: u8 = 16;

    /// How many that is here. Affinity and the quota of the control group count.
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

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Exactly(count) => write!(f, "{count}"),
        }
    }
}

/// A frame on its way through the lane.
pub(super) trait Work: Send {
    /// Room for one.
    fn new() -> Self;

    /// Does with it what needs no order.
    fn work(&mut self);
}

/// One place in the lane.
pub(super) struct Slot<W> {
    work: W,
    is_by_worker: bool,
}

/// What a worker does with each slot.
pub(super) fn work<W: Work>(slot: &mut Slot<W>) {
    slot.work.work();
    slot.is_by_worker = true;
}

/// Starts a thread that calls [`Worker::work`] with [`work`] until that says the end has come.
pub(super) type Start<'a, W> = &'a dyn Fn(Worker<Slot<W>>) -> io::Result<JoinHandle<()>>;

/// A packet thread's side.
struct Pool<'a, W> {
    wanted: usize,
    start: Start<'a, W>,
    account: Arc<Counters>,
    /// There as soon as there was backlog.
    lane: Option<Owner<Slot<W>>>,
    threads: Vec<JoinHandle<()>>,
    /// Since there last was none to be read.
    frames: usize,
}

impl<'a, W: Work> Pool<'a, W> {
    /// With `wanted` workers. What they do is counted in `account`.
    const fn new(wanted: usize, account: Arc<Counters>, start: Start<'a, W>) -> Self {
        Self { wanted, start, account, lane: None, threads: Vec::new(), frames: 0 }
    }

    /// There were `count` more frames: whether there is backlog, and somebody to help.
    const fn is_engaged(&mut self, count: usize) -> bool {
        self.frames = self.frames.saturating_add(count);

        self.wanted > 0 && self.frames > BACKLOG_FRAMES
    }

    /// There is nothing to be read: there is no backlog.
    const fn rest(&mut self) {
        self.frames = 0;
    }

    fn is_empty(&self) -> bool {
        self.lane.as_ref().is_none_or(Owner::is_empty)
    }

    /// Has somebody work on what `fill` puts into a slot. To be called when [`Self::is_started`].
    fn fill(&mut self, fill: impl FnOnce(&mut W), retire: impl FnMut(&mut W)) {
        self.make_room(retire);
        if let Some(lane) = &mut self.lane {
            lane.fill(|slot| fill(&mut slot.work));
        }
    }

    /// The same for what is done already, and has only its place.
    fn fill_done(&mut self, fill: impl FnOnce(&mut W), retire: impl FnMut(&mut W)) {
        self.make_room(retire);
        if let Some(lane) = &mut self.lane {
            lane.fill_done(|slot| fill(&mut slot.work));
        }
    }

    /// Brings the work a step further: retires what is done, or does some, or waits for who does. `false` if
    /// there is none.
    fn advance(&mut self, retire: impl FnMut(&mut W)) -> bool {
        if self.retire(retire) {
            return true;
        }
        let Some(lane) = self.lane.as_ref().filter(|lane| !lane.is_empty()) else {
            return false;
        };
        if !lane.help(|slot| slot.work.work()) {
            lane.wait();
        }

        true
    }

    /// Does and retires everything that is under way.
    fn finish(&mut self, mut retire: impl FnMut(&mut W)) {
        while self.advance(&mut retire) {}
    }

    /// Retires the oldest, if it is done.
    fn retire(&mut self, mut retire: impl FnMut(&mut W)) -> bool {
        let Self { lane, account, .. } = self;
        let Some(lane) = lane else { return false };

        lane.retire(|slot| {
            retire(&mut slot.work);
            account.worker_frames.add(std::mem::take(&mut slot.is_by_worker).into());
        })
    }

    /// Retires what is done.
    fn retire_all(&mut self, mut retire: impl FnMut(&mut W)) {
        while self.retire(&mut retire) {}
    }

    fn make_room(&mut self, mut retire: impl FnMut(&mut W)) {
        while self.lane.as_ref().is_some_and(Owner::is_full) {
            self.advance(&mut retire);
        }
    }

    /// Whether the workers are there, which are started now if need be. Without threads to be had there are
    /// none from now on.
    fn is_started(&mut self) -> bool {
        if self.lane.is_some() {
            return true;
        }
        if self.wanted == 0 {
            return false;
        }

        let slots = SLOTS.max(2 * self.wanted);
        let slot = |_| Slot { work: W::new(), is_by_worker: false };
        let (mut lane, workers) = work_ring::new((0..slots).map(slot), self.wanted);
        for worker in workers {
            match (self.start)(worker) {
                Ok(thread) => {
                    lane.attach(thread.thread().clone());
                    self.threads.push(thread);
                }
                Err(error) => tracing::warn!(%error, "cannot start a worker"),
            }
        }
        if self.threads.is_empty() {
            self.wanted = 0;
            return false;
        }
        tracing::debug!(workers = self.threads.len(), "backlog: the workers begin");
        self.lane = Some(lane);

        true
    }
}

impl<W> Drop for Pool<'_, W> {
    fn drop(&mut self) {
        self.lane = None;
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
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
}
