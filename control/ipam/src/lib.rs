//! IP address management: allocates the local prefix of each remote one, and the addresses of hosts. The choices are
//! those of Liqo's allocator; a task makes them for `Network`, `IP` and `Configuration` resources.
//!
//! Allocations are in the status of the resources, and in one object beside them, the *journal* ([`JOURNAL`]): a
//! `ConfigMap` with every allocation and the UID of its resource. It is replaced as a whole, in the version that was
//! read, before a status shows a new allocation. Liqo keeps one binary tree per pool, whose nodes are split by what is
//! acquired below them and merged again on release: the tree follows from the allocations, so none is kept here.
//!
//! # Guarantees
//!
//! - No two resources ever have the same address or overlapping prefixes in their status, except for networks that are
//!   shared with each other; with any number of operators, wherever one is stopped, started, or left without an answer,
//!   and however old its view is. That holds as well if the journal is deleted at any time, which costs a write to each
//!   resource: the statuses then restore it.
//! - An allocation in a status from before the journal is kept, unless an older resource has it; afterwards an
//!   allocation of the journal is kept for as long as the resource exists.
//! - The allocation of a deleted resource is free for others before its finalizer is removed.
//! - The same resources in any order get the same allocations; once all are written, another round writes nothing.
//!
//! None of that holds against other writers of statuses: Liqo's own allocator must not run beside this one. A journal
//! that was edited by hand is trusted.
//!
//! # Not here
//!
//! Which replica runs the task (several may), services in front of `IP`s (see `strait-operator`), and the effect of a
//! `Configuration` on a gateway (see `strait_plan::objects`).

#![forbid(unsafe_code)]

mod address;
mod choice;
mod cluster;
mod decision;
mod dry_run;
mod installed;
mod journal;
mod names;
mod networks;
mod object;
mod peer;
mod pools;
mod requests;
mod resources;
mod round;
mod running;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;

pub(crate) use address::next_address;
pub use choice::{Allocated, AllocationError, Request, choose};
pub use cluster::{ALLOCATIONS, JOURNAL};
pub use dry_run::{DryRun, DryRunError, Snapshot, Unallocated};
pub use installed::{Installation, installed_networks};
pub use journal::{Allocation, Entry, Journal, JournalError};
pub(crate) use networks::assign;
pub use networks::{Outcome, Place, PrefixRequest};
pub use peer::CONFIGURED_CONDITION;
pub use pools::{Pools, PoolsError};
pub use running::run;

/// The settings of allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The pools to allocate from.
    pub pools: Pools,
    /// The namespace of the installation's `Network`s and of the journal.
    pub namespace: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { pools: Pools::default(), namespace: "liqo".to_owned() }
    }
}

/// Resource versions of objects, by UID, that are known to need no work.
type SkipVersions = BTreeMap<String, String>;
