//! Timestamps of initiations: a peer drops an initiation that is not newer than the last one.
//!
//! Sources: WireGuard whitepaper, section 5.1; TAI64N, <https://cr.yp.to/libtai/tai64.html>. Only the order matters
//! to a peer, but it remembers the latest timestamp of any implementation that used our key: so they are made as in
//! the kernel and wireguard-go, without the leap seconds after 1972, and with rounded nanoseconds, so that they
//! reveal less to observers.

use std::time::{Duration, Instant};

/// Length of a timestamp in bytes.
pub(super) const TIMESTAMP_LEN: usize = 12;

/// The TAI64 label of 1970-01-01 00:00:00 UTC in the kernel and wireguard-go: TAI was ten seconds ahead when UTC
/// began.
const LABEL_OF_1970: u64 = (1 << 62) + 10;

/// How far boringtun and gotatun are ahead: they add the leap seconds until today, 37 in all. A peer that has
/// received an initiation of theirs under our key drops ours as replayed for this long.
const LEAP_SECONDS: Duration = Duration::from_secs(27);

/// The resolution of a timestamp, a power of two in nanoseconds: about 17 ms.
const STEP: Duration = Duration::from_nanos(1 << 24);

/// A TAI64N timestamp. Big-endian, so the order of the bytes is the order in time.
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

/// A reading of the wall clock: the time since 1970 at an instant.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    instant: Instant,
    since_1970: Duration,
}

impl Epoch {
    /// At `instant`, the time since 1970 was `since_1970`.
    #[must_use]
    pub const fn new(instant: Instant, since_1970: Duration) -> Self {
        Self { instant, since_1970 }
    }

    /// The time since 1970 at `now`.
    #[must_use]
    pub fn at(&self, now: Instant) -> Duration {
        self.since_1970 + now.saturating_duration_since(self.instant)
    }

    /// The instant of the reading. All other instants here are later.
    #[must_use]
    pub const fn base(&self) -> Instant {
        self.instant
    }
}

/// The clock for the timestamps of our initiations under one key. It never goes back.
#[derive(Debug)]
pub(super) struct InitiationClock {
    epoch: Epoch,
    /// The time of the previous holder of the key: this clock is later.
    floor: Option<Epoch>,
    last: Duration,
}

impl InitiationClock {
    pub(super) const fn new(epoch: Epoch) -> Self {
        Self { epoch, floor: None, last: Duration::ZERO }
    }

    /// Takes another reading of the wall clock, which may have been set. If it was set back, this clock stands still
    /// until the wall clock has caught up.
    pub(super) const fn set(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    /// From now on this clock is later than `epoch`, even if the wall clock is not.
    pub(super) fn continue_after(&mut self, epoch: Epoch) {
        let now = epoch.instant;
        if self.floor.is_none_or(|floor| floor.at(now) < epoch.at(now)) {
            self.floor = Some(epoch);
        }
    }

    /// Whether another process held the key before.
    pub(super) const fn has_predecessor(&self) -> bool {
        self.floor.is_some()
    }

    /// The time since 1970 for an initiation that is sent `now`.
    pub(super) fn since_1970(&mut self, now: Instant) -> Duration {
        // One step later, because timestamps are rounded to steps.
        let floor = self.floor.map_or(Duration::ZERO, |floor| floor.at(now) + STEP);
        self.last = self.epoch.at(now).max(floor).max(self.last);

        self.last
    }
}

/// Makes the timestamps of our initiations to one peer, each later than the one before.
#[derive(Debug, Default)]
pub(super) struct Timestamps {
    last: Duration,
}

impl Timestamps {
    /// Later than `last`, since 1970.
    pub(super) const fn after(last: Duration) -> Self {
        Self { last }
    }

    /// That of the last initiation, since 1970.
    pub(super) const fn last(&self) -> Duration {
        self.last
    }

    /// The timestamp of an initiation at the time `since_1970`. If it `is_ahead`, it is later than those of an
    /// implementation that adds the leap seconds, and than those of a former process of Strait that were ahead.
    ///
    /// The timestamps for other peers are not affected. Until the clock has caught up, the peer drops the initiations of
    /// the next program with this key as replayed, unless they are ahead too.
    pub(super) fn next(&mut self, since_1970: Duration, is_ahead: bool) -> Timestamp {
        let ahead = if is_ahead { LEAP_SECONDS } else { Duration::ZERO };
        self.last = (since_1970 + ahead).max(self.last + STEP);

        Timestamp::new(self.last)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test may start at any instant")]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_kernel() {
        let timestamp = Timestamp::new(Duration::new(0x1234_5678, 0x01ff_ffff));

        assert_eq!(timestamp.as_bytes(), &[0x40, 0, 0, 0, 0x12, 0x34, 0x56, 0x82, 0x01, 0, 0, 0]);
    }

    #[test]
    fn a_repeated_initiation_is_ahead_of_leap_seconds() {
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
        fn each_timestamp_is_later_but_never_far_ahead(
            initiations in vec((0_u64..60_000_000_000, any::<bool>()), 1..50),
        ) {
            let mut timestamps = Timestamps::default();
            let mut date = Duration::from_secs(1_700_000_000);
            let mut before = Timestamp::new(Duration::ZERO);
            for (count, (passed, is_unanswered)) in (1..).zip(initiations) {
                date += Duration::from_nanos(passed);
                let made = timestamps.next(date, is_unanswered);

                prop_assert!(made > before);
                prop_assert!(made >= Timestamp::new(date));
                prop_assert!(made <= Timestamp::new(date + LEAP_SECONDS + count * STEP));
                before = made;
            }
        }
    }

    #[test]
    fn timestamps_follow_those_of_the_previous_holder() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let at = |moment, hours| Epoch::new(moment, hours * hour);
        let theirs = InitiationClock::new(at(start, 3)).since_1970(start);

        // Two hours behind.
        let mut clock = InitiationClock::new(at(start, 1));
        clock.continue_after(at(start, 3));
        let first = clock.since_1970(start);
        // The same time, one hour later: it is behind the first.
        clock.continue_after(at(start + hour, 3));
        let second = clock.since_1970(start + hour);
        clock.set(at(start + hour, 5));
        let corrected = clock.since_1970(start + hour);

        assert!(Timestamp::new(theirs) < Timestamp::new(first), "{theirs:?} {first:?}");
        assert_eq!(second, 4 * hour + STEP);
        assert_eq!(corrected, 5 * hour);
    }

    #[test]
    fn the_clock_follows_but_never_goes_back() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let at = |moment, hours| Epoch::new(moment, hours * hour);
        let mut clock = InitiationClock::new(at(start, 1));
        let early = clock.since_1970(start);

        let set = start + Duration::from_secs(30);
        clock.set(at(set, 3));
        let late = clock.since_1970(set + hour);
        clock.set(at(set, 2));
        let later = clock.since_1970(set + hour);

        assert_eq!((early, late, later), (hour, 4 * hour, 4 * hour));
    }
}
