//! Logs a repeated failure once, and once its end.

use std::borrow::Cow;
use std::fmt::Display;
use std::mem;

use tracing::{info, warn};

/// An operation that may fail for as long as the API server is away.
#[derive(Debug)]
pub struct Complaint {
    what: Cow<'static, str>,
    is_open: bool,
}

impl Complaint {
    /// For the operation `what`, a verb with its object.
    #[must_use]
    pub fn about(what: impl Into<Cow<'static, str>>) -> Self {
        Self { what: what.into(), is_open: false }
    }

    /// Logs `outcome` if it differs from the one before.
    pub fn say<T, E: Display>(&mut self, outcome: &Result<T, E>) {
        let news = self.news(outcome.is_err());
        let what = &self.what;
        match (news, outcome) {
            (Some(News::Begun), Err(error)) => {
                warn!(%error, "cannot {what}; trying again until it works");
            }
            (Some(News::Over), Ok(_)) => info!("can {what} again"),
            _ => {}
        }
    }

    fn news(&mut self, has_failed: bool) -> Option<News> {
        let was_open = mem::replace(&mut self.is_open, has_failed);

        match (was_open, has_failed) {
            (false, true) => Some(News::Begun),
            (true, false) => Some(News::Over),
            (false, false) | (true, true) => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum News {
    Begun,
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_their_end_are_logged_once() {
        let mut complaint = Complaint::about("count");
        let failures = [false, true, true, true, false, false, true];

        let news = failures.map(|has_failed| complaint.news(has_failed));

        let (begun, over) = (Some(News::Begun), Some(News::Over));
        assert_eq!(news, [None, begun, None, None, over, None, begun]);
    }
}
