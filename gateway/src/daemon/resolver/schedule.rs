//! When one name is looked up, and what an answer means. Pure: time comes in as `now`.
//!
//! ```text
//!            poll_lookup, due                   answer: every 5 min
//!   Waiting ─────────────────▶ LookingUp ─────────────────────────────▶ Waiting
//!    ▲  │                       │         failure: 1 s, 2 s, .. 30 s     ▲
//!    │  │ no handshake for 15 s └────────────────────────────────────────┘
//!    └──┘ although one is wanted: due at once
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an answer is trusted while the peer answers.
pub(super) const REFRESH: Duration = Duration::from_secs(300);

/// How long a wanted handshake may fail before the name is asked again. The initiation is repeated
/// every 5 s (`REKEY_TIMEOUT`, WireGuard whitepaper section 6.1): three of them went unanswered.
pub(super) const UNANSWERED: Duration = Duration::from_secs(15);

/// First and longest pause after a failed lookup.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_LAST: Duration = Duration::from_secs(30);

/// The machine for one name.
#[derive(Debug)]
pub(super) struct Schedule {
    state: State,
    /// The address that the latest answer with a consequence led to.
    chosen: Option<SocketAddr>,
    failures: u32,
    unanswered_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waiting { due: Instant },
    LookingUp,
}

impl Schedule {
    /// A name that was never looked up; due at once.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Waiting { due: now },
            chosen: None,
            failures: 0,
            unanswered_since: None,
        }
    }

    /// The address in force as far as names are concerned.
    pub(super) fn chosen(&self) -> Option<SocketAddr> {
        self.chosen
    }

    /// Whether the latest lookup failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// The peer was looked at: does it want a handshake that it does not get?
    pub(super) fn handle_status(&mut self, wants_handshake: bool, now: Instant) {
        if !wants_handshake {
            self.unanswered_since = None;
            return;
        }

        let since = *self.unanswered_since.get_or_insert(now);
        // A name that cannot be resolved has a rhythm of its own.
        if now >= since + UNANSWERED && !self.is_failing() {
            self.unanswered_since = Some(now);
            if let State::Waiting { due } = &mut self.state {
                *due = now;
            }
        }
    }

    /// Whether to start a lookup now. After `true` one answer or failure must be handed in.
    #[must_use]
    pub(super) fn poll_lookup(&mut self, now: Instant) -> bool {
        match self.state {
            State::Waiting { due } if due <= now => {
                self.state = State::LookingUp;
                true
            }
            State::Waiting { .. } | State::LookingUp => false,
        }
    }

    /// The lookup led to `addresses`, the best first; `current` is where the peer is right now,
    /// learned or not. Returns the address to use instead, if any.
    ///
    /// An answer that still holds the chosen address changes nothing: a peer that roamed away from
    /// it was heard at its new address, and that is fresher than any name.
    pub(super) fn handle_answer(
        &mut self,
        addresses: &[SocketAddr],
        current: Option<SocketAddr>,
        now: Instant,
    ) -> Option<SocketAddr> {
        let Some(&first) = addresses.first() else {
            self.handle_failure(now);
            return None;
        };
        self.failures = 0;
        self.state = State::Waiting { due: now + REFRESH };

        if self.chosen.is_some_and(|chosen| addresses.contains(&chosen)) {
            return None;
        }
        if let Some(current) = current.filter(|current| addresses.contains(current)) {
            self.chosen = Some(current);
            return None;
        }
        self.chosen = Some(first);

        self.chosen
    }

    /// The lookup failed. What was chosen stays in force.
    pub(super) fn handle_failure(&mut self, now: Instant) {
        let pause = BACKOFF_FIRST.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.state = State::Waiting { due: now + pause.min(BACKOFF_LAST) };
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_is_looked_up_at_once_and_once() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);

        assert!(schedule.poll_lookup(now));
        assert!(!schedule.poll_lookup(now));
    }

    #[test]
    fn failures_double_the_pause_up_to_half_a_minute() {
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
    fn an_answer_ends_the_failures() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.handle_failure(now);

        schedule.handle_answer(&[address(1)], None, now);

        assert!(!schedule.is_failing());
        assert_eq!(schedule.chosen(), Some(address(1)));
        assert!(!schedule.poll_lookup(now + REFRESH - Duration::from_millis(1)));
        assert!(schedule.poll_lookup(now + REFRESH));
    }

    #[test]
    fn an_unchanged_answer_leaves_a_learned_endpoint_alone() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.handle_answer(&[address(1)], None, now);

        let change = schedule.handle_answer(&[address(2), address(1)], Some(address(9)), now);

        assert_eq!(change, None);
    }

    #[test]
    fn an_answer_without_the_chosen_address_replaces_it() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.handle_answer(&[address(1)], None, now);

        let change = schedule.handle_answer(&[address(2), address(3)], Some(address(1)), now);

        assert_eq!(change, Some(address(2)));
    }

    #[test]
    fn an_answer_that_confirms_a_learned_endpoint_adopts_it() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.handle_answer(&[address(1)], None, now);

        let change = schedule.handle_answer(&[address(2), address(3)], Some(address(3)), now);

        assert_eq!((change, schedule.chosen()), (None, Some(address(3))));
    }

    #[test]
    fn an_empty_answer_is_a_failure_that_forgets_nothing() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.handle_answer(&[address(1)], None, now);

        let change = schedule.handle_answer(&[], None, now);

        assert_eq!((change, schedule.chosen()), (None, Some(address(1))));
        assert!(schedule.is_failing());
    }

    #[test]
    fn an_unanswered_handshake_asks_again_every_15_s() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert!(schedule.poll_lookup(start));
        schedule.handle_answer(&[address(1)], None, start);
        let mut asked = Vec::new();

        for second in 0..40 {
            let now = start + Duration::from_secs(second);
            schedule.handle_status(true, now);
            if schedule.poll_lookup(now) {
                schedule.handle_answer(&[address(1)], None, now);
                asked.push(second);
            }
        }

        assert_eq!(asked, [15, 30]);
    }

    #[test]
    fn a_handshake_in_time_asks_nothing() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert!(schedule.poll_lookup(start));
        schedule.handle_answer(&[address(1)], None, start);

        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            schedule.handle_status(second % 10 != 0, now);
            assert!(!schedule.poll_lookup(now), "after {second} s");
        }
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 51840))
    }
}
