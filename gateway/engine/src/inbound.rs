//! Tunnel to cluster: classify messages, open, check the source, remap it, rewrite, coalesce.
//!
//! A large message may be opened by another thread: a [`Job`]. The steps that depend on packet order are done when the
//! job has returned.

mod acceptor;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use remap::Reader;

use super::flows::{FlowAccess, Flows};
use super::predecessor::Predecessor;
use super::staged::seal_staged;
use super::translate::Context;
use super::{Accounts, Forwarding};
use acceptor::Acceptor;
use strait_packet::DropReason;
use strait_packet::buffer::{PacketBatch, TransmitBatch};
use strait_packet::coalesce::{Coalescer, Frame, Merge};
use strait_packet::counters::{Counters, as_u64};
use strait_packet::ecn::Ecn;
use strait_packet::path::Path;
use strait_wg::message::Message;
use strait_wg::tunnel::Opened;
use strait_wg::{OpenedProbes, OpenedRun, Opening, PathProbe, Peer, ReceiverIndices};

/// The most messages that one system call receives, each up to 64 KiB of datagrams.
pub const MAX_MESSAGES: usize = 8;

/// The most bytes of one message.
pub const MAX_MESSAGE_BYTES: usize = 65_535;

/// The most datagrams that the kernel merges into one message.
pub const MAX_DATAGRAMS_PER_MESSAGE: usize = 128;

/// The smallest message, in bytes, that is passed to another thread: opening it takes several times as long as waking
/// a thread.
const JOB_MIN_BYTES: usize = 16 * 1024;

/// One message of a receiving system call: consecutive datagrams from one source to one address of ours.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The datagrams.
    pub bytes: &'a [u8],
    /// Length of every datagram but the last.
    pub stride: usize,
    /// The outer source, and our address that they were sent to.
    pub path: Path,
    /// ECN field of the outer header, equal for all datagrams.
    pub ecn: Ecn,
}

impl Received<'_> {
    /// The first datagram, and the others, if any.
    fn split_first(self) -> (Self, Option<Self>) {
        let (first, others) = self.bytes.split_at(self.stride.max(1).min(self.bytes.len()));
        let others = (!others.is_empty()).then_some(Self { bytes: others, ..self });

        (Self { bytes: first, ..self }, others)
    }

    /// Number of datagrams.
    #[must_use]
    pub const fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(if self.stride == 0 { 1 } else { self.stride })
    }
}

/// A message that any thread can open: all of it belongs to one session.
#[derive(Debug)]
pub struct Job {
    opening: Opening,
    slot: u32,
    len: usize,
    stride: usize,
    path: Path,
    ecn: Ecn,
}

impl Job {
    /// Opens the message, which is at the start of `buffer`, in place.
    pub fn open(&self, buffer: &mut [u8], opened: &mut OpenedRun) {
        if let Some(message) = buffer.get_mut(..self.len) {
            self.opening.open(message, self.stride, opened);
        }
    }

    /// Whether it is large enough for another thread.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        self.len >= JOB_MIN_BYTES
    }
}

/// Takes the frames of a batch.
pub trait FrameSink {
    /// Writes all `frames`, in order. Their ranges refer to `bytes`. Reports the result for each packet with
    /// [`Accounts::handle_frame`], or counts a drop.
    fn write_frames<'a>(
        &mut self,
        frames: impl Iterator<Item = Frame<'a>>,
        bytes: &[u8],
        accounts: &Accounts,
    );
}

/// A sink that passes each frame to `write`, with the bytes its ranges refer to.
pub const fn each_frame<F: FnMut(&Frame<'_>, &[u8], &Accounts)>(write: F) -> EachFrame<F> {
    EachFrame(write)
}

/// The sink of [`each_frame`].
#[derive(Debug)]
pub struct EachFrame<F>(F);

impl<F: FnMut(&Frame<'_>, &[u8], &Accounts)> FrameSink for EachFrame<F> {
    #[inline]
    fn write_frames<'a>(
        &mut self,
        frames: impl Iterator<Item = Frame<'a>>,
        bytes: &[u8],
        accounts: &Accounts,
    ) {
        let Self(write) = self;
        for frame in frames {
            write(&frame, bytes, accounts);
        }
    }
}

