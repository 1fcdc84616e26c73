//! Timer constants, and the times of the last packets.
//!
//! Source: WireGuard whitepaper, section 6.1 and 6.5.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::handover::TimerState;
use crate::tunnel::REKEY_TIMEOUT;

/// The initiator of a session rekeys after this.
pub(super) const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);

/// A session is rejected after this.
pub(super) const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);

/// Initiations of both ends within this time may have crossed: each end repeats its initiation after
/// [`REKEY_TIMEOUT`] unless it has received the other one by then.
pub(super) const CROSSING: Duration = REKEY_TIMEOUT.saturating_mul(2);

/// Initiations are repeated for this long.
pub(super) const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);

/// The delay of the passive keepalive: sent if nothing else was sent since data was received.
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest random addition to [`REKEY_TIMEOUT`], so that two ends do not always initiate together. The whitepaper
/// has 333 ms, of which 100 are left for timers that run ten times a second.
pub(super) const JITTER_MAX: Duration = Duration::from_millis(233);

/// Longer than a datagram is under way: of two datagrams received further apart, the later one was sent later.
pub(super) const MAX_TRANSIT: Duration = Duration::from_secs(1);

/// Without an answer to data for this long a new handshake begins: the peer must have lost the session.
pub(super) const NEW_HANDSHAKE_TIME: Duration = KEEPALIVE_TIMEOUT.saturating_add(REKEY_TIMEOUT);

/// The responder rekeys after this, as the initiator should have done before.
pub(super) const RESPONDER_REKEY_TIME: Duration =
    REKEY_AFTER_TIME.saturating_add(NEW_HANDSHAKE_TIME);

/// The exclusive bound of the jitter added to [`RESPONDER_REKEY_TIME`], in milliseconds. After two handshakes have
/// crossed, each end may be the responder of the session that it sends with, and both would rekey together each time.
pub(super) const RESPONDER_JITTER_MILLIS: u32 = 8_000;

/// An initiator that only receives rekeys after this, so that the new session is there before the old one is
/// rejected.
pub(super) const RECEIVER_REKEY_TIME: Duration =
    REJECT_AFTER_TIME.saturating_sub(NEW_HANDSHAKE_TIME);

/// The times of the last packets, each direction on a cache line of its own: each thread writes only its own.
#[derive(Debug)]
pub(super) struct Traffic {
    base: Instant,
    /// Includes handshakes.
    sent: Direction,
    received: Direction,
    /// The time of the last handshake message received, as in [`Direction`].
    handshake: AtomicU64,
}

/// The times of the last packet or keepalive, and of the last packet, in microseconds since the base; 0 is never.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Direction {
    any: AtomicU64,
    data: AtomicU64,
}

