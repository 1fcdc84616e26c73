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

/// Steps of a timestamp, a power of two in nanoseconds: about 17 ms.
const STEP: Duration = Duration::from_nanos(1 << 24);

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
        let rounded = since_1970.subsec_nanos() & !(STEP.subsec_nanos() - 1);
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

/// Dates the initiations under one key of ours. Never goes back.
#[derive(Debug)]
pub(super) struct Dates {
    epoch: Epoch,
    /// It was not earlier for whoever used the same key before.
    floor: Option<Epoch>,
    last: Duration,
}

impl Dates {
    pub(super) const fn new(epoch: Epoch) -> Self {
        Self { epoch, floor: None, last: Duration::ZERO }
    }

    /// The clock of the wall may have been set, as when a machine without one of its own learns what time it
    /// is. From now on dates follow it; one that was set back is waited for.
    pub(super) const fn follow(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// Dates are later than `epoch` from now on, whatever the clock of the wall says.
    pub(super) fn continue_after(&mut self, epoch: Epoch) {
        let now = epoch.instant;
        if self.floor.is_none_or(|floor| floor.date(now) < epoch.date(now)) {
            self.floor = Some(epoch);
        }
    }

    /// The time since 1970 for an initiation that is sent `now`.
    pub(super) fn date(&mut self, now: Instant) -> Duration {
        // The next step, as what is less is rounded away.
        let floor = self.floor.map_or(Duration::ZERO, |floor| floor.date(now) + STEP);
        self.last = self.epoch.date(now).max(floor).max(self.last);

        self.last
    }
}

/// Makes the timestamps of our initiations to one peer, each later than the one before.
#[derive(Debug, Default)]
pub(super) struct Timestamps {
    last: Duration,
}

impl Timestamps {
    /// The timestamp of an initiation of this `date`. If the one before was not answered, it `is_repeated`: then it is
    /// no earlier than one of an implementation that adds the leap seconds.
    ///
    /// The dates of other peers stay as they are. Until the clock has reached a date ahead, the peer drops initiations
    /// of the next program with this key, such as this one after a restart, as replayed.
    pub(super) fn next(&mut self, date: Duration, is_repeated: bool) -> Timestamp {
        let ahead = if is_repeated { LEAP_SECONDS } else { Duration::ZERO };
        self.last = (date + ahead).max(self.last + STEP);

        Timestamp::new(self.last)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_written_as_by_the_kernel() {
        let timestamp = Timestamp::new(Duration::new(0x1234_5678, 0x01ff_ffff));

        assert_eq!(timestamp.as_bytes(), &[0x40, 0, 0, 0, 0x12, 0x34, 0x56, 0x82, 0x01, 0, 0, 0]);
    }

    #[test]
    fn a_repeated_one_is_later_than_those_with_leap_seconds() {
        let since_1970 = Duration::from_secs(1_700_000_000);
        let mut timestamps = Timestamps::default();
        // As boringtun writes it.
        let label = (1_u64 << 62) + 37 + since_1970.as_secs();
        let mut theirs = [0xff; TIMESTAMP_LEN];
        theirs[..8].copy_from_slice(&label.to_be_bytes());
        let theirs = Timestamp::from_bytes(theirs);
        let at = |seconds| since_1970 + Duration::from_secs(seconds);

        let first = timestamps.next(at(1), false);
        let repeated = timestamps.next(at(6), true);
        let next = timestamps.next(at(60), false);

        assert!(first < theirs && theirs < repeated && repeated < next);
        assert_eq!(next, Timestamp::new(at(60)));
    }

    proptest! {
        #[test]
        fn each_is_later_than_the_one_before_and_never_far_ahead(
            initiations in vec((0_u64..60_000_000_000, any::<bool>()), 1..50),
        ) {
            let mut timestamps = Timestamps::default();
            let mut date = Duration::from_secs(1_700_000_000);
            let mut before = Timestamp::new(Duration::ZERO);
            for (count, (passed, is_repeated)) in (1..).zip(initiations) {
                date += Duration::from_nanos(passed);
                let made = timestamps.next(date, is_repeated);

                prop_assert!(made > before);
                prop_assert!(made >= Timestamp::new(date));
                prop_assert!(made <= Timestamp::new(date + LEAP_SECONDS + count * STEP));
                before = made;
            }
        }
    }

    #[test]
    fn none_is_earlier_than_those_of_whoever_used_the_key_before() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let at = |moment, hours| Epoch::new(moment, hours * hour);
        let theirs = Dates::new(at(start, 3)).date(start);

        // Two hours behind.
        let mut dates = Dates::new(at(start, 1));
        dates.continue_after(at(start, 3));
        let first = dates.date(start);
        // What was said before and says less now.
        dates.continue_after(at(start + hour, 3));
        let second = dates.date(start + hour);
        dates.follow(at(start + hour, 5));
        let mended = dates.date(start + hour);

        assert!(Timestamp::new(theirs) < Timestamp::new(first), "{theirs:?} {first:?}");
        assert_eq!(second, 4 * hour + STEP);
        assert_eq!(mended, 5 * hour);
    }

    #[test]
    fn a_clock_that_is_set_is_followed_and_no_date_is_earlier_than_before() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let at = |moment, hours| Epoch::new(moment, hours * hour);
        let mut dates = Dates::new(at(start, 1));
        let early = dates.date(start);

        let set = start + Duration::from_secs(30);
        dates.follow(at(set, 3));
        let late = dates.date(set + hour);
        dates.follow(at(set, 2));
        let later = dates.date(set + hour);

        assert_eq!((early, late, later), (hour, 4 * hour, 4 * hour));
    }
}
