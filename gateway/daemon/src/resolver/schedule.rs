//! Schedules the lookups of one name. Pure: time is passed in as `now`.
//!
//! ```text
//!            poll_lookup, due              answer: when its TTL is over, 5 s at the least
//!   Waiting ─────────────────▶ LookingUp ───────────────────────────────────────────────▶ Waiting
//!    ▲  │                       │         failure: 1 s, 2 s, .. 30 s                       ▲
//!    │  │ unanswered: due now   └──────────────────────────────────────────────────────────┘
//!    └──┘
//! ```
//!
//! A name is looked up every 5 s during the first ten minutes, as by Liqo's gateways, and during ten minutes after
//! handshakes begin to fail; later after its TTL, at most after the configured interval.

use std::time::{Duration, Instant};

/// Default interval between lookups after the first minutes. Liqo's value.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(300);

/// Interval in the fast period. Also the minimum for TTLs.
const FAST_INTERVAL: Duration = Duration::from_secs(5);

/// Length of the fast period.
const FAST_PERIOD: Duration = Duration::from_secs(600);

/// Maximum interval while handshakes are not answered.
const UNANSWERED_INTERVAL: Duration = Duration::from_secs(30);

/// Minimum interval between lookups.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// First and longest pause after a failed lookup.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_LAST: Duration = Duration::from_secs(30);

/// The state machine of one name.
#[derive(Debug)]
pub(super) struct Schedule {
    state: State,
    fast_until: Instant,
    is_unanswered: bool,
    failures: u32,
    last_begun: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waiting { due: Instant },
    LookingUp,
}

