//! The tunnel: a lock around the state of one peer, taken once per batch, which a thread with a packet or two can
//! take between two packets of the batch.

use std::fmt;
use std::mem;
use std::sync::MutexGuard;
use std::time::Instant;

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::{Tunn, TunnResult};

use super::drop_reason;
use super::state::{SentResponse, State, first_index};
use super::yielding_mutex::YieldingMutex;
use crate::Staged;
use crate::message::{MAX_HANDSHAKE_BYTES, Message};
use crate::tunnel::{EndpointUpdate, Opened, Sealed, SessionState, TimedOut, TimerPolicy, Tunnel};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::path::Path;
use strait_packet::segment::Segments;

/// Up to this many packets may be handled between two packets of a batch.
const FEW: usize = 2;

/// One peer's state, for boringtun; `None` once it is closed.
pub(super) struct BoringtunTunnel {
    state: YieldingMutex<Option<State>>,
}

impl BoringtunTunnel {
    pub(super) fn new(tunn: Tunn) -> Self {
        Self { state: YieldingMutex::new(Some(State::new(tunn))) }
    }

    /// Locks the state for this many packets.
    fn lock_for(&self, packets: usize) -> MutexGuard<'_, Option<State>> {
        if packets <= FEW { self.state.lock_briefly() } else { self.state.lock() }
    }

    /// Calls `act` with the state unless it is closed.
    fn with<T: Default>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        self.state.lock().as_mut().map(act).unwrap_or_default()
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
        let mut guard = self.lock_for(segments.remaining());

        while let Some(state) = guard.as_mut() {
            if !state.session.is_established {
                sealed.overflow += state.staged.stage(segments, outer.ecn);
                state.initiate(outer.path, out, now);
                return sealed;
            }
            state.last_message = Some(now);
            if !state.seal_next(segments, outer, out, &mut sealed) {
                return sealed;
            }
            guard = self.state.yield_to_brief(guard);
        }

        sealed.overflow += segments.skip();
        sealed
    }

    fn seal_with_session(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Option<Sealed> {
        let mut sealed = None;
        let mut guard = self.lock_for(segments.remaining());

        while let Some(state) = guard.as_mut().filter(|state| state.session.is_established) {
            state.last_message = Some(now);
            if !state.seal_next(segments, outer, out, sealed.get_or_insert_default()) {
                break;
            }
            guard = self.state.yield_to_brief(guard);
        }

        sealed
    }

    fn seal_staged(&self, path: Path, out: &mut TransmitBatch, now: Instant) -> Sealed {
        self.with(|state| {
            let sealed = state.seal_staged(path, out);
            if sealed.packets > 0 {
                state.last_message = Some(now);
            }
            sealed
        })
    }

    fn open(&self, run: &[u8], stride: usize, out: &mut PacketBatch, now: Instant) -> Opened {
        let mut opened = Opened::default();
        let mut datagrams = run.chunks(stride.max(1));
        let mut guard = self.lock_for(datagrams.len());

        while let Some(datagram) = datagrams.next() {
            // Not before the state has recorded what confirms a session, below.
            if guard.as_ref().is_some_and(|state| state.session.is_established) {
                guard = self.state.yield_to_brief(guard);
            }
            let Some(state) = guard.as_mut() else {
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

        if let Some(state) = guard.as_mut().filter(|_| opened.authentic > 0) {
            state.confirm(first_index(run), now);
            state.last_message = Some(now);
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
    ) -> Result<EndpointUpdate, DropReason> {
        let mut state = self.state.lock();
        let state = state.as_mut().ok_or(DropReason::NoSession)?;
        let mut reply = [0; MAX_HANDSHAKE_BYTES];

        match state.tunn.decapsulate(Some(path.remote.ip()), message, &mut reply) {
            TunnResult::WriteToNetwork(datagram) => {
                let answer = Message::classify(datagram);
                out.push_message(datagram, outer(answer, path));
                state.last_message = Some(now);
                match answer {
                    Some(Message::Response { .. }) => {
                        let index = first_index(datagram);
                        state.responded = Some(SentResponse { at: now, index });
                    }
                    Some(Message::Data { .. }) => {
                        state.complete(now);
                        state.send_queued_keepalives(path, out);
                    }
                    _ => {}
                }
                Ok(EndpointUpdate::Learn)
            }
            TunnResult::Err(error) => Err(drop_reason(&error)),
            TunnResult::Done
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => Ok(EndpointUpdate::Learn),
        }
    }

    fn handle_timeout(
        &self,
        policy: TimerPolicy,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut {
        let TimerPolicy { path, persistent_keepalive, may_initiate } = policy;
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else {
            return TimedOut::default();
        };
        if !state.is_due(persistent_keepalive.is_some(), now) {
            return TimedOut::default();
        }
        let mut message = [0; MAX_HANDSHAKE_BYTES];
        let mut given_up = 0;

        match state.tunn.update_timers(&mut message) {
            TunnResult::WriteToNetwork(datagram) => {
                let message = Message::classify(datagram);
                let is_initiation = message == Some(Message::Initiation);
                if is_initiation && path.is_some() && !may_initiate {
                    // The library counts it as sent.
                    state.is_initiation_held = true;
                } else if let Some(path) = path {
                    out.push_message(datagram, outer(message, path));
                    state.last_message = Some(now);
                    state.initiated = if is_initiation { Some(now) } else { state.initiated };
                }
            }
            TunnResult::Err(WireGuardError::ConnectionExpired) => {
                given_up = state.give_up();
                state.is_initiation_held = false;
                if persistent_keepalive.is_none() {
                    state.initiated = None;
                }
            }
            TunnResult::Done
            | TunnResult::Err(_)
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => {}
        }
        state.expire();
        if let Some(path) = path {
            let is_idle = persistent_keepalive.is_some_and(|interval| state.is_idle(interval, now));
            let may_initiate = may_initiate && !state.is_handshaking(now);
            if may_initiate && mem::take(&mut state.is_initiation_held) {
                state.restart(path, out, now);
            } else if is_idle && state.session.is_established {
                state.send_keepalive(path, out, now);
            } else if is_idle && may_initiate {
                state.initiate(path, out, now);
            }
        }
        let has_staged = state.session.is_established && !state.staged.is_empty();

        TimedOut { given_up, has_staged }
    }

    fn is_handshaking(&self, now: Instant) -> bool {
        self.with(|state| state.is_handshaking(now))
    }

    fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        self.with(|state| state.initiate(path, out, now));
    }

    fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        self.with(|state| state.restart(path, out, now));
    }

    fn stage(&self, segments: &mut Segments<'_>, ecn: Ecn, _now: Instant) -> u64 {
        match self.state.lock().as_mut() {
            Some(state) => state.staged.stage(segments, ecn),
            None => segments.skip(),
        }
    }

    fn has_staged(&self) -> bool {
        // A thread that seals or opens holds the lock for a batch, and reports itself what is staged.
        self.state.try_lock().is_some_and(|state| state.as_ref().is_some_and(State::has_staged))
    }

    fn take_staged(&self) -> Staged {
        self.with(|state| mem::take(&mut state.staged))
    }

    fn append_staged(&self, staged: Staged) {
        self.with(|state| state.staged.append(staged));
    }

    fn close(&self) -> Staged {
        let mut state = self.state.lock();
        let staged = state.as_mut().map(|state| mem::take(&mut state.staged));
        // Dropped in place: the library wipes its keys, and a move would leave a copy.
        *state = None;

        staged.unwrap_or_default()
    }

    fn session(&self) -> SessionState {
        self.with(|state| SessionState { staged: state.staged.len(), ..state.session })
    }
}

/// The outer header for `message`.
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