/// The inbound direction. One thread owns it.
#[derive(Debug)]
pub struct Inbound {
    forwarding: Reader<Forwarding>,
    indices: ReceiverIndices,
    /// The last receiver index and its slot: the next one is usually the same.
    last_index: (u32, u32),
    predecessor: Predecessor,
    flows: Arc<Flows>,
    accounts: Accounts,
    packets: PacketBatch,
    coalescer: Coalescer,
    merge: Merge,
    /// See [`Self::handle_congested`].
    is_congested: bool,
}

impl Inbound {
    pub(super) fn new(
        forwarding: Reader<Forwarding>,
        indices: ReceiverIndices,
        predecessor: Predecessor,
        flows: Arc<Flows>,
        accounts: Accounts,
    ) -> Self {
        Self {
            forwarding,
            indices,
            last_index: (0, indices.slot(0)),
            predecessor,
            flows,
            accounts,
            packets: PacketBatch::with_capacity(
                MAX_MESSAGES * MAX_MESSAGE_BYTES,
                MAX_MESSAGES * MAX_DATAGRAMS_PER_MESSAGE,
            ),
            coalescer: Coalescer::new(),
            merge: Merge { tcp: true, udp: true },
            is_congested: false,
        }
    }

    /// Sets which packets may be merged into offload frames.
    pub const fn set_merge(&mut self, merge: Merge) {
        self.merge = merge;
    }

    /// Takes one received message. Packets are collected until [`Self::drain`].
    ///
    /// Handshake messages are passed to `handshake`, which returns whether it accepted them. Packets that were staged
    /// until now are sealed into `out`.
    pub fn handle_datagrams(
        &mut self,
        received: Received<'_>,
        now: Instant,
        out: &mut TransmitBatch,
        mut handshake: impl FnMut(&[u8], Path) -> bool,
    ) {
        let mut rest = received.bytes;
        let stride = received.stride.max(1);
        if rest.is_empty() {
            self.count_message(rest, DropReason::Malformed, false);
        }

        while !rest.is_empty() {
            let (datagram, others) = rest.split_at(stride.min(rest.len()));
            match Message::classify(datagram) {
                Some(Message::Data { receiver_index }) => {
                    let run = run_len(rest, stride, receiver_index);
                    let (run, others) = rest.split_at(run);
                    self.handle_run(run, receiver_index, &received, now, out);
                    rest = others;
                    continue;
                }
                Some(_) => {
                    let is_taken = handshake(datagram, received.path);
                    self.count_message(datagram, DropReason::HandshakeQueueFull, is_taken);
                }
                None => self.count_message(datagram, DropReason::Malformed, false),
            }
            rest = others;
        }
    }

    /// As [`Self::handle_datagrams`], but marks the first datagram as congested: its inner packet, if it is ECN-capable or
    /// TCP, becomes what it would if the outer header had that mark (RFC 6040). Senders of other packets would not send less.
    pub fn handle_congested(
        &mut self,
        received: Received<'_>,
        now: Instant,
        out: &mut TransmitBatch,
        mut handshake: impl FnMut(&[u8], Path) -> bool,
    ) {
        let (first, others) = received.split_first();
        self.is_congested = true;
        self.handle_datagrams(first, now, out, &mut handshake);
        self.is_congested = false;

        if let Some(others) = others {
            self.handle_datagrams(others, now, out, handshake);
        }
    }

    /// The job to open a message on another thread; `None` if the message belongs to several sessions, or if its tunnel
    /// does not support it. Nothing is done or counted yet: the caller must call either [`Self::handle_opened`] or,
    /// after everything that was received before, [`Self::handle_datagrams`].
    pub fn handle_backlog(&mut self, received: &Received<'_>, now: Instant) -> Option<Job> {
        let Received { bytes, path, ecn, .. } = *received;
        let stride = received.stride.max(1);
        let first = bytes.get(..stride.min(bytes.len()))?;
        let Some(Message::Data { receiver_index }) = Message::classify(first) else { return None };
        if bytes.len().div_ceil(stride) > MAX_DATAGRAMS_PER_MESSAGE
            || run_len(bytes, stride, receiver_index) < bytes.len()
        {
            return None;
        }

        let slot = slot_of(self.indices, &mut self.last_index, receiver_index);
        let (_, peer) = self.forwarding.load().by_slot(slot)?;
        let opening = peer.tunnel.opening(slot, bytes, stride, now)?;

        Some(Job { opening, slot, len: bytes.len(), stride, path, ecn })
    }

