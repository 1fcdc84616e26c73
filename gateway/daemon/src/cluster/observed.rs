//! The state of the cluster source, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strait_plan::conncheck::Report;
use tokio::sync::watch;

/// Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    check: Option<Check>,
    refused: Arc<AtomicU64>,
}

/// The connection check and its peer.
#[derive(Clone, Debug)]
struct Check {
    peer: String,
    reports: watch::Receiver<Report>,
}

impl Observed {
    /// There is no connection check.
    pub(crate) fn unchecked() -> Self {
        Self::default()
    }

    /// `reports` come from the check of `peer`.
    pub(crate) fn checked(peer: String, reports: watch::Receiver<Report>) -> Self {
        Self { check: Some(Check { peer, reports }), ..Self::default() }
    }

    /// The last report of the check of `peer`, if there is one.
    pub(crate) fn report(&self, peer: &str) -> Option<Report> {
        let check = self.check.as_ref().filter(|check| check.peer == peer)?;

        Some(*check.reports.borrow())
    }

    /// The number of refused settings in objects.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sets the number of refused settings in objects.
    pub(crate) fn set_refused(&self, count: usize) {
        self.refused.store(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
