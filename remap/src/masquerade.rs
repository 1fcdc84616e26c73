//! Masquerade (NAPT): sources that the remote does not know share external addresses.
//!
//! A prefix rule maps every pod address of a cluster. Nodes, and pods in the network of a node, are not
//! covered. They share external addresses and are distinguished by port:
//!
//! ```text
//!   node 192.168.1.7:40000 ─┐                                    ┌─▶ remote cluster A (realm 1)
//!   node 192.168.1.8:40000 ─┴─▶ 10.70.0.1:40000, 10.70.0.1:52318 ┤
//!                                                                └─▶ remote cluster B (realm 2),
//!                                                                    with ports of its own
//! ```
//!
//! A *mapping* pairs an internal with an external endpoint, within a realm and a protocol, independently
//! of the remote endpoint (RFC 4787 sections 4.1 and 5: endpoint-independent mapping and filtering).
//! The caller numbers the realms, one for each peer, and never reuses a number.
//!
//! # Port allocation
//!
//! The mapping gets the source's own port if it is free, else a free port on the same side of 1024, searched
//! from a random start: first of the same parity, then of the other. A port belongs to one mapping of
//! its realm and protocol. A source keeps its external address (chosen by [`Pool`]) as long as
//! it has mappings. If that address has no such port left, this one mapping gets the next address of the
//! pool; later mappings try the first again. RFC 4787 recommends both pairing (REQ-2) and parity (REQ-4)
//! and requires neither. Pairing comes first: a peer that sees one host under two addresses may take
//! it for two hosts, while only port pairs, as RTP once used them, need the parity. A connection
//! from a second address is better than no connection.
//!
//! When no address has a port left, the most idle of the mappings found by the search is evicted, by the
//! same rule as in a full table.
//!
//! # Threads
//!
//! All methods take `&self`. A packet of a live mapping takes no lock in either direction and writes
//! at most once a second and at a change of state; a new mapping takes the lock of its source. A
//! lookup never waits, returns only translations that existed at some moment of the call,
//! and finds every one that exists throughout. `entry`, `index` and `table` explain why.
//!
//! # Memory
//!
//! Bounded by [`Limits`]: 64 bytes a mapping, allocated as needed, and 24 bytes of index. Lookups ignore an
//! expired mapping at once; its memory is freed incrementally: each new mapping checks two
//! entries, each [`Masquerade::handle_timeout`] checks more. A full table evicts the most idle of 16
//! mappings, unanswered ones first. Mappings that were answered and in use within 30 s are not
//! evicted; if there are no others, the new one is refused.
//!
//! # Sources
//!
//! RFC 4787 (UDP), RFC 5382 (TCP), RFC 5508 (ICMP), RFC 7857 (updates to all three). The names of the tests
//! contain the requirements.

mod allocation;
mod create;
mod entry;
mod eviction;
mod flow;
mod fragment;
mod handover;
mod hash;
mod index;
mod limits;
mod lock;
mod lookup;
mod outcome;
mod pin;
mod pool;
mod port;
mod probe;
mod slab;
mod state;
mod table;
mod usage;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use entry::{Kind, bits};
pub use flow::{Endpoint, Flow, Protocol, Signal, Tick};
pub use fragment::Datagram;
use fragment::Fragments;
pub use handover::FlowRecord;
use hash::Hash;
pub use limits::{Limits, LimitsError, Timeouts};
use lookup::{Tracked, external_endpoint, internal_endpoint};
use outcome::Counters;
pub use outcome::{Mapping, Refused, Statistics};
pub use pool::Pool;
use state::Side;
pub use state::State;
use table::{Size, Table};
use usage::Usage;

/// Entries of each table that one call of [`Masquerade::handle_timeout`] checks.
const SWEEP: u32 = 2048;

/// All mappings of a gateway, toward all peers.
#[derive(Debug)]
pub struct Masquerade {
    mappings: Table,
    pins: Table,
    outbound_fragments: Fragments,
    inbound_fragments: Fragments,
    counters: Counters,
    /// Random numbers drawn so far.
    draws: AtomicU64,
}

/// The direction of a packet, seen from this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the cluster into a tunnel.
    Outbound,
    /// From a tunnel into the cluster.
    Inbound,
}

