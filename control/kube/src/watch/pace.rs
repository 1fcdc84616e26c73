//! When to report changes: the first ones at once, a flood of them together.
//!
//! Building a table delays packets for a moment, so frequent changes are reported less often: a token bucket, as
//! routers delay their route calculation (the back-off of RFC 8405 has the same two ends).

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two updates: changes that are written together are reported together.
const GAP: Duration = Duration::from_millis(20);

/// The time between two updates during a flood of changes.
const PERIOD: Duration = Duration::from_millis(100);

/// The number of updates that a pause saves up.
const BURST: u32 = 10;

/// The updates of the recent past.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    /// When all past updates would have been due at one update each [`PERIOD`].
    horizon: Option<Instant>,
}

impl Pace {
    /// When to report what has changed `now`.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let gap_over = self.last.map(|last| last + GAP);
        let saved = PERIOD * (BURST - 1);
        let token_there = self.horizon.and_then(|horizon| horizon.checked_sub(saved));

        [gap_over, token_there].into_iter().flatten().fold(now, Instant::max)
    }

    /// All changes were reported `now`.
    pub(super) fn record_report(&mut self, now: Instant) {
        let horizon = self.horizon.map_or(now, |horizon| horizon.max(now));
        self.horizon = Some(horizon + PERIOD);
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// When each of the changes is reported that come after these pauses, in milliseconds.
    fn reported_after(pauses: &[u64]) -> Vec<(Duration, Duration)> {
        let start = Instant::now();
        let mut pace = Pace::default();
        let mut now = start;
        let mut updates = Vec::new();
        for pause in pauses {
            now += Duration::from_millis(*pause);
            let due = pace.due(now);
            updates.push((now - start, due - start));
            pace.record_report(due);
            now = due;
        }

        updates
    }

    #[test]
    fn a_lone_change_is_reported_at_once() {
        let pauses = [vec![0; 50], vec![1_000]].concat();
        let (changed, reported_at) = *reported_after(&pauses).last().unwrap();

        assert_eq!(reported_at, changed);
    }

    #[test]
    fn a_flood_is_reported_ten_times_a_second() {
        let updates = reported_after(&[0; 30]);
        let reported_at: Vec<_> =
            updates.iter().map(|(_, reported_at)| reported_at.as_millis()).collect();

        let burst: Vec<_> = (0..10).map(|number| number * 20).collect();
        assert_eq!(reported_at[..10], burst);
        assert_eq!(reported_at[10] - reported_at[9], 20, "one was saved up meanwhile");
        assert!(
            reported_at.windows(2).skip(13).all(|pair| pair[1] - pair[0] == 100),
            "{reported_at:?}"
        );
    }

    proptest! {
        /// No change waits longer than a period, and in no stretch of time are there more updates than were saved up
        /// and came due within it.
        #[test]
        fn changes_and_updates_keep_the_limits(pauses in vec(0..400_u64, 1..80)) {
            let updates = reported_after(&pauses);

            for (changed, reported_at) in &updates {
                prop_assert!(*reported_at - *changed <= PERIOD, "{changed:?} {reported_at:?}");
            }
            for (first, (_, start)) in updates.iter().enumerate() {
                for (count, (_, end)) in updates[first..].iter().enumerate() {
                    let due = u32::try_from((*end - *start).as_millis() / PERIOD.as_millis()).unwrap();
                    prop_assert!(u32::try_from(count).unwrap() < BURST + due);
                }
            }
            for pair in updates.windows(2) {
                prop_assert!(pair[1].1 - pair[0].1 >= GAP);
            }
        }
    }
}
