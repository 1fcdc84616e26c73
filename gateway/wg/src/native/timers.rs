//! How long things last, and when something happened last.
//!
//! Source: WireGuard whitepaper, section 6.1 and 6.5.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::tunnel::REKEY_TIMEOUT;

/// After this the initiator of a session begins another one.
pub(super) const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);

/// After this a session is not used any more.
pub(super) const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);

/// Handshakes that were asked for within this of each other may cross: either end asks again after
/// [`REKEY_TIMEOUT`], unless it has heard the other one by then.
pub(super) const CROSSING: Duration = REKEY_TIMEOUT.saturating_mul(2);

/// After this the attempts end.
pub(super) const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);

/// After this whoever has received and has nothing to say says so.
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest random addition to [`REKEY_TIMEOUT`], so that two ends do not always begin at once. The whitepaper
/// has 333 ms, of which 100 are left to a clock that is looked at ten times a second.
pub(super) const JITTER_MAX: Duration = Duration::from_millis(233);

/// The least time between two initiations of one peer that are answered: fifty a second.
pub(super) const INITIATION_GAP: Duration = Duration::from_millis(20);

/// Longer than a datagram is under way: what is received this long after another one was sent after it.
pub(super) const MOMENT: Duration = Duration::from_secs(1);

/// After this whoever sends gets no answer where the session was made: the other end must have lost it.
pub(super) const NEW_HANDSHAKE_TIME: Duration = KEEPALIVE_TIMEOUT.saturating_add(REKEY_TIMEOUT);

/// After this also the responder begins another session, as the initiator should have.
pub(super) const RESPONDER_REKEY_TIME: Duration =
    REKEY_AFTER_TIME.saturating_add(NEW_HANDSHAKE_TIME);

/// So many milliseconds are more than a responder waits beyond [`RESPONDER_REKEY_TIME`]. Where two handshakes have
/// crossed, each end may have answered the session that it sends with, and both would begin together each time.
pub(super) const RESPONDER_JITTER_MILLIS: u32 = 8_000;

/// After this an initiator that only receives begins another session: the next moment may be too late.
pub(super) const RECEIVER_REKEY_TIME: Duration =
    REJECT_AFTER_TIME.saturating_sub(NEW_HANDSHAKE_TIME);

/// When packets went by, each direction on a cache line of its own: either only writes its own.
#[derive(Debug)]
pub(super) struct Traffic {
    base: Instant,
    /// Handshakes too.
    sent: Direction,
    received: Direction,
    /// When a message of a handshake was received, as in [`Direction`].
    handshake: AtomicU64,
}

/// When packets and keepalives went by, in microseconds since the base; 0 is never.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Direction {
    any: AtomicU64,
    data: AtomicU64,
}

/// What [`Traffic`] has seen at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    sent: u64,
    sent_data: u64,
    received: u64,
    received_data: u64,
}

impl Traffic {
    pub(super) fn new(base: Instant) -> Self {
        Self {
            base,
            sent: Direction::default(),
            received: Direction::default(),
            handshake: AtomicU64::new(0),
        }
    }

    /// Something authenticated was sent, data or none.
    #[inline]
    pub(super) fn count_sent(&self, has_data: bool, now: Instant) {
        self.sent.note(has_data, self.micros(now));
    }

    /// A packet or a keepalive was received that is authentic.
    #[inline]
    pub(super) fn count_received(&self, has_data: bool, now: Instant) {
        self.received.note(has_data, self.micros(now));
    }

    /// A message of a handshake was received that is authentic.
    pub(super) fn count_handshake(&self, now: Instant) {
        self.handshake.store(self.micros(now), Ordering::Relaxed);
    }

    /// Whether a packet or a keepalive was received within the last [`MOMENT`].
    pub(super) fn has_just_received(&self, now: Instant) -> bool {
        let last = self.received.any.load(Ordering::Relaxed);

        last != 0 && now.saturating_duration_since(self.instant(last)) < MOMENT
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            sent: self.sent.any.load(Ordering::Relaxed),
            sent_data: self.sent.data.load(Ordering::Relaxed),
            received: self
                .received
                .any
                .load(Ordering::Relaxed)
                .max(self.handshake.load(Ordering::Relaxed)),
            received_data: self.received.data.load(Ordering::Relaxed),
        }
    }

    /// The instant that [`Seen`] means.
    fn instant(&self, micros: u64) -> Instant {
        self.base + Duration::from_micros(micros)
    }

    #[inline]
    fn micros(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.base).as_micros();

        u64::try_from(elapsed).unwrap_or(u64::MAX).max(1)
    }
}

impl Direction {
    #[inline]
    fn note(&self, has_data: bool, micros: u64) {
        self.any.store(micros, Ordering::Relaxed);
        if has_data {
            self.data.store(micros, Ordering::Relaxed);
        }
    }
}

