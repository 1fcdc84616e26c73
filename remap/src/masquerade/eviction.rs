//! Which flow has to make room for another.

use super::flow::Tick;
use super::state::State;
use super::table::Found;

/// A confirmed flow that had a packet within so many seconds is in active use and never has to.
const ACTIVE_SECONDS: u32 = 30;

/// The most idle of the flows that were compared: one that nobody answered, or that is over, before one
/// that somebody did, and none that is in active use.
#[derive(Debug, Default)]
pub(super) struct Idlest<'a> {
    most: Option<(Rank, Found<'a>)>,
    compared: usize,
}

/// Whether it is unconfirmed, and for how many seconds it was idle: the greatest goes first.
type Rank = (bool, u32);

impl<'a> Idlest<'a> {
    /// Compares a flow that lives.
    pub(super) fn compare(&mut self, found: Found<'a>, state: State, now: Tick) {
        let idle = now.since(found.record.life.seen());
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

    /// The one that can go; `None` if all are in active use.
    pub(super) fn found(&self) -> Option<Found<'a>> {
        self.most.map(|(_, found)| found)
    }
}
