//! Detects from missed probes that the remote gateway may have moved.
//!
//! This is earlier than the loss of the connection, and earlier than WireGuard's own timeouts.

use std::mem;

use strait_plan::conncheck::{Report, State};
use tokio::sync::watch;

/// What missed probes indicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectivityEvent {
    /// Probes were missed; they may have been lost.
    MissedProbe,
    /// The remote gateway is silent, or still is while the connection is not lost.
    Silence,
    /// The longest packet in bytes that reaches the remote gateway; it stays in force while that gateway does not answer.
    /// `None`: not known, as that gateway was replaced by a stock one that has not answered a padded probe.
    PathMtu { bytes: Option<u16>, is_strait: bool },
    /// Whether datagrams that the kernel segments arrive damaged at the remote gateway, if that has changed.
    GsoHarm(bool),
}

/// Derives events from the reports of the connection check.
#[derive(Debug)]
pub(super) struct ConnectivityEvents {
    reports: watch::Receiver<Report>,
    /// As in the last report.
    suspicions: u32,
    silences: u32,
    /// The last path MTU that was returned, and whether it is of a gateway of Strait.
    path_mtu: Option<u16>,
    is_strait: bool,
    /// The last harm of segmentation that was returned.
    is_gso_harmful: bool,
    /// The path MTU to a gateway of Strait by the previous leader, which was not returned yet.
    inherited: Option<u16>,
}

impl ConnectivityEvents {
    /// Starts from the current report.
    pub(super) fn new(mut reports: watch::Receiver<Report>) -> Self {
        let Report { suspicions, silences, .. } = *reports.borrow_and_update();

        Self {
            reports,
            suspicions,
            silences,
            path_mtu: None,
            is_strait: false,
            inherited: None,
            is_gso_harmful: false,
        }
    }

    /// The previous leader has found that packets of `path_mtu` bytes arrive at a gateway of Strait.
    pub(super) const fn inherit(&mut self, path_mtu: u16) {
        self.inherited = Some(path_mtu);
    }

