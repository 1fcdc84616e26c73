//! Tunnel to cluster: tell messages apart, open, check the source, remap it, rewrite, coalesce.
//!
//! A large message may be left to another thread to open: a [`Job`]. What must be in order is done when that
//! has come back.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use remap::{PeerId, Reader};

use super::Accounts;
use super::Forwarding;
use super::flows::Flows;
use super::handshakes::seal_staged;
use super::translate::{self, Context, Memory};
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::buffer::{PacketBatch, TransmitBatch};
use strait_packet::coalesce::{Coalescer, Frame, Merge};
use strait_packet::counters::{Counters, as_u64};
use strait_packet::ecn::{self, Ecn};
use strait_packet::path::Path;
use strait_packet::rewrite;
use strait_wg::Indices;
use strait_wg::OpenedRun;
use strait_wg::Opening;
use strait_wg::Peer;
use strait_wg::message::Message;
use strait_wg::tunnel::Opened;

/// Messages that one system call may receive, each up to 64 KiB of datagrams.
pub const MAX_MESSAGES: usize = 8;

/// The most bytes of one message.
pub const MAX_MESSAGE_BYTES: usize = 65_535;

/// Datagrams the kernel merges into one message at the most.
pub const MAX_DATAGRAMS_PER_MESSAGE: usize = 128;

/// Messages of fewer bytes are not worth handing to another thread: to open this much takes several times as
/// long as to wake one.
const JOB_MIN_BYTES: usize = 16 * 1024;

/// What one message of a receiving system call brought: datagrams of one source to one
/// address of ours, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The datagrams.
    pub bytes: &'a [u8],
    /// Length of every datagram but the last.
    pub stride: usize,
    /// The outer source, and the address of ours that they were sent to.
    pub path: Path,
    /// Of the outer header, equal for all of them.
    pub ecn: Ecn,
}

/// A message that is ready to be opened, by anybody: all of it is for one session.
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
    /// Opens the message in place, which is at the start of `buffer`.
    pub fn open(&self, buffer: &mut [u8], opened: &mut OpenedRun) {
        if let Some(message) = buffer.get_mut(..self.len) {
            self.opening.open(message, self.stride, opened);
        }
    }

    /// Whether it is worth the time of another thread.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        self.len >= JOB_MIN_BYTES
    }
}

/// The inbound direction. One thread owns it.
#[derive(Debug)]
pub struct Inbound {
    forwarding: Reader<Forwarding>,
    indices: Indices,
    /// The last receiver index and its slot: mostly the next is the same.
    last_index: (u32, u32),
    flows: Arc<Flows>,
    accounts: Accounts,
    packets: PacketBatch,
    coalescer: Coalescer,
    merge: Merge,
}

impl Inbound {
    pub(super) fn new(
        forwarding: Reader<Forwarding>,
        indices: Indices,
        flows: Arc<Flows>,
        accounts: Accounts,
    ) -> Self {
        Self {
            forwarding,
            indices,
            last_index: (0, indices.slot(0)),
            flows,
            accounts,
            packets: PacketBatch::with_capacity(
                MAX_MESSAGES * MAX_MESSAGE_BYTES,
                MAX_MESSAGES * MAX_DATAGRAMS_PER_MESSAGE,
            ),
            coalescer: Coalescer::new(),
            merge: Merge { tcp: true, udp: true },
        }
    }

    /// Which packets may be merged into offload frames from now on.
    pub const fn set_merge(&mut self, merge: Merge) {
        self.merge = merge;
    }

    /// Takes what one message brought. Packets gather until [`Self::drain`].
    ///
    /// Messages of a handshake are handed to `handshake`, which says whether it took them. Packets
    /// that were staged until now are sealed into `out`.
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

    /// What it takes to have a message opened by another thread; `None` if it is not all for one session, or
    /// if its tunnel cannot do that. Nothing is done or counted yet: either [`Self::handle_opened`] or, after
    /// everything that was received before, [`Self::handle_datagrams`] is to be called.
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

