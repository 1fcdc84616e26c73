//! The only clock of the data path.

use std::time::Instant;

/// The time, as the engine wants it. Monotonic; costs a few nanoseconds and no system call.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}
