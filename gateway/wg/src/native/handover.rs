//! The state of a tunnel for a successor of this process.

use zeroize::Zeroizing;

use super::mac::Cookie;
use super::sessions::Sessions;
use super::state::State;
use super::timers::{KeepaliveTimers, Traffic};
use crate::handover::TunnelState;
use strait_aead::Lanes;

impl State {
    /// Everything but keys, which the successor has, and handshakes of ours under way, which it starts again.
    pub(super) fn export(&self, sessions: &Sessions, traffic: &Traffic) -> TunnelState {
        let mut staged = crate::Staged::default();
        for (packet, ecn) in self.staged.iter() {
            staged.push(packet, ecn);
        }

        TunnelState {
            number: self.number,
            sessions: sessions.export(),
            staged,
            wants_session: self.is_rekey_due || self.attempt.is_some(),
            answered: self.answered,
            cookie: self
                .cookie
                .as_ref()
                .map(|cookie| (Zeroizing::new(*cookie.value), cookie.received)),
            last_handshake: self.last_handshake,
            rtt: self.rtt,
            timers: self.timers.export(traffic),
            accepted: self.accepted().export(),
        }
    }

    /// Goes on from `state`. Returns the sessions.
    pub(super) fn import(&mut self, state: TunnelState, lanes: Lanes) -> Sessions {
        self.number = state.number;
        self.staged = state.staged;
        self.is_rekey_due = state.wants_session;
        self.answered = state.answered;
        self.cookie = state.cookie.map(|(value, received)| Cookie { value, received });
        self.last_handshake = state.last_handshake;
        self.rtt = state.rtt;
        self.timers = KeepaliveTimers::imported(&state.timers);
        self.accepted().import(&state.accepted);

        Sessions::imported(state.sessions, lanes)
    }
}
