//! Failures that go on: that they began, and that they are over.

use std::borrow::Cow;
use std::fmt::Display;
use std::mem;

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
    fn what_goes_on_is_told_once_and_that_it_is_over_once() {
        let mut complaint = Complaint::about("count");
        let failures = [false, true, true, true, false, false, true];

        let news = failures.map(|has_failed| complaint.news(has_failed));

        let (begun, over) = (Some(News::Begun), Some(News::Over));
        assert_eq!(news, [None, begun, None, None, over, None, begun]);
    }
}
