//! What missed probes indicate: that the other end may have moved, and that it is silent.
//!
//! ```text
//!   answered ──── one probe missed ────▶ suspected ──── two missed ────▶ silent ──┐ after two more intervals,
//!      ▲                                    │                              │ ▲ ───┘ while connected
//!      └────────────── an answer ───────────┴──────────────────────────────┘
//! ```

use std::time::{Duration, Instant};

use super::liveness::Finding;

/// After so many intervals without an answer the other end is silent; after as many, it is found silent again.
const INTERVALS: u32 = 2;

/// Counts the findings.
#[derive(Clone, Debug)]
pub(super) struct Silence {
    interval: Duration,
    /// How often the other end was suspected to have moved.
    pub(super) suspicions: u32,
    /// How often it was found silent.
    pub(super) silences: u32,
    /// The probes in a row that were missed at the last call.
    missed: u32,
    /// While it is silent: when to find that again.
    repeat_at: Option<Instant>,
    /// While it is silent: since when.
    found_at: Option<Instant>,
}

impl Silence {
    /// For probes with this interval.
    pub(super) const fn new(interval: Duration) -> Self {
        Self { interval, suspicions: 0, silences: 0, missed: 0, repeat_at: None, found_at: None }
    }

    /// When the other end was found silent, if it has not answered a probe since.
    pub(super) const fn found_at(&self) -> Option<Instant> {
        self.found_at
    }

    /// The other end has answered a probe.
    pub(super) const fn handle_answer(&mut self) {
        self.missed = 0;
        self.repeat_at = None;
        self.found_at = None;
    }

    /// A probe is due, and the last `missed` ones were not answered. The other end may have missed the handshake that
    /// silence starts, so silence is repeated. Once the connection is lost only WireGuard's timers retry, less often.
    pub(super) fn handle_missed(&mut self, missed: u32, is_connected: bool, now: Instant) {
        let before = std::mem::replace(&mut self.missed, missed);
        if before == 0 && missed > 0 {
            self.suspicions = self.suspicions.saturating_add(1);
        }
        match self.repeat_at {
            Some(at) if now >= at && is_connected => self.handle_silence(now),
            None if before < INTERVALS && missed >= INTERVALS => self.handle_silence(now),
            Some(_) | None => {}
        }
    }

    /// Traffic and the probes that follow its absence have shown this.
    pub(super) fn handle_finding(&mut self, finding: Finding, now: Instant) {
        match finding {
            Finding::Suspicion => self.suspicions = self.suspicions.saturating_add(1),
            Finding::Silence if self.repeat_at.is_none() => self.handle_silence(now),
            Finding::Silence => {}
        }
    }

    fn handle_silence(&mut self, now: Instant) {
        self.silences = self.silences.saturating_add(1);
        self.repeat_at = Some(now + self.interval.saturating_mul(INTERVALS));
        self.found_at.get_or_insert(now);
    }
}