    /// Takes the result of `job`, which has opened its message in `buffer`, and passes every frame to `sink`, after
    /// those that are still to be drained.
    ///
    /// The order of the messages of a session is the order of these calls and those of [`Self::handle_datagrams`].
    /// Packets that were staged until now are sealed into `out`.
    pub fn handle_opened(
        &mut self,
        job: Job,
        buffer: &mut [u8],
        opened: &mut OpenedRun,
        now: Instant,
        out: &mut TransmitBatch,
        sink: &mut impl FrameSink,
    ) {
        let Job { opening, slot, len, path, ecn, .. } = job;
        self.drain_to(sink);

        let Self { forwarding, flows, accounts, coalescer, merge, .. } = self;
        let account = &accounts.inbound;
        let datagrams = opened.datagrams();
        account.packets_in.add(datagrams);
        account.bytes_in.add(as_u64(len));
        let forwarding = forwarding.load();
        let Some((id, peer)) = forwarding.by_slot(slot) else {
            account.count_drops(DropReason::UnknownIndex, datagrams);
            return;
        };

        let result = peer.tunnel.admit(slot, &opening, opened, buffer, now);
        count(account, peer, &result);
        if result.authentic == 0 {
            return;
        }
        note_authentic(peer, &result, path, out, now);
        let now = flows.tick(now);
        let context = Context { forwarding, flows, flow_access: FlowAccess::Update, now };
        let mut acceptor = Acceptor {
            context: &context,
            id,
            peer,
            outer_ecn: ecn,
            is_congested: false,
            account,
            coalescer,
            merge: *merge,
        };
        acceptor.accept_all(buffer, opened.packets());

        sink.write_frames(coalescer.frames(), buffer, accounts);
        coalescer.clear();
    }