    /// Takes what became of a message when `job` was done in `buffer`, and gives every frame to `write`, after
    /// those that [`Self::drain`] would have given it.
    ///
    /// The order of the messages of a session is that of these calls, among those of
    /// [`Self::handle_datagrams`]. Packets that were staged until now are sealed into `out`.
    pub fn handle_opened(
        &mut self,
        job: Job,
        (buffer, opened): (&mut [u8], &mut OpenedRun),
        now: Instant,
        out: &mut TransmitBatch,
        mut write: impl FnMut(&Frame<'_>, &[u8], &Accounts),
    ) {
        let Job { opening, slot, len, path, ecn, .. } = job;
        self.drain(&mut write);

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

        let result = peer.tunnel.admit(slot, &opening, (&mut *opened, buffer), now);
        count(account, &result);
        if result.authentic == 0 {
            return;
        }
        note_authentic(peer, &result, path, out, now);
        let now = flows.tick(now);
        let context = Context { forwarding, flows, memory: Memory::Updated, now };
        let packets = (&mut *buffer, opened.packets());
        accept_all(&context, (id, peer), packets, ecn, (account, coalescer, *merge));

        for frame in coalescer.frames() {
            write(&frame, buffer, accounts);
        }
        coalescer.clear();
    }

    /// Gives every frame of the batch to `write`, in order, with the bytes its ranges refer to; then
    /// forgets the batch.
    ///
    /// `write` reports what became of each packet with [`Accounts::handle_frame`].
    pub fn drain(&mut self, mut write: impl FnMut(&Frame<'_>, &[u8], &Accounts)) {
        for frame in self.coalescer.frames() {
            write(&frame, self.packets.bytes(), &self.accounts);
        }

        self.packets.clear();
        self.coalescer.clear();
    }

    /// One datagram that carries no data. What was taken is counted by whoever answers it.
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
        let Self { forwarding, indices, last_index, flows, accounts, packets, coalescer, merge } =
            self;
        let account = &accounts.inbound;
        let datagrams = as_u64(run.len().div_ceil(received.stride.max(1)));
        account.packets_in.add(datagrams);
        account.bytes_in.add(as_u64(run.len()));

        let forwarding = forwarding.load();
        let slot = slot_of(*indices, last_index, receiver_index);
        let Some((id, peer)) = forwarding.by_slot(slot) else {
            account.count_drops(DropReason::UnknownIndex, datagrams);
            return;
        };

        let first = packets.packets().len();
        let opened = peer.tunnel.open(slot, run, received.stride, packets, now);
        count(account, &opened);
        if opened.authentic == 0 {
            return;
        }
        note_authentic(peer, &opened, received.path, out, now);
        let now = flows.tick(now);
        let context = Context { forwarding, flows, memory: Memory::Updated, now };
        let packets = packets.packets_from(first);
        accept_all(&context, (id, peer), packets, received.ecn, (account, coalescer, *merge));
    }
}

/// The slot of a receiver index. `last` is what was asked before.
#[inline]
fn slot_of(indices: Indices, last: &mut (u32, u32), receiver_index: u32) -> u32 {
    if last.0 != receiver_index {
        *last = (receiver_index, indices.slot(receiver_index));
    }

    last.1
}

/// Something authentic came from the peer on `path`.
#[inline]
fn note_authentic(peer: &Peer, opened: &Opened, path: Path, out: &mut TransmitBatch, now: Instant) {
    // A datagram that was overtaken must not lead back to where the peer was before it moved. QUIC has
    // the same rule (RFC 9000, section 9.3).
    if !opened.is_late {
        peer.learn_path(path);
    }
    peer.receive.bytes.add(opened.bytes);
    peer.receive.packets.add(opened.packets);
    if opened.has_staged {
        // Not where it was, if this was overtaken.
        seal_staged(peer, peer.path().unwrap_or(path), out, now);
    }
}

/// Checks and translates the packets of a run, which lie in `bytes`, and hands them on to be merged.
#[inline]
fn accept_all(
    context: &Context<'_>,
    peer: (PeerId, &Peer),
    (bytes, packets): (&mut [u8], &[Range<usize>]),
    outer_ecn: Ecn,
    (account, coalescer, merge): (&Counters, &mut Coalescer, Merge),
) {
    for range in packets {
        let packet = bytes.get_mut(range.clone()).unwrap_or_default();
        match accept(context, peer, packet, outer_ecn) {
            Ok(header) if coalescer.push(bytes, range.clone(), &header, merge) => {}
            Ok(_) => account.count_drops(DropReason::WriteFailed, 1),
            Err(reason) => account.count_drops(reason, 1),
        }
    }
}

/// Checks and translates one packet that was opened.
#[inline]
fn accept(
    context: &Context<'_>,
    peer: (PeerId, &Peer),
    packet: &mut [u8],
    outer_ecn: Ecn,
) -> Result<Header, DropReason> {
    let mut header = Header::parse(packet).map_err(|_| DropReason::Malformed)?;
    let inner_ecn = header.ecn();

    translate::inbound(context, peer, packet, &mut header)?;
    let merged_ecn =
        ecn::decapsulate(inner_ecn, outer_ecn).ok_or(DropReason::CongestionUnmarkable)?;
    if merged_ecn != inner_ecn {
        rewrite::set_ecn(packet, &mut header, merged_ecn)?;
    }

    Ok(header)
}

fn count(account: &Counters, opened: &Opened) {
    account.protocol_messages.add(opened.keepalives);
    account.count_drops(DropReason::NoSession, opened.no_session);
    account.count_drops(DropReason::Replayed, opened.replayed);
    account.count_drops(DropReason::Unauthenticated, opened.unauthenticated);
    account.count_drops(DropReason::Malformed, opened.malformed);
}

/// Bytes of the datagrams at the start of `bytes` that carry data for this receiver index.
fn run_len(bytes: &[u8], stride: usize, receiver_index: u32) -> usize {
    let data = Some(Message::Data { receiver_index });
    let count = bytes.chunks(stride).take_while(|d| Message::classify(d) == data).count();

    (count * stride).min(bytes.len())
}
