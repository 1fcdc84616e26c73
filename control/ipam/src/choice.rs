//! Chooses one prefix: the requested one, or the next free one of its length.

use remap::Prefix;

use super::Pools;

/// A prefix that is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// The prefix.
    pub prefix: Prefix,
    /// Whether other shared prefixes may overlap it.
    pub is_shared: bool,
}

/// A request for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The prefix, if it is free.
    pub prefix: Prefix,
    /// Whether no other prefix of the same length will do.
    pub is_immutable: bool,
    /// Whether other shared prefixes may overlap it.
    pub is_shared: bool,
}

/// Why a prefix cannot be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// It overlaps an allocated one.
    #[error("{prefix} overlaps {taken}, which is taken: release that, or allow another prefix")]
    Taken {
        /// The requested prefix.
        prefix: Prefix,
        /// An allocated prefix that it overlaps.
        taken: Prefix,
    },
    /// Outside of the pools it could not be kept exclusive.
    #[error("{prefix} lies in no pool: allow another prefix, or share this one, or add a pool")]
    NoPool {
        /// The requested prefix.
        prefix: Prefix,
    },
    /// No prefix of this length is free.
    #[error("no /{len} is left in any pool: release one, or add a pool")]
    Exhausted {
        /// The length, in bits.
        len: u8,
    },
}

/// The prefix for `request`, beside the allocated ones in `taken`.
///
/// # Errors
///
/// [`AllocationError`] if there is none.
pub fn choose(
    pools: &Pools,
    taken: &[Allocated],
    request: Request,
) -> Result<Prefix, AllocationError> {
    let Request { prefix, is_immutable, is_shared } = request;
    let conflicts = conflicting(taken, is_shared).filter(|conflict| conflict.overlaps(prefix));
    let is_covered = pools.cover(prefix);

    match conflicts.min() {
        None if is_covered => Ok(prefix),
        // As in Liqo: the pods and services of the cluster itself are of this kind, and may lie outside of the pools.
        None if is_shared && is_immutable => Ok(prefix),
        _ if !is_immutable => {
            let len = prefix.len_bits();
            next_free(pools, taken, prefix).ok_or(AllocationError::Exhausted { len })
        }
        Some(taken) => Err(AllocationError::Taken { prefix, taken }),
        None => Err(AllocationError::NoPool { prefix }),
    }
}

/// The prefixes that a shared request, or an exclusive one, must not overlap.
pub(super) fn conflicting(taken: &[Allocated], is_shared: bool) -> impl Iterator<Item = Prefix> {
    let conflicts = taken.iter().filter(move |taken| !(is_shared && taken.is_shared));

    conflicts.map(|conflict| conflict.prefix)
}

/// The first free prefix of the length and version of `like`.
fn next_free(pools: &Pools, taken: &[Allocated], like: Prefix) -> Option<Prefix> {
    let taken: Vec<_> = taken.iter().map(|taken| taken.prefix).collect();

    pools
        .iter()
        .filter(|pool| pool.is_ipv4() == like.is_ipv4())
        .find_map(|pool| free_within(pool, &overlapping(pool, &taken), like.len_bits()))
}

/// The first free prefix of `len` bits in `node`, with which all of `taken` overlap.
fn free_within(node: Prefix, taken: &[Prefix], len: u8) -> Option<Prefix> {
    if node.len_bits() > len || taken.iter().any(|taken| taken.covers(node)) {
        return None;
    }
    if node.len_bits() == len {
        // A prefix below it is taken.
        return taken.is_empty().then_some(node);
    }

    let [left, right] = halves(node)?;
    let [of_left, of_right] = [left, right].map(|half| overlapping(half, taken));
    let (left, right) = ((left, of_left), (right, of_right));
    // Split prefixes are used up first, so that larger ones stay whole.
    let order =
        if left.1.is_empty() && !right.1.is_empty() { [right, left] } else { [left, right] };

    order.into_iter().find_map(|(half, taken)| free_within(half, &taken, len))
}

fn overlapping(node: Prefix, taken: &[Prefix]) -> Vec<Prefix> {
    taken.iter().copied().filter(|taken| taken.overlaps(node)).collect()
}

/// The two prefixes that are one bit longer; `None` for a single address.
fn halves(node: Prefix) -> Option<[Prefix; 2]> {
    let len = node.len_bits().checked_add(1)?;
    let mut halves = node.to_net().subnets(len).ok()?;
    let mut half = || Prefix::new(halves.next()?.network(), len).ok();

    Some([half()?, half()?])
}
