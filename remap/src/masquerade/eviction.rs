//! Chooses the flow that is evicted for a new one.

use super::flow::Tick;
use super::state::State;
use super::table::Found;

/// A confirmed flow with a packet within so many seconds is in active use and is not evicted.
const ACTIVE_SECONDS: u32 = 30;

/// The flow to evict among those that were compared: unanswered and closed flows before answered ones,
/// then the most idle; none in active use.
#[derive(Debug, Default)]
pub(super) struct EvictionCandidate<'a> {
    most: Option<(Rank, Found<'a>)>,
    compared: usize,
}

/// Whether it is unconfirmed, and its idle seconds: the greatest is evicted first.
type Rank = (bool, u32);

impl<'a> EvictionCandidate<'a> {
    /// Compares a live flow.
    pub(super) fn compare(&mut self, found: Found<'a>, state: State, now: Tick) {
        let idle = now.since(found.record.status.seen());
        let rank = (!state.is_confirmed(), idle);
        self.compared += 1;

        if (!state.is_confirmed() || idle >= ACTIVE_SECONDS)
            && self.most.as_ref().is_none_or(|(most, _)| rank > *most)
        {
            self.most = Some((rank, found));
        }
    }

    /// How many were compared.
    pub(super) const fn compared(&self) -> usize {
        self.compared
    }

    /// The flow to evict; `None` if all are in active use.
    pub(super) fn found(&self) -> Option<Found<'a>> {
        self.most.map(|(_, found)| found)
    }
}
