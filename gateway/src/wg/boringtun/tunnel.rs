//! The seam: a lock around the state of one peer, taken once per batch, which lets in who has only a packet or
//! two.

use std::fmt;
use std::mem;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::{Tunn, TunnResult};

use super::drop_reason;
use super::state::{Answered, State, first_index};
use super::turns::Turns;
use crate::DropReason;
use crate::buffer::{Outer, PacketBatch, TransmitBatch};
use crate::counters::as_u64;
use crate::packet::segment::Segments;
use crate::path::Path;
use crate::wg::Staged;
use crate::wg::message::{MAX_HANDSHAKE_BYTES, Message};
use crate::wg::tunnel::{Opened, Sealed, SessionState, TimedOut, Tunnel, Whereabouts};

/// How long to wait before a peer that the library gave up is tried again, if it has a persistent
/// keepalive. The whitepaper's `REKEY_TIMEOUT`.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// So many packets are let in between two of a batch.
const FEW: usize = 2;

/// One peer's state, for boringtun; `None` once it is closed.
pub(super) struct BoringtunTunnel {
    state: Turns<Option<State>>,
}

impl BoringtunTunnel {
    pub(super) fn new(tunn: Tunn, is_persistent: bool) -> Self {
        Self { state: Turns::new(Some(State::new(tunn, is_persistent))) }
    }

    /// The state, for so many packets.
    fn turn_for(&self, packets: usize) -> MutexGuard<'_, Option<State>> {
        if packets <= FEW { self.state.take_briefly() } else { self.state.take() }
    }

    /// Does something with the state unless it is closed.
    fn with<T: Default>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        self.state.take().as_mut().map(act).unwrap_or_default()
    }
}

impl fmt::Debug for BoringtunTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoringtunTunnel").field("session", &self.session()).finish()
    }
}

impl Tunnel for BoringtunTunnel {
    fn seal(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed {
        let mut sealed = Sealed::default();
        let mut turn = self.turn_for(segments.remaining());

        while let Some(state) = turn.as_mut() {
            if !state.session.is_established {
                sealed.overflow += state.staged.stage(segments, outer.ecn);
                state.initiate(outer.path, out, now);
                return sealed;
            }
            if !state.seal_next(segments, outer, out, &mut sealed) {
                return sealed;
            }
            turn = self.state.let_in(turn);
        }

        sealed.overflow += segments.skip();
        sealed
    }

    fn seal_with_session(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        _now: Instant,
    ) -> Option<Sealed> {
        let mut sealed = None;
        let mut turn = self.turn_for(segments.remaining());

        while let Some(state) = turn.as_mut().filter(|state| state.session.is_established) {
            if !state.seal_next(segments, outer, out, sealed.get_or_insert_default()) {
                break;
            }
            turn = self.state.let_in(turn);
        }

        sealed
    }

    fn seal_staged(&self, path: Path, out: &mut TransmitBatch, _now: Instant) -> Sealed {
        self.with(|state| state.seal_staged(path, out))
    }

    fn open(&self, run: &[u8], stride: usize, out: &mut PacketBatch, now: Instant) -> Opened {
        let mut opened = Opened::default();
        let mut datagrams = run.chunks(stride.max(1));
        let mut turn = self.turn_for(datagrams.len());

        while let Some(datagram) = datagrams.next() {
            // Not before what confirms a session has been told to the state, below.
            if turn.as_ref().is_some_and(|state| state.session.is_established) {
                turn = self.state.let_in(turn);
            }
            let Some(state) = turn.as_mut() else {
                opened.no_session += 1 + as_u64(datagrams.len());
                break;
            };
            let Some(room) = out.room(datagram.len()) else {
                opened.malformed += 1;
                continue;
            };
            match state.tunn.decapsulate(None, datagram, room) {
                TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                    let len = packet.len();
                    out.commit(len);
                    opened.packets += 1;
                    opened.bytes += as_u64(datagram.len());
                }
                TunnResult::Done => {
                    opened.keepalives += 1;
                    opened.bytes += as_u64(datagram.len());
                }
                TunnResult::Err(error) => opened.count(&error),
                TunnResult::WriteToNetwork(_) => opened.malformed += 1,
            }
        }
        opened.authentic = opened.packets + opened.keepalives;

        if let Some(state) = turn.as_mut().filter(|_| opened.authentic > 0) {
            state.confirm(first_index(run), now);
            opened.has_staged = !state.staged.is_empty();
        }

        opened
    }

