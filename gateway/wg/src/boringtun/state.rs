//! The state of one peer: the library's, staged packets, and handshakes whose round trip is measured.

use std::mem;
use std::time::{Duration, Instant};

use boringtun::noise::{Tunn, TunnResult};

use crate::Staged;
use crate::message::{DATA_OVERHEAD_BYTES, MAX_HANDSHAKE_BYTES};
use crate::tunnel::{REKEY_TIMEOUT, Sealed, SessionState};
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::path::Path;
use strait_packet::segment::Segments;

/// How often the timers of a dormant peer run. The library takes the time from them, so a handshake that ends the
/// dormancy seems to have begun at most this much earlier.
const DORMANT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct State {
    pub(super) tunn: Tunn,
    pub(super) session: SessionState,
    pub(super) staged: Staged,
    /// When our unanswered initiation was sent.
    pub(super) initiated: Option<Instant>,
    /// Our response that no data has confirmed yet.
    pub(super) responded: Option<SentResponse>,
    /// When a message was last sent or received.
    pub(super) last_message: Option<Instant>,
    /// An initiation was held back, which the library counts as sent.
    pub(super) is_initiation_held: bool,
    /// When the library's timers ran last.
    timers_ran: Option<Instant>,
}

/// When a response was sent, and the receiver index of the data that confirms it.
pub(super) struct SentResponse {
    pub(super) at: Instant,
    pub(super) index: u32,
}

impl State {
    pub(super) fn new(tunn: Tunn) -> Self {
        Self {
            tunn,
            session: SessionState::default(),
            staged: Staged::default(),
            initiated: None,
            responded: None,
            last_message: None,
            is_initiation_held: false,
            timers_ran: None,
        }
    }

    pub(super) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Whether the library's timers run now: always, but for a dormant peer once in [`DORMANT_INTERVAL`]. They touch
    /// a few cache lines for each peer, and a gateway may have thousands of dormant peers.
    pub(super) fn is_due(&mut self, is_persistent: bool, now: Instant) -> bool {
        let is_dormant = !self.session.is_established
            && !is_persistent
            && self.initiated.is_none()
            && self.responded.is_none()
            && self.staged.is_empty();
        if is_dormant && self.timers_ran.is_some_and(|ran| now < ran + DORMANT_INTERVAL) {
            return false;
        }
        self.timers_ran = Some(now);

        true
    }

    /// Whether a handshake message was sent that may still lead to a session.
    pub(super) fn is_handshaking(&self, now: Instant) -> bool {
        let responded = self.responded.as_ref().map(|response| response.at);

        self.initiated.max(responded).is_some_and(|at| now < at + REKEY_TIMEOUT)
    }

    /// Whether no message was sent or received for `interval`.
    pub(super) fn is_idle(&self, interval: Duration, now: Instant) -> bool {
        self.last_message.is_none_or(|at| now >= at + interval)
    }

    /// Sends a keepalive in the current session.
    pub(super) fn send_keepalive(&mut self, path: Path, out: &mut TransmitBatch, now: Instant) {
        let mut message = [0; MAX_HANDSHAKE_BYTES];

        if let TunnResult::WriteToNetwork(keepalive) = self.tunn.encapsulate(&[], &mut message) {
            out.push_message(keepalive, Outer::message(path));
            self.last_message = Some(now);
        }
    }

    /// Seals the staged packets and then the next segment. Returns whether there may be another one. Call it with a
    /// session.
    pub(super) fn seal_next(
        &mut self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        sealed: &mut Sealed,
    ) -> bool {
        if !self.staged.is_empty() {
            let staged = self.seal_staged(outer.path, out);
            sealed.packets += staged.packets;
            sealed.bytes += staged.bytes;
            if !self.staged.is_empty() {
                return false;
            }
        }
        let Some(len) = segments.next_len() else { return false };
        let Some(room) = out.room(room_for(len)) else { return false };
        let Some(packet) = segments.next_segment() else { return false };

        if let TunnResult::WriteToNetwork(datagram) = self.tunn.encapsulate(packet, room) {
            let len = datagram.len();
            out.commit(len, outer, true);
            sealed.add(len);
        }

        true
    }

    pub(super) fn seal_staged(&mut self, path: Path, out: &mut TransmitBatch) -> Sealed {
        let mut sealed = Sealed::default();
        if !self.session.is_established {
            return sealed;
        }

        while let Some((packet, ecn)) = self.staged.first() {
            let Some(room) = out.room(room_for(packet.len())) else {
                break;
            };
            if let TunnResult::WriteToNetwork(datagram) = self.tunn.encapsulate(packet, room) {
                let len = datagram.len();
                out.commit(len, Outer::data(path, ecn), true);
                sealed.add(len);
            }
            self.staged.remove_first();
        }

        sealed
    }

