//! Workers that seal for the outbound thread. That thread reserves the sending counters of each frame before it queues
//! the frame, and sends in the order of the counters.
//!
//! ```text
//!   device ─▶ translate, reserve counters ─▶ ring ─▶ send, in order of the counters
//!                outbound thread              │ ▲       outbound thread
//!                                             ▼ │
//!                                 segment, seal: any free thread
//! ```

#[cfg(test)]
mod tests;

use std::mem;
use std::sync::Arc;

use super::{Pool, Start, Work};
use crate::edge::FrameBuffer;
use strait_engine::outbound::Job;
use strait_packet::buffer::TransmitBatch;
use strait_packet::counters::Counters;

/// One frame to seal, or a sealed batch that only keeps its place in the order.
pub(crate) struct SealSlot {
    frame: FrameBuffer,
    job: Option<Job>,
    batch: TransmitBatch,
}

impl Work for SealSlot {
    fn new() -> Self {
        Self { frame: FrameBuffer::new(), job: None, batch: TransmitBatch::default() }
    }

    /// Segments and seals, and drops the keys.
    fn work(&mut self) {
        if let Some(job) = self.job.take() {
            job.seal(self.frame.packet_mut(), &mut self.batch);
        }
    }
}

/// The workers as the outbound thread uses them. `send` sends a batch and empties it.
pub(crate) struct Sealers<'a>(Pool<'a, SealSlot>);

impl<'a> Sealers<'a> {
    /// With up to `workers` threads. Their frames are counted in `counters`.
    pub(crate) const fn new(
        workers: usize,
        counters: Arc<Counters>,
        start: Start<'a, SealSlot>,
    ) -> Self {
        Self(Pool::new(workers, counters, start))
    }

    /// Counts one more frame. Returns whether there is backlog that workers may take.
    pub(crate) const fn has_backlog(&mut self) -> bool {
        self.0.has_backlog(1)
    }

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Queues `batch`, then `job` for the frame in `frame`. The batch is empty afterwards and the contents of `frame`
    /// are unspecified. Without workers the job is done at once, into `batch`.
    pub(crate) fn push(
        &mut self,
        job: Job,
        frame: &mut FrameBuffer,
        batch: &mut TransmitBatch,
        mut send: impl FnMut(&mut TransmitBatch),
    ) {
        self.push_batch(batch, &mut send);
        if !self.0.ensure_started() {
            job.seal(frame.packet_mut(), batch);
            return;
        }

        let fill = |slot: &mut SealSlot| {
            mem::swap(&mut slot.frame, frame);
            slot.job = Some(job);
        };
        self.0.fill(fill, retire(&mut send));
        self.0.retire_all(retire(&mut send));
    }

    /// Queues `batch` behind all jobs so far, and empties it. Sends it at once if nothing is queued.
    pub(crate) fn push_batch(
        &mut self,
        batch: &mut TransmitBatch,
        mut send: impl FnMut(&mut TransmitBatch),
    ) {
        // Sealed batches need not wait until the ring is full.
        self.0.retire_all(retire(&mut send));
        if batch.is_empty() {
            return;
        }
        if self.0.is_empty() {
            send(batch);
            return;
        }

        let fill = |slot: &mut SealSlot| mem::swap(&mut slot.batch, batch);
        self.0.fill_done(fill, retire(&mut send));
    }

    /// Takes one step: sends the oldest batch, or seals a frame, or waits for a worker. Returns `false` if nothing is
    /// queued.
    pub(crate) fn advance(&mut self, mut send: impl FnMut(&mut TransmitBatch)) -> bool {
        self.0.advance(retire(&mut send))
    }

    /// Seals and sends everything that is queued.
    pub(crate) fn finish(&mut self, mut send: impl FnMut(&mut TransmitBatch)) {
        self.0.finish(retire(&mut send));
    }

    /// The device has no frame: ends the backlog.
    pub(crate) const fn end_backlog(&mut self) {
        self.0.end_backlog();
    }
}

/// Retires a slot: sends its batch.
fn retire(send: &mut impl FnMut(&mut TransmitBatch)) -> impl FnMut(&mut SealSlot) {
    |slot| send(&mut slot.batch)
}
