//! The state of a tunnel beside its sessions: keys, handshakes under way, and staged packets.
//!
//! It is behind a lock, which only handshakes, timers and packets without a session take.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::Shared;
use super::handshake::{PeerStatics, Pending};
use super::mac::{Cookie, Mac};
use super::timers::{KeepaliveTimers, REKEY_ATTEMPT_TIME};
use crate::Staged;
use crate::accepted::Accepted;
use crate::tai64n::Timestamp;
use crate::tunnel::REKEY_TIMEOUT;
use strait_packet::DropReason;

/// All secrets of a tunnel but those of its sessions. Dropping this wipes them.
pub(super) struct State {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: PeerStatics,
    /// The record that all tunnels of the peer share. Its lock is taken last, and held briefly.
    accepted: Arc<Mutex<Accepted>>,
    /// The number of the next handshake or session in the receiver index.
    pub(super) number: u8,
    pub(super) staged: Staged,
    /// Boxed: most peers have none most of the time.
    pub(super) attempt: Option<Box<Attempt>>,
    /// When the last initiation was sent, even if it was answered.
    last_initiation: Option<Instant>,
    pub(super) cookie: Option<Cookie>,
    /// mac1 of the last handshake message that we sent: a cookie reply must answer it.
    pub(super) last_mac: Option<Mac>,
    pub(super) timers: KeepaliveTimers,
    /// A rekey is due, and no initiation was sent for it yet.
    pub(super) is_rekey_due: bool,
    /// Nothing is sent, and no handshake begins or is answered.
    pub(super) has_ended: bool,
    /// Our unconfirmed response: when it was sent, and the sender index in it.
    pub(super) answered: Option<(Instant, u32)>,
    pub(super) last_handshake: Option<Instant>,
    pub(super) rtt: Option<Duration>,
}

/// A handshake of ours under way, with its repeated initiations.
pub(super) struct Attempt {
    /// When the first initiation was sent; `None` once the peer has answered one of them.
    unanswered_since: Option<Instant>,
    /// When the first initiation was sent, or a packet last needed a session.
    began: Instant,
    /// When the initiation is repeated.
    pub(super) next_at: Instant,
    newest: SentInitiation,
    /// The previous one, which may still be answered.
    previous: Option<SentInitiation>,
}

/// An initiation of ours. Its secrets are on the heap until they are wiped: moving an `Option` of them would copy
/// remains of the stack.
pub(super) struct SentInitiation {
    pub(super) pending: Box<Pending>,
    /// When it was sent.
    pub(super) at: Instant,
}

impl Attempt {
    /// The initiation that a response with this receiver index answers.
    pub(super) fn answered(&self, index: u32) -> Option<&SentInitiation> {
        let mut sent = std::iter::once(&self.newest).chain(&self.previous);

        sent.find(|sent| sent.pending.is_for(index))
    }

    /// Whether the peer has had [`REKEY_TIMEOUT`] to answer. A second initiation alone does not mean that: it may be
    /// requested before the answer to the first can arrive.
    fn is_unanswered(&self, now: Instant) -> bool {
        self.unanswered_since.is_some_and(|since| now >= since + REKEY_TIMEOUT)
    }

    /// Whether the attempts have taken [`REKEY_ATTEMPT_TIME`].
    pub(super) fn has_failed(&self, now: Instant) -> bool {
        now >= self.began + REKEY_ATTEMPT_TIME
    }
}

impl State {
    /// For a tunnel of `peer`. The first handshake number is random, so that a tunnel that replaces another one most
    /// likely uses other indices.
    pub(super) fn new(shared: Arc<Shared>, peer: PeerStatics) -> Self {
        Self {
            number: shared.random_byte(),
            accepted: shared.accepted(peer.peer),
            shared,
            peer,
            staged: Staged::default(),
            attempt: None,
            last_initiation: None,
            cookie: None,
            last_mac: None,
            timers: KeepaliveTimers::default(),
            is_rekey_due: false,
            has_ended: false,
            answered: None,
            last_handshake: None,
            rtt: None,
        }
    }

