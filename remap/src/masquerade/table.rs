//! The records of all mappings, or of all pins: found without a lock, changed under one.
//!
//! # Locks
//!
//! Every record of a flow is created and ended under the lock of its *source*, the address whose
//! share it counts against. So a source's count is exact, and one tuple is never created twice.
//! A mapping also takes an external port; that happens under the lock of its *outlet*, an external
//! address within a realm and protocol, which is held only together with one source lock and taken
//! after it. Locks of further sources, to end what expired, are only tried.

use std::sync::atomic::{AtomicU32, Ordering};

use super::entry::{Entry, Kind, Life, Record, Role};
use super::flow::Tick;
use super::hash::{Hash, NO_PORT};
use super::index::Index;
use super::limits::Timeouts;
use super::lock::{Held, Locks, Place};
use super::outcome::{Counters, Refused, bump};
use super::port::Class;
use super::slab::Slab;
use super::state::State;

#[derive(Debug)]
pub(super) struct Table {
    pub(super) slab: Slab,
    pub(super) index: Index,
    pub(super) sources: Locks,
    /// Only mappings have an external tuple.
    pub(super) external: Option<External>,
    pub(super) hash: Hash,
    pub(super) timeouts: Timeouts,
    flows: Gauge,
    /// Records of sources and outlets.
    tallies: Gauge,
    max_per_source: u32,
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

/// Whose count a flow is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) role: Role,
    pub(super) realm: u32,
    pub(super) kind: Kind,
    pub(super) address: u128,
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

    /// Counts one more flow of `source`, and makes its record if this is the first.
    pub(super) fn join(&self, source: &Tally, paired: u128) -> Result<Found<'_>, Refused> {
        let found = match self.tally(source) {
            Some(found) => found,
            None => self.open(source, paired).ok_or(Refused::Sources)?,
        };
        let [count, spare] = found.record.c;
        if count >= u64::from(self.max_per_source) {
            return Err(Refused::SourceShare);
        }
        found.entry.set_c([count + 1, spare]);