/// A copy of the times in [`Traffic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrafficTimes {
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

    /// An authenticated message was sent, with or without data.
    #[inline]
    pub(super) fn count_sent(&self, has_data: bool, now: Instant) {
        self.sent.note(has_data, self.micros(now));
    }

    /// An authentic packet or keepalive was received.
    #[inline]
    pub(super) fn count_received(&self, has_data: bool, now: Instant) {
        self.received.note(has_data, self.micros(now));
    }

    /// An authentic handshake message was received.
    pub(super) fn count_handshake(&self, now: Instant) {
        self.handshake.store(self.micros(now), Ordering::Relaxed);
    }

    /// Whether a packet or a keepalive was received within the last [`MAX_TRANSIT`].
    pub(super) fn has_just_received(&self, now: Instant) -> bool {
        let last = self.received.any.load(Ordering::Relaxed);

        last != 0 && now.saturating_duration_since(self.instant(last)) < MAX_TRANSIT
    }

    /// The times of the predecessor of this process, which had the same base.
    pub(super) fn import(&self, [sent, sent_data, received, received_data, handshake]: [u64; 5]) {
        for (time, micros) in [
            (&self.sent.any, sent),
            (&self.sent.data, sent_data),
            (&self.received.any, received),
            (&self.received.data, received_data),
            (&self.handshake, handshake),
        ] {
            time.store(micros, Ordering::Relaxed);
        }
    }

    /// The times for [`Self::import`].
    pub(super) fn export(&self) -> [u64; 5] {
        [&self.sent.any, &self.sent.data, &self.received.any, &self.received.data, &self.handshake]
            .map(|time| time.load(Ordering::Relaxed))
    }

    pub(super) fn times(&self) -> TrafficTimes {
        TrafficTimes {
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

    /// The instant of a time in [`TrafficTimes`].
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

/// The passive keepalive timer and the new-handshake timer, updated from the traffic times at each timeout.
#[derive(Debug, Default)]
pub(super) struct KeepaliveTimers {
    last: TrafficTimes,
    /// When we sent data, if nothing was received since.
    unanswered: Option<Instant>,
    /// When data was received, if nothing was sent since.
    unacknowledged: Option<Instant>,
}

/// Traffic since the last update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    pub(super) has_sent: bool,
    pub(super) has_received: bool,
}

impl KeepaliveTimers {
    /// The timers and the times of the traffic for a successor of this process.
    pub(super) fn export(&self, traffic: &Traffic) -> TimerState {
        let TrafficTimes { sent, sent_data, received, received_data } = self.last;

        TimerState {
            last: traffic.export(),
            last_seen: [sent, sent_data, received, received_data],
            unanswered: self.unanswered,
            unacknowledged: self.unacknowledged,
        }
    }

    /// The timers of the predecessor of this process.
    pub(super) const fn imported(state: &TimerState) -> Self {
        let [sent, sent_data, received, received_data] = state.last_seen;

        Self {
            last: TrafficTimes { sent, sent_data, received, received_data },
            unanswered: state.unanswered,
            unacknowledged: state.unacknowledged,
        }
    }

    /// Starts and stops the timers as the traffic requires.
    pub(super) fn update(&mut self, traffic: &Traffic) -> Activity {
        let seen = traffic.times();
        let before = std::mem::replace(&mut self.last, seen);

        let activity = Activity {
            has_sent: seen.sent != before.sent,
            has_received: seen.received != before.received,
        };
        let has_sent_data = seen.sent_data != before.sent_data;
        let has_received_data = seen.received_data != before.received_data;

        if activity.has_received {
            self.unanswered = None;
        }
        // Staged packets are sent at the same instant at which the response was received.
        if has_sent_data && self.unanswered.is_none() && seen.sent_data >= seen.received {
            self.unanswered = Some(traffic.instant(seen.sent_data));
        }
        if activity.has_sent {
            self.unacknowledged = None;
        }
        // Within one microsecond the order is unknown: one keepalive too many does no harm.
        let is_owed = seen.received_data >= seen.sent;
        if has_received_data && self.unacknowledged.is_none() && is_owed {
            self.unacknowledged = Some(traffic.instant(seen.received_data));
        }

        activity
    }

    /// Whether neither timer runs.
    pub(super) const fn are_stopped(&self) -> bool {
        self.unanswered.is_none() && self.unacknowledged.is_none()
    }

    /// Whether the new-handshake timer has expired. Stops it then.
    pub(super) fn take_new_handshake(&mut self, now: Instant) -> bool {
        self.unanswered.take_if(|since| now >= *since + NEW_HANDSHAKE_TIME).is_some()
    }

    /// Whether a passive keepalive is due.
    pub(super) fn is_keepalive_due(&self, now: Instant) -> bool {
        self.unacknowledged.is_some_and(|since| now >= since + KEEPALIVE_TIMEOUT)
    }

    /// Whether there was no traffic in either direction for `interval`.
    pub(super) fn is_idle(&self, traffic: &Traffic, interval: Duration, now: Instant) -> bool {
        let last = self.last.sent.max(self.last.received);

        last == 0 || now >= traffic.instant(last) + interval
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test may start at any instant")]
mod tests {
    use super::*;

    #[test]
    fn unanswered_data_triggers_one_new_handshake() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut timers) = (Traffic::new(start), KeepaliveTimers::default());
        traffic.count_received(false, at(0));
        traffic.count_sent(true, at(1));
        timers.update(&traffic);
        // More data does not restart the timer.
        traffic.count_sent(true, at(9));
        timers.update(&traffic);

        assert!(!timers.take_new_handshake(at(15)));
        assert!(timers.take_new_handshake(at(16)));
        timers.update(&traffic);
        assert!(!timers.take_new_handshake(at(99)), "nothing more was sent");
    }

    #[test]
    fn a_handshake_response_does_not_answer_staged_data() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut timers) = (Traffic::new(start), KeepaliveTimers::default());
        traffic.count_received(false, at(1));
        traffic.count_sent(true, at(1));
        timers.update(&traffic);

        assert!(timers.take_new_handshake(at(16)));
    }

    #[test]
    fn without_unanswered_data_no_handshake_begins() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut timers) = (Traffic::new(start), KeepaliveTimers::default());
        traffic.count_sent(false, at(1));
        timers.update(&traffic);
        assert!(!timers.take_new_handshake(at(100)));

        traffic.count_sent(true, at(101));
        timers.update(&traffic);
        traffic.count_received(false, at(102));
        timers.update(&traffic);
        assert!(!timers.take_new_handshake(at(200)));
    }

    #[test]
    fn received_data_is_acknowledged_by_a_keepalive() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut timers) = (Traffic::new(start), KeepaliveTimers::default());
        traffic.count_received(true, at(1));
        assert_eq!(timers.update(&traffic), Activity { has_sent: false, has_received: true });
        assert!(!timers.is_keepalive_due(at(10)));
        assert!(timers.is_keepalive_due(at(11)));

        traffic.count_sent(false, at(11));
        timers.update(&traffic);
        assert!(!timers.is_keepalive_due(at(100)));
        traffic.count_received(false, at(101));
        timers.update(&traffic);
        assert!(!timers.is_keepalive_due(at(200)), "a keepalive is not answered");
    }

    #[test]
    fn a_persistent_keepalive_is_due_without_traffic() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (traffic, mut timers) = (Traffic::new(start), KeepaliveTimers::default());
        let interval = Duration::from_secs(25);
        assert!(timers.is_idle(&traffic, interval, at(0)));

        traffic.count_received(true, at(10));
        timers.update(&traffic);
        assert!(!timers.is_idle(&traffic, interval, at(34)));
        assert!(timers.is_idle(&traffic, interval, at(35)));
    }
}
