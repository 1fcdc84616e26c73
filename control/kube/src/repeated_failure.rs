//! Logs a repeated failure once, and once its end.

use std::borrow::Cow;
use std::fmt::Display;
use std::mem;

use tracing::{info, warn};

/// An operation that may fail for as long as the API server is away.
#[derive(Debug)]
pub struct RepeatedFailure {
    what: Cow<'static, str>,
    is_open: bool,
}

impl RepeatedFailure {
    /// For the operation `what`, a verb with its object.
    #[must_use]
    pub fn about(what: impl Into<Cow<'static, str>>) -> Self {
        Self { what: what.into(), is_open: false }
    }

    /// Logs `outcome` if it differs from the one before.
    pub fn log<T, E: Display>(&mut self, outcome: &Result<T, E>) {
        let change = self.change(outcome.is_err());
        let what = &self.what;
        match (change, outcome) {
            (Some(Change::Begun), Err(error)) => {
                warn!(%error, "cannot {what}; trying again until it works");
            }
            (Some(Change::Over), Ok(_)) => info!("can {what} again"),
            _ => {}
        }
    }

    fn change(&mut self, has_failed: bool) -> Option<Change> {
        let was_open = mem::replace(&mut self.is_open, has_failed);

        match (was_open, has_failed) {
            (false, true) => Some(Change::Begun),
            (true, false) => Some(Change::Over),
            (false, false) | (true, true) => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Begun,
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_their_end_are_logged_once() {
        let mut failure = RepeatedFailure::about("count");
        let failures = [false, true, true, true, false, false, true];

        let change = failures.map(|has_failed| failure.change(has_failed));

        let (begun, over) = (Some(Change::Begun), Some(Change::Over));
        assert_eq!(change, [None, begun, None, None, over, None, begun]);
    }
}
