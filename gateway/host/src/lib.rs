//! What every daemon of Strait needs of its host: links, addresses and routes, the admin port, signals, logging and
//! limits.
//!
//! This crate does not know packets, peers or custom resources.

#![forbid(unsafe_code)]

pub mod connections;
pub mod exit_status;
pub mod flags;
pub mod http;
pub mod interface;
pub mod limits;
pub mod logging;
pub mod netlink;
pub mod signals;
pub mod stdout;
pub mod usage;
pub mod vmclock;
