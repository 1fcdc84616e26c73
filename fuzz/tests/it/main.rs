//! The targets on stable, in every test run: replayed inputs, and the seeds of the corpora.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test may panic")]

mod replay;
mod seeds;
