//! Handshakes and timers, outside the packet path.

#[cfg(test)]
mod tests;
mod timer_scan;

use std::sync::Arc;
use std::time::Instant;

use remap::Reader;
use remap::masquerade::Tick;

use super::idle_peers::IdlePeers;
use super::inbound::Received;
use super::keyring::Keyring;
use super::staged::seal_staged;
use super::{Accounts, Flows, Forwarding};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::path::Path;
use strait_wg::Epoch;
use strait_wg::message::{MAX_HANDSHAKE_BYTES, Message};
use strait_wg::tunnel::{EndpointUpdate, Identification};
use strait_wg::{Peer, PublicKey, ReceiverIndices};

pub use timer_scan::TimerScan;

/// Answers handshakes and drives the timers of all peers. One thread owns it.
#[derive(Debug)]
pub struct Handshakes {
    forwarding: Reader<Forwarding>,
    indices: ReceiverIndices,
    flows: Arc<Flows>,
    keyring: Arc<Keyring>,
    accounts: Accounts,
    last_generation: u64,
    /// How many peers of the generation still get a first handshake, from `turn` on.
    initial_handshakes_left: usize,
    /// The index of the next peer to start a handshake with, as one scan may not reach all.
    turn: usize,
    idle_peers: IdlePeers,
    swept: Tick,
}

impl Handshakes {
    pub(super) fn new(
        mut forwarding: Reader<Forwarding>,
        indices: ReceiverIndices,
        flows: Arc<Flows>,
        keyring: Arc<Keyring>,
        accounts: Accounts,
    ) -> Self {
        // The first generation has no peers.
        let last_generation = forwarding.load().table().generation();

        Self {
            forwarding,
            indices,
            flows,
            keyring,
            accounts,
            last_generation,
            initial_handshakes_left: 0,
            turn: 0,
            idle_peers: IdlePeers::default(),
            swept: Tick::default(),
        }
    }

    /// Takes a handshake message or a cookie reply that came by `path`. Answers are sent by the same path; they, and
    /// packets that were staged for this handshake, are appended to `out`.
    pub fn handle_message(
        &mut self,
        message: &[u8],
        path: Path,
        now: Instant,
        out: &mut TransmitBatch,
    ) {
        let answered = self.answer(message, path, now, out);
        self.count(answered);
    }

    /// Takes and counts datagrams that the kernel delivered to the handshake thread; see [`Self::handle_message`]. Data
    /// is dropped as malformed: no correct sender has it delivered there.
    pub fn handle_datagrams(
        &mut self,
        received: Received<'_>,
        now: Instant,
        out: &mut TransmitBatch,
    ) {
        let Received { bytes, stride, path, .. } = received;
        let datagrams = bytes.chunks(stride.max(1));
        let account = &self.accounts.inbound;
        if bytes.is_empty() {
            account.packets_in.add(1);
            account.count_drops(DropReason::Malformed, 1);
        }
        account.packets_in.add(as_u64(datagrams.len()));
        account.bytes_in.add(as_u64(bytes.len()));

        for datagram in datagrams {
            self.handle_message(datagram, path, now, out);
        }
    }

    /// Counts `messages` that the kernel has dropped because the receive buffer was full.
    pub fn handle_lost(&self, messages: u32) {
        let account = &self.accounts.inbound;
        account.packets_in.add(messages.into());
        account.count_drops(DropReason::HandshakeQueueFull, messages.into());
    }

    /// Sets the wall clock time that dates our initiations. To be called periodically.
    pub fn handle_wall_clock(&self, epoch: Epoch) {
        self.keyring.handle_wall_clock(epoch);
    }

    /// Time has advanced to `now`. Calling early or twice is harmless; call it at least every 250 ms.
    ///
    /// A new generation starts a handshake with every peer that has an endpoint and never had a session, so that the
    /// first packet finds one. A configuration with an unchanged generation number, which may be that of the engine
    /// without peers, does not. An initiation that is a retry, or goes to a silent peer, is sent to all its endpoints.
    /// If many handshakes are due at once, those that no packet waits for are spread over several calls.
    ///
    /// The returned scan does the work: [`TimerScan::fill`] until it is complete.
    pub fn handle_timeout(&mut self, now: Instant) -> TimerScan<'_> {
        self.handle_passive_timeout(now);
        let forwarding = self.forwarding.load();
        let generation = forwarding.table().generation();
        let peers = forwarding.peers();
        if self.last_generation != generation {
            self.last_generation = generation;
            self.initial_handshakes_left = peers.len();
            self.idle_peers.reset(peers.len());
        }
        self.idle_peers.begin_scan(forwarding.count_sought(), now);
        let first = self.turn.min(peers.len());

