//! When an initiation was made, so that an old one is not taken for a new one.
//!
//! Sources: WireGuard whitepaper, section 5.1; TAI64N, <https://cr.yp.to/libtai/tai64.html>. Only the order matters
//! to a peer, but it remembers the latest of whatever implementation had our key before: so they are made as the
//! kernel and wireguard-go make them. Leap seconds after 1972 are left out, and what an observer could learn from
//! the nanoseconds is rounded away.

use std::time::{Duration, Instant};

/// Length of a timestamp in bytes.
pub(super) const TIMESTAMP_LEN: usize = 12;

/// The label of the second 1970-01-01 00:00:00 UTC, as the kernel and wireguard-go reckon: TAI was ten seconds ahead
/// when UTC began.
const LABEL_OF_1970: u64 = (1 << 62) + 10;

/// By so much boringtun and gotatun are ahead: they add the leap seconds until today, 37 in all. A peer that has heard
/// one of them under our key takes what we send for old for so long.
const LEAP_SECONDS: Duration = Duration::from_secs(27);

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

    /// The timestamp of an initiation that is sent `now`. If the one before was not answered, it `is_repeated`: then it
    /// is no earlier than one of an implementation that adds the leap seconds.
    pub(super) fn next(&mut self, is_repeated: bool, now: Instant) -> Timestamp {
        let step = Duration::from_nanos(u64::from(STEP_NANOS));
        // The next step, as what is less is rounded away.
        let floor = self.floor.map_or(Duration::ZERO, |floor| floor.date(now) + step);
        let ahead = if is_repeated { LEAP_SECONDS } else { Duration::ZERO };
        self.last = (self.epoch.date(now).max(floor) + ahead).max(self.last + step);

        Timestamp::new(self.last)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_by_the_kernel() {
        let timestamp = Timestamp::new(Duration::new(0x1234_5678, 0x01ff_ffff));

        assert_eq!(timestamp.as_bytes(), &[0x40, 0, 0, 0, 0x12, 0x34, 0x56, 0x82, 0x01, 0, 0, 0]);
    }

    #[test]
    fn a_repeated_one_is_later_than_those_with_leap_seconds() {
        let start = Instant::now();
        let since_1970 = Duration::from_secs(1_700_000_000);
        let mut timestamps = Timestamps::new(Epoch::new(start, since_1970));
        // As boringtun writes it.
        let label = (1_u64 << 62) + 37 + since_1970.as_secs();
        let mut theirs = [0xff; TIMESTAMP_LEN];
        theirs[..8].copy_from_slice(&label.to_be_bytes());
        let theirs = Timestamp::from_bytes(theirs);
        let at = |seconds| start + Duration::from_secs(seconds);

        let first = timestamps.next(false, at(1));
        let repeated = timestamps.next(true, at(6));
        let next = timestamps.next(false, at(60));

        assert!(first < theirs && theirs < repeated && repeated < next);
        assert_eq!(next, Timestamp::new(since_1970 + Duration::from_secs(60)));
    }

    #[test]
    fn each_is_later_than_the_one_before_also_within_a_step() {
        let start = Instant::now();
        let mut timestamps = Timestamps::new(Epoch::new(start, Duration::from_secs(1)));

        let made: Vec<_> = [0, 0, 1, 2, 3, 1_000]
            .map(|ms| timestamps.next(false, start + Duration::from_millis(ms)))
            .into();

        assert!(made.is_sorted_by(|before, after| before < after), "{made:?}");
    }

    #[test]
    fn none_is_earlier_than_those_of_whoever_used_the_key_before() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let at = |moment, hours| Epoch::new(moment, hours * hour);
        let mut before = Timestamps::new(at(start, 3));
        let theirs = before.next(false, start);

        // Two hours behind.
        let mut timestamps = Timestamps::new(at(start, 1));
        timestamps.continue_after(at(start, 3));
        let first = timestamps.next(false, start);
        // What was said before and says less now.
        timestamps.continue_after(at(start + hour, 3));
        let second = timestamps.next(false, start + hour);
        timestamps.follow(at(start + hour, 5));
        let mended = timestamps.next(false, start + hour);

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
        let early = timestamps.next(false, start);

        let set = start + Duration::from_secs(30);
        timestamps.follow(at(set, 3));
        let late = timestamps.next(false, set + hour);
        timestamps.follow(at(set, 2));
        let later = timestamps.next(false, set + hour);

        assert_eq!(late, Timestamp::new(4 * hour));
        assert!(early < late && late < later);
        assert!(later < Timestamp::new(4 * hour + Duration::from_secs(1)));
    }
}
