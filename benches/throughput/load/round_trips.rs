//! Round trips of pings, without other traffic and beside a TCP load.

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use strait_lab::traffic::Ping;

use crate::contestant::Contestant;

/// A few hundred pings a second: enough samples, but no load.
const INTERVAL: Duration = Duration::from_millis(2);
/// Time that TCP needs to fill the path, and for which it continues after the last ping.
const MARGIN: Duration = Duration::from_millis(500);

/// Round-trip times in µs, sorted.
pub(crate) type RoundTrips = Vec<f64>;

/// Result of a series of pings.
#[derive(Debug)]
pub(crate) struct Pings {
    /// Of the answered pings.
    pub(crate) round_trips: RoundTrips,
    /// Number of unanswered pings.
    pub(crate) lost_percent: f64,
}

/// Pings without other traffic.
pub(crate) fn idle(contestant: &Contestant, duration: Duration) -> anyhow::Result<Pings> {
    measure(contestant, duration)
}

/// Pings beside a load that starts now and takes `duration`.
pub(super) fn loaded(contestant: &Contestant, duration: Duration) -> anyhow::Result<Pings> {
    thread::sleep(MARGIN);

    measure(contestant, duration.saturating_sub(2 * MARGIN))
}

fn measure(contestant: &Contestant, duration: Duration) -> anyhow::Result<Pings> {
    let count = u16::try_from(duration.as_millis() / INTERVAL.as_millis()).unwrap_or(u16::MAX);
    ensure!(count > 0, "{duration:?} is too short for a ping every {INTERVAL:?}");
    let ping = Ping {
        interval: INTERVAL,
        timeout: Duration::from_millis(200),
        ..Ping::new(contestant.target()?, count)
    };
    let report = ping.run(contestant.client())?;
    let mut round_trips: RoundTrips =
        report.round_trips.iter().map(|trip| trip.as_secs_f64() * 1e6).collect();
    round_trips.sort_by(f64::total_cmp);

    ensure!(!round_trips.is_empty(), "no ping came back");
    let [lost, sent] = [report.lost(), report.sent].map(u32::try_from);
    let lost_percent = 100.0 * f64::from(lost?) / f64::from(sent?);

    Ok(Pings { round_trips, lost_percent })
}

/// The percentile `share` (0 to 1) of `sorted`, by nearest rank.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = u32::try_from(sorted.len().checked_sub(1)?).ok()?;
    let rank = (f64::from(last) * share.clamp(0.0, 1.0)).round();

    sorted.iter().zip(0..).find(|(_, place)| f64::from(*place) >= rank).map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentile_uses_the_nearest_rank() {
        let sorted: Vec<f64> = (0..=1000u32).map(f64::from).collect();

        assert_eq!(percentile(&sorted, 0.0), Some(0.0));
        assert_eq!(percentile(&sorted, 0.5), Some(500.0));
        assert_eq!(percentile(&sorted, 0.999), Some(999.0));
        assert_eq!(percentile(&sorted, 1.0), Some(1000.0));
        assert_eq!(percentile(&[7.0], 0.99), Some(7.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
