//! The pages of a gateway: metrics, probes, configuration and log filter.

mod config;
mod pages;
mod status_board;

use std::sync::Arc;

use strait_host::logging::Log;

use super::cluster::Observed;
use super::flag_values::FlagValues;
use super::metrics::StatusSource;

pub(crate) use config::AppliedConfig;
pub use pages::Pages;
pub use status_board::StatusBoard;

/// The sources of the pages. Clones share them.
#[derive(Clone)]
pub struct Sources {
    /// The packet threads.
    pub status: StatusSource,
    /// The cluster source, for a gateway in a cluster.
    pub cluster: Option<Observed>,
    /// The control loop.
    pub status_board: StatusBoard,
    /// The log.
    pub log: Log,
    /// The command line.
    pub flag_values: Arc<FlagValues>,
}

#[cfg(test)]
mod tests;
