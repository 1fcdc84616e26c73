//! Turns what is wanted into peers and one remapping table.
//!
//! Level-triggered: the plan is a function of everything that is wanted now, never of the event that
//! woke us. One bad rule loses itself and nobody else's.
//!
//! # Invariants
//!
//! - The same input always yields the same plan.
//! - What is rejected is named, with the value and the remedy; what is not rejected is in the table.
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
