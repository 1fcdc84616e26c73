//! What is counted: the flows of a source against its share, the ports taken of an outlet.
//!
//! The counts are records of the same slab and index as the flows, so they need no memory of their
//! own and vanish with the last flow that they count.

use std::sync::atomic::{AtomicU32, Ordering};

use super::entry::{Kind, Life, Record, Role};
use super::flow::Tick;
use super::hash::NO_PORT;
use super::outcome::Refused;
use super::table::{Found, Table};

/// Whose count a flow is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) role: Role,
    pub(super) realm: u32,
    pub(super) kind: Kind,
    pub(super) address: u128,
}

impl Tally {
    pub(super) const fn source(realm: u32, kind: Kind, address: u128) -> Self {
        Self { role: Role::Source, realm, kind: kind.version(), address }
    }

    pub(super) const fn outlet(realm: u32, kind: Kind, address: u128) -> Self {
        Self { role: Role::Outlet, realm, kind, address }
    }
}

impl Table {
    /// Counts one more flow of `source`, and makes its record if this is the first.
    pub(super) fn join(&self, source: &Tally, paired: u128) -> Result<(), Refused> {
        let found = match self.tally(source) {
            Some(found) => found,
            None => self.open(source, paired).ok_or(Refused::Sources)?,
        };
        let [count, spare] = found.record.c;
        if count >= u64::from(self.max_per_source) {
            return Err(Refused::SourceShare);
        }
        found.entry.set_c([count + 1, spare]);

        Ok(())
    }

    /// Counts one flow of `source` less. The record goes with its last flow.
    pub(super) fn leave(&self, source: &Tally) {
        self.change(source, |[count, spare]| [count.saturating_sub(1), spare]);
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

    pub(super) fn hash_of_tally(&self, tally: &Tally) -> u64 {
        let role = if tally.role == Role::Source { 0 } else { 1 };

        self.hash.tuple(tally.realm, tally.kind, tally.address, NO_PORT + role)
    }
}

/// A number with a bound.
#[derive(Debug)]
pub(super) struct Gauge {
    taken: AtomicU32,
    most: u32,
}

impl Gauge {
    pub(super) const fn new(most: u32) -> Self {
        Self { taken: AtomicU32::new(0), most }
    }

    pub(super) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> bool {
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < self.most).then_some(taken + 1)
            })
            .is_ok()
    }

    /// Whether so many more can be taken.
    pub(super) fn has_room(&self, more: u32) -> bool {
        self.taken().saturating_add(more) <= self.most
    }

    pub(super) fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
