//! Who seals for the outbound thread. It sends what is sealed in the order of the counters, which it takes
//! for each frame before it leaves it to others.
//!
//! ```text
//!   device ─▶ translate, reserve counters ─▶ lane ─▶ send, in order of the counters
//!                outbound thread              │ ▲       outbound thread
//!                                             ▼ │
//!                                 segment, seal: whoever is free
//! ```

#[cfg(test)]
mod tests;

use std::mem;
use std::sync::Arc;

use super::{Pool, Start, Work};
use crate::tun::FrameBuffer;
use strait_engine::outbound::Job;
use strait_packet::buffer::TransmitBatch;
use strait_packet::counters::Counters;

/// One frame on its way to be sealed, or a batch that needs nothing but its place.
pub(crate) struct Departure {
    frame: FrameBuffer,
    job: Option<Job>,
    batch: TransmitBatch,
}

impl Work for Departure {
    fn new() -> Self {
        Self { frame: FrameBuffer::new(), job: None, batch: TransmitBatch::default() }
    }

    /// Segments and seals, and lets go of the keys.
    fn work(&mut self) {
        if let Some(job) = self.job.take() {
            job.seal(self.frame.packet_mut(), &mut self.batch);
        }
    }
}

/// The outbound thread's side. `send` sends a batch and empties it.
pub(crate) struct Sealers<'a>(Pool<'a, Departure>);

impl<'a> Sealers<'a> {
    /// With `wanted` workers. What they do is counted in `account`.
    pub(crate) const fn new(
        wanted: usize,
        account: Arc<Counters>,
        start: Start<'a, Departure>,
    ) -> Self {
        Self(Pool::new(wanted, account, start))
    }

    /// The device had another frame: whether there is backlog, and somebody to help.
    pub(crate) const fn is_engaged(&mut self) -> bool {
        self.0.is_engaged(1)
    }

    /// Whether no job is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has `job` done, which is for what is in `frame`, behind everything in `batch`. Both are empty then, or
    /// may be forgotten.
    pub(crate) fn push(
        &mut self,
        job: Job,
        frame: &mut FrameBuffer,
        batch: &mut TransmitBatch,
        mut send: impl FnMut(&mut TransmitBatch),
    ) {
        self.place(batch, &mut send);
        if !self.0.is_started() {
            job.seal(frame.packet_mut(), batch);
            return;
        }

        let fill = |departure: &mut Departure| {
            mem::swap(&mut departure.frame, frame);
            departure.job = Some(job);
        };
        self.0.fill(fill, retire(&mut send));
        self.0.retire_all(retire(&mut send));
    }

    /// Sends `batch` when its turn comes, behind all jobs so far, and empties it.
    pub(crate) fn place(
        &mut self,
        batch: &mut TransmitBatch,
        mut send: impl FnMut(&mut TransmitBatch),
    ) {
        // What is sealed need not wait until there is no room left.
        self.0.retire_all(retire(&mut send));
        if batch.is_empty() {
            return;
        }
        if self.0.is_empty() {
            send(batch);
            return;
        }

        let fill = |departure: &mut Departure| mem::swap(&mut departure.batch, batch);
        self.0.fill_done(fill, retire(&mut send));
    }

    /// Brings the jobs a step further: sends what is sealed, or seals, or waits for who does. `false` if
    /// there are none.
    pub(crate) fn advance(&mut self, mut send: impl FnMut(&mut TransmitBatch)) -> bool {
        self.0.advance(retire(&mut send))
    }

    /// Does and sends everything that is under way.
    pub(crate) fn finish(&mut self, mut send: impl FnMut(&mut TransmitBatch)) {
        self.0.finish(retire(&mut send));
    }

    /// The device has no frame: there is no backlog.
    pub(crate) const fn rest(&mut self) {
        self.0.rest();
    }
}

/// What is sealed is sent.
fn retire(send: &mut impl FnMut(&mut TransmitBatch)) -> impl FnMut(&mut Departure) {
    |departure| send(&mut departure.batch)
}
