//! The commands for one cluster or two. A command without its flags and its terminal is called a verb here.
//!
//! The verbs, the order of their steps and their output are those of Liqo's documentation, so that users of Liqo and
//! their scripts can go on.
//!
//! # Invariants
//!
//! - Every error that can be detected beforehand is reported before the first write.
//! - An object that is right already is not written: a verb may be repeated, also after an interruption.
//! - Waiting is watching: a verb goes on when the condition holds; on timeout it reports the last state that it saw.
//!
//! # Not here
//!
//! The controllers that make gateways from these objects (see `strait-operator`).

#![forbid(unsafe_code)]

mod api_error;
mod builders;
mod cause;
mod check;
pub mod cli;
mod connect;
mod context;
mod create;
mod disconnect;
mod error;
mod flag_or_env;
mod generate;
mod info;
mod keys;
mod plan;
mod prefixes;
mod preflight;
mod report;
#[cfg(test)]
mod tests;
mod wait;
mod write;

pub(crate) use builders::{CLIENT_TEMPLATE, DEFAULT_MTU, DEFAULT_PORT, SERVER_TEMPLATE};
pub use builders::{Exposure, NodePort, ServiceType};
pub use check::{Finding, Findings, Severity, check, check_pair};
pub use connect::{Connect, TemplateFlags, TypedExposure, connect, initialize};
pub use context::{ClusterContext, Marks, Pair};
pub use create::{Create, CreateOptions, create, delete};
pub use disconnect::{disconnect, reset};
pub use error::{CommandError, TimeoutError};
pub use generate::{Generate, generate};
pub use info::{
    CidrPair, GatewayInfo, Health, Info, NetworkInfo, PeerCidr, PeerGateway, PeerInfo, PeerNetwork,
    info, peers, select,
};
pub use plan::{
    Action, Change, ClusterPlan, Conflict, Field, Plan, Proposal, objects, plan, plan_connect,
    plan_disconnect, plan_reset,
};
pub use prefixes::{Prefixes, PrefixesError};
pub use preflight::TemplateType;
pub use report::{Report, Session, Side};
pub use wait::Deadline;
pub use write::{Format, FormatError, text};
