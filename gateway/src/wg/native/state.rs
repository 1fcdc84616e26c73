//! What a tunnel knows beside its sessions: handshakes under way, and packets that wait for one.
//!
//! Only handshakes, timers and packets without a session come here; it stands behind a lock.

use std::time::{Duration, Instant};

use super::handshake::Pending;
use super::mac::{Cookie, Mac};
use super::tai64n::{Timestamp, Timestamps};
use super::timers::{Debts, INITIATION_GAP, REKEY_ATTEMPT_TIME, REKEY_TIMEOUT};
use crate::DropReason;
use crate::wg::Staged;

pub(super) struct State {
    pub(super) staged: Staged,
    pub(super) attempt: Option<Attempt>,
    pub(super) cookie: Option<Cookie>,
    /// The first MAC of the last message that we sent: a cookie reply must answer it.
    pub(super) last_mac: Option<Mac>,
    pub(super) timestamps: Timestamps,
    pub(super) accepted: Accepted,
    pub(super) debts: Debts,
    /// A response of ours that nothing has confirmed yet: when it went, and the index in it.
    pub(super) answered: Option<(Instant, u32)>,
    pub(super) last_handshake: Option<Instant>,
    pub(super) rtt: Option<Duration>,
}

/// Initiations of ours, for one purpose.
pub(super) struct Attempt {
    /// When the first of them went.
    pub(super) began: Instant,
    /// When the last of them went.
    pub(super) asked: Instant,
    /// When the next is to go.
    pub(super) again: Instant,
    /// The last two, the newest first: the one before may yet be answered.
    pub(super) pending: [Option<Pending>; 2],
}

impl Attempt {
    /// The initiation that a response with this receiver index answers.
    pub(super) fn answered(&self, index: u32) -> Option<&Pending> {
        self.pending.iter().flatten().find(|pending| pending.is_for(index))
    }

    /// Whether it is time to give up.
    pub(super) fn has_failed(&self, now: Instant) -> bool {
        now >= self.began + REKEY_ATTEMPT_TIME
    }
}

impl State {
    pub(super) fn new(timestamps: Timestamps) -> Self {
        Self {
            staged: Staged::default(),
            attempt: None,
            cookie: None,
            last_mac: None,
            timestamps,
            accepted: Accepted::default(),
            debts: Debts::default(),
            answered: None,
            last_handshake: None,
            rtt: None,
        }
    }

    /// Whether an initiation is on its way.
    pub(super) fn is_asking(&self, now: Instant) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| now < attempt.asked + REKEY_TIMEOUT)
    }

    /// Notes that `pending` goes `now`, and is to be repeated at `again`.
    pub(super) fn ask(&mut self, pending: Pending, now: Instant, again: Instant) {
        let (began, former) = match self.attempt.take() {
            Some(Attempt { began, pending: [former, _], .. }) => (began, former),
            None => (now, None),
        };
        let pending = [Some(pending), former];

        self.attempt = Some(Attempt { began, asked: now, again, pending });
    }

    /// A handshake was completed that had begun with a message sent at `asked`.
    pub(super) fn complete(&mut self, asked: Instant, now: Instant) {
        self.last_handshake = Some(now);
        self.rtt = Some(now.saturating_duration_since(asked));
    }
}

/// Which initiations of the peer were answered.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    newest: Option<Timestamp>,
    at: Option<Instant>,
}

impl Accepted {
    /// Takes an authentic initiation, which was made at `timestamp`.
    ///
    /// # Errors
    ///
    /// [`DropReason::Replayed`] if it is not newer than the one before, [`DropReason::UnderLoad`] if it
    /// comes too soon after that.
    pub(super) fn take(&mut self, timestamp: Timestamp, now: Instant) -> Result<(), DropReason> {
        if self.newest.is_some_and(|newest| timestamp <= newest) {
            return Err(DropReason::Replayed);
        }
        if self.at.is_some_and(|at| now < at + INITIATION_GAP) {
            return Err(DropReason::UnderLoad);
        }
        self.newest = Some(timestamp);
        self.at = Some(now);

        Ok(())
    }
}
