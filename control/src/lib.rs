//! Turns the desired state into peers and one remapping table.
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
//! Packets, sessions and sockets (see `strait-gateway`), which address becomes which (see
//! `strait-remap`).

#![forbid(unsafe_code)]

pub mod active;
pub mod announce;
pub mod api;
pub mod client;
pub mod commands;
pub mod complaint;
pub mod conditions;
pub mod conncheck;
pub mod connection;
pub mod desired;
mod digest;
pub mod election;
pub mod events;
mod finalizer;
pub mod identity;
pub mod ipam;
pub mod node;
pub mod objects;
pub mod operator;
pub mod plan;
pub mod status;
pub mod template;
pub mod watch;
mod within;
