//! The integration tests of the gateway: one program, one module for each topic.
//!
//! What tests of several topics share is in `harness` and in `strait-lab`. Each test declares what it needs of the
//! machine, see `harness/require.rs`. The manual's page on testing lists the topics and their needs.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test may panic, and says why"
)]

mod harness;

mod admin;
mod cli;
mod commands;
mod deploy;
mod device;
mod endpoints;
mod explain;
mod firewall;
mod flood;
mod host;
mod interop;
mod kube;
mod manual;
mod many;
mod masquerade;
mod nested;
mod netns;
mod node;
mod operator;
mod oracle;
mod outer;
mod overlay;
mod recovery;
mod replacement;
mod restored;
mod trace;
mod underlay;
mod unreachable;
mod workers;
