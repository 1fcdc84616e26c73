//! What each daemon of Strait needs of its host: links, addresses and routes, the admin port, signals, logging and
//! limits.
//!
//! Nothing here knows a packet, a peer or a custom resource.

#![forbid(unsafe_code)]

pub mod connections;
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
