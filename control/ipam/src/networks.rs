//! Assigns prefixes to all requests at once: each keeps its prefix, gets one, or is denied.

use jiff::Timestamp;
use remap::Prefix;

use super::choice::conflicting;
use super::{Allocated, AllocationError, Pools, Request, choose};

/// Identifies a resource and orders requests, the oldest first. The first in this order has the better claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// When it was created, by the clock of the API server.
    pub created: Option<Timestamp>,
    /// The namespace of the resource.
    pub namespace: String,
    /// The name of the resource.
    pub name: String,
    /// The position among the prefixes of one `Configuration`, which share the rest of the place.
    pub turn: usize,
}

/// The request of one resource, and its former allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixRequest {
    /// The resource.
    pub place: Place,
    /// The request.
    pub request: Request,
    /// The prefix in its status.
    pub chosen: Option<Prefix>,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The prefix in its status stands.
    Keeps(Prefix),
    /// This prefix is to be its status. It had none, or that of an older resource.
    Gets(Prefix),
    /// There is none for it.
    Denied(AllocationError),
}

impl Outcome {
    /// The prefix that it has from now on.
    #[must_use]
    pub const fn prefix(&self) -> Option<Prefix> {
        match self {
            Self::Keeps(prefix) | Self::Gets(prefix) => Some(*prefix),
            Self::Denied(_) => None,
        }
    }
}

/// The outcome of each request, in the order of `prefix_request`, which has no other effect. `held` are the allocations that are
/// settled.
///
/// Two resources can have one prefix in their statuses, if others allocated it. The older one keeps it. Of those
/// without, immutable requests come first.
#[must_use]
pub(crate) fn assign(
    pools: &Pools,
    held: &[Allocated],
    prefix_request: &[PrefixRequest],
) -> Vec<Outcome> {
    let mut by_age: Vec<_> = prefix_request.iter().enumerate().collect();
    by_age.sort_by_key(|(_, prefix_request)| &prefix_request.place);
    let mut taken = held.to_vec();
    let mut outcomes = vec![None; prefix_request.len()];
    let mut settle =
        |place: usize, request: Request, outcome: Outcome, taken: &mut Vec<Allocated>| {
            let is_shared = request.is_shared;
            taken.extend(outcome.prefix().map(|prefix| Allocated { prefix, is_shared }));
            if let Some(settled) = outcomes.get_mut(place) {
                *settled = Some(outcome);
            }
        };

    let mut others = Vec::new();
    for (place, PrefixRequest { request, chosen, .. }) in by_age {
        let is_free = |chosen: &Prefix| {
            !conflicting(&taken, request.is_shared).any(|rival| rival.overlaps(*chosen))
        };
        match chosen.filter(is_free) {
            Some(chosen) => settle(place, *request, Outcome::Keeps(chosen), &mut taken),
            None => others.push((place, *request)),
        }
    }
    others.sort_by_key(|(_, request)| !request.is_immutable);
    for (place, request) in others {
        let outcome = choose(pools, &taken, request).map_or_else(Outcome::Denied, Outcome::Gets);
        settle(place, request, outcome, &mut taken);
    }

    outcomes.into_iter().flatten().collect()
}
