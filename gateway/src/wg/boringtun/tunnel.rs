//! The seam: a lock around the state of one peer, taken once per batch.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::{Tunn, TunnResult};

use super::state::{Answered, State, first_index, room_for};
use super::{commit, drop_reason};
use crate::DropReason;
use crate::buffer::{Outer, PacketBatch, TransmitBatch};
use crate::counters::as_u64;
use crate::packet::segment::Segments;
use crate::wg::message::{MAX_HANDSHAKE_BYTES, Message};
use crate::wg::tunnel::{Opened, Sealed, SessionState, TimedOut, Tunnel};

/// How long to wait before a peer that the library gave up is tried again, if it has a persistent
/// keepalive. The whitepaper's `REKEY_TIMEOUT`.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// One peer's state, for boringtun.
pub(super) struct BoringtunTunnel {
    state: Mutex<State>,
}

impl BoringtunTunnel {
    pub(super) fn new(tunn: Tunn, is_persistent: bool) -> Self {
        Self { state: Mutex::new(State::new(tunn, is_persistent)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut state = self.lock();
        if !state.session.is_established {
            let sealed = state.stage(segments, outer.ecn);
            state.initiate(outer.destination, out, now);
            return sealed;
        }

        let mut sealed = state.seal_staged(outer.destination, out);
        if !state.staged.is_empty() {
            return sealed;
        }
        while let Some(len) = segments.next_len() {
            let Some(room) = out.room(room_for(len)) else {
                break;
            };
            let Some(packet) = segments.next_segment() else {
                break;
            };
            if let TunnResult::WriteToNetwork(datagram) = state.tunn.encapsulate(packet, room) {
                let len = datagram.len();
                out.commit(len, outer, true);
                sealed.add(len);
            }
        }

        sealed
    }

    fn seal_staged(
        &self,
        destination: SocketAddr,
        out: &mut TransmitBatch,
        _now: Instant,
    ) -> Sealed {
        self.lock().seal_staged(destination, out)
    }

    fn open(&self, run: &[u8], stride: usize, out: &mut PacketBatch, now: Instant) -> Opened {
        let mut state = self.lock();
        let mut opened = Opened::default();

        for datagram in run.chunks(stride.max(1)) {
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

        if opened.authentic > 0 {
            state.confirm(first_index(run), now);
            opened.has_staged = !state.staged.is_empty();
        }

        opened
    }

    fn handle_handshake(
        &self,
        message: &[u8],
        source: SocketAddr,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<(), DropReason> {
        let mut state = self.lock();
        let mut reply = [0; MAX_HANDSHAKE_BYTES];

        match state.tunn.decapsulate(Some(source.ip()), message, &mut reply) {
            TunnResult::WriteToNetwork(datagram) => {
                let answer = Message::classify(datagram);
                commit(out, datagram, source);
                match answer {
                    Some(Message::Response { .. }) => {
                        let index = first_index(datagram);
                        state.answered = Some(Answered { at: now, index });
                    }
                    Some(Message::Data { .. }) => {
                        state.complete(now);
                        state.send_queued_keepalives(source, out);
                    }
                    _ => {}
                }
                Ok(())
            }
            TunnResult::Err(error) => Err(drop_reason(&error)),
            TunnResult::Done
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => Ok(()),
        }
    }

    fn handle_timeout(
        &self,
        destination: Option<SocketAddr>,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut {
        let mut state = self.lock();
        if !state.is_due(now) {
            return TimedOut::default();
        }
        let mut message = [0; MAX_HANDSHAKE_BYTES];
        let mut given_up = 0;

        match state.tunn.update_timers(&mut message) {
            TunnResult::WriteToNetwork(datagram) => {
                if Message::classify(datagram) == Some(Message::Initiation) {
                    state.asked = Some(now);
                }
                if let Some(destination) = destination {
                    commit(out, datagram, destination);
                }
            }
            TunnResult::Err(WireGuardError::ConnectionExpired) => {
                given_up = state.give_up();
                if !state.is_persistent {
                    state.asked = None;
                }
                let is_due = state.asked.is_none_or(|asked| now >= asked + RETRY_INTERVAL);
                if let Some(destination) = destination
                    && state.is_persistent
                    && is_due
                {
                    state.initiate(destination, out, now);
                }
            }
            TunnResult::Done
            | TunnResult::Err(_)
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => {}
        }
        state.session.is_established = state.tunn.time_since_last_handshake().is_some();
        let has_staged = state.session.is_established && !state.staged.is_empty();

        TimedOut { given_up, has_staged }
    }

    fn initiate(&self, destination: SocketAddr, out: &mut TransmitBatch, now: Instant) {
        self.lock().initiate(destination, out, now);
    }

    fn restart(&self, destination: SocketAddr, out: &mut TransmitBatch, now: Instant) {
        self.lock().restart(destination, out, now);
    }

    fn give_up(&self) -> u64 {
        self.lock().give_up()
    }

    fn session(&self) -> SessionState {
        let state = self.lock();

        SessionState { staged: state.staged.len(), ..state.session }
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
