//! Which prefix of this cluster stands for a remote one, and which address for a host: the choices of
//! Liqo's allocator, and the task that makes them for `Network`, `IP` and `Configuration` resources.
//!
//! What was chosen stands in the status of the resources, and in one object beside them, the *journal*
//! ([`JOURNAL`]): a `ConfigMap` with every allocation and the UID of the resource that has it. It is
//! replaced as a whole, by whoever has read it last, before any status says what is new in it. Liqo
//! keeps binary trees, one a pool, whose nodes are split by what was acquired below them and merged
//! again when that is released: what a tree looks like follows from what is taken, so none is kept here.
//!
//! # Guarantees
//!
//! - No two resources ever have the same address or prefixes that overlap in their status, except for
//!   networks that are shared with each other; however many operators run, wherever one is stopped,
//!   started, or left without an answer, and whatever it has not seen yet. That holds as well if the
//!   journal is deleted at any time, which costs a write to each resource: then the statuses say who has
//!   what.
//! - What a status said before there was a journal stays, if nobody older has it; afterwards what the
//!   journal says stays for as long as the resource does.
//! - What a resource had is free for others once it is deleted, before its finalizer goes.
//! - The same resources in any order get the same; once all is written, another round writes nothing.
//!
//! None of that holds against others who write statuses at the same time: Liqo's own allocator must not
//! run beside this one. A journal that somebody has written to by hand is believed.
//!
//! # Not here
//!
//! Which replica runs the task, though several may; services in front of `IP`s (see `strait-operator`);
//! what a gateway makes of a `Configuration` (see `strait_plan::objects`).

#![forbid(unsafe_code)]

mod address;
mod choice;
mod cluster;
mod decision;
mod installed;
mod journal;
mod names;
mod networks;
mod object;
mod peer;
mod pools;
mod rehearsal;
mod resources;
mod round;
mod running;
#[cfg(test)]
mod tests;
mod wish;
mod work;

use std::collections::BTreeMap;

pub(crate) use address::next_address;
pub use choice::{Denied, Request, Taken, choose};
pub use cluster::{ALLOCATIONS, JOURNAL};
pub use installed::{Installation, installed_networks};
pub use journal::{Entry, Held, Journal, JournalError};
pub(crate) use networks::assign;
pub use networks::{Asked, Outcome, Place};
pub use peer::CONFIGURED_CONDITION;
pub use pools::{Pools, PoolsError};
pub use rehearsal::{Rehearsal, RehearsalError, Snapshot, Unserved};
pub use running::run;

/// How to give names and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// To choose from.
    pub pools: Pools,
    /// Where the installation has its `Network`s, and where the journal is.
    pub namespace: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { pools: Pools::default(), namespace: "liqo".to_owned() }
    }
}

/// Versions of objects, by UID, that need not be looked at again.
type SkipVersions = BTreeMap<String, String>;
