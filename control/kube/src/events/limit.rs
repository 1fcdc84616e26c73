//! Limits the rate of Events: a token bucket.

use jiff::{SignedDuration, Timestamp};

/// Events at once, as many as a recorder of Kubernetes writes about one object.
pub const BURST: u32 = 25;

/// The time after which there is room for one more.
pub const REFILL: SignedDuration = SignedDuration::from_secs(10);

/// The token bucket.
#[derive(Debug)]
pub struct Limit {
    room: u32,
    /// When a token was added to `room` last.
    since: Timestamp,
}

impl Limit {
    /// As many as [`BURST`], from `now` on.
    pub const fn new(now: Timestamp) -> Self {
        Self { room: BURST, since: now }
    }

    /// Whether there is room for one.
    ///
    /// # Errors
    ///
    /// The time at which it will.
    pub fn room(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        let passed = now.duration_since(self.since);
        let refills = passed.as_secs().checked_div(REFILL.as_secs()).unwrap_or_default();
        if refills > 0 {
            self.room = u32::try_from(refills).map_or(BURST, |more| self.room.saturating_add(more));
            self.room = self.room.min(BURST);
        }
        // A full bucket collects no more; a clock that was set back restarts the count.
        if refills > 0 || self.room == BURST || passed.is_negative() {
            self.since = now;
        }

        if self.room == 0 { Err(self.since + REFILL) } else { Ok(()) }
    }

    /// One was written.
    pub const fn take(&mut self) {
        self.room = self.room.saturating_sub(1);
    }
}
