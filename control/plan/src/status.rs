//! The status that the gateway reports: the pure half of writing it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use strait_api::connection::{ConnectionLatency, ConnectionStatus};

use crate::conncheck::{Report, State};

/// Stands in place of a latency that was not measured.
const NOT_AVAILABLE: &str = "N/A";

/// The status to write for `report`, if `written` has to be replaced.
///
/// It has to be if it differs, or if its latency is older than `interval`.
#[must_use]
pub fn connection(
    report: &Report,
    written: Option<&ConnectionStatus>,
    now: Timestamp,
    interval: Duration,
) -> Option<ConnectionStatus> {
    let value = value(report.state);
    let says_so = written.is_some_and(|status| status.value.as_deref() == Some(value));
    let is_fresh = match (report.latency, measured_at(written)) {
        // A status without a latency does not age.
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(then)) => {
            Duration::try_from(now.duration_since(then)).is_ok_and(|age| age <= interval)
        }
    };
    if says_so && is_fresh {
        return None;
    }

    let latency = match report.latency {
        Some(latency) => {
            ConnectionLatency { timestamp: Some(Time(now)), value: Some(latency_text(latency)) }
        }
        None => ConnectionLatency { timestamp: None, value: Some(NOT_AVAILABLE.to_owned()) },
    };

    Some(ConnectionStatus { latency: Some(latency), value: Some(value.to_owned()) })
}

/// The report in a status that another component wrote, as far as it can be read.
#[must_use]
pub fn report(status: &ConnectionStatus) -> Report {
    let state = match status.value.as_deref() {
        Some("Connected") => State::Connected,
        Some("Error") => State::Lost,
        Some(_) | None => State::Connecting,
    };
    let latency = status.latency.as_ref().and_then(|latency| latency.value.as_deref());
    // Go writes the Greek letter, and reads the micro sign as well; the parser here knows the latter.
    let latency = latency.map(|text| text.replace('\u{3bc}', "\u{b5}"));
    let latency = latency.and_then(|text| text.parse::<SignedDuration>().ok());
    let latency = latency.and_then(|latency| latency.try_into().ok());

    Report { state, latency: latency.filter(|_| state == State::Connected), ..Report::default() }
}

const fn value(state: State) -> &'static str {
    match state {
        State::Connecting => "Connecting",
        State::Connected => "Connected",
        State::Lost => "Error",
    }
}

fn measured_at(status: Option<&ConnectionStatus>) -> Option<Timestamp> {
    let Time(then) = status?.latency.as_ref()?.timestamp.as_ref()?;

    Some(*then)
}

/// As Liqo writes it and its metrics read it: whole milliseconds, or microseconds below one.
fn latency_text(latency: Duration) -> String {
    match latency.as_millis() {
        0 => format!("{}\u{3bc}s", latency.as_micros()),
        ms => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn report(state: State, latency: Option<Duration>) -> Report {
        Report { state, latency, ..Report::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_latency_is_written_as_liqo_reads_it() {
        for (latency, text) in [
            (Duration::from_millis(12), "12ms"),
            (Duration::from_micros(1_999), "1ms"),
            (Duration::from_micros(850), "850μs"),
            (Duration::from_nanos(1), "0μs"),
            (Duration::from_secs(2), "2000ms"),
        ] {
            let report = report(State::Connected, Some(latency));
            let status = connection(&report, None, at(100), INTERVAL).unwrap();

            assert_eq!(status.value.as_deref(), Some("Connected"));
            let written = status.latency.unwrap();
            assert_eq!(written.value.as_deref(), Some(text));
            assert_eq!(written.timestamp, Some(Time(at(100))));
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for report in [
            report(State::Connected, Some(Duration::from_millis(12))),
            report(State::Connected, Some(Duration::from_micros(850))),
            report(State::Connected, None),
            report(State::Connecting, None),
            report(State::Lost, None),
        ] {
            let status = connection(&report, None, at(100), INTERVAL).unwrap();

            assert_eq!(super::report(&status), report);
        }
        let odd = ConnectionStatus { value: Some("?".to_owned()), latency: None };
        assert_eq!(super::report(&odd).state, State::Connecting);
    }

    #[test]
    fn wrong_or_old_statuses_are_written_again() {
        let connected = report(State::Connected, Some(Duration::from_millis(3)));
        let first = connection(&connected, None, at(100), INTERVAL).unwrap();
        let again =
            |report: &Report, second| connection(report, Some(&first), at(second), INTERVAL);

        assert_eq!(again(&connected, 101), None);
        assert_eq!(again(&connected, 110), None);
        assert!(again(&connected, 111).is_some());
        // A clock that was set back must not stop the reports.
        assert!(again(&connected, 99).is_some());

        let lost = again(&report(State::Lost, None), 101).unwrap();
        let latency = lost.latency.clone().unwrap();
        assert_eq!(lost.value.as_deref(), Some("Error"));
        assert_eq!((latency.value.as_deref(), latency.timestamp), (Some("N/A"), None));
        let much_later = at(100_000);
        assert_eq!(connection(&report(State::Lost, None), Some(&lost), much_later, INTERVAL), None);
        assert!(connection(&connected, Some(&lost), at(102), INTERVAL).is_some());
    }
}
