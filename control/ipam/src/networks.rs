//! All newcomers at once: who keeps what was chosen, who gets something, who gets nothing.

use jiff::Timestamp;
use remap::Prefix;

use super::choice::rivals;
use super::{Denied, Pools, Request, Taken, choose};

/// Which resource, the oldest first. Who comes first in this order has the better claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// When it was made, as the API server says.
    pub created: Option<Timestamp>,
    /// Of the resource.
    pub namespace: String,
    /// Of the resource.
    pub name: String,
    /// Which of those that one `Configuration` asks for. They have the rest of its place.
    pub turn: usize,
}

/// What one resource wants, and what was chosen for it before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Which resource.
    pub place: Place,
    /// What it wants.
    pub request: Request,
    /// What its status says.
    pub chosen: Option<Prefix>,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was chosen stands.
    Keeps(Prefix),
    /// This is to be its status. It had none, or that of somebody older.
    Gets(Prefix),
    /// There is nothing for it.
    Denied(Denied),
}

impl Outcome {
    /// What it has from now on.
    #[must_use]
    pub const fn prefix(&self) -> Option<Prefix> {
        match self {
            Self::Keeps(prefix) | Self::Gets(prefix) => Some(*prefix),
            Self::Denied(_) => None,
        }
    }
}

/// What becomes of everybody who asks, in the order of `asked`, which does not matter otherwise. What
/// others have beyond dispute is `held`.
///
/// Two resources can have a prefix in their status that only one of them can have, if others chose it.
/// The older one keeps it. Of those without, who would take no other prefix comes first.
#[must_use]
pub(crate) fn assign(pools: &Pools, held: &[Taken], asked: &[Asked]) -> Vec<Outcome> {
    let mut by_age: Vec<_> = asked.iter().enumerate().collect();
    by_age.sort_by_key(|(_, asked)| &asked.place);
    let mut taken = held.to_vec();
    let mut outcomes = vec![None; asked.len()];
    let mut settle = |place: usize, request: Request, outcome: Outcome, taken: &mut Vec<Taken>| {
        let is_shared = request.is_shared;
        taken.extend(outcome.prefix().map(|prefix| Taken { prefix, is_shared }));
        if let Some(settled) = outcomes.get_mut(place) {
            *settled = Some(outcome);
        }
    };

    let mut others = Vec::new();
    for (place, Asked { request, chosen, .. }) in by_age {
        let is_free = |chosen: &Prefix| {
            !rivals(&taken, request.is_shared).any(|rival| rival.overlaps(*chosen))
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
