//! Signs that the gateway at the other end is not where it was: probes that nobody answers.
//!
//! Noticed long before the connection counts as lost, and long before WireGuard finds the silence odd.

use strait_plan::conncheck::Report;
use tokio::sync::watch;

/// What probes make of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// One probe was not answered: it may have been lost.
    MissedProbe,
    /// And the next one was not either: nobody is there.
    Silence,
}

/// Waits for trouble.
#[derive(Debug)]
pub(super) struct Troubles {
    reports: watch::Receiver<Report>,
    /// In a row, as the last report had it.
    missed: u32,
}

impl Troubles {
    /// Begins with what `reports` say now.
    pub(super) fn new(mut reports: watch::Receiver<Report>) -> Self {
        let missed = reports.borrow_and_update().missed;

        Self { reports, missed }
    }

    /// The next trouble; waits for ever if nobody probes. Cancel safe.
    pub(super) async fn next(&mut self) -> Trouble {
        loop {
            if self.reports.changed().await.is_err() {
                return std::future::pending().await;
            }
            let report = *self.reports.borrow_and_update();
            if let Some(trouble) = self.handle_report(report) {
                return trouble;
            }
        }
    }

    fn handle_report(&mut self, report: Report) -> Option<Trouble> {
        let before = std::mem::replace(&mut self.missed, report.missed);

        // A report may have been overwritten by the next.
        match (before, report.missed) {
            (0, 1) => Some(Trouble::MissedProbe),
            (0 | 1, 2..) => Some(Trouble::Silence),
            _ => None,
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
mod tests {
    use std::time::{Duration, Instant};

    use jiff::Timestamp;
    use proptest::prelude::*;
    use strait_plan::conncheck::{ConnCheck, PORT, Reaction, Settings};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    #[test]
    fn the_first_missed_probe_is_trouble_and_the_second_is_silence() {
        let found = troubles(&[true, true, false, false, false, false, true]);

        assert_eq!(found, [(3, Trouble::MissedProbe), (4, Trouble::Silence)]);
    }

    #[test]
    fn an_answer_ends_the_trouble() {
        let found = troubles(&[true, false, true, false, true, true]);

        assert_eq!(found, [(2, Trouble::MissedProbe), (4, Trouble::MissedProbe)]);
    }

    #[test]
    fn a_gateway_that_never_answered_is_trouble_once() {
        let found = troubles(&[false; 100]);

        assert_eq!(found, [(1, Trouble::MissedProbe), (2, Trouble::Silence)]);
    }

    proptest! {
        /// Against the plain reading of the answers: a run of missed probes is one trouble, and one
        /// silence if it is longer than one.
        #[test]
        fn every_run_of_missed_probes_is_noticed(answers in prop::collection::vec(any::<bool>(), 1..30)) {
            let mut expected = Vec::new();
            let mut missed = 0;
            for (place, is_answered) in answers.iter().enumerate() {
                missed = if *is_answered { 0 } else { missed + 1 };
                let trouble = match missed {
                    1 => Trouble::MissedProbe,
                    2 => Trouble::Silence,
                    _ => continue,
                };
                expected.push((place + 1, trouble));
            }

            prop_assert_eq!(troubles(&answers), expected);
        }
    }

    /// What a real check reports if its probes are answered like this, and after which of them.
    fn troubles(answers: &[bool]) -> Vec<(usize, Trouble)> {
        let peer = [169, 254, 18, 1].into();
        let settings = Settings {
            cluster_id: "milan".to_owned(),
            peer,
            port: PORT,
            interval: INTERVAL,
            loss_threshold: 5,
        };
        let mut now = Instant::now();
        let mut check = ConnCheck::new(settings.clone(), now);
        let mut other = ConnCheck::new(settings, now);
        let (_sender, reports) = watch::channel(Report::default());
        let mut troubles = Troubles::new(reports);
        let mut found = Vec::new();

        for place in 0..=answers.len() {
            now += INTERVAL;
            let time = Timestamp::from_second(i64::try_from(place).unwrap()).unwrap();
            let ping = check.handle_timeout(now, time, 7).unwrap();
            found.extend(troubles.handle_report(check.report()).map(|trouble| (place, trouble)));
            if answers.get(place).is_some_and(|is_answered| *is_answered) {
                let Reaction::Answer(pong) = other.handle_datagram(peer, &ping, now) else {
                    panic!("a PING is answered");
                };
                check.handle_datagram(peer, &pong, now);
                found
                    .extend(troubles.handle_report(check.report()).map(|trouble| (place, trouble)));
            }
        }

        found
    }
}