        Ok(found)
    }

    /// Counts one flow of `source` less. The record goes with its last flow.
    pub(super) fn leave(&self, source: &Tally) {
        self.change(source, |[count, spare]| [count.saturating_sub(1), spare]);
    }

    /// Room for one more flow, if there is any.
    pub(super) fn reserve(&self) -> bool {
        self.flows.take()
    }

    /// Gives back what [`Self::reserve`] took.
    pub(super) fn unreserve(&self) {
        self.flows.give_back();
    }

    /// Ends a flow if nothing refreshed it since it was read. Under the lock of its source, and of
    /// its outlet if the caller has that already.
    pub(super) fn remove(&self, found: &Found<'_>, outlet: Outlet) -> bool {
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

        true
    }

    /// Looks at the next `count` entries and ends what has expired. `held` is the source lock that
    /// the caller has.
    pub(super) fn sweep(&self, count: u32, held: Option<Place>, counters: &Counters, now: Tick) {
        for _ in 0..count.min(self.slab.used()) {
            if let Some(found) = self.next_flow()
                && self.state(found.record.life, now).is_none()
                && self.try_remove(&found, held, Outlet::Free)
            {
                bump(&counters.expired);
            }
        }
    }

    /// The flow under the hand, which moves on; `None` if there is none.
    pub(super) fn next_flow(&self) -> Option<Found<'_>> {
        let number = self.hand.fetch_add(1, Ordering::Relaxed) % self.slab.used().max(1);

        self.flow(number)
    }

    /// The flow in this entry.
    pub(super) fn flow(&self, number: u32) -> Option<Found<'_>> {
        let entry = self.slab.get(number)?;
        let record = entry.read()?;

        record.life.state().map(|_| Found { number, entry, record })
    }

    /// Ends a flow of any source if its lock is free and nothing refreshed the flow.
    pub(super) fn try_remove(
        &self,
        found: &Found<'_>,
        held: Option<Place>,
        outlet: Outlet,
    ) -> bool {
        let place = self.place_of(&self.source_of(&found.record));
        let Some(_held) = self.sources.try_hold(place, held) else {
            return false;
        };

        self.remove(found, outlet)
    }

    /// Ends every flow of a realm. Waits for locks, one at a time.
    pub(super) fn purge(&self, realm: u32) {
        for number in 0..self.slab.used() {
            // A packet may refresh a flow between the look and the end; then look again.
            while let Some(found) = self.flow(number).filter(|found| found.record.realm == realm) {
                let _held = self.hold(&self.source_of(&found.record));
                self.remove(&found, Outlet::Free);
            }
        }
    }

    /// The record of a source or an outlet. It lives as long as it is counted in.
    pub(super) fn tally(&self, tally: &Tally) -> Option<Found<'_>> {
        self.find(&self.index, self.hash_of_tally(tally), |record| {
            record.a == tally.address
                && record.realm == tally.realm
                && record.life.kind() == tally.kind
                && record.life.role() == tally.role
        })
    }

    /// Makes a record for a source or an outlet that counts nothing yet.
    pub(super) fn open(&self, tally: &Tally, paired: u128) -> Option<Found<'_>> {
        if !self.tallies.take() {
            return None;
        }
        let record = Record {
            life: Life::new(tally.role, tally.kind, Tick::default()),
            realm: tally.realm,
            ports: [0; 2],
            a: tally.address,
            b: paired,
            c: [0; 2],
        };
        let opened = self.slab.take().and_then(|number| {
            let entry = self.slab.get(number)?;
            let record = Record { life: entry.write(&record), ..record };
            if self.index.insert(self.hash_of_tally(tally), number) {
                return Some(Found { number, entry, record });
            }
            entry.retire(record.life);
            self.slab.give_back(number);

            None
        });
        if opened.is_none() {
            self.tallies.give_back();
        }

        opened
    }

    /// Changes what a source or an outlet counts, and ends its record when that is nothing.
    pub(super) fn change(&self, tally: &Tally, count: impl FnOnce([u64; 2]) -> [u64; 2]) {
        let Some(found) = self.tally(tally) else {
            return;
        };

        let counted = count(found.record.c);
        found.entry.set_c(counted);
        if counted == [0; 2] && found.entry.retire(found.record.life) {
            self.index.remove(self.hash_of_tally(tally), found.number);
            self.slab.give_back(found.number);
            self.tallies.give_back();
        }
    }

    pub(super) fn live(&self) -> u32 {
        self.flows.taken.load(Ordering::Relaxed)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slab.memory_bytes() + self.fixed_bytes()
    }

    pub(super) fn max_memory_bytes(&self) -> usize {
        self.slab.max_memory_bytes() + self.fixed_bytes()
    }

    fn fixed_bytes(&self) -> usize {
        let external = self
            .external
            .as_ref()
            .map_or(0, |external| external.index.memory_bytes() + external.outlets.memory_bytes());

        self.index.memory_bytes() + self.sources.memory_bytes() + external
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

    fn hash_of_tally(&self, tally: &Tally) -> u64 {
        let role = if tally.role == Role::Source { 0 } else { 1 };

        self.hash.tuple(tally.realm, tally.kind, tally.address, NO_PORT + role)
    }
}

impl Tally {
    pub(super) const fn source(realm: u32, kind: Kind, address: u128) -> Self {
        Self { role: Role::Source, realm, kind: kind.version(), address }
    }

    pub(super) const fn outlet(realm: u32, kind: Kind, address: u128) -> Self {
        Self { role: Role::Outlet, realm, kind, address }
    }
}

/// A number with a bound.
#[derive(Debug)]
struct Gauge {
    taken: AtomicU32,
    most: u32,
}

impl Gauge {
    const fn new(most: u32) -> Self {
        Self { taken: AtomicU32::new(0), most }
    }

    fn take(&self) -> bool {
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < self.most).then_some(taken + 1)
            })
            .is_ok()
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
