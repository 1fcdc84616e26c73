//! What time it is for a leader: no earlier than it was for the one before.
//!
//! A peer takes no initiation that is dated earlier than one that it has taken. A leader whose clock is behind
//! would have no session until its clock has caught up, so it goes by that of the one before, as far as the
//! Lease tells it, which it passes on.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tracing::warn;

/// Who is further ahead has a clock that is wrong: nobody follows it, or one moment of that would date
/// everything for ever.
const MAX_AHEAD: Duration = Duration::from_secs(15 * 60);

/// How much later than was read in the Lease it may have been: it is read every few seconds.
const MARGIN: Duration = Duration::from_secs(5);

/// The clock of a leader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dates {
    /// At this instant it was not earlier than that.
    floor: Option<(Instant, Timestamp)>,
}

impl Dates {
    /// Of one that takes the Lease at `now`, by its own clock at `wall`. At `since` it was `renewed` for the
    /// one before.
    pub(super) fn after(
        (since, renewed): (Instant, Timestamp),
        now: Instant,
        wall: Timestamp,
    ) -> Self {
        let Ok(date) = renewed.checked_add(now.saturating_duration_since(since)) else {
            return Self::default();
        };
        let ahead = Duration::try_from(date.duration_since(wall)).unwrap_or_default();
        if ahead > MAX_AHEAD {
            warn!(
                ?ahead,
                "the clock of the replica before was too far ahead to be followed: it, or that of this node, is wrong; the peer may answer only when that is mended"
            );
            return Self::default();
        }

        Self { floor: Some((now, date)) }
    }

    /// The time at `now`, when the own clock says `wall`.
    pub(super) fn date(&self, now: Instant, wall: Timestamp) -> Timestamp {
        let floor = self
            .floor
            .and_then(|(since, date)| date.checked_add(now.saturating_duration_since(since)).ok());

        floor.map_or(wall, |floor| wall.max(floor))
    }

    /// What initiations are to be dated after that are made from `now` on, since 1970.
    pub(super) fn continue_after(&self, now: Instant, wall: Timestamp) -> Option<Duration> {
        let date = self.floor.map(|_| self.date(now, wall))?;

        Duration::try_from(date.checked_add(MARGIN).ok()?.as_duration()).ok()
    }
}
