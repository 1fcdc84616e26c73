//! Workers that open for the inbound thread. That thread checks the replay window, translates and writes in the order
//! of slot.
//!
//! ```text
//!   socket ─▶ find the session ─▶ ring ─▶ replay window, translate, merge ─▶ device
//!              inbound thread      │ ▲              inbound thread
//!                                  ▼ │
//!                          open in place: any free thread
//! ```
//!
//! Packets of a message in the ring are not merged with packets of other messages: under backlog a message is nearly
//! as long as a frame can be.

#[cfg(test)]
mod tests;

use std::mem;
use std::sync::Arc;

use super::{Pool, Start, Work};
use strait_engine::inbound::{Job, MAX_DATAGRAMS_PER_MESSAGE, MAX_MESSAGE_BYTES};
use strait_packet::counters::Counters;
use strait_wg::OpenedRun;

/// One received message, and what was opened of it.
pub(crate) struct OpenSlot {
    buffer: Box<[u8]>,
    job: Option<Job>,
    opened: OpenedRun,
}

impl Work for OpenSlot {
    fn new() -> Self {
        Self {
            buffer: vec![0; MAX_MESSAGE_BYTES].into_boxed_slice(),
            job: None,
            opened: OpenedRun::with_capacity(MAX_DATAGRAMS_PER_MESSAGE),
        }
    }

    fn work(&mut self) {
        if let Some(job) = &self.job {
            job.open(&mut self.buffer, &mut self.opened);
        }
    }
}

impl OpenSlot {
    /// Takes the job out, with its buffer and its result. `None` if the slot holds no job.
    pub(crate) fn take(&mut self) -> Option<(Job, &mut [u8], &mut OpenedRun)> {
        Some((self.job.take()?, &mut self.buffer, &mut self.opened))
    }
}

/// The workers as the inbound thread uses them. `retire` handles an opened message.
pub(crate) struct Openers<'a>(Pool<'a, OpenSlot>);

impl<'a> Openers<'a> {
    /// With up to `workers` threads. Their messages are counted in `counters`.
    pub(crate) const fn new(
        workers: usize,
        counters: Arc<Counters>,
        start: Start<'a, OpenSlot>,
    ) -> Self {
        Self(Pool::new(workers, counters, start))
    }

    /// Counts `count` more messages. Returns whether there is backlog that workers may take.
    pub(crate) const fn has_backlog(&mut self, count: usize) -> bool {
        self.0.has_backlog(count)
    }

    /// Queues `job` for the message in `buffer`, and replaces the buffer with another one.
    ///
    /// Returns `false` without effect if the message is small and no other is queued, or if there are no workers: the
    /// caller handles it at once.
    pub(crate) fn push(
        &mut self,
        job: Job,
        buffer: &mut Box<[u8]>,
        mut retire: impl FnMut(&mut OpenSlot),
    ) -> bool {
        let is_large = job.is_large();
        let is_worth_it = if is_large { self.0.ensure_started() } else { !self.0.is_empty() };
        if !is_worth_it {
            return false;
        }

        let fill = |slot: &mut OpenSlot| {
            mem::swap(&mut slot.buffer, buffer);
            slot.job = Some(job);
        };
        if is_large {
            self.0.fill(fill, &mut retire);
        } else {
            let fill = |slot: &mut OpenSlot| {
                fill(slot);
                slot.work();
            };
            self.0.fill_done(fill, &mut retire);
        }
        self.0.retire_all(retire);

        true
    }

    /// Takes one step: retires the oldest message, or opens one, or waits for a worker. Returns `false` if none is
    /// queued.
    pub(crate) fn advance(&mut self, retire: impl FnMut(&mut OpenSlot)) -> bool {
        self.0.advance(retire)
    }

    /// Opens and retires all queued messages.
    pub(crate) fn finish(&mut self, retire: impl FnMut(&mut OpenSlot)) {
        self.0.finish(retire);
    }

    /// The socket is empty: ends the backlog.
    pub(crate) const fn end_backlog(&mut self) {
        self.0.end_backlog();
    }
}
