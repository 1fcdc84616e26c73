//! Threads that seal for the outbound thread while more waits than one core can seal.
//!
//! With little to do they cost nothing: they are not even started. When the device still has a frame after
//! a few in a row, and there are cores, the outbound thread goes on reading and leaves large frames to them,
//! each with counters of its own already; it sends what is sealed in the order of those counters. Where it
//! would have to wait it seals as well, and what needs no other thread is sealed as ever and takes its place
//! in between.
//!
//! ```text
//!   device ─▶ translate, reserve counters ─▶ lane ─▶ send, in order of the counters
//!                outbound thread              │ ▲       outbound thread
//!                                             ▼ │
//!                                 segment, seal: whoever is free
//! ```

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::mem;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use lane::{Owner, Worker};

use super::tun::FrameBuffer;
use crate::buffer::TransmitBatch;
use crate::counters::Counters;
use crate::engine::outbound::Job;

/// More frames than this without a pause are backlog: a quarter of a MiB, more than one TCP window of a quick
/// request.
const BACKLOG_FRAMES: usize = 4;

/// Frames under way: enough for a worker to find the next one while what it did before is sent.
const SLOTS: usize = 8;

/// With fewer cores there is none to spare: one reads, one writes, the others run what the packets are for.
const CORES_MIN: usize = 4;

/// More gain nothing where one thread reads, translates and sends.
const AUTO_MAX: usize = 2;

/// How many threads may help the outbound thread.
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

/// One frame on its way through the lane, or a batch that needs nothing but its place.
pub(super) struct Slot {
    frame: FrameBuffer,
    job: Option<Job>,
    batch: TransmitBatch,
    is_by_worker: bool,
}

impl Slot {
    fn new() -> Self {
        Self {
            frame: FrameBuffer::new(),
            job: None,
            batch: TransmitBatch::default(),
            is_by_worker: false,
        }
    }

    /// Segments and seals, and lets go of the keys.
    fn seal(&mut self) {
        if let Some(job) = self.job.take() {
            job.seal(self.frame.packet_mut(), &mut self.batch);
        }
    }
}

/// What a worker does with each slot.
pub(super) fn seal(slot: &mut Slot) {
    slot.seal();
    slot.is_by_worker = true;
}

/// Starts a thread that calls [`Worker::work`] with [`seal`] until that says the end has come.
pub(super) type Start<'a> = &'a dyn Fn(Worker<Slot>) -> io::Result<JoinHandle<()>>;

/// The outbound thread's side. `send` sends a batch and empties it.
pub(super) struct Sealers<'a> {
    wanted: usize,
    start: Start<'a>,
    account: Arc<Counters>,
    /// There as soon as there was backlog.
    lane: Option<Owner<Slot>>,
    threads: Vec<JoinHandle<()>>,
    /// Since the device last had none.
    frames: usize,
}

impl<'a> Sealers<'a> {
    /// With `wanted` workers. What they do is counted in `account`.
    pub(super) const fn new(wanted: usize, account: Arc<Counters>, start: Start<'a>) -> Self {
        Self { wanted, start, account, lane: None, threads: Vec::new(), frames: 0 }
    }

    /// The device had another frame: whether there is backlog, and somebody to help.
    pub(super) const fn is_engaged(&mut self) -> bool {
        self.frames += 1;

        self.wanted > 0 && self.frames > BACKLOG_FRAMES
    }

    /// Has `job` done, which is for what is in `frame`, behind everything in `batch`. Both are empty then, or
    /// may be forgotten.
    pub(super) fn push(
        &mut self,
        job: Job,
        frame: &mut FrameBuffer,
        batch: &mut TransmitBatch,
        mut send: impl FnMut(&mut TransmitBatch),
    ) {
        self.place(batch, &mut send);
        if !self.is_started() {
            job.seal(frame.packet_mut(), batch);
            return;
        }

        self.make_room(&mut send);
        if let Some(lane) = &mut self.lane {
            lane.fill(|slot| {
                mem::swap(&mut slot.frame, frame);
                slot.job = Some(job);
            });
        }
        while self.retire(&mut send) {}
    }

    /// Sends `batch` when its turn comes, behind all jobs so far, and empties it.
    pub(super) fn place(
        &mut self,
        batch: &mut TransmitBatch,
        mut send: impl FnMut(&mut TransmitBatch),
    ) {
        if batch.is_empty() {
            return;
        }

        self.make_room(&mut send);
        match &mut self.lane {
            Some(lane) if !lane.is_empty() => {
                lane.fill_done(|slot| mem::swap(&mut slot.batch, batch));
            }
            _ => send(batch),
        }
    }

    /// Brings the jobs a step further: sends what is sealed, or seals, or waits for who does. `false` if
    /// there are none.
    pub(super) fn advance(&mut self, send: impl FnMut(&mut TransmitBatch)) -> bool {
        if self.retire(send) {
            return true;
        }
        let Some(lane) = self.lane.as_ref().filter(|lane| !lane.is_empty()) else {
            return false;
        };
        if !lane.help(Slot::seal) {
            lane.wait();
        }

        true
    }

    /// Does and sends everything that is under way.
    pub(super) fn finish(&mut self, mut send: impl FnMut(&mut TransmitBatch)) {
        while self.advance(&mut send) {}
    }

    /// The device has no frame: there is no backlog.
    pub(super) const fn rest(&mut self) {
        self.frames = 0;
    }

    fn make_room(&mut self, mut send: impl FnMut(&mut TransmitBatch)) {
        while self.lane.as_ref().is_some_and(Owner::is_full) {
            self.advance(&mut send);
        }
    }

    /// Sends the oldest, if it is sealed.
    fn retire(&mut self, mut send: impl FnMut(&mut TransmitBatch)) -> bool {
        let Self { lane, account, .. } = self;
        let Some(lane) = lane else { return false };

        lane.retire(|slot| {
            send(&mut slot.batch);
            account.worker_frames.add(mem::take(&mut slot.is_by_worker).into());
        })
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
        let (mut lane, workers) = lane::new((0..slots).map(|_| Slot::new()), self.wanted);
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

impl Drop for Sealers<'_> {
    fn drop(&mut self) {
        self.lane = None;
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}
