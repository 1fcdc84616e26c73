//! Events: written, counted, and limited.
//!
//! Core Events (`v1`), not those of `events.k8s.io`, which the recorder of kube writes: Liqo's role for
//! gateways grants the former only. `kubectl` shows both alike.
//!
//! # Invariants
//!
//! - However often something happens, there are at most [`BURST`] Events at once and one more each
//!   [`REFILL`]. What there is no room for is told later, if it is still true.

mod limit;
mod writer;

use k8s_openapi::api::core::v1::ObjectReference;

pub use limit::{BURST, Limit, REFILL};
pub use writer::EventWriter;

/// How an Event is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All is as it should be.
    Normal,
    /// Somebody has to do something.
    Warning,
}

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// To which.
    pub object: ObjectReference,
    /// How it is meant.
    pub kind: Kind,
    /// One word, which stays the same from release to release.
    pub reason: &'static str,
    /// For the operator.
    pub message: String,
}
