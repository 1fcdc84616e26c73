//! The pages of a gateway: metrics, probes, configuration and log filter.

mod board;
mod config;
mod pages;

use std::sync::Arc;

use strait_host::logging::Log;

use super::cluster::Observed;
use super::given::Given;
use super::metrics::StatusSource;

pub use board::Board;
pub(crate) use config::InForce;
pub use pages::Pages;

/// Whom the pages ask. Clones ask the same.
#[derive(Clone)]
pub struct Sources {
    /// The packet threads.
    pub status: StatusSource,
    /// What feeds a gateway in a cluster.
    pub cluster: Option<Observed>,
    /// The control loop.
    pub board: Board,
    /// The log.
    pub log: Log,
    /// The command line.
    pub given: Arc<Given>,
}

#[cfg(test)]
mod tests;
