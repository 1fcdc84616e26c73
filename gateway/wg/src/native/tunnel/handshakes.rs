//! The handshake messages of one peer. The caller holds the lock of the state.

use std::time::Instant;

use zeroize::Zeroizing;

use super::NativeTunnel;
use crate::message::Message;
use crate::native::handshake::Pending;
use crate::native::keypair::Keypair;
use crate::native::mac::Cookie;
use crate::native::state::State;
use crate::native::timers::{JITTER_MAX, REJECT_AFTER_TIME};
use crate::tunnel::REKEY_TIMEOUT;
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::path::Path;

impl NativeTunnel {
    /// Sends an initiation, even if a handshake is under way.
    pub(super) fn send_initiation(
        &self,
        state: &mut State,
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) {
        if state.has_ended {
            return;
        }
        self.write_initiation(state, path, out, now);
    }

    fn write_initiation(
        &self,
        state: &mut State,
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) {
        let index = self.new_index(state);
        let timestamp = state.timestamp(now);
        let State { shared, peer, .. } = state;
        let ephemeral = shared.ephemeral();
        let Ok((pending, mut message)) =
            Pending::initiate(&shared.own, peer, index, ephemeral, timestamp)
        else {
            return;
        };

        self.send_handshake(state, &mut message, path, out, now);
        let jitter = JITTER_MAX.mul_f64(f64::from(state.shared.random_byte()) / 256.0);
        state.record_initiation(pending, now, now + REKEY_TIMEOUT + jitter);
    }

    /// Adds the MACs to a handshake message and writes it to `out`. Without room it is lost, as on the network.
    fn send_handshake(
        &self,
        state: &mut State,
        message: &mut [u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) {
        let cookie = state.cookie.as_ref().and_then(|cookie| cookie.get(now));
        state.last_mac = Some(self.macs.stamp(message, cookie));
        if out.push_message(message, Outer::handshake(path)) {
            self.traffic.count_sent(false, now);
        }
    }

    /// An unused index of our slot, unpredictable to observers, and not used before for the longest possible time.
    fn new_index(&self, state: &mut State) -> u32 {
        let sessions = self.sessions.load();
        loop {
            let index = self.slot.index(state.next_number());
            let is_pending =
                state.attempt.as_ref().is_some_and(|attempt| attempt.answered(index).is_some());
            if !is_pending && sessions.with_index(index).is_none() {
                return index;
            }
        }
    }

    pub(super) fn handle_initiation(
        &self,
        state: &mut State,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<(), DropReason> {
        if state.has_ended {
            return Err(DropReason::NoSession);
        }
        let identified =
            state.shared.take_identified(message).map_err(|_| DropReason::Unauthenticated)?;
        let authentic =
            identified.authenticate(&state.peer).map_err(|_| DropReason::Unauthenticated)?;
        state.accept(authentic.timestamp, now)?;
        self.traffic.count_handshake(now);

        let index = self.new_index(state);
        let (session, mut response) = authentic
            .respond(&state.peer, index, &state.shared.ephemeral())
            .map_err(|_| DropReason::Unauthenticated)?;
        let next = Keypair::new(&session, false, self.lanes, now);
        self.publish(self.sessions.load().with_next(next));
        state.answered = Some((now, index));
        self.send_handshake(state, &mut response, path, out, now);

        Ok(())
    }

    pub(super) fn handle_response(
        &self,
        state: &mut State,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<(), DropReason> {
        let Some(Message::Response { receiver_index }) = Message::classify(message) else {
            return Err(DropReason::Malformed);
        };
        let attempt = state.attempt.as_ref().ok_or(DropReason::NoSession)?;
        let sent = attempt.answered(receiver_index).ok_or(DropReason::NoSession)?;
        // Both ends were suspended for so long that the session has expired.
        if now.saturating_duration_since(sent.at) >= REJECT_AFTER_TIME {
            return Err(DropReason::NoSession);
        }
        let session = sent
            .pending
            .complete(&state.shared.own, &state.peer, message)
            .map_err(|_| DropReason::Unauthenticated)?;
        let at = sent.at;
        state.remove_answered(receiver_index);
        self.traffic.count_handshake(now);
        state.complete(at, now);
        let current = Keypair::new(&session, true, self.lanes, now).initiated_at(at);
        self.publish(self.sessions.load().with_current(current));

        // The peer sends in the session only after it has received a datagram in it.
        if state.staged.is_empty() {
            self.seal_other(&[], path, out, now);
        }

        Ok(())
    }

    pub(super) fn handle_cookie(
        &self,
        state: &mut State,
        message: &[u8],
        now: Instant,
    ) -> Result<(), DropReason> {
        let mac = state.last_mac.take().ok_or(DropReason::Replayed)?;
        match self.macs.open_cookie(message, &mac) {
            Ok(value) => {
                state.cookie = Some(Cookie { value: Zeroizing::new(value), received: now });
                Ok(())
            }
            Err(_) => {
                state.last_mac = Some(mac);
                Err(DropReason::Unauthenticated)
            }
        }
    }
}
