//! Prefixes and addresses in a real cluster, with the rights that the operator has.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may panic, and says what it saw"
)]

mod prefixes;
mod world;
