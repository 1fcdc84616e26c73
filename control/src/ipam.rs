//! Which prefix of this cluster stands for a remote one, and which address for a host: the choices of
//! Liqo's allocator.
//!
//! There is no state to lose. What was chosen stands in the status of `Network` and `IP` resources, and
//! every choice follows from all of those that there are. Liqo keeps binary trees, one a pool, whose
//! nodes are split by what was acquired below them and merged again when that is released: what a tree
//! looks like follows from what is taken, so none is kept here.
//!
//! # Invariants
//!
//! - Nobody gets a prefix that overlaps one that is taken, except that shared ones may overlap each
//!   other.
//! - What was chosen before stays, if nobody older has it.
//! - The same resources in any order make the same choices.

mod address;
mod choice;
mod networks;
mod pools;
#[cfg(test)]
mod tests;

pub use address::next_address;
pub use choice::{Denied, Request, Taken, choose};
pub use networks::{Asked, Outcome, Place, assign};
pub use pools::{Pools, PoolsError};
