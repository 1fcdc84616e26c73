//! What a gateway is made of, and where it is to be found: from the objects that ask for one to the
//! objects that are one. Pure.
//!
//! # Not here
//!
//! What talks to the API server; what expressions of a template come to (see [`crate::template`]).

mod child;
mod endpoint;
#[cfg(test)]
mod tests;

pub use child::{Child, ChildError, Extra, Parent, child};
pub use endpoint::{EndpointError, active_pod, endpoint, internal_endpoint};
