//! Two clusters, each with an API server of its own, joined by what their objects say.
//!
//! Needs root, `/dev/net/tun`, and what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

#![expect(
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test may panic, and says why"
)]

#[path = "../harness/require.rs"]
mod require;
#[expect(dead_code, reason = "these gateways have no configuration files")]
#[path = "../harness/world.rs"]
mod world;

mod beside;
mod fed;
mod figures;
mod life;
mod observed;
mod peering;
mod replicas;
mod rights;
mod standalone;
mod strangers;
mod tour;
