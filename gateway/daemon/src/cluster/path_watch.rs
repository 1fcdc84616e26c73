//! What a gateway in a cluster knows of the way to the other end.

use remap::Prefix;
use strait_plan::conncheck::{Report, State};
use tokio::select;
use tokio::sync::watch;

use super::leadership::LeaderTerm;

/// Follows leadership, the connection check, and the prefixes that only this gateway may carry.
#[derive(Debug)]
pub(crate) struct PathWatch {
    pub(super) term: watch::Receiver<Option<LeaderTerm>>,
    pub(super) reports: watch::Receiver<Report>,
    pub(super) own_destinations: watch::Receiver<Vec<Prefix>>,
}

impl PathWatch {
    /// Whether this replica leads, and the other end is neither draining nor believed to be gone.
    pub(crate) fn is_usable(&self) -> bool {
        self.term.borrow().is_some() && is_there(&self.reports.borrow())
    }

    /// The prefixes, as this cluster sees them, that only this gateway and its other end may carry.
    pub(crate) fn own_destinations(&self) -> Vec<Prefix> {
        self.own_destinations.borrow().clone()
    }

    /// Waits for a change; forever, once nothing can change any more. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        let changed = select! {
            changed = self.term.changed() => changed,
            changed = self.reports.changed() => changed,
            changed = self.own_destinations.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending().await
        }
    }
}

/// Before the first answer of a check a session is the better sign.
const fn is_there(report: &Report) -> bool {
    !matches!(report.state, State::Lost) && !report.is_suspected && !report.is_draining
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leader_with_a_peer_is_usable() {
        let (_term, term) = watch::channel(Some(LeaderTerm::default()));
        let (reports, report) = watch::channel(Report::default());
        let (_prefixes, own_destinations) = watch::channel(Vec::new());
        let path = PathWatch { term, reports: report, own_destinations };
        let usable = |report| {
            reports.send_replace(report);
            path.is_usable()
        };

        assert!(usable(Report::default()));
        assert!(usable(Report { state: State::Connected, ..Report::default() }));
        for report in [
            Report { state: State::Lost, ..Report::default() },
            Report { state: State::Connected, is_suspected: true, ..Report::default() },
            Report { state: State::Connected, is_draining: true, ..Report::default() },
        ] {
            assert!(!usable(report), "{report:?}");
        }

        assert!(usable(Report::default()));
        let standby = PathWatch { term: watch::channel(None).1, ..path };
        assert!(!standby.is_usable());
    }
}