impl Schedule {
    /// Schedules a new name; it is due at once.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Waiting { due: now },
            fast_until: now + FAST_PERIOD,
            is_unanswered: false,
            failures: 0,
            last_begun: None,
        }
    }

    /// Whether the last lookup failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Sets whether handshakes with peers of this name are unanswered. Only the beginning of that makes a lookup due.
    pub(super) fn set_unanswered(&mut self, is_unanswered: bool, now: Instant) {
        let is_new = is_unanswered && !self.is_unanswered;
        self.is_unanswered = is_unanswered;
        if is_new {
            self.look_up_now(now);
        }
    }

    /// Makes the next lookup due, because the address may have changed.
    pub(super) fn look_up_now(&mut self, now: Instant) {
        self.fast_until = now + FAST_PERIOD;
        if let State::Waiting { due } = &mut self.state {
            let earliest = self.last_begun.map_or(now, |begun| now.max(begun + MIN_INTERVAL));
            *due = earliest.min(*due);
        }
    }

    /// Whether to start a lookup now. After `true` one answer or failure must be reported.
    #[must_use]
    pub(super) fn poll_lookup(&mut self, now: Instant) -> bool {
        match self.state {
            State::Waiting { due } if due <= now => {
                self.state = State::LookingUp;
                self.last_begun = Some(now);
                true
            }
            State::Waiting { .. } | State::LookingUp => false,
        }
    }

    /// The lookup succeeded; its answer is valid for `ttl`, if known, but at most for `check_interval`.
    pub(super) fn handle_answer(
        &mut self,
        ttl: Option<Duration>,
        check_interval: Duration,
        now: Instant,
    ) {
        self.failures = 0;
        let longest = if now < self.fast_until {
            FAST_INTERVAL
        } else if self.is_unanswered {
            check_interval.min(UNANSWERED_INTERVAL)
        } else {
            check_interval
        };
        let pause = ttl.unwrap_or(longest).max(FAST_INTERVAL).min(longest).max(MIN_INTERVAL);
        self.state = State::Waiting { due: now + pause };
    }

    /// The lookup failed. Known addresses stay in use.
    pub(super) fn handle_failure(&mut self, now: Instant) {
        let pause = BACKOFF_FIRST.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.state = State::Waiting { due: now + pause.min(BACKOFF_LAST) };
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_new_name_is_looked_up_at_once() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);

        assert!(schedule.poll_lookup(now));
        assert!(!schedule.poll_lookup(now));
    }

    #[test]
    fn failures_double_the_pause_up_to_30s() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);

        for pause in [1, 2, 4, 8, 16, 30, 30, 30] {
            assert!(schedule.poll_lookup(now));
            schedule.handle_failure(now);
            now += Duration::from_secs(pause) - Duration::from_millis(1);
            assert!(!schedule.poll_lookup(now), "before {pause} s");
            now += Duration::from_millis(1);
        }
    }

    #[test]
    fn the_ttl_counts_after_ten_minutes() {
        let asked = lookups(Some(90 * SECOND), 20 * MINUTE, |_| false);

        let (first, later): (Vec<_>, Vec<_>) = asked.into_iter().partition(|second| *second <= 600);
        assert_eq!(first, (0..=600).step_by(5).collect::<Vec<_>>());
        assert_eq!(later, (690..1200).step_by(90).collect::<Vec<_>>());
    }

    #[test]
    fn the_check_interval_bounds_the_ttl() {
        for ttl in [None, Some(24 * 60 * MINUTE)] {
            let asked = lookups(ttl, 30 * MINUTE, |_| false);

            let later: Vec<_> = asked.into_iter().filter(|second| *second > 600).collect();
            assert_eq!(later, [900, 1200, 1500], "{ttl:?}");
        }
    }

    #[test]
    fn a_zero_ttl_means_five_seconds() {
        let asked = lookups(Some(Duration::ZERO), 20 * MINUTE, |_| false);

        assert_eq!(asked, (0..1200).step_by(5).collect::<Vec<_>>());
    }

    #[test]
    fn unanswered_handshakes_speed_up_lookups() {
        let asked = lookups(None, 40 * MINUTE, |second| second >= 1000);

        let later: Vec<_> = asked.into_iter().filter(|second| *second > 900).collect();
        assert_eq!(later[..3], [1000, 1005, 1010]);
        assert_eq!(later.iter().filter(|second| **second <= 1600).count(), 121);
        assert_eq!(later[121..124], [1630, 1660, 1690], "while it lasts");
    }

    #[test]
    fn look_up_now_waits_the_minimum_interval() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        assert!(schedule.poll_lookup(now));
        schedule.handle_answer(None, CHECK_INTERVAL, now);

        schedule.look_up_now(now);

        assert!(!schedule.poll_lookup(now + SECOND / 2));
        assert!(schedule.poll_lookup(now + SECOND));
    }

    #[test]
    fn an_answer_ends_the_failures() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.handle_failure(now);
        assert!(schedule.is_failing());

        schedule.handle_answer(None, CHECK_INTERVAL, now);

        assert!(!schedule.is_failing());
    }

    proptest! {
        /// At least a second apart, and at most the interval or half a minute.
        #[test]
        fn pauses_are_bounded(
            events in prop::collection::vec((0u8..4, 0u64..4000), 1..60),
            interval_s in 1u64..1000,
        ) {
            let interval = Duration::from_secs(interval_s);
            let mut now = Instant::now();
            let mut schedule = Schedule::new(now);
            let mut begun: Option<Instant> = None;

            for (event, ttl) in events {
                while !schedule.poll_lookup(now) {
                    now += SECOND / 4;
                    if event == 3 {
                        schedule.look_up_now(now);
                    }
                }
                if let Some(before) = begun.replace(now) {
                    let pause = now - before;
                    prop_assert!(pause >= SECOND, "{:?}", pause);
                    prop_assert!(pause <= interval.max(BACKOFF_LAST), "{:?}", pause);
                }
                match event {
                    0 => schedule.handle_failure(now),
                    _ => schedule.handle_answer(Some(Duration::from_secs(ttl)), interval, now),
                }
            }
        }
    }

    /// The seconds at which lookups start, if each is answered at once.
    fn lookups(
        ttl: Option<Duration>,
        duration: Duration,
        is_unanswered: impl Fn(u64) -> bool,
    ) -> Vec<u64> {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        let mut asked = Vec::new();

        for second in 0..duration.as_secs() {
            let now = start + Duration::from_secs(second);
            schedule.set_unanswered(is_unanswered(second), now);
            if schedule.poll_lookup(now) {
                schedule.handle_answer(ttl, CHECK_INTERVAL, now);
                asked.push(second);
            }
        }

        asked
    }
}
