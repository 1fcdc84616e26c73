//! The pages of a gateway: metrics, probes, configuration and log filter.

mod board;
mod config;
mod pages;

use std::sync::Arc;

use super::cluster::Observed;
use super::given::Given;
use super::logging::Log;
use super::metrics::StatusSource;

pub(crate) use board::Board;
pub(crate) use config::InForce;
pub(crate) use pages::Pages;

/// Whom the pages ask. Clones ask the same.
#[derive(Clone)]
pub(crate) struct Sources {
    /// The packet threads.
    pub(crate) status: StatusSource,
    /// What feeds a gateway in a cluster.
    pub(crate) cluster: Option<Observed>,
    /// The control loop.
    pub(crate) board: Board,
    /// The log.
    pub(crate) log: Log,
    /// The command line.
    pub(crate) given: Arc<Given>,
}

#[cfg(test)]
mod tests;
