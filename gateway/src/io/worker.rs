//! The threads of the two directions. A third is for [handshakes and time](super::handshakes).
//!
//! Each runs to completion: what a system call brought is carried through the engine and written out
//! before the next is made. A thread waits only when there is nothing to do; whoever wants to stop
//! it wakes it.
//!
//! Tried with one TCP stream, both gateways on two shared cores of a Xeon, and left out. Writing to the
//! device as soon as a frame's worth is opened, instead of when all messages of a call are (twelve
//! pairs of runs): the receiver wakes earlier and more often, CPU per byte rises by 9 %, throughput
//! falls by 10 %. Receiving at most two messages a call costs 4 % of CPU, at most sixteen gains nothing
//! over eight (eight pairs each).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use remap::Reader;
use tokio::sync::Notify;

use super::clock::{self, Calendar};
use super::handshakes::Relay;
use super::pool::{self, Sealers};
use super::tun::{FrameBuffer, Tun};
use super::udp::{ReceiveBuffer, Udp};
use crate::buffer::TransmitBatch;
use crate::engine::outbound::Disposition;
use crate::engine::{Accounts, Flows, Forwarding, Inbound, Outbound};
use crate::packet::virtio::VirtioHeader;

/// A batch goes out when it holds this much, even if more frames wait: a full send.
const FLUSH_AT_BYTES: usize = 60 * 1024;

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
    pub(super) is_stopping: AtomicBool,
    pub(super) is_alive: AtomicBool,
    /// Told when [`Self::is_alive`] ends.
    pub(super) end: Notify,
}

impl Shared {
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Sends the batch, accounts for it and empties it.
    pub(super) fn send_all(&self, batch: &mut TransmitBatch) {
        self.udp.load().send_all(batch, &self.accounts, |path| {
            self.forwarding.clone().load().forget_local(path);
        });
    }

    /// The socket in use, if it is another one than `udp` by now.
    pub(super) fn successor(&self, udp: &Arc<Udp>) -> Option<Arc<Udp>> {
        let in_use = self.udp.load();

        (!Arc::ptr_eq(udp, &in_use)).then(|| Arc::clone(&in_use))
    }
}

/// Waits for one descriptor, or for none, or to be woken.
#[derive(Debug)]
pub(super) struct Wait {
    poll: Poll,
    events: Events,
}

impl Wait {
    /// Waits for `input` to become readable. The waker interrupts.
    pub(super) fn new(input: Option<BorrowedFd<'_>>) -> io::Result<(Self, Waker)> {
        let mut wait = Self { poll: Poll::new()?, events: Events::with_capacity(4) };
        let waker = Waker::new(wait.poll.registry(), STOP)?;
        wait.follow(None, input)?;

        Ok((wait, waker))
    }

    /// Waits for `next` instead of `before`.
    pub(super) fn follow(
        &mut self,
        before: Option<BorrowedFd<'_>>,
        next: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let registry = self.poll.registry();
        if let Some(before) = before {
            registry.deregister(&mut SourceFd(&before.as_raw_fd()))?;
        }

        next.map_or(Ok(()), |next| {
            registry.register(&mut SourceFd(&next.as_raw_fd()), INPUT, Interest::READABLE)
        })
    }

    /// Waits until there is something to read, or to look for.
    fn wait(&mut self) {
        // An interrupted wait is a wake-up like any other: the loop looks again.
        let _ = self.poll.poll(&mut self.events, None);
    }

    /// The same, but not longer than `duration`.
    pub(super) fn wait_for(&mut self, duration: Duration) {
        let _ = self.poll.poll(&mut self.events, Some(duration));
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

/// Cluster to tunnel, until stopped or until the device is gone.
///
/// With backlog up to `workers` more threads seal for it.
pub(super) fn run_outbound(
    shared: &Arc<Shared>,
    mut outbound: Outbound,
    mut wait: Wait,
    workers: usize,
) {
    let _alive = Alive(shared);
    let mut frame = FrameBuffer::new();
    let mut batch = TransmitBatch::default();
    let send = |batch: &mut TransmitBatch| shared.send_all(batch);
    let start = |worker| start_sealer(shared, worker);
    let mut sealers = Sealers::new(workers, Arc::clone(&shared.accounts.outbound), &start);

    while !shared.is_stopping() {
        wait.wait();
        while !shared.is_stopping() {
            match shared.tun.read(&mut frame) {
                Ok(Some((virtio, packet))) => {
                    let now = clock::now();
                    let mut job = None;
                    let disposition = if sealers.is_engaged() {
                        let out = (&mut batch, &mut job);
                        outbound.handle_backlog(&virtio, packet, now, out, |batch| {
                            sealers.finish(send);
                            send(batch);
                        })
                    } else {
                        outbound.handle_frame(&virtio, packet, now, &mut batch, send)
                    };
                    match disposition {
                        Disposition::Taken => {}
                        Disposition::Hairpin => {
                            let is_written = shared.tun.write(&virtio, packet);
                            outbound.handle_hairpin(packet, is_written);
                        }
                        Disposition::Reply => {
                            let reply = outbound.reply();
                            let is_written = shared.tun.write(&VirtioHeader::default(), reply);
                            outbound.handle_reply(is_written);
                        }
                    }
                    if let Some(job) = job {
                        sealers.push(job, &mut frame, &mut batch, send);
                    } else if batch.len() >= FLUSH_AT_BYTES {
                        sealers.place(&mut batch, send);
                    }
                }
                Ok(None) => outbound.handle_unreadable_frame(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !sealers.advance(send) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "the TUN device cannot be read any more");
                    return;
                }
            }
        }
        sealers.finish(send);
        sealers.rest();
        send(&mut batch);
    }
}

/// A thread that seals for the outbound thread until that one ends.
fn start_sealer(
    shared: &Arc<Shared>,
    mut worker: lane::Worker<pool::Slot>,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let run = move || {
        let _alive = Alive(&shared);
        while worker.work(pool::seal) {}
    };

    thread::Builder::new().name("sealer".into()).spawn(run)
}

/// Tunnel to cluster, until stopped. `wait` waits for `udp`, which may be in use no more when the thread
/// begins.
pub(super) fn run_inbound(
    shared: &Shared,
    mut inbound: Inbound,
    (mut udp, mut wait): (Arc<Udp>, Wait),
    mut relay: Relay,
) {
    let _alive = Alive(shared);
    let mut buffer = ReceiveBuffer::new();
    let mut batch = TransmitBatch::default();

    while !shared.is_stopping() {
        wait.wait();
        while !shared.is_stopping() {
            // Also while the one before has something to read: it may never have nothing.
            if let Some(next) = shared.successor(&udp) {
                if let Err(error) = wait.follow(Some(udp.as_fd()), Some(next.as_fd())) {
                    tracing::error!(%error, "cannot wait for the new UDP socket");
                    return;
                }
                udp = next;
            }
            let count = match udp.receive(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An error that a send left behind on the socket; reading it has cleared it.
                Err(_) => continue,
            };
            let now = clock::now();
            inbound.set_merge(shared.tun.merge());
            for received in buffer.received(count) {
                inbound.handle_datagrams(received, now, &mut batch, |message, path| {
                    relay.push(message, path)
                });
            }
            relay.wake();
            shared.tun.write_all(&mut inbound);
            shared.send_all(&mut batch);
        }
    }
}
