//! What the threads of a gateway share: one for each direction, [`outbound`](super::outbound) and
//! [`inbound`](super::inbound), one for [handshakes and timers](super::handshakes), and worker threads.
//!
//! A packet thread runs to completion: the packets of one system call pass the engine and are written before the next
//! call. A thread waits only when it has nothing to do; to stop it, set [`Shared::is_stopping`] and wake it.

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
use super::edge::ClusterEdge;
use super::pool::{self, Slot, Work};
use super::udp::Udp;
use strait_engine::{Accounts, Flows, Forwarding};
use strait_packet::buffer::TransmitBatch;

const STOP: Token = Token(usize::MAX);

/// More descriptors than any thread waits for.
const EVENTS: usize = 64;

/// State that all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) edge: ClusterEdge,
    /// The socket in use. A change of the port replaces it.
    pub(super) udp: ArcSwap<Udp>,
    pub(super) accounts: Accounts,
    /// The current configuration, for rare events; packet processing has a reader of its own.
    pub(super) forwarding: Reader<Forwarding>,
    pub(super) flows: Arc<Flows>,
    pub(super) calendar: Calendar,
    /// MTU of the device.
    pub(super) mtu_bytes: AtomicU16,
    /// Whether timers start handshakes and send keepalives.
    pub(super) is_initiating: AtomicBool,
    /// Requests that the timers of all peers run without delay.
    pub(super) runs_timers_now: AtomicBool,
    pub(super) is_stopping: AtomicBool,
    pub(super) is_alive: AtomicBool,
    /// Notified when [`Self::is_alive`] becomes `false`.
    pub(super) end: Notify,
}

impl Shared {
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// The socket in use, if it is no longer `udp`.
    pub(super) fn new_socket(&self, udp: &Arc<Udp>) -> Option<Arc<Udp>> {
        let in_use = self.udp.load();

        (!Arc::ptr_eq(udp, &in_use)).then(|| Arc::clone(&in_use))
    }
}

/// Sends datagrams.
pub(super) trait Sink {
    /// Sends the first `count` transmits of the batch, counts them and removes them.
    fn send_first(&self, count: usize, batch: &mut TransmitBatch);

    /// Sends the whole batch, counts it and empties it.
    fn send_all(&self, batch: &mut TransmitBatch) {
        self.send_first(batch.transmits().len(), batch);
    }

    /// Sends the transmits that are complete; the last stays if datagrams may still be appended to it.
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

/// Waits for readable descriptors, if any, and for a waker.
#[derive(Debug)]
pub(super) struct Wait {
    poll: Poll,
    events: Events,
}

impl Wait {
    /// For `inputs`, of which one becomes readable. The waker interrupts the wait.
    pub(super) fn new<'a>(
        inputs: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<(Self, Waker)> {
        let mut wait = Self { poll: Poll::new()?, events: Events::with_capacity(EVENTS) };
        let waker = Waker::new(wait.poll.registry(), STOP)?;
        wait.switch([], inputs)?;

        Ok((wait, waker))
    }

    /// Waits for `next` instead of `before` from then on.
    pub(super) fn switch<'a>(
        &mut self,
        before: impl IntoIterator<Item = BorrowedFd<'a>>,
        next: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<()> {
        let registry = self.poll.registry();
        for before in before {
            registry.deregister(&mut SourceFd(&before.as_raw_fd()))?;
        }
        for (number, next) in next.into_iter().enumerate() {
            let token = Token(number);
            registry.register(&mut SourceFd(&next.as_raw_fd()), token, Interest::READABLE)?;
        }

        Ok(())
    }

    /// Waits until a descriptor is readable, or for the waker.
    pub(super) fn wait(&mut self) {
        // An interrupted wait counts as a wake-up: the loop looks again.
        let _ = self.poll.poll(&mut self.events, None);
    }

    /// The descriptors, by their number, that became readable before the last wait ended. One that is not read until
    /// `WouldBlock` may not be among them again.
    pub(super) fn readable(&self) -> impl Iterator<Item = usize> {
        self.events
            .iter()
            .map(|event| event.token())
            .filter(|token| *token != STOP)
            .map(|Token(number)| number)
    }

    /// Waits likewise, but for at most `duration`.
    pub(super) fn wait_for(&mut self, duration: Duration) {
        let _ = self.poll.poll(&mut self.events, Some(duration));
    }
}

/// Consecutive errors of receiving.
///
/// A single error may come from an earlier send; reading it clears it. A persistent error, for instance from a seccomp
/// filter, must neither keep a core busy nor let a gateway that receives nothing count as healthy.
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
    /// An error that repeats this often, [`Self::PAUSE`] apart, is persistent: after three seconds.
    const MAX_IN_A_ROW: u32 = 30;

    const PAUSE: Duration = Duration::from_millis(100);

    /// The socket was read without an error.
    pub(super) const fn handle_success(&mut self) {
        self.in_a_row = 0;
    }

    /// Pauses if errors repeat. Returns `false`, after logging the error, if the thread must end.
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

/// Marks the gateway as dead if its thread ends although it is not stopping.
pub(super) struct ExitGuard<'a>(pub(super) &'a Shared);

impl Drop for ExitGuard<'_> {
    fn drop(&mut self) {
        if !self.0.is_stopping() {
            self.0.is_alive.store(false, Ordering::Relaxed);
            self.0.end.notify_waiters();
        }
    }
}

/// Starts a worker thread, which ends with the packet thread that owns the ring.
pub(super) fn start<W: Work + 'static>(
    shared: &Arc<Shared>,
    name: &str,
    mut worker: work_ring::Worker<Slot<W>>,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let run = move || {
        let _guard = ExitGuard(&shared);
        while worker.work(pool::work) {}
    };

    thread::Builder::new().name(name.into()).spawn(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_receive_errors_pause_then_end() {
        let mut errors = ReceiveErrors::default();

        let mut after: Vec<_> = (0..31).map(|_| errors.next()).collect();

        assert_eq!(after.remove(0), AfterError::Retry);
        assert_eq!(after.pop(), Some(AfterError::GiveUp));
        assert!(after.iter().all(|after| *after == AfterError::Pause), "{after:?}");
        errors.handle_success();
        assert_eq!(errors.next(), AfterError::Retry);
    }
}