    /// Passes every frame of the batch to `write`, in order, as [`Self::drain_to`] does.
    pub fn drain(&mut self, write: impl FnMut(&Frame<'_>, &[u8], &Accounts)) {
        self.drain_to(&mut each_frame(write));
    }

    /// Passes the batch to `sink`, then clears it.
    pub fn drain_to(&mut self, sink: &mut impl FrameSink) {
        sink.write_frames(self.coalescer.frames(), self.packets.bytes(), &self.accounts);

        self.packets.clear();
        self.coalescer.clear();
    }

    /// Counts one datagram that carries no data. An accepted one is counted further by [`Handshakes`].
    ///
    /// [`Handshakes`]: super::Handshakes
    fn count_message(&self, datagram: &[u8], reason: DropReason, is_taken: bool) {
        let account = &self.accounts.inbound;
        account.packets_in.add(1);
        account.bytes_in.add(as_u64(datagram.len()));
        account.count_drops(reason, u64::from(!is_taken));
    }

    /// A run of transport data messages with one receiver index.
    fn handle_run(
        &mut self,
        run: &[u8],
        receiver_index: u32,
        received: &Received<'_>,
        now: Instant,
        out: &mut TransmitBatch,
    ) {
        let Self {
            forwarding,
            indices,
            last_index,
            predecessor,
            flows,
            accounts,
            packets,
            coalescer,
            merge,
            is_congested,
        } = self;
        let account = &accounts.inbound;
        let count_received = || {
            let datagrams = as_u64(run.len().div_ceil(received.stride.max(1)));
            account.packets_in.add(datagrams);
            account.bytes_in.add(as_u64(run.len()));
            datagrams
        };

        let forwarding = forwarding.load();
        let slot = slot_of(*indices, last_index, receiver_index);
        let is_former = indices.is_former(slot);
        let Some((id, peer)) = forwarding.by_slot(slot) else {
            if !predecessor.relay(run, is_former, received, now, out, account) {
                account.count_drops(DropReason::UnknownIndex, count_received());
            }
            if is_former && let [peer] = forwarding.peers() {
                answer_former(peer, received.path.remote);
            }
            return;
        };

        let first = packets.packets().len();
        let opened = peer.tunnel.open(slot, run, received.stride, packets, now);
        if opened.authentic == 0 {
            // Data of the predecessor's sessions is not authentic here, or looks replayed.
            if !predecessor.relay(run, is_former, received, now, out, account) {
                count_received();
                count(account, peer, &opened);
            }
            if is_former {
                answer_former(peer, received.path.remote);
            }
            return;
        }
        count_received();
        count(account, peer, &opened);
        note_authentic(peer, &opened, received.path, out, now);
        let now = flows.tick(now);
        let context = Context { forwarding, flows, flow_access: FlowAccess::Update, now };
        let (bytes, packets) = packets.packets_from(first);
        let mut acceptor = Acceptor {
            context: &context,
            id,
            peer,
            outer_ecn: received.ecn,
            is_congested: *is_congested,
            account,
            coalescer,
            merge: *merge,
        };
        acceptor.accept_all(bytes, packets);
    }
}

/// The slot of a receiver index. `last` caches the last lookup.
#[inline]
fn slot_of(indices: ReceiverIndices, last: &mut (u32, u32), receiver_index: u32) -> u32 {
    if last.0 != receiver_index {
        *last = (receiver_index, indices.slot(receiver_index));
    }

    last.1
}

/// Requests a handshake with a peer that still sends in a session which a former process had: a container that was
/// replaced, or another replica. Behind a NAT or a Service that source is the only address at which it can be reached.
///
/// Once this process has had a session with the peer, replayed datagrams request nothing.
#[cold]
fn answer_former(peer: &Peer, source: SocketAddr) {
    if peer.tunnel.session().last_handshake.is_none() {
        peer.endpoints.request_handshake_at(source);
    }
}

/// Records that authentic datagrams came from the peer on `path`.
#[inline]
fn note_authentic(peer: &Peer, opened: &Opened, path: Path, out: &mut TransmitBatch, now: Instant) {
    // A reordered datagram must not restore the endpoint that the peer had before it roamed. QUIC has the same rule
    // (RFC 9000, section 9.3).
    if !opened.is_late {
        peer.learn_path(path);
    }
    peer.receive.bytes.add(opened.bytes);
    peer.receive.packets.add(opened.packets);
    if opened.has_staged {
        // Not to `path` if this datagram was reordered.
        seal_staged(peer, peer.path().unwrap_or(path), out, now);
    }
    if opened.probes != OpenedProbes::default() {
        handle_probes(peer, opened.probes, path, out, now);
    }
}

/// Answers a probe of the path by the `path` on which it came, and notes an answer.
#[cold]
fn handle_probes(
    peer: &Peer,
    probes: OpenedProbes,
    path: Path,
    out: &mut TransmitBatch,
    now: Instant,
) {
    if let Some(bytes) = probes.answer {
        peer.add_answered_probe(bytes);
    }
    if let Some(bytes) = probes.probe {
        let sent = peer.tunnel.seal_probe(PathProbe::Answer(bytes), path, out, now);
        peer.transmit.bytes.add(sent);
    }
}

fn count(account: &Counters, peer: &Peer, opened: &Opened) {
    account.protocol_messages.add(opened.keepalives);
    account.count_drops(DropReason::NoSession, opened.no_session);
    account.count_drops(DropReason::Replayed, opened.replayed);
    account.count_drops(DropReason::Unauthenticated, opened.unauthenticated);
    peer.damaged.add(opened.unauthenticated);
    account.count_drops(DropReason::Malformed, opened.malformed);
}

/// Length in bytes of the datagrams at the start of `bytes` that carry data for this receiver index.
fn run_len(bytes: &[u8], stride: usize, receiver_index: u32) -> usize {
    let data = Some(Message::Data { receiver_index });
    let count = bytes.chunks(stride).take_while(|d| Message::classify(d) == data).count();

    (count * stride).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_datagram_is_split_off(len in 1..2_000_usize, stride in 1..1_500_usize) {
            let bytes: Vec<_> = (0..=u8::MAX).cycle().take(len).collect();
            let path = SocketAddr::from((Ipv4Addr::LOCALHOST, 1)).into();
            let received = Received { bytes: &bytes, stride, path, ecn: Ecn::Ect0 };

            let (first, others) = received.split_first();

            prop_assert_eq!(first.datagrams(), 1);
            prop_assert_eq!(received.datagrams(), 1 + others.map_or(0, |others| others.datagrams()));
            let all = [first.bytes, others.map_or(&[], |others| others.bytes)].concat();
            prop_assert_eq!(all, bytes);
        }
    }
}
