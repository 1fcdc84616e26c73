//! Handshakes and time: what neither direction waits for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use remap::Reader;
use remap::masquerade::Tick;

use super::keyring::Keyring;
use super::{Accounts, Flows, Forwarding, race};
use crate::DropReason;
use crate::buffer::TransmitBatch;
use crate::wg::endpoints::MAX_CANDIDATES;
use crate::wg::message::Message;
use crate::wg::{Indices, Peer};

/// What one peer may need: a full-size packet that was staged.
const FLUSH_BELOW_BYTES: usize = 68 * 1024;

/// The same in sends: all that may be staged, and two initiations to every address.
const SPARE_TRANSMITS: usize = 2 * (MAX_CANDIDATES + 1) + 256;

/// Answers handshakes and drives the timers of all peers. One thread owns it.
#[derive(Debug)]
pub struct Handshakes {
    forwarding: Reader<Forwarding>,
    indices: Indices,
    flows: Arc<Flows>,
    keyring: Arc<Keyring>,
    accounts: Accounts,
    greeted_generation: u64,
    swept: Tick,
}

impl Handshakes {
    pub(super) fn new(
        mut forwarding: Reader<Forwarding>,
        indices: Indices,
        flows: Arc<Flows>,
        keyring: Arc<Keyring>,
        accounts: Accounts,
    ) -> Self {
        // There is nobody yet to greet.
        let greeted_generation = forwarding.load().table().generation();

        Self {
            forwarding,
            indices,
            flows,
            keyring,
            accounts,
            greeted_generation,
            swept: Tick::default(),
        }
    }

    /// Takes a handshake message or a cookie reply. Answers, and packets that were staged for this
    /// handshake, are appended to `out`.
    pub fn handle_message(
        &mut self,
        message: &[u8],
        source: SocketAddr,
        now: Instant,
        out: &mut TransmitBatch,
    ) {
        match self.answer(message, source, now, out) {
            Ok(()) => self.accounts.inbound.protocol_messages.add(1),
            Err(reason) => self.accounts.inbound.count_drops(reason, 1),
        }
    }

    /// Time has advanced to `now`. Calling early or twice is harmless; call it at least every 250 ms.
    ///
    /// A peer that has just been configured with an endpoint is greeted with a handshake, so that
    /// the first packet finds a session; unless the generation is the one before, or that of an engine
    /// without peers. A handshake that is not answered, or that a silent peer is
    /// asked for, goes to all addresses of the peer. If `out` fills up, `flush` must empty it.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        out: &mut TransmitBatch,
        mut flush: impl FnMut(&mut TransmitBatch),
    ) {
        self.keyring.handle_timeout(now);
        let tick = self.flows.tick(now);
        if tick > self.swept {
            self.swept = tick;
            self.flows.handle_timeout(tick);
        }
        let forwarding = self.forwarding.load();
        let generation = forwarding.table().generation();
        let is_new = self.greeted_generation != generation;
        self.greeted_generation = generation;

        for peer in forwarding.peers() {
            let endpoint = peer.endpoint();
            if !out.has_room(FLUSH_BELOW_BYTES) || out.spare_transmits() < SPARE_TRANSMITS {
                flush(out);
            }
            race::seek(peer, out, now);
            let before = out.len();
            let timed_out = peer.tunnel.handle_timeout(endpoint, out, now);
            race::spread(peer, before, out, now);
            self.accounts.outbound.count_drops(DropReason::HandshakeTimeout, timed_out.given_up);
            if let Some(endpoint) = endpoint.filter(|_| timed_out.has_staged) {
                seal_staged(peer, endpoint, out, now);
            }

            let Some(endpoint) = endpoint.filter(|_| is_new) else {
                continue;
            };
            let session = peer.tunnel.session();
            if !session.is_established && session.last_handshake.is_none() {
                let before = out.len();
                peer.tunnel.initiate(endpoint, out, now);
                race::spread(peer, before, out, now);
            }
        }
    }

    fn answer(
        &mut self,
        message: &[u8],
        source: SocketAddr,
        now: Instant,
        out: &mut TransmitBatch,
    ) -> Result<(), DropReason> {
        let forwarding = self.forwarding.load();
        let kind = Message::classify(message).ok_or(DropReason::Malformed)?;
        let peer: &Peer = match kind {
            Message::Initiation => {
                let Some(keys) = self.keyring.identify(message, source, out)? else {
                    return Err(DropReason::UnderLoad);
                };
                let (_, key) = keys;
                let peer = forwarding.by_key(key).ok_or(DropReason::Unauthenticated)?;
                peer.tunnel.handle_initiation(keys, message, source, out, now)?;
                peer
            }
            Message::Response { receiver_index }
            | Message::CookieReply { receiver_index }
            | Message::Data { receiver_index } => {
                let slot = self.indices.slot(receiver_index);
                let (_, peer) = forwarding.by_slot(slot).ok_or(DropReason::UnknownIndex)?;
                peer.tunnel.handle_answer(slot, message, source, out, now)?;
                peer
            }
        };

        if !matches!(kind, Message::CookieReply { .. }) {
            peer.set_endpoint(source);
            peer.endpoints.handle_answer();
        }
        seal_staged(peer, source, out, now);

        Ok(())
    }
}

/// Seals what waited for the handshake. What does not fit into `out` goes with the next call.
pub(super) fn seal_staged(
    peer: &Peer,
    destination: SocketAddr,
    out: &mut TransmitBatch,
    now: Instant,
) {
    let sealed = peer.tunnel.seal_staged(destination, out, now);
    peer.transmit.packets.add(sealed.packets);
    peer.transmit.bytes.add(sealed.bytes);
}
