//! The state of the cluster source, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use strait_plan::conncheck::Report;
use strait_plan::geneve::Tunnel;
use tokio::sync::watch;

/// Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    check: Option<Check>,
    refused: Arc<AtomicU64>,
    node_tunnels: Arc<Mutex<NodeTunnels>>,
}

/// The tunnels of Liqo's nodes to this gateway.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTunnels {
    /// The namespace of the gateway and of its tunnels.
    pub(crate) namespace: String,
    pub(crate) remote_cluster_id: String,
    pub(crate) tunnels: Vec<Tunnel>,
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

    /// The tunnels of Liqo's nodes.
    pub(crate) fn node_tunnels(&self) -> NodeTunnels {
        self.node_tunnels.lock().clone()
    }

    /// Sets the tunnels of Liqo's nodes.
    pub(crate) fn set_node_tunnels(&self, node_tunnels: NodeTunnels) {
        *self.node_tunnels.lock() = node_tunnels;
    }

    /// Sets the number of refused settings in objects.
    pub(crate) fn set_refused(&self, count: usize) {
        self.refused.store(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
