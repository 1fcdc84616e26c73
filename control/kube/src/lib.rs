//! What every program in a cluster needs of its API server: a client that does not wait forever, watches that go on,
//! Events, leader election, and writes that change nothing that is right.
//!
//! # Not here
//!
//! What objects mean (see `strait-plan`), and which of them a program watches.

#![forbid(unsafe_code)]

pub mod active;
pub mod client;
pub mod complaint;
pub mod digest;
pub mod election;
pub mod events;
pub mod finalizer;
pub mod watch;
pub mod within;
