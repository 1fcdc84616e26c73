//! The clock of a leader, which is never earlier than that of the leader before.
//!
//! A peer rejects an initiation that is dated earlier than one that it has accepted. A leader whose clock is behind
//! would have no session until its clock has caught up. So it follows the clock of the leader before, as far as the
//! Lease records it, and records its own.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tracing::warn;

/// A clock that is further ahead is wrong and is not followed: otherwise one wrong moment would date all later
/// initiations.
const MAX_AHEAD: Duration = Duration::from_secs(15 * 60);

/// The Lease is read every few seconds: at the last read the clock may have been this much later than recorded.
const MARGIN: Duration = Duration::from_secs(5);

/// The clock of a leader. It never goes back, and neither do the dates of this process's initiations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaderClock {
    /// At this instant the time was at least that.
    floor: Option<(Instant, Timestamp)>,
    /// Whether there was a leader before, whose initiations may be dated up to that time.
    has_predecessor: bool,
}

impl LeaderClock {
    /// This replica takes the Lease at `now`, when its own clock is at `wall`. The leader before renewed it to
    /// `renewed`, seen at `since`.
    pub(super) fn follow(
        &mut self,
        (since, renewed): (Instant, Timestamp),
        now: Instant,
        wall: Timestamp,
    ) {
        self.has_predecessor = false;
        let Ok(date) = renewed.checked_add(now.saturating_duration_since(since)) else {
            return;
        };
        let ahead = Duration::try_from(date.duration_since(wall)).unwrap_or_default();
        if ahead > MAX_AHEAD {
            warn!(
                ?ahead,
                "the clock of the former leader is too far ahead to be followed: it, or that of this node, is wrong; until it is corrected, the peer of a gateway may reject initiations by their date"
            );
            return;
        }
        self.has_predecessor = true;
        self.floor = Some((now, self.date(now, wall).max(date)));
    }

    /// The time at `now`, when the own clock is at `wall`; it is never earlier afterwards.
    pub(super) fn advance(&mut self, now: Instant, wall: Timestamp) -> Timestamp {
        let date = self.date(now, wall);
        self.floor = Some((now, date));

        date
    }

    /// The date, since 1970, that initiations from `now` on have to exceed, if there was a leader before this one.
    pub(super) fn continue_after(&self, now: Instant, wall: Timestamp) -> Option<Duration> {
        let date = self.has_predecessor.then(|| self.date(now, wall))?;

        Duration::try_from(date.checked_add(MARGIN).ok()?.as_duration()).ok()
    }

    fn date(&self, now: Instant, wall: Timestamp) -> Timestamp {
        let floor = self
            .floor
            .and_then(|(since, date)| date.checked_add(now.saturating_duration_since(since)).ok());

        floor.map_or(wall, |floor| wall.max(floor))
    }
}
