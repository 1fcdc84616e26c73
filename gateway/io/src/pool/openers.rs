//! Who opens for the inbound thread. It asks the replay window, translates and writes in the order in which
//! messages arrived.
//!
//! ```text
//!   socket ─▶ find the session ─▶ lane ─▶ replay window, translate, merge ─▶ device
//!              inbound thread      │ ▲              inbound thread
//!                                  ▼ │
//!                          open in place: whoever is free
//! ```
//!
//! What is opened by another thread is merged with nothing of other messages: those of a backlog are nearly as
//! long as a frame can be.

#[cfg(test)]
mod tests;

use std::mem;
use std::sync::Arc;

use super::{Pool, Start, Work};
use strait_engine::inbound::{Job, MAX_DATAGRAMS_PER_MESSAGE, MAX_MESSAGE_BYTES};
use strait_packet::counters::Counters;
use strait_wg::OpenedRun;

/// One message on its way to be opened.
pub(crate) struct Arrival {
    buffer: Box<[u8]>,
    job: Option<Job>,
    opened: OpenedRun,
}

impl Work for Arrival {
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

impl Arrival {
    /// What was to be done, and was: in this buffer, with this result.
    pub(crate) fn take(&mut self) -> Option<(Job, &mut [u8], &mut OpenedRun)> {
        Some((self.job.take()?, &mut self.buffer, &mut self.opened))
    }
}

/// The inbound thread's side. `retire` hands on what was opened.
pub(crate) struct Openers<'a>(Pool<'a, Arrival>);

impl<'a> Openers<'a> {
    /// With `wanted` workers. What they do is counted in `account`.
    pub(crate) const fn new(
        wanted: usize,
        account: Arc<Counters>,
        start: Start<'a, Arrival>,
    ) -> Self {
        Self(Pool::new(wanted, account, start))
    }

    /// There were `count` more messages: whether there is backlog, and somebody to help.
    pub(crate) const fn is_engaged(&mut self, count: usize) -> bool {
        self.0.is_engaged(count)
    }

    /// Has `job` done, which is for what is in `buffer`, and puts another one in its place. `false`, and
    /// nothing has happened, if that is not worth it: what `job` is for can be handled now, nothing is
    /// before it.
    pub(crate) fn push(
        &mut self,
        job: Job,
        buffer: &mut Box<[u8]>,
        mut retire: impl FnMut(&mut Arrival),
    ) -> bool {
        let is_large = job.is_large();
        let is_worth_it = if is_large { self.0.is_started() } else { !self.0.is_empty() };
        if !is_worth_it {
            return false;
        }

        let fill = |arrival: &mut Arrival| {
            mem::swap(&mut arrival.buffer, buffer);
            arrival.job = Some(job);
        };
        if is_large {
            self.0.fill(fill, &mut retire);
        } else {
            let fill = |arrival: &mut Arrival| {
                fill(arrival);
                arrival.work();
            };
            self.0.fill_done(fill, &mut retire);
        }
        self.0.retire_all(retire);

        true
    }

    /// Brings the jobs a step further: hands on what is opened, or opens, or waits for who does. `false` if
    /// there are none.
    pub(crate) fn advance(&mut self, retire: impl FnMut(&mut Arrival)) -> bool {
        self.0.advance(retire)
    }

    /// Does and hands on everything that is under way.
    pub(crate) fn finish(&mut self, retire: impl FnMut(&mut Arrival)) {
        self.0.finish(retire);
    }

    /// The socket has no message: there is no backlog.
    pub(crate) const fn rest(&mut self) {
        self.0.rest();
    }
}
