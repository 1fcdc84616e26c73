//! The only clock of the data path, and the calendar that turns its times into dates for reports.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;

use strait_wg::Epoch;

/// The calendar follows the wall clock if it differs from the expected time by more than this: far more than two
/// consecutive readings can differ, far less than a step of the clock.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The time of the first use, and how long the machine had been up at that time.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
static START: LazyLock<(Instant, Duration)> = LazyLock::new(|| (Instant::now(), uptime()));

/// The current time for the engine. Monotonic; costs a few nanoseconds and no system call.
///
/// Unlike [`Instant::now`] on Linux it advances while the machine is suspended: peers have expired the sessions
/// meanwhile.
#[must_use]
pub(super) fn now() -> Instant {
    let (start, before) = *START;

    start + uptime().saturating_sub(before)
}

/// How long the machine had been up at `at`: another process on this machine can make an instant of its own of it.
pub(super) fn uptime_at(at: Instant) -> Duration {
    let (start, before) = *START;

    match at.checked_duration_since(start) {
        Some(later) => before + later,
        None => before.saturating_sub(start.duration_since(at)),
    }
}

/// The instant at which the machine had been up for `uptime`. `None` if this machine cannot have it.
pub(super) fn at_uptime(uptime: Duration) -> Option<Instant> {
    let (start, before) = *START;

    match uptime.checked_sub(before) {
        Some(later) => start.checked_add(later),
        None => start.checked_sub(before - uptime),
    }
}

/// How long the machine has been up, including the time in which it was suspended.
fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// The current time by both clocks. A wall clock before 1970 counts as 1970.
pub(super) fn epoch() -> Epoch {
    Epoch::new(now(), wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Turns a monotonic time into a date. The date of a time stays the same until the wall clock is set.
#[derive(Debug)]
pub(super) struct Calendar(Mutex<Anchor>);

impl Calendar {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Anchor { now: now(), wall: wall() }))
    }

    /// The calendar of the predecessor of this process, by which it was `since_1970` at `now`.
    pub(super) fn continued(now: Instant, since_1970: Duration) -> Option<Self> {
        let wall = SystemTime::UNIX_EPOCH.checked_add(since_1970)?;

        Some(Self(Mutex::new(Anchor { now, wall })))
    }

    /// An instant and its time since 1970, for a successor of this process.
    pub(super) fn anchor(&self) -> (Instant, Duration) {
        let Anchor { now, wall } = *self.0.lock();

        (now, wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }

    /// The date of `at` by the wall clock. `None` if it is out of range.
    pub(super) fn date(&self, at: Instant) -> Option<SystemTime> {
        let mut anchor = self.0.lock();
        anchor.follow(now(), wall());

        anchor.date(at)
    }
}

/// The current date, by which the kernel says when a datagram arrived.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub(super) fn wall() -> SystemTime {
    SystemTime::now()
}

/// One instant by both clocks.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    now: Instant,
    wall: SystemTime,
}

impl Anchor {
    fn date(&self, at: Instant) -> Option<SystemTime> {
        match at.checked_duration_since(self.now) {
            Some(later) => self.wall.checked_add(later),
            None => self.wall.checked_sub(self.now.duration_since(at)),
        }
    }

    /// Replaces the anchor if the wall clock was set since.
    fn follow(&mut self, now: Instant, wall: SystemTime) {
        let is_near = self.date(now).is_some_and(|expected| {
            let apart = expected.duration_since(wall).unwrap_or_else(|error| error.duration());
            apart <= TOLERANCE
        });
        if !is_near {
            *self = Self { now, wall };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JITTER: Duration = Duration::from_micros(3);

    #[test]
    fn a_date_is_stable_despite_jitter() {
        let (start, handshake, mut anchor) = anchored();
        let date = anchor.date(handshake);

        anchor.follow(
            start + Duration::from_secs(60),
            anchor.wall + Duration::from_secs(60) + JITTER,
        );

        assert_eq!(anchor.date(handshake), date);
    }

    #[test]
    fn the_calendar_follows_a_set_clock() {
        let (start, _, mut anchor) = anchored();
        let wall = anchor.wall - Duration::from_secs(3600);

        anchor.follow(start, wall);

        assert_eq!(anchor.date(start), Some(wall));
    }

    #[test]
    fn times_before_the_anchor_have_dates() {
        let (start, _, anchor) = anchored();
        let Some(before) = start.checked_sub(Duration::from_millis(5)) else {
            return;
        };

        assert_eq!(anchor.date(before), anchor.wall.checked_sub(Duration::from_millis(5)));
    }

    #[test]
    fn an_instant_has_one_uptime() {
        let now = now();

        for at in [now, now + JITTER, now.checked_sub(Duration::from_secs(3)).unwrap_or(now)] {
            assert_eq!(at_uptime(uptime_at(at)), Some(at));
        }
    }

    #[test]
    fn a_continued_calendar_has_the_same_dates() {
        let (start, handshake, anchor) = anchored();
        let before = Calendar(Mutex::new(anchor));
        let (now, since_1970) = before.anchor();

        let after = Calendar::continued(now, since_1970).unwrap();

        assert_eq!(after.0.lock().date(handshake), before.0.lock().date(handshake));
        assert_eq!(after.anchor().0, start);
    }

    /// The uptime includes suspension.
    #[test]
    fn the_clock_advances_with_the_uptime() {
        let (start, least) = (now(), uptime());
        std::thread::sleep(Duration::from_millis(5));
        let (most, end) = (uptime(), now());

        assert!(least > Duration::ZERO);
        assert!(end - start >= most - least);
    }

    fn anchored() -> (Instant, Instant, Anchor) {
        let start = now();
        let wall = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_795_251_261_908_233_600);

        (start, start + Duration::from_nanos(1_234_567), Anchor { now: start, wall })
    }
}