impl Masquerade {
    /// Creates it without mappings. `seed` should be random and secret: it keys the hashes and the choice
    /// of ports, nothing else.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] names the invalid bound or timeout.
    pub fn new(limits: Limits, timeouts: Timeouts, seed: u64) -> Result<Self, LimitsError> {
        limits::check(&limits, &timeouts)?;

        let hash = Hash::new(seed);
        let mappings = Size {
            max_flows: limits.max_mappings,
            max_usages: limits.max_sources,
            max_per_source: limits.max_per_source,
        };
        // Each pin may have a different remote address.
        let pins = Size {
            max_flows: limits.max_pins,
            max_usages: limits.max_pins,
            max_per_source: limits.max_pins_per_source,
        };

        Ok(Self {
            mappings: Table::new(mappings, hash, timeouts, true),
            pins: Table::new(pins, hash, timeouts, false),
            outbound_fragments: Fragments::new(limits.max_fragments, hash),
            inbound_fragments: Fragments::new(limits.max_fragments, hash),
            counters: Counters::default(),
            draws: AtomicU64::new(0),
        })
    }

    /// Outbound: the external endpoint of the source of `flow`. Creates a mapping if there is none, and
    /// replaces one whose external address has left `pool`, because no reply to it arrives.
    ///
    /// `flow.destination` is the remote endpoint with its real address. For an echo the
    /// source's port is the identifier. `signal` is [`Signal::Data`] for all but TCP. A TCP packet
    /// without SYN creates a mapping as well, so that connections survive a restart of the gateway.
    ///
    /// # Errors
    ///
    /// [`Refused`] is the reason why no mapping could be created. RFC 5508 section 6, REQ-8 requires an ICMP
    /// error of code 13 for such a packet.
    #[inline]
    pub fn outbound(
        &self,
        realm: u32,
        flow: &Flow,
        signal: Signal,
        pool: &Pool,
        now: Tick,
    ) -> Result<Endpoint, Refused> {
        if let Some(found) = self.find_internal(realm, flow.protocol, flow.source)
            && self.mappings.state(found.record.status, now).is_some()
            && pool.contains(external_endpoint(&found.record).address)
            && self.track(&self.mappings, &found, Side::Initiator, signal, flow.destination, now)
                == Tracked::Done
        {
            return Ok(external_endpoint(&found.record));
        }

        self.create(realm, flow, signal, pool, now)
    }

    /// Inbound: the internal endpoint, if the destination of `flow` is the external endpoint of a mapping.
    ///
    /// `flow.source` is the remote endpoint. For an echo the destination's port is the identifier.
    /// Every host of the realm may send to a mapping (endpoint-independent filtering).
    #[must_use]
    #[inline]
    pub fn inbound(&self, realm: u32, flow: &Flow, signal: Signal, now: Tick) -> Option<Endpoint> {
        let found = self.find_external(realm, flow.protocol, flow.destination)?;
        self.mappings.state(found.record.status, now)?;
        self.track(&self.mappings, &found, Side::Responder, signal, flow.source, now);

        Some(internal_endpoint(&found.record))
    }

    /// The external endpoint of an internal one, if there is a mapping. Changes nothing: for packets
    /// quoted in ICMP errors, which must not refresh (RFC 5508 section 4.3, REQ-6), and for `explain`.
    #[must_use]
    pub fn peek_outbound(
        &self,
        realm: u32,
        protocol: Protocol,
        internal: Endpoint,
        now: Tick,
    ) -> Option<Endpoint> {
        let found = self.find_internal(realm, protocol, internal)?;
        self.mappings.state(found.record.status, now)?;

        Some(external_endpoint(&found.record))
    }

    /// The internal endpoint of an external one, if there is a mapping. Changes nothing.
    ///
    /// Also used for hairpinning (RFC 4787 section 6, REQ-9): an outbound packet to an external
    /// endpoint of its own realm goes to the internal one, with its source translated as usual.
    #[must_use]
    pub fn peek_inbound(
        &self,
        realm: u32,
        protocol: Protocol,
        external: Endpoint,
        now: Tick,
    ) -> Option<Endpoint> {
        let found = self.find_external(realm, protocol, external)?;
        self.mappings.state(found.record.status, now)?;

        Some(internal_endpoint(&found.record))
    }

