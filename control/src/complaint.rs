//! Failures that go on: that they began, and that they are over.

use std::borrow::Cow;
use std::fmt::Display;

use tracing::{info, warn};

/// What may fail for as long as the API server is away.
#[derive(Debug)]
pub struct Complaint {
    what: Cow<'static, str>,
    is_open: bool,
}

impl Complaint {
    /// About `what` somebody cannot do, or can.
    #[must_use]
    pub fn about(what: impl Into<Cow<'static, str>>) -> Self {
        Self { what: what.into(), is_open: false }
    }

    /// Says of `outcome` what is news.
    pub fn say<T, E: Display>(&mut self, outcome: &Result<T, E>) {
        let what = &self.what;
        match (outcome, self.is_open) {
            (Err(error), false) => warn!(%error, "cannot {what}; trying again until it works"),
            (Ok(_), true) => info!("can {what} again"),
            (Err(_), true) | (Ok(_), false) => {}
        }
        self.is_open = outcome.is_err();
    }
}
