//! What a gateway in a cluster knows besides its own state, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strait_plan::conncheck::Report;
use tokio::sync::watch;

/// Clones observe the same.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    check: Option<Check>,
    refused: Arc<AtomicU64>,
}

/// The connection check and the peer that it is about.
#[derive(Clone, Debug)]
struct Check {
    peer: String,
    reports: watch::Receiver<Report>,
}

impl Observed {
    /// Nobody checks the connection.
    pub(crate) fn unchecked() -> Self {
        Self::default()
    }

    /// `reports` is what the check of `peer` finds.
    pub(crate) fn checked(peer: String, reports: watch::Receiver<Report>) -> Self {
        Self { check: Some(Check { peer, reports }), ..Self::default() }
    }

    /// What the check of `peer` has found, if there is one.
    pub(crate) fn report(&self, peer: &str) -> Option<Report> {
        let check = self.check.as_ref().filter(|check| check.peer == peer)?;

        Some(*check.reports.borrow())
    }

    /// How many things in objects are refused now.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// As many as `count` are refused from now on.
    pub(crate) fn set_refused(&self, count: usize) {
        self.refused.store(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
