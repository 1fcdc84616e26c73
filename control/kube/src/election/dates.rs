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

/// The clock of a leader. It never goes back: nor do the initiations of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dates {
    /// At this instant it was not earlier than that.
    floor: Option<(Instant, Timestamp)>,
    /// Whether another leader is followed, whose initiations may be dated as late.
    has_predecessor: bool,
}

impl Dates {
    /// This one takes the Lease at `now`, by its own clock at `wall`. At `since` it was `renewed` for the one
    /// before.
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
                "the clock of the replica before was too far ahead to be followed: it, or that of this node, is wrong; what goes by dates, as the peer of a gateway does, may wait until that is mended"
            );
            return;
        }
        self.has_predecessor = true;
        self.floor = Some((now, self.date(now, wall).max(date)));
    }

    /// The time at `now`, when the own clock says `wall`; nothing earlier is said from then on.
    pub(super) fn tell(&mut self, now: Instant, wall: Timestamp) -> Timestamp {
        let date = self.date(now, wall);
        self.floor = Some((now, date));

        date
    }

    /// What initiations are to be dated after that are made from `now` on, since 1970, if there was a leader
    /// before this one.
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
