//! The records of all mappings, or of all pins: found without a lock, changed under one.
//!
//! # Locks
//!
//! Every record of a flow is created and ended under the lock of its *source*, the address whose
//! share it counts against. So a source's count is exact, and one tuple is never created twice.
//! A mapping also takes an external port; that happens under the lock of its *outlet*, an external
//! address within a realm and protocol, which is held only together with one source lock and taken
//! after it. Locks of further sources, to end what expired, are only tried.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::entry::{Entry, Life, Record};
use super::flow::Tick;
use super::hash::Hash;
use super::index::Index;
use super::limits::Timeouts;
use super::lock::{Held, Locks, Place};
use super::outcome::bump;
use super::port::Class;
use super::slab::Slab;
use super::state::State;
use super::tally::{Gauge, Tally};

#[derive(Debug)]
pub(super) struct Table {
    pub(super) slab: Slab,
    pub(super) index: Index,
    pub(super) sources: Locks,
    /// Only mappings have an external tuple.
    pub(super) external: Option<External>,
    pub(super) hash: Hash,
    pub(super) timeouts: Timeouts,
    pub(super) flows: Gauge,
    /// Records of sources and outlets.
    pub(super) tallies: Gauge,
    pub(super) max_per_source: u32,
    /// Where the search for expired and idle records goes on.
    pub(super) hand: AtomicU32,
}

/// What is needed to keep external tuples apart.
#[derive(Debug)]
pub(super) struct External {
    pub(super) index: Index,
    pub(super) outlets: Locks,
}

/// Bounds of one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) max_flows: u32,
    pub(super) max_tallies: u32,
    pub(super) max_per_source: u32,
}

/// A record and where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) number: u32,
    pub(super) entry: &'a Entry,
    pub(super) record: Record,
}

/// Whether the caller holds the lock of the outlet in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlet {
    Free,
    Held,
}

impl Table {
    pub(super) fn new(size: Size, hash: Hash, timeouts: Timeouts, has_external: bool) -> Self {
        let entries = size.max_flows.saturating_add(size.max_tallies);
        let external = has_external
            .then(|| External { index: Index::new(size.max_flows), outlets: Locks::new() });

        Self {
            slab: Slab::new(entries),
            index: Index::new(entries),
            sources: Locks::new(),
            external,
            hash,
            timeouts,
            flows: Gauge::new(size.max_flows),
            tallies: Gauge::new(size.max_tallies),
            max_per_source: size.max_per_source,
            hand: AtomicU32::new(0),
        }
    }