    pub(super) fn initiate(&mut self, path: Path, out: &mut TransmitBatch, now: Instant) {
        self.begin(false, path, out, now);
    }

    pub(super) fn restart(&mut self, path: Path, out: &mut TransmitBatch, now: Instant) {
        self.begin(true, path, out, now);
    }

    fn begin(&mut self, is_again: bool, path: Path, out: &mut TransmitBatch, now: Instant) {
        let mut message = [0; MAX_HANDSHAKE_BYTES];

        if let TunnResult::WriteToNetwork(initiation) =
            self.tunn.format_handshake_initiation(&mut message, is_again)
        {
            out.push_message(initiation, Outer::handshake(path));
            self.initiated = Some(now);
            self.last_message = Some(now);
        }
    }

    /// A response of the peer was accepted.
    pub(super) fn complete(&mut self, now: Instant) {
        self.session.is_established = true;
        self.session.last_handshake = Some(now);
        self.session.rtt = self
            .initiated
            .take()
            .map(|initiated| now.saturating_duration_since(initiated))
            .or(self.session.rtt);
    }

    /// Sends the keepalives that the library has queued while there was no session.
    pub(super) fn send_queued_keepalives(&mut self, path: Path, out: &mut TransmitBatch) {
        let mut message = [0; MAX_HANDSHAKE_BYTES];

        while let TunnResult::WriteToNetwork(keepalive) =
            self.tunn.decapsulate(None, &[], &mut message)
        {
            out.push_message(keepalive, Outer::message(path));
        }
    }

    /// The library's timers ran, and may have ended the session.
    ///
    /// They never begin one, although the library may report so: a session that our response offered counts only once
    /// data confirmed it, and the library confuses the two after eight responses.
    pub(super) fn expire(&mut self) {
        self.session.is_established &= self.tunn.time_since_last_handshake().is_some();
    }

    /// Authentic data arrived for `index`. If it is the index of our response, it completes the handshake; data of
    /// the previous session does not.
    pub(super) fn confirm(&mut self, index: u32, now: Instant) {
        if let Some(response) = self.responded.take_if(|response| response.index == index) {
            self.session.last_handshake = Some(now);
            self.session.rtt = Some(now.saturating_duration_since(response.at));
        }
        if !self.session.is_established {
            self.session.is_established = self.tunn.time_since_last_handshake().is_some();
        }
    }

    pub(super) fn give_up(&mut self) -> u64 {
        as_u64(mem::take(&mut self.staged).len())
    }
}

/// The index behind the type: the sender index of a handshake message, or the receiver index of a data message.
pub(super) fn first_index(message: &[u8]) -> u32 {
    message.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The room that the library needs for a packet of `len` bytes; with less it panics.
pub(super) const fn room_for(len: usize) -> usize {
    let sealed = len + DATA_OVERHEAD_BYTES;

    if sealed > MAX_HANDSHAKE_BYTES { sealed } else { MAX_HANDSHAKE_BYTES }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test may start at any instant")]
mod tests {
    use boringtun::x25519::{PublicKey, StaticSecret};

    use super::*;

    #[test]
    fn dormant_timers_run_once_a_second() {
        let mut state = state();
        let start = Instant::now();

        let ran = (0..50).filter(|tick| state.is_due(false, start + *tick * TICK)).count();

        assert_eq!(ran, 5);
    }

    #[test]
    fn the_timers_of_other_peers_always_run() {
        let start = Instant::now();
        let initiated = State { initiated: Some(start), ..state() };
        let response = SentResponse { at: start, index: 1 };
        let responded = State { responded: Some(response), ..state() };
        let mut established = state();
        established.session.is_established = true;
        let mut staging = state();
        staging.staged = Staged::one(&[]);

        for (mut state, is_persistent) in [
            (initiated, false),
            (responded, false),
            (established, false),
            (staging, false),
            (state(), true),
        ] {
            let is_due = |tick: &u32| state.is_due(is_persistent, start + *tick * TICK);
            let ran = (0..50).filter(is_due).count();

            assert_eq!(ran, 50);
        }
    }

    const TICK: Duration = Duration::from_millis(100);

    fn state() -> State {
        let (own, peer) = (StaticSecret::from([1; 32]), StaticSecret::from([2; 32]));

        State::new(Tunn::new(own, PublicKey::from(&peer), None, None, 0, None))
    }
}
