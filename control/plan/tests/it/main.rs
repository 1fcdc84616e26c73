//! Whole namespaces of objects, and what becomes of each.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic, and says what it saw"
)]

mod garbage;
