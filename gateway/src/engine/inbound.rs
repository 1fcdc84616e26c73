//! Tunnel to cluster: tell messages apart, open, check the source, remap it, rewrite, coalesce.

use std::sync::Arc;
use std::time::Instant;

use remap::{PeerId, Reader};

use super::flows::Flows;
use super::handshakes::seal_staged;
use super::translate::{self, Context, Memory};
use super::{Accounts, Forwarding};
use crate::DropReason;
use crate::buffer::{PacketBatch, TransmitBatch};
use crate::counters::{Counters, as_u64};
use crate::packet::coalesce::{Coalescer, Frame, Merge};
use crate::packet::ecn::{self, Ecn};
use crate::packet::{Header, rewrite};
use crate::path::Path;
use crate::wg::message::Message;
use crate::wg::tunnel::Opened;
use crate::wg::{Indices, Peer};

/// Messages that one system call may receive, each up to 64 KiB of datagrams.
pub const MAX_MESSAGES: usize = 8;

/// The most bytes of one message.
pub const MAX_MESSAGE_BYTES: usize = 65_535;

/// Datagrams the kernel merges into one message at the most.
const MAX_DATAGRAMS_PER_MESSAGE: usize = 128;

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
        if last_index.0 != receiver_index {
            *last_index = (receiver_index, indices.slot(receiver_index));
        }
        let slot = last_index.1;
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
        // A datagram that was overtaken must not lead back to where the peer was before it moved. QUIC has
        // the same rule (RFC 9000, section 9.3).
        if !opened.is_late {
            peer.learn_path(received.path);
        }
        peer.receive.bytes.add(opened.bytes);
        peer.receive.packets.add(opened.packets);
        if opened.has_staged {
            // Not where it was, if this was overtaken.
            seal_staged(peer, peer.path().unwrap_or(received.path), out, now);
        }

        let now = flows.tick(now);
        let context = Context { forwarding, flows, memory: Memory::Updated, now };
        for index in first..packets.packets().len() {
            let Some(range) = packets.packets().get(index).cloned() else {
                break;
            };
            let packet = packets.packet_mut(range.clone());
            match accept(&context, (id, peer), packet, received.ecn) {
                Ok(header) if coalescer.push(packets.bytes(), range, &header, *merge) => {}
                Ok(_) => account.count_drops(DropReason::WriteFailed, 1),
                Err(reason) => account.count_drops(reason, 1),
            }
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
