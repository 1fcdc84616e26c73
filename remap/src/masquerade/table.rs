//! The records of all mappings, or of all pins: read without a lock, changed under one.
//!
//! # Locks
//!
//! Every record of a flow is created and ended under the lock of its *source*, the address whose
//! share it counts against. So a source's count is exact, and one tuple is never created twice.
//! A mapping also takes an external port, under the lock of its *port pool*: the ports of an external
//! address within a realm and protocol. That lock is taken after one source lock and held together with it.
//! Locks of further sources, to end expired flows, are only tried.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::entry::{Entry, Record, Status};
use super::flow::Tick;
use super::hash::Hash;
use super::index::Index;
use super::limits::Timeouts;
use super::lock::{Held, LockIndex, Locks};
use super::outcome::bump;
use super::port::Class;
use super::slab::Slab;
use super::state::State;
use super::usage::{Gauge, Usage};

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
    /// Records of sources and port pools.
    pub(super) usages: Gauge,
    pub(super) max_per_source: u32,
    /// The next entry to check for expiry or eviction (a clock hand).
    pub(super) cursor: AtomicU32,
}

/// Keeps external tuples unique.
#[derive(Debug)]
pub(super) struct External {
    pub(super) index: Index,
    pub(super) port_pools: Locks,
}

/// Bounds of one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) max_flows: u32,
    pub(super) max_usages: u32,
    pub(super) max_per_source: u32,
}

/// A record and its entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) number: u32,
    pub(super) entry: &'a Entry,
    pub(super) record: Record,
}

/// Whether the caller holds the lock of the flow's port pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortPoolLock {
    Free,
    Held,
}

impl Table {
    pub(super) fn new(size: Size, hash: Hash, timeouts: Timeouts, has_external: bool) -> Self {
        let entries = size.max_flows.saturating_add(size.max_usages);
        let external = has_external
            .then(|| External { index: Index::new(size.max_flows), port_pools: Locks::new() });

        Self {
            slab: Slab::new(entries),
            index: Index::new(entries),
            sources: Locks::new(),
            external,
            hash,
            timeouts,
            flows: Gauge::new(size.max_flows),
            usages: Gauge::new(size.max_usages),
            max_per_source: size.max_per_source,
            cursor: AtomicU32::new(0),
        }
    }

    /// The flow of this hash that `is_it`, expired or not.
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
    pub(super) fn state(&self, status: Status, now: Tick) -> Option<State> {
        let state = status.state()?;
        let timeout = state.timeout(&self.timeouts, status.kind().is_echo());

        (now.since(status.seen()) <= timeout).then_some(state)
    }

    /// The hash of a flow's internal tuple.
    pub(super) fn hash_of(&self, record: &Record) -> u64 {
        let (kind, [near, _]) = (record.status.kind(), record.ports);
        match self.external {
            Some(_) => self.hash.tuple(record.realm, kind, record.a, near.into()),
            None => self.hash.pair(record.realm, kind, [record.a, record.b], record.ports),
        }
    }

    /// The source whose share a flow counts against: the internal address of a mapping, the remote
    /// address of a pin.
    pub(super) fn source_of(&self, record: &Record) -> Usage {
        let address = if self.external.is_some() { record.a } else { record.b };

        Usage::source(record.realm, record.status.kind(), address)
    }

    pub(super) fn lock_of(&self, source: &Usage) -> LockIndex {
        Locks::index_of(self.hash_of_usage(source))
    }

