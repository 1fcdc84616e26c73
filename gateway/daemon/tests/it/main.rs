//! A gateway and its API server: a real one, with the rights that gateways have.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may panic, and says what it saw"
)]

mod conditions;
mod faults;
mod gateway;
