//! How long an answer may take, by the round trips so far (RFC 6298 section 2).

use std::time::Duration;

/// The shortest timeout. RFC 6298 has a second, which is for retransmissions; a probe that is late costs nothing but the
/// next one. An end that waits for its processor this long is not taken for a lost one.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The shortest time after which an answer is overdue: it costs no handshake.
const OVERDUE_MIN: Duration = Duration::from_millis(50);

/// The timeout without a sample (RFC 6298, rule 2.1).
const TIMEOUT_FIRST: Duration = Duration::from_secs(1);

/// The smoothed round trip, and its mean deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoundTrip(Option<Estimate>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Estimate {
    smoothed: Duration,
    deviation: Duration,
}

impl RoundTrip {
    /// One probe was answered after `round_trip`.
    pub(super) fn handle_sample(&mut self, round_trip: Duration) {
        let estimate = match self.0 {
            None => Estimate { smoothed: round_trip, deviation: round_trip / 2 },
            Some(Estimate { smoothed, deviation }) => Estimate {
                deviation: deviation - deviation / 4 + smoothed.abs_diff(round_trip) / 4,
                smoothed: smoothed - smoothed / 8 + round_trip / 8,
            },
        };
        self.0 = Some(estimate);
    }

    /// How long to wait for an answer.
    pub(super) fn timeout(&self) -> Duration {
        self.longest().map_or(TIMEOUT_FIRST, |longest| longest.max(TIMEOUT_MIN))
    }

    /// The time after which an answer is overdue, so that something may be wrong. At most the timeout.
    pub(super) fn overdue(&self) -> Duration {
        self.longest().map_or(TIMEOUT_FIRST, |longest| longest.max(OVERDUE_MIN))
    }

    /// How long answers take at most, as far as the samples say.
    fn longest(&self) -> Option<Duration> {
        let Estimate { smoothed, deviation } = self.0?;

        Some(smoothed.saturating_add(deviation.saturating_mul(4)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_round_trip_has_the_minimum() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout(), TIMEOUT_FIRST);

        round_trip.handle_sample(Duration::from_millis(1));
        assert_eq!((round_trip.timeout(), round_trip.overdue()), (TIMEOUT_MIN, OVERDUE_MIN));
    }

    #[test]
    fn one_long_sample_raises_the_timeout() {
        let mut round_trip = RoundTrip::default();
        for _ in 0..100 {
            round_trip.handle_sample(Duration::from_millis(40));
        }

        round_trip.handle_sample(Duration::from_millis(240));
        // 40 + 200/8, and four times 200/4 above that.
        assert!((264..=266).contains(&round_trip.timeout().as_millis()), "{round_trip:?}");
    }

    proptest! {
        /// Compared with the formulas in floating point.
        #[test]
        fn the_estimate_follows_rfc_6298(samples in prop::collection::vec(0_u32..5_000_000, 1..60)) {
            let mut round_trip = RoundTrip::default();
            let (mut smoothed, mut deviation) = (f64::NAN, f64::NAN);
            for sample in samples {
                round_trip.handle_sample(Duration::from_micros(sample.into()));
                let sample = f64::from(sample) / 1e6;
                if smoothed.is_nan() {
                    (smoothed, deviation) = (sample, sample / 2.0);
                } else {
                    deviation = 0.75 * deviation + 0.25 * (smoothed - sample).abs();
                    smoothed = 0.875 * smoothed + 0.125 * sample;
                }
                let expected = 0.1_f64.max(smoothed + 4.0 * deviation);
                prop_assert!((round_trip.timeout().as_secs_f64() - expected).abs() < 1e-6);
                prop_assert!(round_trip.overdue() <= round_trip.timeout());
            }
        }
    }
}
