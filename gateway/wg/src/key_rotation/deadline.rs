//! The deadline of a key.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use super::GRACE;

/// The deadline of a key: a grace period after the first timeout, unless it is revoked before.
#[derive(Debug, Default)]
pub struct Deadline {
    at: OnceLock<Instant>,
    /// [`PENDING`] at first. It changes once, either by a timeout or by a revocation.
    state: AtomicU8,
}

const PENDING: u8 = 0;
const PASSED: u8 = 1;
const REVOKED: u8 = 2;

impl Deadline {
    /// Time has advanced to `now`. Returns whether the deadline has passed.
    pub fn handle_timeout(&self, now: Instant) -> bool {
        if now >= *self.at.get_or_init(|| now + GRACE) {
            self.decide(PASSED);
        }

        self.has_passed()
    }

    /// Whether the deadline had passed at the last timeout.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PASSED
    }

    /// The key is in force again: the deadline never passes. Returns whether it had not passed yet.
    pub fn revoke(&self) -> bool {
        self.decide(REVOKED);

        !self.has_passed()
    }

    fn decide(&self, state: u8) {
        // A failure means that it was decided before, which stands.
        let _ = self.state.compare_exchange(PENDING, state, Ordering::Relaxed, Ordering::Relaxed);
    }
}
