//! The verbs of the command line, for one cluster or two, without a terminal.
//!
//! The verbs, the order of their steps and their output are those of Liqo's documentation, so that its users and their
//! scripts can go on using them.
//!
//! # Invariants
//!
//! - Every error that can be detected beforehand is reported before the first write.
//! - An object that is right already is not written: a verb may be repeated, also after an interruption.
//! - Waiting is watching: a verb goes on when the condition holds; on timeout it reports the last state that it saw.
//!
//! # Not here
//! Flags, terminals and exit codes (see `strait-gateway`); the controllers that make gateways from
//! these objects (see [`crate::operator`]).
//! these objects (see `strait-operator`).

#![forbid(unsafe_code)]

mod api_error;
mod cause;
mod check;
pub mod cli;
mod connect;
mod contact;
mod create;
mod disconnect;
mod error;
mod forge;
mod generate;
mod info;
mod keys;
mod plan;
mod prefixes;
mod preflight;
mod report;
#[cfg(test)]
mod tests;
mod told;
mod wait;
mod write;

pub use check::{Finding, Findings, Severity, check, check_pair};
pub use connect::{Connect, ExposureWanted, TemplateWanted, connect, initialize};
pub use contact::{Contact, Marks, Pair};
pub use create::{Create, Making, create, delete};
pub use disconnect::{disconnect, reset};
pub use error::{CommandError, TimeoutError};
pub(crate) use forge::{CLIENT_TEMPLATE, DEFAULT_MTU, DEFAULT_PORT, SERVER_TEMPLATE};
pub use forge::{Exposure, PortWanted, ServiceType};
pub use generate::{Generate, generate};
pub use info::{
    CidrPair, Health, Info, NetworkInfo, PeerCidr, PeerGateway, PeerInfo, PeerNetwork, info, peers,
    select,
};
pub use plan::{
    Action, Change, ClusterPlan, Conflict, Field, Plan, Proposal, objects, plan, plan_connect,
    plan_disconnect, plan_reset,
};
pub use prefixes::{Prefixes, PrefixesError, parse_prefix};
pub use preflight::TemplateType;
pub use report::{Report, Session, Side};
pub use wait::Deadline;
pub use write::{Format, FormatError, text};