    /// The external address that new mappings of `source` get, unless it has no port left. For later
    /// fragments whose first was not seen, ICMP errors that a source originates, and `explain`.
    #[must_use]
    pub fn paired(&self, realm: u32, source: IpAddr, pool: &Pool) -> Option<IpAddr> {
        let kind = Kind::new(Protocol::Udp, source);
        let usage = Usage::source(realm, kind, bits(source));
        let remembered = self.mappings.usage(&usage).map(|found| kind.address(found.record.b));

        remembered.filter(|address| pool.contains(*address)).or_else(|| pool.preferred(source))
    }

    /// Records the translation of a first fragment: of its source outbound, of its destination
    /// inbound. Takes a lock that fragments of the same direction share.
    pub fn remember_fragment(
        &self,
        direction: Direction,
        first: &Datagram,
        translated: IpAddr,
        now: Tick,
    ) {
        self.fragments(direction).remember(first, translated, now);
    }

    /// The translated address for a later fragment of the datagram, up to 30 s after the first.
    ///
    /// # Errors
    ///
    /// [`Refused::Fragment`] if the first fragment was not seen. Outbound, [`Self::paired`] is
    /// then right unless the pool was short of ports; inbound the fragment must be dropped.
    pub fn later_fragment(
        &self,
        direction: Direction,
        later: &Datagram,
        now: Tick,
    ) -> Result<IpAddr, Refused> {
        self.fragments(direction).recall(later, now).ok_or(Refused::Fragment)
    }

    /// Removes expired records. Call it about once a second; other intervals are harmless. A call
    /// checks at most 2,048 entries of each table.
    pub fn handle_timeout(&self, now: Tick) {
        self.mappings.sweep(SWEEP, None, &self.counters.expired, now);
        self.pins.sweep(SWEEP, None, &self.counters.expired, now);
    }

    /// Removes all records of a realm, when its peer is removed. Not for the packet path: walks over
    /// all entries. A mapping that a concurrent packet creates may stay until it expires; realms are not
    /// reused, so no lookup finds it.
    pub fn purge_realm(&self, realm: u32) {
        self.mappings.purge(realm, &self.counters.forgotten);
        self.pins.purge(realm, &self.counters.forgotten);
        self.outbound_fragments.purge(realm);
        self.inbound_fragments.purge(realm);
    }

    /// All live mappings, in no order. One that is created or ended during the walk may be missed.
    pub fn flows(&self, now: Tick) -> impl Iterator<Item = Mapping> {
        (0..self.mappings.slab.used()).filter_map(move |number| {
            let record = self.mappings.flow(number)?.record;

            Some(Mapping {
                realm: record.realm,
                protocol: record.status.kind().protocol(),
                internal: internal_endpoint(&record),
                external: external_endpoint(&record),
                state: self.mappings.state(record.status, now)?,
                idle_seconds: now.since(record.status.seen()),
            })
        })
    }

    /// Counters and gauges.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.counters.statistics(self.mappings.live(), self.pins.live())
    }

    /// Allocated memory in bytes, without the overhead of the allocator.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let fragments = self.fragment_tables().map(Fragments::memory_bytes).sum::<usize>();

        size_of::<Self>() + self.mappings.memory_bytes() + self.pins.memory_bytes() + fragments
    }

    /// The upper bound of [`Self::memory_bytes`], from the [`Limits`].
    #[must_use]
    pub fn max_memory_bytes(&self) -> usize {
        let fragments = self.fragment_tables().map(Fragments::max_memory_bytes).sum::<usize>();
        let flows = self.mappings.max_memory_bytes() + self.pins.max_memory_bytes();

        size_of::<Self>() + flows + fragments
    }

    fn random(&self) -> u64 {
        self.mappings.hash.random(self.draws.fetch_add(1, Ordering::Relaxed))
    }

    const fn fragments(&self, direction: Direction) -> &Fragments {
        match direction {
            Direction::Outbound => &self.outbound_fragments,
            Direction::Inbound => &self.inbound_fragments,
        }
    }

    fn fragment_tables(&self) -> impl Iterator<Item = &Fragments> {
        [Direction::Outbound, Direction::Inbound].into_iter().map(|of| self.fragments(of))
    }
}

#[cfg(test)]
mod tests;
