//! Counts the flows of each source, against its share, and the taken ports of each port pool.
//!
//! The counts are records in the slab and index of the flows, so they need no memory of their
//! own and are removed with the last flow that they count.

use std::sync::atomic::{AtomicU32, Ordering};

use super::entry::{Kind, Record, Role, Status};
use super::flow::Tick;
use super::hash::NO_PORT;
use super::outcome::Refused;
use super::table::{Found, Table};

/// Identifies a count: a source or a port pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) role: Role,
    pub(super) realm: u32,
    pub(super) kind: Kind,
    pub(super) address: u128,
}

impl Usage {
    pub(super) const fn source(realm: u32, kind: Kind, address: u128) -> Self {
        Self { role: Role::Source, realm, kind: kind.version(), address }
    }

    pub(super) const fn port_pool(realm: u32, kind: Kind, address: u128) -> Self {
        Self { role: Role::PortPool, realm, kind, address }
    }
}

impl Table {
    /// Counts one more flow of `source`, and creates its record for the first.
    pub(super) fn add_flow(&self, source: &Usage, paired: u128) -> Result<(), Refused> {
        let found = match self.usage(source) {
            Some(found) => found,
            None => self.create_usage(source, paired).ok_or(Refused::Sources)?,
        };
        let [count, spare] = found.record.c;
        if count >= u64::from(self.max_per_source) {
            return Err(Refused::SourceShare);
        }
        found.entry.set_c([count + 1, spare]);

        Ok(())
    }

    /// Counts one flow of `source` less. The last flow ends the record.
    pub(super) fn remove_flow(&self, source: &Usage) {
        self.change_usage(source, |[count, spare]| [count.saturating_sub(1), spare]);
    }

    /// The record of a source or a port pool, which exists while a count in it is not zero.
    pub(super) fn usage(&self, usage: &Usage) -> Option<Found<'_>> {
        self.find(&self.index, self.hash_of_usage(usage), |record| {
            record.a == usage.address
                && record.realm == usage.realm
                && record.status.kind() == usage.kind
                && record.status.role() == usage.role
        })
    }

    /// Creates a record for a source or a port pool, with counts of zero.
    pub(super) fn create_usage(&self, usage: &Usage, paired: u128) -> Option<Found<'_>> {
        if !self.usages.take() {
            return None;
        }
        let record = Record {
            status: Status::new(usage.role, usage.kind, Tick::default()),
            realm: usage.realm,
            ports: [0; 2],
            a: usage.address,
            b: paired,
            c: [0; 2],
        };
        let created = self.slab.take().and_then(|number| {
            let entry = self.slab.get(number)?;
            let record = Record { status: entry.write(&record), ..record };
            if self.index.insert(self.hash_of_usage(usage), number) {
                return Some(Found { number, entry, record });
            }
            entry.retire(record.status);
            self.slab.release(number);

            None
        });
        if created.is_none() {
            self.usages.release();
        }

        created
    }

    /// Changes the counts of a source or a port pool, and ends its record when they are zero.
    pub(super) fn change_usage(&self, usage: &Usage, count: impl FnOnce([u64; 2]) -> [u64; 2]) {
        let Some(found) = self.usage(usage) else {
            return;
        };

        let counted = count(found.record.c);
        found.entry.set_c(counted);
        if counted == [0; 2] && found.entry.retire(found.record.status) {
            self.index.remove(self.hash_of_usage(usage), found.number);
            self.slab.release(found.number);
            self.usages.release();
        }
    }

    pub(super) fn hash_of_usage(&self, usage: &Usage) -> u64 {
        let role = if usage.role == Role::Source { 0 } else { 1 };

        self.hash.tuple(usage.realm, usage.kind, usage.address, NO_PORT + role)
    }
}

/// A counter with an upper bound.
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

    /// Whether `more` can be taken.
    pub(super) fn has_room(&self, more: u32) -> bool {
        self.taken().saturating_add(more) <= self.most
    }

    pub(super) fn release(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
