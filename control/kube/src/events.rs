//! Writes Events, counts repeated ones, and limits their rate.
//!
//! Core Events (`v1`), not those of `events.k8s.io`, which the recorder of kube writes: Liqo's role for gateways grants
//! the former only. `kubectl` shows both alike.
//!
//! # Invariants
//!
//! - There are at most [`BURST`] Events at once, and one more each [`REFILL`]. A change beyond that limit is reported
//!   later, if it still holds.

mod limit;
mod writer;

use k8s_openapi::api::core::v1::ObjectReference;

pub use limit::{BURST, Limit, REFILL};
pub use writer::EventWriter;

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No action is needed.
    Normal,
    /// An operator has to act.
    Warning,
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The object.
    pub object: ObjectReference,
    /// The type.
    pub kind: Kind,
    /// The reason, the same in every release.
    pub reason: &'static str,
    /// The message for the operator.
    pub message: String,
}