    /// The flow of this hash that `is_it`, dead or alive.
    #[inline]
    pub(super) fn find(
        &self,
        index: &Index,
        hash: u64,
        is_it: impl Fn(&Record) -> bool,
    ) -> Option<Found<'_>> {
        index.find(hash, |number| {
            let entry = self.slab.get(number)?;
            let record = entry.read()?;

            is_it(&record).then_some(Found { number, entry, record })
        })
    }

    /// The state of a flow that has not expired.
    #[inline]
    pub(super) fn state(&self, life: Life, now: Tick) -> Option<State> {
        let state = life.state()?;
        let timeout = state.timeout(&self.timeouts, life.kind().is_echo());

        (now.since(life.seen()) <= timeout).then_some(state)
    }

    /// The hash under which a flow is found from inside.
    pub(super) fn hash_of(&self, record: &Record) -> u64 {
        let (kind, [near, _]) = (record.life.kind(), record.ports);
        match self.external {
            Some(_) => self.hash.tuple(record.realm, kind, record.a, near.into()),
            None => self.hash.pair(record.realm, kind, [record.a, record.b], record.ports),
        }
    }

    /// Whose share a flow counts against: a mapping is its internal address's, a pin the remote's.
    pub(super) fn source_of(&self, record: &Record) -> Tally {
        let address = if self.external.is_some() { record.a } else { record.b };

        Tally::source(record.realm, record.life.kind(), address)
    }

    pub(super) fn place_of(&self, source: &Tally) -> Place {
        Locks::place(self.hash_of_tally(source))
    }

    /// Waits for the lock under which flows of `source` come and go.
    pub(super) fn hold(&self, source: &Tally) -> Held<'_> {
        self.sources.hold(self.place_of(source))
    }

    /// Room for one more flow, if there is any.
    pub(super) fn reserve(&self) -> bool {
        self.flows.take()
    }

    /// Gives back what [`Self::reserve`] took.
    pub(super) fn unreserve(&self) {
        self.flows.give_back();
    }

    /// Ends a flow if nothing refreshed it since it was read, and counts that in `ended`. Under the
    /// lock of its source, and of its outlet if the caller has that already.
    pub(super) fn remove(&self, found: &Found<'_>, outlet: Outlet, ended: &AtomicU64) -> bool {
        if !found.entry.retire(found.record.life) {
            return false;
        }

        let record = &found.record;
        self.index.remove(self.hash_of(record), found.number);
        if let Some(external) = &self.external {
            self.free_port(external, record, found.number, outlet);
        }
        self.leave(&self.source_of(record));
        self.slab.give_back(found.number);
        self.flows.give_back();
        bump(ended);

        true
    }

    /// Looks at the next `count` entries and ends what has `expired`, which counts them. `held` is the
    /// source lock that the caller has.
    pub(super) fn sweep(&self, count: u32, held: Option<Place>, expired: &AtomicU64, now: Tick) {
        for _ in 0..count.min(self.slab.used()) {
            if let Some(found) = self.next_flow()
                && self.state(found.record.life, now).is_none()
            {
                self.try_remove(&found, held, Outlet::Free, expired);
            }
        }
    }

    /// The flow under the hand, which moves on; `None` if there is none.
    pub(super) fn next_flow(&self) -> Option<Found<'_>> {
        let number = self.hand.fetch_add(1, Ordering::Relaxed) % self.slab.used().max(1);

        self.flow(number)
    }

    /// The flows that will be under the hand when it has moved on, by each of `steps`. It stays.
    pub(super) fn upcoming(&self, steps: Range<u32>) -> impl Iterator<Item = Found<'_>> {
        let (hand, used) = (self.hand.load(Ordering::Relaxed), self.slab.used().max(1));

        steps.filter_map(move |step| self.flow(hand.wrapping_add(step) % used))
    }

    /// The flow in this entry.
    pub(super) fn flow(&self, number: u32) -> Option<Found<'_>> {
        let entry = self.slab.get(number)?;
        let record = entry.read()?;

        record.life.state().map(|_| Found { number, entry, record })
    }

    /// Ends a flow of any source if its lock is free and nothing refreshed the flow, and counts that
    /// in `ended`.
    pub(super) fn try_remove(
        &self,
        found: &Found<'_>,
        held: Option<Place>,
        outlet: Outlet,
        ended: &AtomicU64,
    ) -> bool {
        let place = self.place_of(&self.source_of(&found.record));
        let Some(_held) = self.sources.try_hold(place, held) else {
            return false;
        };

        self.remove(found, outlet, ended)
    }

    /// Ends every flow of a realm, and counts them in `forgotten`. Waits for locks, one at a time.
    pub(super) fn purge(&self, realm: u32, forgotten: &AtomicU64) {
        for number in 0..self.slab.used() {
            // A packet may refresh a flow between the look and the end; then look again.
            while let Some(found) = self.flow(number).filter(|found| found.record.realm == realm) {
                let _held = self.hold(&self.source_of(&found.record));
                self.remove(&found, Outlet::Free, forgotten);
            }
        }
    }

    pub(super) fn live(&self) -> u32 {
        self.flows.taken()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let indices = self.indices().map(Index::memory_bytes).sum::<usize>();

        self.slab.memory_bytes() + indices + self.locks_bytes()
    }

    pub(super) fn max_memory_bytes(&self) -> usize {
        let indices = self.indices().map(Index::max_memory_bytes).sum::<usize>();

        self.slab.max_memory_bytes() + indices + self.locks_bytes()
    }

    fn indices(&self) -> impl Iterator<Item = &Index> {
        [&self.index].into_iter().chain(self.external.as_ref().map(|external| &external.index))
    }

    fn locks_bytes(&self) -> usize {
        let outlets = self.external.as_ref().map_or(0, |external| external.outlets.memory_bytes());

        self.sources.memory_bytes() + outlets
    }

    fn free_port(&self, external: &External, record: &Record, number: u32, outlet: Outlet) {
        let (kind, [_, port]) = (record.life.kind(), record.ports);
        let tally = Tally::outlet(record.realm, kind, record.b);
        let class = Class::of(kind.protocol(), port);
        let held = (outlet == Outlet::Free).then(|| external.outlets.hold(self.place_of(&tally)));

        external.index.remove(self.hash.tuple(record.realm, kind, record.b, port.into()), number);
        self.change(&tally, |counts| class.changed(counts, |count| count.saturating_sub(1)));
        drop(held);
    }
}
