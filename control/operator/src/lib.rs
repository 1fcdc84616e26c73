//! Makes gateways of the objects that ask for them, and says where they are to be found.
//!
//! ```text
//! GatewayServer, GatewayClient ── template ──> WgGatewayServer, WgGatewayClient, or another kind
//!      ^                                          │
//!      └──────────── status ──────────────────────┤
//!                                                 └──> keys, account, binding, pods, service
//! IP ── spec.serviceTemplate ──> Service, EndpointSlice
//! ```
//!
//! # Invariants
//!
//! - What cannot be made as it was asked for is told in an Event, and what was made before stays.
//! - Nothing is written that is right already; what others write elsewhere in an object stays.
//! - An address that was found stays in the status while nobody can say where the gateway is.
//! - The condition of a gateway goes when the gateway goes.
//!
//! # Not here
//!
//! Prefixes (see `strait-ipam`), and what expressions of a template come to (see
//! [`crate::template`]).

#![forbid(unsafe_code)]

mod apply;
mod cache;
mod changes;
mod child;
pub mod cluster_id;
mod context;
mod endpoint;
mod front;
mod in_force;
mod inbox;
mod keys;
mod kind;
mod problem;
mod render;
mod run;
mod tally;
pub mod template;
#[cfg(test)]
mod tests;
mod wireguard;
mod workload;

use strait_api::public_key::PublicOf;

pub use child::{Child, ChildError, Parent, child};
pub use endpoint::{EndpointError, endpoint, internal_endpoint};
pub use keys::{KeyPair, KeysError, Unsound, unsound};
pub use problem::Problem;
pub use run::run;
pub use tally::Tally;
pub use workload::WorkloadError;

/// How an operator works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Unique among its replicas: their Events say who wrote them.
    pub holder: String,
    /// The `ClusterRole` of the pods of servers.
    pub server_role: String,
    /// The `ClusterRole` of the pods of clients.
    pub client_role: String,
    /// Makes keys; randomness is not for this crate.
    pub generate_keys: fn() -> KeyPair,
    /// Tells whether two keys belong together.
    pub public_of: PublicOf,
    /// Counts what was done.
    pub tally: Tally,
}