    fn handle_handshake(
        &self,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<Whereabouts, DropReason> {
        let mut state = self.state.take();
        let state = state.as_mut().ok_or(DropReason::NoSession)?;
        let mut reply = [0; MAX_HANDSHAKE_BYTES];

        match state.tunn.decapsulate(Some(path.remote.ip()), message, &mut reply) {
            TunnResult::WriteToNetwork(datagram) => {
                let answer = Message::classify(datagram);
                out.push_message(datagram, outer(answer, path));
                match answer {
                    Some(Message::Response { .. }) => {
                        let index = first_index(datagram);
                        state.answered = Some(Answered { at: now, index });
                    }
                    Some(Message::Data { .. }) => {
                        state.complete(now);
                        state.send_queued_keepalives(path, out);
                    }
                    _ => {}
                }
                Ok(Whereabouts::Here)
            }
            TunnResult::Err(error) => Err(drop_reason(&error)),
            TunnResult::Done
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => Ok(Whereabouts::Here),
        }
    }

    fn handle_timeout(
        &self,
        path: Option<Path>,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut {
        let mut state = self.state.take();
        let Some(state) = state.as_mut() else {
            return TimedOut::default();
        };
        if !state.is_due(now) {
            return TimedOut::default();
        }
        let mut message = [0; MAX_HANDSHAKE_BYTES];
        let mut given_up = 0;

        match state.tunn.update_timers(&mut message) {
            TunnResult::WriteToNetwork(datagram) => {
                let message = Message::classify(datagram);
                if message == Some(Message::Initiation) {
                    state.asked = Some(now);
                }
                if let Some(path) = path {
                    out.push_message(datagram, outer(message, path));
                }
            }
            TunnResult::Err(WireGuardError::ConnectionExpired) => {
                given_up = state.give_up();
                if !state.is_persistent {
                    state.asked = None;
                }
                let is_due = state.asked.is_none_or(|asked| now >= asked + RETRY_INTERVAL);
                if let Some(path) = path
                    && state.is_persistent
                    && is_due
                {
                    state.initiate(path, out, now);
                }
            }
            TunnResult::Done
            | TunnResult::Err(_)
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => {}
        }
        state.expire();
        let has_staged = state.session.is_established && !state.staged.is_empty();

        TimedOut { given_up, has_staged }
    }

    fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        self.with(|state| state.initiate(path, out, now));
    }

    fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        self.with(|state| state.restart(path, out, now));
    }

    fn has_staged(&self) -> bool {
        // Who seals or opens holds the lock for a batch, and says itself what is staged.
        self.state.try_take().is_some_and(|state| state.as_ref().is_some_and(State::has_staged))
    }

    fn take_staged(&self) -> Staged {
        self.with(|state| mem::take(&mut state.staged))
    }

    fn adopt(&self, staged: Staged) {
        self.with(|state| state.staged.append(staged));
    }

    fn close(&self) -> Staged {
        let mut state = self.state.take();
        let staged = state.as_mut().map(|state| mem::take(&mut state.staged));
        // Dropped where it is: the library wipes its keys, and a move would leave a copy behind.
        *state = None;

        staged.unwrap_or_default()
    }

    fn session(&self) -> SessionState {
        self.with(|state| SessionState { staged: state.staged.len(), ..state.session })
    }
}

/// How `message` is to go.
fn outer(message: Option<Message>, path: Path) -> Outer {
    match message {
        Some(Message::Initiation | Message::Response { .. }) => Outer::handshake(path),
        Some(Message::CookieReply { .. } | Message::Data { .. }) | None => Outer::message(path),
    }
}

impl Opened {
    fn count(&mut self, error: &WireGuardError) {
        let reason = drop_reason(error);
        let counter = if reason == DropReason::NoSession {
            &mut self.no_session
        } else if reason == DropReason::Replayed {
            &mut self.replayed
        } else if reason == DropReason::Unauthenticated {
            &mut self.unauthenticated
        } else {
            &mut self.malformed
        };

        *counter += 1;
    }
}
