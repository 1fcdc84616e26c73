//! What a tunnel knows beside its sessions: keys, handshakes under way, and packets that wait for one.
//!
//! Only handshakes, timers and packets without a session come here; it stands behind a lock.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::Shared;
use super::accepted::Accepted;
use super::handshake::{Acquaintance, Pending};
use super::mac::{Cookie, Mac};
use super::tai64n::Timestamp;
use super::timers::{Debts, REKEY_ATTEMPT_TIME};
use crate::Staged;
use crate::tunnel::REKEY_TIMEOUT;
use strait_packet::DropReason;

/// All secrets of a tunnel but those of its sessions: with this they go.
pub(super) struct State {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: Acquaintance,
    /// By whatever tunnel of the peer, and how ours to it were dated. Locked for a moment, after everything else.
    accepted: Arc<Mutex<Accepted>>,
    /// What the next handshake of ours is to be called.
    number: u8,
    pub(super) staged: Staged,
    /// Most peers are not asked most of the time.
    pub(super) attempt: Option<Box<Attempt>>,
    /// When the last initiation went, whatever has become of it.
    asked: Option<Instant>,
    pub(super) cookie: Option<Cookie>,
    /// The first MAC of the last message that we sent: a cookie reply must answer it.
    pub(super) last_mac: Option<Mac>,
    pub(super) debts: Debts,
    /// A session is to take the place of the one in use, and was not asked for yet.
    pub(super) is_rekey_due: bool,
    /// Nothing is sent any more, and no handshake begun or answered.
    pub(super) has_ended: bool,
    /// A response of ours that nothing has confirmed yet: when it went, and the index in it.
    pub(super) answered: Option<(Instant, u32)>,
    pub(super) last_handshake: Option<Instant>,
    pub(super) rtt: Option<Duration>,
}

/// Initiations of ours, for one purpose.
pub(super) struct Attempt {
    /// When the first of them went, or somebody last wanted a session.
    began: Instant,
    /// When the next is to go.
    pub(super) again: Instant,
    newest: Asked,
    /// The one before may yet be answered.
    before: Option<Asked>,
}

/// An initiation. Its secrets stay where they are until they are wiped: where there is none, whatever was on the stack
/// would be moved in its place.
pub(super) struct Asked {
    pub(super) pending: Box<Pending>,
    /// When it went.
    pub(super) at: Instant,
}

impl Attempt {
    /// The initiation that a response with this receiver index answers.
    pub(super) fn answered(&self, index: u32) -> Option<&Asked> {
        let mut asked = std::iter::once(&self.newest).chain(&self.before);

        asked.find(|asked| asked.pending.is_for(index))
    }

    /// Whether it is time to give up.
    pub(super) fn has_failed(&self, now: Instant) -> bool {
        now >= self.began + REKEY_ATTEMPT_TIME
    }
}

impl State {
    /// Of a tunnel of `peer`. What its handshakes are called begins anywhere: whoever takes the place of
    /// another tunnel should begin somewhere else.
    pub(super) fn new(shared: Arc<Shared>, peer: Acquaintance) -> Self {
        Self {
            number: shared.random_byte(),
            accepted: shared.accepted(peer.peer),
            shared,
            peer,
            staged: Staged::default(),
            attempt: None,
            asked: None,
            cookie: None,
            last_mac: None,
            debts: Debts::default(),
            is_rekey_due: false,
            has_ended: false,
            answered: None,
            last_handshake: None,
            rtt: None,
        }
    }

    /// What to call a handshake: each number comes again only after all others, so that what is late for one
    /// session or attempt is not taken for another's.
    pub(super) const fn next_number(&mut self) -> u8 {
        let number = self.number;
        self.number = number.wrapping_add(1);

        number
    }

    /// Takes an authentic initiation of the peer, which was made at `timestamp`. See [`Accepted::take`].
    pub(super) fn accept(&self, timestamp: Timestamp, now: Instant) -> Result<(), DropReason> {
        self.accepted().take(self.shared.own.public, timestamp, now)
    }

    /// For an initiation that is sent `now`: later than those that the peer was sent before.
    pub(super) fn timestamp(&self, now: Instant) -> Timestamp {
        let date = self.shared.date(now);

        self.accepted().ours.next(date, self.attempt.is_some())
    }

    fn accepted(&self) -> MutexGuard<'_, Accepted> {
        self.accepted.lock()
    }

    /// Whether nothing waits for time to pass, if there is no session.
    pub(super) fn is_at_rest(&self) -> bool {
        self.attempt.is_none() && self.staged.is_empty() && self.debts.is_clear()
    }

    /// Whether a message is on its way that a session may come of.
    pub(super) fn is_asking(&self, now: Instant) -> bool {
        let answered = self.answered.map(|(at, _)| at);

        self.asked.max(answered).is_some_and(|at| now < at + REKEY_TIMEOUT)
    }

    /// Somebody wants a session: what is under way for one goes on as if it had begun `now` (whitepaper,
    /// section 6.4).
    pub(super) fn want_session(&mut self, now: Instant) {
        if let Some(attempt) = &mut self.attempt {
            attempt.began = now;
        }
    }

    /// Notes that `pending` goes `now`, and is to be repeated at `again`.
    pub(super) fn ask(&mut self, pending: Pending, now: Instant, again: Instant) {
        let newest = Asked { pending: Box::new(pending), at: now };
        self.asked = Some(now);
        self.is_rekey_due = false;
        match &mut self.attempt {
            Some(attempt) => {
                attempt.before = Some(mem::replace(&mut attempt.newest, newest));
                attempt.again = again;
            }
            None => {
                let attempt = Attempt { began: now, again, newest, before: None };
                self.attempt = Some(Box::new(attempt));
            }
        }
    }

    /// The initiation with this index was answered.
    ///
    /// A newer one stays: if it has arrived, the peer has forgotten what it answered before, and what is
    /// agreed on then is what counts.
    pub(super) fn forget(&mut self, index: u32) {
        self.attempt = self.attempt.take().filter(|attempt| !attempt.newest.pending.is_for(index));
        if let Some(attempt) = &mut self.attempt {
            attempt.before = None;
        }
    }

    /// Forgets every handshake under way, begins no other, and gives away what is staged.
    pub(super) fn end(&mut self) -> Staged {
        self.has_ended = true;
        self.attempt = None;
        self.asked = None;
        self.answered = None;
        self.is_rekey_due = false;

        mem::take(&mut self.staged)
    }

    /// A handshake was completed that had begun with a message sent at `asked`.
    pub(super) fn complete(&mut self, asked: Instant, now: Instant) {
        self.is_rekey_due = false;
        self.last_handshake = Some(now);
        self.rtt = Some(now.saturating_duration_since(asked));
    }
}
