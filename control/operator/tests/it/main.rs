//! The operator against a real API server, with its shipped role. Deployments get their pods from a stand-in
//! for the kubelet.

#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test may panic, and says what it saw"
)]

mod addresses;
mod bindings;
mod cluster_ids;
mod conditions;
mod foreign_clusters;
mod gateways;
mod keys;
mod several;
mod templates;
mod world;
