//! Access to the API server for every program in a cluster: a client with timeouts, watches that continue after errors,
//! Events, leader election, and writes of differences only.
//!
//! # Not here
//!
//! The meaning of objects (see `strait-plan`), and the selection of those that a program watches.

#![forbid(unsafe_code)]

pub mod active;
pub mod client;
pub mod digest;
pub mod election;
pub mod events;
pub mod finalizer;
pub mod nodes;
pub mod repeated_failure;
pub mod watch;
pub mod within;
