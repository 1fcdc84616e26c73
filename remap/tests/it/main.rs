//! The lookup, the table, its publication and the masquerade, compared with slow models through the public interface.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test may panic")]

mod lpm;
mod masquerade;
mod model;
mod publish;