    /// The number of a handshake. A number is reused only after all others, so that a late datagram is not taken for
    /// one of another session.
    pub(super) const fn next_number(&mut self) -> u8 {
        let number = self.number;
        self.number = number.wrapping_add(1);

        number
    }

    /// Records an authentic initiation of the peer with this `timestamp`. See [`Accepted::take`].
    pub(super) fn accept(&self, timestamp: Timestamp, now: Instant) -> Result<(), DropReason> {
        self.accepted().take(self.shared.own.public, timestamp, now)
    }

    /// The timestamp for an initiation that is sent `now`: later than all earlier ones to the peer.
    ///
    /// It is ahead of the clock if the peer has not answered the ones before within [`REKEY_TIMEOUT`], and before the
    /// first session of a process that takes over from another one, whose initiations may have been ahead.
    pub(super) fn timestamp(&self, now: Instant) -> Timestamp {
        let since_1970 = self.shared.since_1970(now);
        let is_unanswered = self.attempt.as_ref().is_some_and(|attempt| attempt.is_unanswered(now));
        let takes_over = self.last_handshake.is_none() && self.shared.has_predecessor();

        self.accepted().ours.next(since_1970, is_unanswered || takes_over)
    }

    pub(super) fn accepted(&self) -> MutexGuard<'_, Accepted> {
        self.accepted.lock()
    }

    /// Whether no timer is pending, apart from those of sessions.
    pub(super) fn is_dormant(&self) -> bool {
        self.attempt.is_none() && self.staged.is_empty() && self.timers.are_stopped()
    }

    /// Whether a handshake is under way, and one of its messages was sent within [`REKEY_TIMEOUT`].
    pub(super) fn is_handshaking(&self, now: Instant) -> bool {
        let answered = self.answered.map(|(at, _)| at);

        self.last_initiation.max(answered).is_some_and(|at| now < at + REKEY_TIMEOUT)
    }

    /// A packet needs a session: a handshake under way gets another [`REKEY_ATTEMPT_TIME`] (whitepaper, section 6.4).
    pub(super) fn extend_attempt(&mut self, now: Instant) {
        if let Some(attempt) = &mut self.attempt {
            attempt.began = now;
        }
    }

    /// Records that `pending` is sent `now`, and repeated at `next_at`.
    pub(super) fn record_initiation(&mut self, pending: Pending, now: Instant, next_at: Instant) {
        let newest = SentInitiation { pending: Box::new(pending), at: now };
        self.last_initiation = Some(now);
        self.is_rekey_due = false;
        match &mut self.attempt {
            Some(attempt) => {
                attempt.previous = Some(mem::replace(&mut attempt.newest, newest));
                attempt.next_at = next_at;
            }
            None => {
                let unanswered_since = Some(now);
                let attempt =
                    Attempt { unanswered_since, began: now, next_at, newest, previous: None };
                self.attempt = Some(Box::new(attempt));
            }
        }
    }

    /// The initiation with this index was answered.
    ///
    /// A newer one stays: if the peer has received it, it has replaced the session of this answer, and only the
    /// answer to the newer one counts.
    pub(super) fn remove_answered(&mut self, index: u32) {
        self.attempt = self.attempt.take().filter(|attempt| !attempt.newest.pending.is_for(index));
        if let Some(attempt) = &mut self.attempt {
            attempt.previous = None;
            attempt.unanswered_since = None;
        }
    }

    /// Ends all handshakes, begins no other, and returns the staged packets.
    pub(super) fn end(&mut self) -> Staged {
        self.has_ended = true;
        self.attempt = None;
        self.last_initiation = None;
        self.answered = None;
        self.is_rekey_due = false;

        mem::take(&mut self.staged)
    }

    /// A handshake was completed, in which our message was sent at `sent`.
    pub(super) fn complete(&mut self, sent: Instant, now: Instant) {
        self.is_rekey_due = false;
        self.last_handshake = Some(now);
        self.rtt = Some(now.saturating_duration_since(sent));
    }
}
