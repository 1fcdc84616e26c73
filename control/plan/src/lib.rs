//! Computes the desired state from all objects: peers, one remapping table, rejections and conditions. Pure.
//!
//! Level-triggered: the plan is a function of all objects as they are now, never of the event that triggered it. An
//! invalid rule is rejected alone.
//!
//! # Invariants
//!
//! - The same input always yields the same plan.
//! - Each rejection has the value and the remedy; everything else is in the table.
//!
//! # Not here
//!
//! Clients, clocks and tasks (see `strait-kube`), packets and sockets (see `strait-engine`), the translation of
//! addresses (see `strait-remap`).

#![forbid(unsafe_code)]

pub mod conditions;
pub mod conncheck;
mod desired;
pub mod endpoint;
pub mod firewall;
pub mod geneve;
pub mod lowering;
pub mod objects;
pub mod origin;
mod peer;
mod plan;
pub mod routing;
pub mod status;

pub use desired::Desired;
pub use peer::Peer;
pub use plan::{Plan, Rejection, plan};
