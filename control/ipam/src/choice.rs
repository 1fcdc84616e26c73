//! One prefix: the one that was asked for, or the next free one of its length.

use remap::Prefix;

use super::Pools;

/// A prefix that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub prefix: Prefix,
    /// Whether others that are shared may overlap it.
    pub is_shared: bool,
}

/// A prefix that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// This one, if it can be had.
    pub prefix: Prefix,
    /// Whether another one of the same length would not do.
    pub is_immutable: bool,
    /// Whether others that are shared may overlap it.
    pub is_shared: bool,
}

/// Why a prefix cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Somebody has it, or a part of it, or all around it.
    #[error("{prefix} overlaps {taken}, which is taken: release that, or allow another prefix")]
    Taken {
        /// What was asked for.
        prefix: Prefix,
        /// One that is in the way.
        taken: Prefix,
    },
    /// Nobody could see that it stays exclusive.
    #[error("{prefix} lies in no pool: allow another prefix, or share this one, or add a pool")]
    NoPool {
        /// What was asked for.
        prefix: Prefix,
    },
    /// Nothing of this length is free.
    #[error("no /{len} is left in any pool: release one, or add a pool")]
    Exhausted {
        /// In bits.
        len: u8,
    },
}

/// What `request` gets, now that others have what is `taken`.
///
/// # Errors
///
/// [`Denied`]; nothing is changed by asking.
pub fn choose(pools: &Pools, taken: &[Taken], request: Request) -> Result<Prefix, Denied> {
    let Request { prefix, is_immutable, is_shared } = request;
    let rivals = rivals(taken, is_shared).filter(|rival| rival.overlaps(prefix));
    let is_covered = pools.cover(prefix);

    match rivals.min() {
        None if is_covered => Ok(prefix),
        // As Liqo has it: such are the pods and services of the cluster itself, wherever they are.
        None if is_shared && is_immutable => Ok(prefix),
        _ if !is_immutable => {
            let len = prefix.len_bits();
            next_free(pools, taken, prefix).ok_or(Denied::Exhausted { len })
        }
        Some(taken) => Err(Denied::Taken { prefix, taken }),
        None => Err(Denied::NoPool { prefix }),
    }
}

/// What somebody must not overlap who shares, or does not.
pub(super) fn rivals(taken: &[Taken], is_shared: bool) -> impl Iterator<Item = Prefix> {
    let rivals = taken.iter().filter(move |taken| !(is_shared && taken.is_shared));

    rivals.map(|rival| rival.prefix)
}

/// The first free prefix of the length and version of `like`.
fn next_free(pools: &Pools, taken: &[Taken], like: Prefix) -> Option<Prefix> {
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
        // Something below it is taken otherwise.
        return taken.is_empty().then_some(node);
    }

    let [left, right] = halves(node)?;
    let [of_left, of_right] = [left, right].map(|half| overlapping(half, taken));
    let (left, right) = ((left, of_left), (right, of_right));
    // What is broken into is used up first: larger ones stay whole.
    let order =
        if left.1.is_empty() && !right.1.is_empty() { [right, left] } else { [left, right] };

    order.into_iter().find_map(|(half, taken)| free_within(half, &taken, len))
}

fn overlapping(node: Prefix, taken: &[Prefix]) -> Vec<Prefix> {
    taken.iter().copied().filter(|taken| taken.overlaps(node)).collect()
}

/// The two prefixes of one more bit; `None` of a single address.
fn halves(node: Prefix) -> Option<[Prefix; 2]> {
    let len = node.len_bits().checked_add(1)?;
    let mut halves = node.to_net().subnets(len).ok()?;
    let mut half = || Prefix::new(halves.next()?.network(), len).ok();

    Some([half()?, half()?])
}
