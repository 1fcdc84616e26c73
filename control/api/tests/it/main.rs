//! The custom resource types against a real API server, and against objects of Liqo.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may panic, and says what it saw"
)]

mod crds;
mod genuine;
