//! The operator: creates gateways from the objects that specify them, and publishes their endpoints.
//!
//! ```text
//! GatewayServer, GatewayClient ── template ──> WgGatewayServer, WgGatewayClient, or another kind
//!      ^                                          │
//!      └──────────── status ──────────────────────┤
//!                                                 └──> keys, account, binding, pods, service
//! IP ── spec.serviceTemplate ──> Service, EndpointSlice
//! Configuration, GatewayServer, GatewayClient, Connection ──> ForeignCluster
//! ```
//!
//! # Invariants
//!
//! - An object that cannot be created as specified is reported in an Event, and the former one is kept.
//! - An object that is right already is not written; fields of other writers are kept.
//! - An address that was found stays in the status while the address of the gateway is unknown.
//! - The condition of a gateway is removed with the gateway.
//!
//! # Not here
//!
//! Prefixes (see `strait-ipam`), and the evaluation of template expressions (see [`crate::template`]).

#![forbid(unsafe_code)]

mod apply;
mod cache;
mod changes;
mod child;
pub mod cluster_id;
mod context;
mod counts;
mod endpoint;
mod foreign_cluster;
mod in_force;
mod keys;
mod kind;
mod masquerade_address;
mod problem;
mod queue;
mod render;
mod rollout;
mod run;
mod service_of_ip;
pub mod template;
#[cfg(test)]
mod tests;
mod wireguard;
mod workload;

use strait_api::public_key::PublicOf;

pub use child::{Child, ChildError, Parent, child};
pub use counts::ReconcileCounts;
pub use endpoint::{EndpointError, endpoint, internal_endpoint};
pub use keys::{KeyPair, KeysError, Unsound, unsound};
pub use problem::Problem;
pub use run::run;
pub use workload::WorkloadError;

/// The settings of an operator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The identity of this replica, unique among all: its Events carry it.
    pub holder: String,
    /// The `ClusterRole` of the pods of servers.
    pub server_role: String,
    /// The `ClusterRole` of the pods of clients.
    pub client_role: String,
    /// Generates keys; this crate has no source of randomness.
    pub generate_keys: fn() -> KeyPair,
    /// Computes the public key of a private one.
    pub public_of: PublicOf,
    /// Counts what was done.
    pub counts: ReconcileCounts,
}
