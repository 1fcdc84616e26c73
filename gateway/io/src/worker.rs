//! What the threads of the gateway have in common: one for each direction, [`outbound`](super::outbound) and
//! [`inbound`](super::inbound), one for [handshakes and time](super::handshakes), and their helpers.
//!
//! A packet thread runs to completion: what a system call brought is carried through the engine and written out
//! before the next is made. A thread waits only when there is nothing to do; whoever wants to stop
//! it wakes it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use remap::Reader;
use tokio::sync::Notify;

use super::clock::Calendar;
use super::pool::{self, Slot, Work};
use super::tun::Tun;
use super::udp::Udp;
use strait_engine::Accounts;
use strait_engine::Flows;
use strait_engine::Forwarding;
use strait_packet::buffer::TransmitBatch;

const INPUT: Token = Token(0);
const STOP: Token = Token(1);

/// What the threads share, and how they are told to stop.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tun: Arc<Tun>,
    /// The socket in use. Another port is another socket.
    pub(super) udp: ArcSwap<Udp>,
    pub(super) accounts: Accounts,
    /// What is in force. Packets go by without a look at this one.
    pub(super) forwarding: Reader<Forwarding>,
    pub(super) flows: Arc<Flows>,
    pub(super) calendar: Calendar,
    /// Of the device.
    pub(super) mtu_bytes: AtomicU16,
    /// Whether time brings handshakes and keepalives.
    pub(super) begins_sessions: AtomicBool,
    /// The timers of all peers are to be looked at without delay.
    pub(super) is_hurried: AtomicBool,
    pub(super) is_stopping: AtomicBool,
    pub(super) is_alive: AtomicBool,
    /// Told when [`Self::is_alive`] ends.
    pub(super) end: Notify,
}

impl Shared {
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// The socket in use, if it is another one than `udp` by now.
    pub(super) fn successor(&self, udp: &Arc<Udp>) -> Option<Arc<Udp>> {
        let in_use = self.udp.load();

        (!Arc::ptr_eq(udp, &in_use)).then(|| Arc::clone(&in_use))
    }
}

/// Where datagrams leave.
pub(super) trait Sink {
    /// Sends the first `count` sends of the batch, accounts for them and takes them out.
    fn send_first(&self, count: usize, batch: &mut TransmitBatch);

    /// Sends the batch, accounts for it and empties it.
    fn send_all(&self, batch: &mut TransmitBatch) {
        self.send_first(batch.transmits().len(), batch);
    }

    /// The same, but what may become longer stays.
    fn send_complete(&self, batch: &mut TransmitBatch) {
        self.send_first(batch.complete(), batch);
    }
}

impl Sink for Shared {
    fn send_first(&self, count: usize, batch: &mut TransmitBatch) {
        if count == 0 {
            return;
        }
        self.udp.load().send_first(count, batch, &self.accounts, |path| {
            self.forwarding.clone().load().forget_local(path);
        });
    }
}

/// Waits for some descriptors, or for none, or to be woken.
#[derive(Debug)]
pub(super) struct Wait {
    poll: Poll,
    events: Events,
}

impl Wait {
    /// Waits for one of `inputs` to become readable. The waker interrupts.
    pub(super) fn new<'a>(
        inputs: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<(Self, Waker)> {
        let mut wait = Self { poll: Poll::new()?, events: Events::with_capacity(8) };
        let waker = Waker::new(wait.poll.registry(), STOP)?;
        wait.follow([], inputs)?;

        Ok((wait, waker))
    }

    /// Waits for `next` instead of `before`.
    pub(super) fn follow<'a>(
        &mut self,
        before: impl IntoIterator<Item = BorrowedFd<'a>>,
        next: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<()> {
        let registry = self.poll.registry();
        for before in before {
            registry.deregister(&mut SourceFd(&before.as_raw_fd()))?;
        }
        for next in next {
            registry.register(&mut SourceFd(&next.as_raw_fd()), INPUT, Interest::READABLE)?;
        }

        Ok(())
    }

    /// Waits until there is something to read, or to look for.
    pub(super) fn wait(&mut self) {
        // An interrupted wait is a wake-up like any other: the loop looks again.
        let _ = self.poll.poll(&mut self.events, None);
    }

    /// The same, but not longer than `duration`.
    pub(super) fn wait_for(&mut self, duration: Duration) {
        let _ = self.poll.poll(&mut self.events, Some(duration));
    }
}

/// Errors of receiving, one after the other.
///
/// One may have been left behind by a send, and reading it has cleared it. An error that stays, as a filter of system
/// calls makes one, must neither keep a core busy nor let a gateway that hears nothing pass for a healthy one.
#[derive(Debug, Default)]
pub(super) struct ReceiveErrors {
    in_a_row: u32,
}

/// What a thread does after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterError {
    Retry,
    Pause,
    GiveUp,
}

impl ReceiveErrors {
    /// So many in a row, [`Self::PAUSE`] apart, are an error that stays: three seconds.
    const MAX_IN_A_ROW: u32 = 30;

    const PAUSE: Duration = Duration::from_millis(100);

    /// The socket was read without an error.
    pub(super) const fn handle_success(&mut self) {
        self.in_a_row = 0;
    }

    /// Waits a moment if errors repeat. Returns `false`, and has logged why, if the thread has to end.
    pub(super) fn handle_error(&mut self, error: &io::Error) -> bool {
        match self.next() {
            AfterError::Retry => true,
            AfterError::Pause => {
                if self.in_a_row == 2 {
                    tracing::warn!(%error, "the UDP socket cannot be read");
                }
                thread::sleep(Self::PAUSE);
                true
            }
            AfterError::GiveUp => {
                tracing::error!(%error, "the UDP socket cannot be read any more");
                false
            }
        }
    }

    fn next(&mut self) -> AfterError {
        self.in_a_row += 1;

        match self.in_a_row {
            1 => AfterError::Retry,
            2..=Self::MAX_IN_A_ROW => AfterError::Pause,
            _ => AfterError::GiveUp,
        }
    }
}

/// Declares the gateway dead if a thread ends that was not told to.
pub(super) struct Alive<'a>(pub(super) &'a Shared);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        if !self.0.is_stopping() {
            self.0.is_alive.store(false, Ordering::Relaxed);
            self.0.end.notify_waiters();
        }
    }
}

/// A thread that works for a packet thread until that one ends.
pub(super) fn start<W: Work + 'static>(
    shared: &Arc<Shared>,
    name: &str,
    mut worker: lane::Worker<Slot<W>>,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let run = move || {
        let _alive = Alive(&shared);
        while worker.work(pool::work) {}
    };

    thread::Builder::new().name(name.into()).spawn(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_error_costs_no_time_and_many_end_the_thread() {
        let mut errors = ReceiveErrors::default();

        let mut after: Vec<_> = (0..31).map(|_| errors.next()).collect();

        assert_eq!(after.remove(0), AfterError::Retry);
        assert_eq!(after.pop(), Some(AfterError::GiveUp));
        assert!(after.iter().all(|after| *after == AfterError::Pause), "{after:?}");
        errors.handle_success();
        assert_eq!(errors.next(), AfterError::Retry);
    }
}