        TimerScan {
            forwarding,
            accounts: &self.accounts,
            idle_peers: &mut self.idle_peers,
            initial_handshakes_left: &mut self.initial_handshakes_left,
            turn: &mut self.turn,
            places: (first..peers.len()).chain(0..first),
            started: 0,
            now,
        }
    }

    /// Appends the copies of initiations that are due at `now`. Returns whether `out` is full before all are written: the
    /// caller then drains it, and calls again. To be called at [`Self::next_copy`].
    pub fn send_copies(&mut self, now: Instant, out: &mut TransmitBatch) -> bool {
        let forwarding = self.forwarding.load();
        let queue = forwarding.initiation_copies();
        while out.spare_transmits() > 0 && out.has_room(MAX_HANDSHAKE_BYTES) {
            let Some((key, initiation, path)) = queue.pop_due(now) else { return false };
            let Some(peer) = forwarding.by_key(key) else { continue };
            if peer.endpoints.is_unanswered(&initiation) {
                let before = out.len();
                out.push_message(&initiation, Outer::handshake(path));
                count_sent(peer, before, out);
            }
        }

        true
    }

    /// When the next copy of an initiation is due. If a packet has started a handshake, its first copy may wait for the next
    /// [`Self::handle_timeout`], as the packet thread does not wake this one.
    pub fn next_copy(&mut self) -> Option<Instant> {
        self.forwarding.load().initiation_copies().next_due()
    }

    /// As [`Self::handle_timeout`], but starts and renews no handshakes. Initiations are still answered, and state with
    /// a limited lifetime expires. Sessions are unchanged.
    pub fn handle_passive_timeout(&mut self, now: Instant) {
        self.keyring.handle_timeout(now);
        let tick = self.flows.tick(now);
        if tick > self.swept {
            self.swept = tick;
            self.flows.handle_timeout(tick);
        }
    }

    fn count(&self, answered: Result<(), DropReason>) {
        match answered {
            Ok(()) => self.accounts.inbound.protocol_messages.add(1),
            Err(reason) => self.accounts.inbound.count_drops(reason, 1),
        }
    }

    fn answer(
        &mut self,
        message: &[u8],
        path: Path,
        now: Instant,
        out: &mut TransmitBatch,
    ) -> Result<(), DropReason> {
        let kind = Message::classify(message).ok_or(DropReason::Malformed)?;
        match kind {
            Message::Initiation => match self.keyring.identify(message, path, out)? {
                (own, Identification::Peer(sender)) => {
                    self.answer_initiation((own, sender), message, path, now, out)?;
                }
                (_, Identification::UnderLoad) => return Err(DropReason::UnderLoad),
            },
            Message::Data { .. } => return Err(DropReason::Malformed),
            Message::Response { receiver_index } | Message::CookieReply { receiver_index } => {
                let slot = self.indices.slot(receiver_index);
                let (id, peer) =
                    self.forwarding.load().by_slot(slot).ok_or(DropReason::UnknownIndex)?;
                self.idle_peers.mark_active(id);
                let before = out.len();
                let mut endpoint_update =
                    peer.tunnel.handle_answer(slot, message, path, out, now)?;
                count_sent(peer, before, out);
                // The peer may have roamed while the response was in flight, and this is known already.
                if peer.endpoints.has_roamed_since_initiation() {
                    endpoint_update = EndpointUpdate::Keep;
                }
                // A cookie reply completes nothing: anyone who knows our public key and saw our message can send one.
                if !matches!(kind, Message::CookieReply { .. }) {
                    peer.receive.bytes.add(as_u64(message.len()));
                    note_answer(peer, endpoint_update, path, now, out);
                }
            }
        }

        Ok(())
    }

    /// Answers an initiation to the first of `keys`, which is ours, that claims to be from the second.
    fn answer_initiation(
        &mut self,
        keys: (PublicKey, PublicKey),
        message: &[u8],
        path: Path,
        now: Instant,
        out: &mut TransmitBatch,
    ) -> Result<(), DropReason> {
        let (own, sender) = keys;
        let forwarding = self.forwarding.load();
        let id = forwarding.id_of(sender).ok_or(DropReason::Unauthenticated)?;
        let peer = forwarding.peer(id).ok_or(DropReason::Unauthenticated)?;
        self.idle_peers.mark_active(id);
        let before = out.len();
        let endpoint_update =
            peer.tunnel.handle_initiation(own, sender, message, path, out, now)?;
        count_sent(peer, before, out);
        peer.receive.bytes.add(as_u64(message.len()));
        note_answer(peer, endpoint_update, path, now, out);

        Ok(())
    }
}

/// Records that a peer has initiated or answered a handshake.
fn note_answer(
    peer: &Peer,
    endpoint_update: EndpointUpdate,
    path: Path,
    now: Instant,
    out: &mut TransmitBatch,
) {
    if endpoint_update == EndpointUpdate::Learn {
        peer.learn_path(path);
    }
    peer.endpoints.reset_unanswered();
    seal_staged(peer, peer.path().unwrap_or(path), out, now);
}

/// Counts what was appended to the first `before` bytes of `out` as sent to `peer`.
fn count_sent(peer: &Peer, before: usize, out: &TransmitBatch) {
    peer.transmit.bytes.add(as_u64(out.len().saturating_sub(before)));
}
