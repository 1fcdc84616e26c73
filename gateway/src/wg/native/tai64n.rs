//! When an initiation was made, so that an old one is not taken for a new one.
//!
//! Sources: WireGuard whitepaper, section 5.1; TAI64N, <https://cr.yp.to/libtai/tai64.html>. As in the
//! whitepaper only the order matters: leap seconds are left out, and what an observer could learn from the
//! nanoseconds is rounded away.

use std::time::{Duration, Instant};

/// Length of a timestamp in bytes.
pub(super) const TIMESTAMP_LEN: usize = 12;

/// The label of the second 1970-01-01 00:00:00 TAI.
const LABEL_OF_1970: u64 = 1 << 62;

/// Steps of a timestamp in nanoseconds, a power of two: about 17 ms.
const STEP_NANOS: u32 = 1 << 24;

/// Ordered as time is: the bytes are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timestamp([u8; TIMESTAMP_LEN]);

impl Timestamp {
    pub(super) const fn from_bytes(bytes: [u8; TIMESTAMP_LEN]) -> Self {
        Self(bytes)
    }

    pub(super) const fn as_bytes(&self) -> &[u8; TIMESTAMP_LEN] {
        &self.0
    }

    fn new(since_1970: Duration) -> Self {
        let mut bytes = [0; TIMESTAMP_LEN];
        let (seconds, nanos) = bytes.split_at_mut(8);
        seconds.copy_from_slice(&(LABEL_OF_1970 + since_1970.as_secs()).to_be_bytes());
        let rounded = since_1970.subsec_nanos() & !(STEP_NANOS - 1);
        nanos.copy_from_slice(&rounded.to_be_bytes());

        Self(bytes)
    }
}

/// Tells the time of day from an instant.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    instant: Instant,
    since_1970: Duration,
}

impl Epoch {
    /// At `instant` so much time had passed since 1970.
    #[must_use]
    pub const fn new(instant: Instant, since_1970: Duration) -> Self {
        Self { instant, since_1970 }
    }

    /// What time it is then.
    fn date(&self, now: Instant) -> Duration {
        self.since_1970 + now.saturating_duration_since(self.instant)
    }

    /// The instant that it was made for. Nothing here happens before.
    pub(super) const fn base(&self) -> Instant {
        self.instant
    }
}

/// Makes timestamps, each later than the one before.
#[derive(Debug)]
pub(super) struct Timestamps {
    epoch: Epoch,
    /// It was not earlier for whoever used the same key before.
    floor: Option<Epoch>,
    last: Duration,
}

impl Timestamps {
    pub(super) const fn new(epoch: Epoch) -> Self {
        Self { epoch, floor: None, last: Duration::ZERO }
    }

    /// The clock of the wall may have been set, as when a machine without one of its own learns what time it
    /// is. From now on timestamps follow it; one that was set back is waited for.
    pub(super) const fn follow(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// Timestamps are later than `epoch` from now on, whatever the clock of the wall says.
    pub(super) fn continue_after(&mut self, epoch: Epoch) {
        let now = epoch.instant;
        if self.floor.is_none_or(|floor| floor.date(now) < epoch.date(now)) {
            self.floor = Some(epoch);
        }
    }

    pub(super) fn next(&mut self, now: Instant) -> Timestamp {
        let step = Duration::from_nanos(u64::from(STEP_NANOS));
        // The next step, as what is less is rounded away.
        let floor = self.floor.map_or(Duration::ZERO, |floor| floor.date(now) + step);
        self.last = self.epoch.date(now).max(floor).max(self.last + step);

        Timestamp::new(self.last)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_the_specification_says() {
        let timestamp = Timestamp::new(Duration::new(0x1234_5678, 0x01ff_ffff));

        assert_eq!(timestamp.as_bytes(), &[0x40, 0, 0, 0, 0x12, 0x34, 0x56, 0x78, 0x01, 0, 0, 0]);
    }

    #[test]
    fn each_is_later_than_the_one_before_also_within_a_step() {
        let start = Instant::now();
        let mut timestamps = Timestamps::new(Epoch::new(start, Duration::from_secs(1)));

        let made: Vec<_> = [0, 0, 1, 2, 3, 1_000]
            .map(|ms| timestamps.next(start + Duration::from_millis(ms)))
            .into();

        assert!(made.is_sorted_by(|before, after| before < after), "{made:?}");
    }

    #[test]
    fn none_is_earlier_than_those_of_whoever_used_the_key_before() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let at = |moment, hours| Epoch::new(moment, hours * hour);
        let mut before = Timestamps::new(at(start, 3));
        let theirs = before.next(start);

        // Two hours behind.
        let mut timestamps = Timestamps::new(at(start, 1));
        timestamps.continue_after(at(start, 3));
        let first = timestamps.next(start);
        // What was said before and says less now.
        timestamps.continue_after(at(start + hour, 3));
        let second = timestamps.next(start + hour);
        timestamps.follow(at(start + hour, 5));
        let mended = timestamps.next(start + hour);

        assert!(theirs < first, "{theirs:?} {first:?}");
        let step = Duration::from_nanos(u64::from(STEP_NANOS));
        assert_eq!(second, Timestamp::new(4 * hour + step));
        assert_eq!(mended, Timestamp::new(5 * hour));
    }

    #[test]
    fn a_clock_that_is_set_is_followed_and_none_is_earlier_than_the_one_before() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let at = |moment, hours| Epoch::new(moment, hours * hour);
        let mut timestamps = Timestamps::new(at(start, 1));
        let early = timestamps.next(start);

        let set = start + Duration::from_secs(30);
        timestamps.follow(at(set, 3));
        let late = timestamps.next(set + hour);
        timestamps.follow(at(set, 2));
        let later = timestamps.next(set + hour);

        assert_eq!(late, Timestamp::new(4 * hour));
        assert!(early < late && late < later);
        assert!(later < Timestamp::new(4 * hour + Duration::from_secs(1)));
    }
}
