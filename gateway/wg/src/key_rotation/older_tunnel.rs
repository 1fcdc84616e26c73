//! A tunnel of previous keys, and when it ends.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::{Deadline, KeyedTunnel};
use crate::Staged;
use crate::tunnel::SessionState;

/// A tunnel of keys that are not the newest.
#[derive(Clone, Debug)]
pub struct OlderTunnel {
    /// The tunnel.
    pub keyed: KeyedTunnel,
    /// The deadline of our key, unless it is the one in force.
    pub own_deadline: Option<Arc<Deadline>>,
    /// The deadline of the peer's keys, unless they are the newest.
    pub peer_deadline: Option<Arc<Deadline>>,
    /// Whether it only opens what the peer still sends.
    pub is_receive_only: bool,
    /// The last state of the tunnel, once it is closed.
    final_state: OnceLock<SessionState>,
}

impl OlderTunnel {
    /// A tunnel that is closed at the first of its deadlines.
    #[must_use]
    pub const fn new(
        keyed: KeyedTunnel,
        own_deadline: Option<Arc<Deadline>>,
        peer_deadline: Option<Arc<Deadline>>,
    ) -> Self {
        Self {
            keyed,
            own_deadline,
            peer_deadline,
            is_receive_only: false,
            final_state: OnceLock::new(),
        }
    }

    /// The same, with another value of `is_receive_only`.
    #[must_use]
    pub fn receive_only(self, is_receive_only: bool) -> Self {
        Self { is_receive_only, ..self }
    }

    /// Wipes the keys. The time of the last handshake is kept.
    pub(super) fn close(&self) -> Staged {
        self.final_state.get_or_init(|| self.keyed.tunnel.session().ended());

        self.keyed.tunnel.close()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.final_state.get().is_some()
    }

    pub(super) fn session(&self) -> SessionState {
        self.final_state.get().copied().unwrap_or_else(|| self.keyed.tunnel.session())
    }

    /// Whether it has ended by `now`.
    pub(super) fn handle_timeout(&self, now: Instant) -> bool {
        self.deadlines().any(|deadline| deadline.handle_timeout(now))
    }

    /// Whether it had ended at the last timeout.
    pub(super) fn has_ended(&self) -> bool {
        self.deadlines().any(|deadline| deadline.has_passed())
    }

    /// Whether the tunnel can be used with `deadlines`: not if it has ended. Revokes its own deadlines that are not
    /// among them.
    pub(super) fn try_reuse(&self, deadlines: [Option<&Arc<Deadline>>; 2]) -> bool {
        let stays = |own| deadlines.into_iter().flatten().any(|other| Arc::ptr_eq(other, own));

        !self.has_ended() && self.deadlines().all(|own| stays(own) || own.revoke())
    }

    fn deadlines(&self) -> impl Iterator<Item = &Arc<Deadline>> {
        self.own_deadline.iter().chain(&self.peer_deadline)
    }
}