    /// Waits for the lock of `source`.
    pub(super) fn hold(&self, source: &Usage) -> Held<'_> {
        self.sources.hold(self.lock_of(source))
    }

    /// Reserves room for one more flow, if there is any.
    pub(super) fn reserve(&self) -> bool {
        self.flows.take()
    }

    /// Undoes [`Self::reserve`].
    pub(super) fn unreserve(&self) {
        self.flows.release();
    }

    /// Ends a flow, unless it was refreshed since it was read, and counts that in `ended`. The caller holds
    /// the lock of its source; `pool_lock` says whether it also holds that of its port pool.
    pub(super) fn remove(
        &self,
        found: &Found<'_>,
        pool_lock: PortPoolLock,
        ended: &AtomicU64,
    ) -> bool {
        if !found.entry.retire(found.record.status) {
            return false;
        }

        let record = &found.record;
        self.index.remove(self.hash_of(record), found.number);
        if let Some(external) = &self.external {
            self.free_port(external, record, found.number, pool_lock);
        }
        self.remove_flow(&self.source_of(record));
        self.slab.release(found.number);
        self.flows.release();
        bump(ended);

        true
    }

    /// Checks the next `count` entries, ends the expired flows and counts them in `expired`. `held` is the
    /// source lock that the caller holds.
    pub(super) fn sweep(
        &self,
        count: u32,
        held: Option<LockIndex>,
        expired: &AtomicU64,
        now: Tick,
    ) {
        for _ in 0..count.min(self.slab.used()) {
            if let Some(found) = self.next_flow()
                && self.state(found.record.status, now).is_none()
            {
                self.try_remove(&found, held, PortPoolLock::Free, expired);
            }
        }
    }

    /// The flow at the cursor, which advances; `None` if there is none.
    pub(super) fn next_flow(&self) -> Option<Found<'_>> {
        let number = self.cursor.fetch_add(1, Ordering::Relaxed) % self.slab.used().max(1);

        self.flow(number)
    }

    /// The flows that the cursor reaches after each of `steps`. It does not advance.
    pub(super) fn upcoming(&self, steps: Range<u32>) -> impl Iterator<Item = Found<'_>> {
        let (cursor, used) = (self.cursor.load(Ordering::Relaxed), self.slab.used().max(1));

        steps.filter_map(move |step| self.flow(cursor.wrapping_add(step) % used))
    }

    /// The flow in this entry.
    pub(super) fn flow(&self, number: u32) -> Option<Found<'_>> {
        let entry = self.slab.get(number)?;
        let record = entry.read()?;

        record.status.state().map(|_| Found { number, entry, record })
    }

    /// Ends a flow of any source, unless its lock is taken or the flow was refreshed, and counts that
    /// in `ended`.
    pub(super) fn try_remove(
        &self,
        found: &Found<'_>,
        held: Option<LockIndex>,
        pool_lock: PortPoolLock,
        ended: &AtomicU64,
    ) -> bool {
        let lock = self.lock_of(&self.source_of(&found.record));
        let Some(_held) = self.sources.try_hold(lock, held) else {
            return false;
        };

        self.remove(found, pool_lock, ended)
    }

    /// Ends every flow of a realm, and counts them in `forgotten`. Waits for locks, one at a time.
    pub(super) fn purge(&self, realm: u32, forgotten: &AtomicU64) {
        for number in 0..self.slab.used() {
            // A packet may refresh a flow between the lookup and the removal; then look again.
            while let Some(found) = self.flow(number).filter(|found| found.record.realm == realm) {
                let _held = self.hold(&self.source_of(&found.record));
                self.remove(&found, PortPoolLock::Free, forgotten);
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
        let port_pools =
            self.external.as_ref().map_or(0, |external| external.port_pools.memory_bytes());

        self.sources.memory_bytes() + port_pools
    }

    fn free_port(
        &self,
        external: &External,
        record: &Record,
        number: u32,
        pool_lock: PortPoolLock,
    ) {
        let (kind, [_, port]) = (record.status.kind(), record.ports);
        let usage = Usage::port_pool(record.realm, kind, record.b);
        let class = Class::of(kind.protocol(), port);
        let held = (pool_lock == PortPoolLock::Free)
            .then(|| external.port_pools.hold(self.lock_of(&usage)));

        external.index.remove(self.hash.tuple(record.realm, kind, record.b, port.into()), number);
        self.change_usage(&usage, |counts| class.changed(counts, |count| count.saturating_sub(1)));
        drop(held);
    }
}