/// What is owed to a peer, found by looking at the traffic again and again.
#[derive(Debug, Default)]
pub(super) struct Debts {
    before: Seen,
    /// Data that we sent, and nothing has come since.
    unanswered: Option<Instant>,
    /// Data that came, and we have sent nothing since.
    unacknowledged: Option<Instant>,
}

/// What has happened since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    pub(super) has_sent: bool,
    pub(super) has_received: bool,
}

impl Debts {
    pub(super) fn look(&mut self, traffic: &Traffic) -> News {
        let seen = traffic.seen();
        let before = std::mem::replace(&mut self.before, seen);

        let news = News {
            has_sent: seen.sent != before.sent,
            has_received: seen.received != before.received,
        };
        let has_sent_data = seen.sent_data != before.sent_data;
        let has_received_data = seen.received_data != before.received_data;

        if news.has_received {
            self.unanswered = None;
        }
        // What waited for a handshake goes at the very moment at which its response came.
        if has_sent_data && self.unanswered.is_none() && seen.sent_data >= seen.received {
            self.unanswered = Some(traffic.instant(seen.sent_data));
        }
        if news.has_sent {
            self.unacknowledged = None;
        }
        // Within a microsecond nobody can say: one keepalive too many does no harm.
        let is_owed = seen.received_data >= seen.sent;
        if has_received_data && self.unacknowledged.is_none() && is_owed {
            self.unacknowledged = Some(traffic.instant(seen.received_data));
        }

        news
    }

    /// Whether nothing is owed.
    pub(super) const fn is_clear(&self) -> bool {
        self.unanswered.is_none() && self.unacknowledged.is_none()
    }

    /// Whether the peer should have said something by now. Asked for once.
    pub(super) fn take_silence(&mut self, now: Instant) -> bool {
        self.unanswered.take_if(|since| now >= *since + NEW_HANDSHAKE_TIME).is_some()
    }

    /// Whether we should have said something by now.
    pub(super) fn is_keepalive_due(&self, now: Instant) -> bool {
        self.unacknowledged.is_some_and(|since| now >= since + KEEPALIVE_TIMEOUT)
    }

    /// Whether nothing has gone either way for `interval`.
    pub(super) fn is_idle(&self, traffic: &Traffic, interval: Duration, now: Instant) -> bool {
        let last = self.before.sent.max(self.before.received);

        last == 0 || now >= traffic.instant(last) + interval
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_after_data_is_missed_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut debts) = (Traffic::new(start), Debts::default());
        traffic.count_received(false, at(0));
        traffic.count_sent(true, at(1));
        debts.look(&traffic);
        // More of it changes nothing.
        traffic.count_sent(true, at(9));
        debts.look(&traffic);

        assert!(!debts.take_silence(at(15)));
        assert!(debts.take_silence(at(16)));
        debts.look(&traffic);
        assert!(!debts.take_silence(at(99)), "nothing more was sent");
    }

    #[test]
    fn who_answers_the_handshake_and_not_what_waited_for_it_is_missed() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut debts) = (Traffic::new(start), Debts::default());
        traffic.count_received(false, at(1));
        traffic.count_sent(true, at(1));
        debts.look(&traffic);

        assert!(debts.take_silence(at(16)));
    }

    #[test]
    fn nobody_is_missed_who_has_answered_or_was_told_nothing() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut debts) = (Traffic::new(start), Debts::default());
        traffic.count_sent(false, at(1));
        debts.look(&traffic);
        assert!(!debts.take_silence(at(100)));

        traffic.count_sent(true, at(101));
        debts.look(&traffic);
        traffic.count_received(false, at(102));
        debts.look(&traffic);
        assert!(!debts.take_silence(at(200)));
    }

    #[test]
    fn data_is_acknowledged_by_whatever_is_sent() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut debts) = (Traffic::new(start), Debts::default());
        traffic.count_received(true, at(1));
        assert_eq!(debts.look(&traffic), News { has_sent: false, has_received: true });
        assert!(!debts.is_keepalive_due(at(10)));
        assert!(debts.is_keepalive_due(at(11)));

        traffic.count_sent(false, at(11));
        debts.look(&traffic);
        assert!(!debts.is_keepalive_due(at(100)));
        traffic.count_received(false, at(101));
        debts.look(&traffic);
        assert!(!debts.is_keepalive_due(at(200)), "a keepalive is not answered");
    }

    #[test]
    fn a_persistent_keepalive_is_due_when_nothing_goes_either_way() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut debts) = (Traffic::new(start), Debts::default());
        let interval = Duration::from_secs(25);
        assert!(debts.is_idle(&traffic, interval, at(0)));

        traffic.count_received(true, at(10));
        debts.look(&traffic);
        assert!(!debts.is_idle(&traffic, interval, at(34)));
        assert!(debts.is_idle(&traffic, interval, at(35)));
    }
}
