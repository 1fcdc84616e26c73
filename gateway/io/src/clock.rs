//! The only clock of the data path, and the calendar for those who read reports.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;

use strait_wg::Epoch;

/// How far the wall clock may be from where the calendar expects it before the calendar follows: far
/// more than two readings one after the other can differ, far less than anybody would call a step.
const TOLERANCE: Duration = Duration::from_secs(1);

/// When this was first asked for, and how long the machine had been up.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
static START: LazyLock<(Instant, Duration)> = LazyLock::new(|| (Instant::now(), uptime()));

/// The time, as the engine wants it. Monotonic; costs a few nanoseconds and no system call.
///
/// It passes while the machine is asleep, which [`Instant::now`] on Linux does not see: peers have forgotten
/// the sessions from before by then.
#[must_use]
pub(super) fn now() -> Instant {
    let (start, before) = *START;

    start + uptime().saturating_sub(before)
}

/// How long the machine has been up, with the time that it was asleep. Linux has always had this clock.
fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// This moment, by both clocks. One that stands before 1970 stands at 1970.
pub(super) fn epoch() -> Epoch {
    Epoch::new(now(), wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Turns a monotonic time into one of the calendar: into the same one each time it is asked, unless
/// the wall clock was set in between.
#[derive(Debug)]
pub(super) struct Calendar(Mutex<Anchor>);

impl Calendar {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Anchor { now: now(), wall: wall() }))
    }

    /// When `at` was, by the wall clock. `None` if that is no date.
    pub(super) fn date(&self, at: Instant) -> Option<SystemTime> {
        let mut anchor = self.0.lock();
        anchor.follow(now(), wall());

        anchor.date(at)
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn wall() -> SystemTime {
    SystemTime::now()
}

/// One instant, by both clocks.
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

    /// Keeps the anchor unless the wall clock was set since.
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
    fn a_date_stays_the_same_however_the_clocks_are_read() {
        let (start, handshake, mut anchor) = anchored();
        let date = anchor.date(handshake);

        anchor.follow(
            start + Duration::from_secs(60),
            anchor.wall + Duration::from_secs(60) + JITTER,
        );

        assert_eq!(anchor.date(handshake), date);
    }

    #[test]
    fn the_calendar_follows_a_clock_that_is_set() {
        let (start, _, mut anchor) = anchored();
        let wall = anchor.wall - Duration::from_secs(3600);

        anchor.follow(start, wall);

        assert_eq!(anchor.date(start), Some(wall));
    }

    #[test]
    fn times_before_the_anchor_have_a_date() {
        let (start, _, anchor) = anchored();
        let Some(before) = start.checked_sub(Duration::from_millis(5)) else {
            return;
        };

        assert_eq!(anchor.date(before), anchor.wall.checked_sub(Duration::from_millis(5)));
    }

    /// Asleep or not.
    #[test]
    fn time_passes_as_long_as_the_machine_is_up() {
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