    /// Waits for the next event; forever if there is no check. Cancel safe.
    pub(super) async fn next(&mut self) -> ConnectivityEvent {
        loop {
            let report = *self.reports.borrow();
            if let Some(event) = self.handle_report(report) {
                return event;
            }
            if let Some(event) = self.handle_path_mtu(&report) {
                return event;
            }
            if report.is_gso_harmful != self.is_gso_harmful {
                self.is_gso_harmful = report.is_gso_harmful;
                return ConnectivityEvent::GsoHarm(report.is_gso_harmful);
            }
            if self.reports.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn handle_path_mtu(&mut self, report: &Report) -> Option<ConnectivityEvent> {
        let inherited = self.inherited.take();
        let (bytes, is_strait) = match report.path_mtu {
            Some(found) => (Some(found), report.is_strait),
            None if report.is_strait || report.state != State::Connected => match inherited {
                Some(inherited) => (Some(inherited), true),
                None => (self.path_mtu, self.is_strait),
            },
            None => (self.path_mtu.filter(|_| !self.is_strait), false),
        };
        let is_known = (bytes, is_strait) == (self.path_mtu, self.is_strait);
        if is_known && inherited.is_none() {
            return None;
        }
        (self.path_mtu, self.is_strait) = (bytes, is_strait);

        Some(ConnectivityEvent::PathMtu { bytes, is_strait })
    }

    /// The next event of `report`, which may stand for several reports.
    fn handle_report(&mut self, report: Report) -> Option<ConnectivityEvent> {
        // First, as a lookup takes time.
        if mem::replace(&mut self.suspicions, report.suspicions) < report.suspicions {
            return Some(ConnectivityEvent::MissedProbe);
        }
        let before = mem::replace(&mut self.silences, report.silences);

        (before < report.silences).then_some(ConnectivityEvent::Silence)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
mod tests {
    use std::iter;
    use std::time::{Duration, Instant};

    use jiff::Timestamp;
    use proptest::prelude::*;
    use strait_plan::conncheck::{ConnCheck, PORT, Reaction, Settings};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    #[test]
    fn two_missed_probes_are_silence() {
        let found = events(&[true, true, false, false, false, true]);

        assert_eq!(found, [(3, ConnectivityEvent::MissedProbe), (4, ConnectivityEvent::Silence)]);
    }

    #[test]
    fn silence_is_repeated_until_the_loss() {
        let found = events(&[&[true][..], &[false; 30]].concat());

        let silence = |probe| (probe, ConnectivityEvent::Silence);
        assert_eq!(found, [(2, ConnectivityEvent::MissedProbe), silence(3), silence(5)]);
    }

    #[test]
    fn an_answer_resets_missed_probes() {
        let found = events(&[true, false, true, false, true, true]);

        assert_eq!(
            found,
            [(2, ConnectivityEvent::MissedProbe), (4, ConnectivityEvent::MissedProbe)]
        );
    }

    #[test]
    fn a_gateway_without_any_answer_is_reported_once() {
        let found = events(&[false; 100]);

        assert_eq!(found, [(1, ConnectivityEvent::MissedProbe), (2, ConnectivityEvent::Silence)]);
    }

    #[test]
    fn an_inherited_path_mtu_lasts_until_probed() {
        let (_sender, reports) = watch::channel(Report::default());
        let report =
            |state, is_strait, path_mtu| Report { state, is_strait, path_mtu, ..Report::default() };
        let silent = report(State::Connecting, false, None);
        let answering = report(State::Connected, true, None);
        let ours = report(State::Connected, true, Some(1296));
        let stock = report(State::Connected, false, None);
        let probed_stock = report(State::Connected, false, Some(1296));
        let path_mtu = |bytes| Some(ConnectivityEvent::PathMtu { bytes, is_strait: true });
        let stock_path_mtu = |bytes| Some(ConnectivityEvent::PathMtu { bytes, is_strait: false });

        for (later, expected) in [
            (ours, path_mtu(Some(1296))),
            (stock, stock_path_mtu(None)),
            (probed_stock, stock_path_mtu(Some(1296))),
        ] {
            let mut events = ConnectivityEvents::new(reports.clone());
            assert_eq!(events.handle_path_mtu(&silent), None);

            events.inherit(1420);
            assert_eq!(events.handle_path_mtu(&silent), path_mtu(Some(1420)));
            assert_eq!(events.handle_path_mtu(&answering), None);
            assert_eq!(events.handle_path_mtu(&later), expected);
            assert_eq!(events.handle_path_mtu(&later), None);
        }
    }

    #[test]
    fn a_stock_gateways_path_mtu_outlasts_silence() {
        let (_sender, reports) = watch::channel(Report::default());
        let mut events = ConnectivityEvents::new(reports);
        let mut events_of = |state, is_strait, path_mtu| {
            events.handle_path_mtu(&Report { state, is_strait, path_mtu, ..Report::default() })
        };
        let event =
            |bytes, is_strait| Some(ConnectivityEvent::PathMtu { bytes: Some(bytes), is_strait });

        assert_eq!(events_of(State::Connected, false, None), None);
        assert_eq!(events_of(State::Connected, false, Some(1296)), event(1296, false));
        assert_eq!(events_of(State::Lost, false, None), None);
        assert_eq!(events_of(State::Connected, false, None), None);
        assert_eq!(events_of(State::Connected, false, Some(1340)), event(1340, false));
        // It is replaced by one of ours.
        assert_eq!(events_of(State::Connected, true, Some(1340)), event(1340, true));
    }

    #[test]
    fn reports_that_were_skipped_are_events() {
        let (_sender, reports) = watch::channel(Report::default());
        let mut events = ConnectivityEvents::new(reports);

        let later = Report { suspicions: 2, silences: 1, ..Report::default() };
        let found: Vec<_> = iter::from_fn(|| events.handle_report(later)).collect();
        assert_eq!(found, [ConnectivityEvent::MissedProbe, ConnectivityEvent::Silence]);

        // Another term of the leader counts again.
        assert_eq!(events.handle_report(Report::default()), None);
        let first = Report { suspicions: 1, ..Report::default() };
        assert_eq!(events.handle_report(first), Some(ConnectivityEvent::MissedProbe));
    }

    proptest! {
        /// Compared with a direct count: a run of missed probes is one event, a second one if it is longer than one, and
        /// a third one if it is longer than three, which the loss at five ends.
        #[test]
        fn each_run_of_missed_probes_is_reported(answers in prop::collection::vec(any::<bool>(), 1..30)) {
            let mut expected = Vec::new();
            let (mut missed, mut is_connected) = (0, false);
            for (place, is_answered) in answers.iter().enumerate() {
                missed = if *is_answered { 0 } else { missed + 1 };
                is_connected = *is_answered || is_connected && missed < 5;
                let event = match missed {
                    1 => ConnectivityEvent::MissedProbe,
                    2 => ConnectivityEvent::Silence,
                    4 if is_connected => ConnectivityEvent::Silence,
                    _ => continue,
                };
                expected.push((place + 1, event));
            }

            prop_assert_eq!(events(&answers), expected);
        }
    }

    /// The events of a real check whose probes are answered like this, with the number of the probe.
    fn events(answers: &[bool]) -> Vec<(usize, ConnectivityEvent)> {
        let peer = [169, 254, 18, 1].into();
        let settings = Settings {
            cluster_id: "milan".to_owned(),
            peer,
            port: PORT,
            interval: INTERVAL,
            loss_threshold: 5,
            mtu: 1340,
        };
        let mut now = Instant::now();
        let mut check = ConnCheck::new(settings.clone(), now);
        let mut other = ConnCheck::new(settings, now);
        let (_sender, reports) = watch::channel(Report::default());
        let mut events = ConnectivityEvents::new(reports);
        let mut found = Vec::new();

        for place in 0..=answers.len() {
            now += INTERVAL;
            let time = Timestamp::from_second(i64::try_from(place).unwrap()).unwrap();
            let ping = check.handle_timeout(now, time, 7).unwrap();
            let report = check.report();
            found
                .extend(iter::from_fn(|| events.handle_report(report)).map(|event| (place, event)));
            if answers.get(place).is_some_and(|is_answered| *is_answered) {
                let Reaction::Answer(pong) = other.handle_datagram(peer, &ping, now) else {
                    panic!("a PING is answered");
                };
                check.handle_datagram(peer, &pong, now);
                assert_eq!(events.handle_report(check.report()), None, "an answer is no event");
            }
        }

        found
    }
}
