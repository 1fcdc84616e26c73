//! Many sources behind few addresses: translation of address and port, for whom the remote cannot know.
//!
//! A prefix rule gives every address of a cluster a name in the other. Nodes and what runs in their
//! network have none there. They share external addresses, and a port tells them apart:
//!
//! ```text
//!   node 192.168.1.7:40000 ─┐                                    ┌─▶ remote cluster A (realm 1)
//!   node 192.168.1.8:40000 ─┴─▶ 10.70.0.1:40000, 10.70.0.1:52318 ┤
//!                                                                └─▶ remote cluster B (realm 2),
//!                                                                    with ports of its own
//! ```
//!
//! A *mapping* ties an internal endpoint to an external one, within a realm and a protocol, whatever
//! the remote endpoint is (RFC 4787 sections 4.1 and 5: endpoint-independent, in mapping and in
//! filtering). The realm is a number that the caller gives a peer and never to another.
//!
//! # Which port
//!
//! The same port if it is free, else a free one on the same side of 1024, searched from a random
//! start: one of the same parity, and of the other when there is none. Never one that another mapping
//! of the realm and protocol has. A source keeps its external address ([`Pool`] says which) as long as
//! it has mappings, and goes to the next address of the pool only when the first has no such port
//! left; that one mapping only, and new mappings ask the first again. RFC 4787 recommends both, the
//! pairing (REQ-2) and the parity (REQ-4), and demands neither. The pairing comes first: a peer that
//! hears one host under two addresses may take it for two, while only pairs of ports, as RTP once
//! used them, need the parity. And a connection from a second address is better than none.
//!
//! When no address has a port left, the most idle of the mappings that were met on the way makes
//! room, by the same rule as in a full table.
//!
//! # Threads
//!
//! Everything takes `&self`. A packet of a live mapping takes no lock in either direction and writes
//! at most once a second and at a change of state; a new mapping takes the lock of its source. A
//! lookup never waits, never returns a translation that does not exist at some moment of the call,
//! and never misses one that lives throughout. `entry`, `index` and `table` say why.
//!
//! # Memory
//!
//! Bounded by [`Limits`]; 64 bytes a mapping and 24 bytes of index, of which the first are taken up as
//! needed. Expired mappings are dead at once for every lookup, and are cleared away bit by bit: two
//! entries are looked at with each new mapping, more with each [`Masquerade::handle_timeout`]. A full
//! table gives up the most idle of 16 mappings, unanswered ones first, and none that was answered and
//! in use within 30 s: then the new one is refused.
//!
//! # Sources
//!
//! RFC 4787 (UDP), RFC 5382 (TCP), RFC 5508 (ICMP), RFC 7857 (updates to all three). The tests name
//! the requirements one by one.

mod create;
mod entry;
mod flow;
mod fragment;
mod hash;
mod idlest;
mod index;
mod limits;
mod lock;
mod lookup;
mod outcome;
mod pin;
mod place;
mod pool;
mod port;
mod probe;
mod slab;
mod state;
mod table;
mod tally;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use entry::{Kind, bits};
pub use flow::{Endpoint, Flow, Protocol, Signal, Tick};
pub use fragment::Datagram;
use fragment::Fragments;
use hash::Hash;
pub use limits::{Limits, LimitsError, Timeouts};
use lookup::{Met, external_endpoint, internal_endpoint};
use outcome::Counters;
pub use outcome::{Mapping, Refused, Statistics};
pub use pool::Pool;
use state::Side;
pub use state::State;
use table::{Size, Table};
use tally::Tally;

/// How many entries one call of [`Masquerade::handle_timeout`] looks at in each table.
const SWEEP: u32 = 2048;

/// All mappings of a gateway, toward all peers.
#[derive(Debug)]
pub struct Masquerade {
    mappings: Table,
    pins: Table,
    outbound_fragments: Fragments,
    inbound_fragments: Fragments,
    counters: Counters,
    /// How many random numbers were drawn.
    turn: AtomicU64,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the cluster into a tunnel.
    Outbound,
    /// From a tunnel into the cluster.
    Inbound,
}

impl Masquerade {
    /// An empty one. `seed` should be random and unknown outside: it keys the hashes and the choice
    /// of ports, and decides nothing else.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] names the bound or timeout that cannot be.
    pub fn new(limits: Limits, timeouts: Timeouts, seed: u64) -> Result<Self, LimitsError> {
        limits::check(&limits, &timeouts)?;

        let hash = Hash::new(seed);
        let mappings = Size {
            max_flows: limits.max_mappings,
            max_tallies: limits.max_sources,
            max_per_source: limits.max_per_source,
        };
        // Each pin may have a remote address of its own.
        let pins = Size {
            max_flows: limits.max_pins,
            max_tallies: limits.max_pins,
            max_per_source: limits.max_pins_per_source,
        };

        Ok(Self {
            mappings: Table::new(mappings, hash, timeouts, true),
            pins: Table::new(pins, hash, timeouts, false),
            outbound_fragments: Fragments::new(limits.max_fragments, hash),
            inbound_fragments: Fragments::new(limits.max_fragments, hash),
            counters: Counters::default(),
            turn: AtomicU64::new(0),
        })
    }

    /// Outbound: what the source of `flow` becomes. Makes a mapping if there is none, and in the place
    /// of one whose external address is in `pool` no more: what is sent to that finds nobody.
    ///
    /// `flow.destination` is the remote endpoint as the remote cluster calls it. For an echo the
    /// source's port is the identifier. `signal` is [`Signal::Data`] for all but TCP. A TCP packet
    /// without SYN makes a mapping as well, so that connections survive a restart of the gateway.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why there is none and can be none. RFC 5508 section 6, REQ-8 wants such a
    /// packet answered with an ICMP error of code 13.
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
            && self.mappings.state(found.record.life, now).is_some()
            && pool.contains(external_endpoint(&found.record).address)
            && self.meet(&self.mappings, &found, Side::Initiator, signal, flow.destination, now)
                == Met::Done
        {
            return Ok(external_endpoint(&found.record));
        }

        self.create(realm, flow, signal, pool, now)
    }

    /// Inbound: what the destination of `flow` becomes, if it is the external endpoint of a mapping.
    ///
    /// `flow.source` is the remote endpoint. For an echo the destination's port is the identifier.
    /// Anybody in the realm may send to a mapping (endpoint-independent filtering).
    #[must_use]
    #[inline]
    pub fn inbound(&self, realm: u32, flow: &Flow, signal: Signal, now: Tick) -> Option<Endpoint> {
        let found = self.find_external(realm, flow.protocol, flow.destination)?;
        self.mappings.state(found.record.life, now)?;
        self.meet(&self.mappings, &found, Side::Responder, signal, flow.source, now);

        Some(internal_endpoint(&found.record))
    }

    /// The external endpoint of an internal one, if there is a mapping. Leaves no trace: for packets
    /// within ICMP errors, which must not refresh (RFC 5508 section 4.3, REQ-6), and to explain.
    #[must_use]
    pub fn peek_outbound(
        &self,
        realm: u32,
        protocol: Protocol,
        internal: Endpoint,
        now: Tick,
    ) -> Option<Endpoint> {
        let found = self.find_internal(realm, protocol, internal)?;
        self.mappings.state(found.record.life, now)?;

        Some(external_endpoint(&found.record))
    }

    /// The internal endpoint of an external one, if there is a mapping. Leaves no trace.
    ///
    /// Also what hairpinning needs (RFC 4787 section 6, REQ-9): an outbound packet to an external
    /// endpoint of its own realm goes to the internal one, with its source translated as ever.
    #[must_use]
    pub fn peek_inbound(
        &self,
        realm: u32,
        protocol: Protocol,
        external: Endpoint,
        now: Tick,
    ) -> Option<Endpoint> {
        let found = self.find_external(realm, protocol, external)?;
        self.mappings.state(found.record.life, now)?;

        Some(internal_endpoint(&found.record))
    }

    /// The external address that new mappings of `source` get, unless it has no port left. For later
    /// fragments whose first was not seen, ICMP errors that a source sends itself, and to explain.
    #[must_use]
    pub fn paired(&self, realm: u32, source: IpAddr, pool: &Pool) -> Option<IpAddr> {
        let kind = Kind::new(Protocol::Udp, source);
        let tally = Tally::source(realm, kind, bits(source));
        let remembered = self.mappings.tally(&tally).map(|found| kind.address(found.record.b));

        remembered.filter(|address| pool.contains(*address)).or_else(|| pool.preferred(source))
    }

    /// Notes what an address of a first fragment became: outbound its source, inbound its
    /// destination. Takes a lock that fragments of the same direction share.
    pub fn remember_fragment(
        &self,
        direction: Direction,
        first: &Datagram,
        translated: IpAddr,
        now: Tick,
    ) {
        self.fragments(direction).remember(first, translated, now);
    }

    /// What that address becomes in a later fragment of the datagram, for 30 s.
    ///
    /// # Errors
    ///
    /// [`Refused::Fragment`] if the first fragment has not passed. Outbound, [`Self::paired`] is
    /// then right unless the pool was short of ports; inbound the fragment must be dropped.
    pub fn later_fragment(
        &self,
        direction: Direction,
        later: &Datagram,
        now: Tick,
    ) -> Result<IpAddr, Refused> {
        self.fragments(direction).recall(later, now).ok_or(Refused::Fragment)
    }

    /// Time has advanced to `now`: clears away some of what has expired. Call it about once a second;
    /// often or seldom is harmless. The work is bounded, 2,048 entries in each table.
    pub fn handle_timeout(&self, now: Tick) {
        self.mappings.sweep(SWEEP, None, &self.counters.expired, now);
        self.pins.sweep(SWEEP, None, &self.counters.expired, now);
    }

    /// Forgets everything of a realm, when its peer is removed. Not for the packet path: walks over
    /// all entries. Mappings that a packet makes meanwhile may stay and expire; realms are not
    /// reused, so nobody finds them.
    pub fn purge_realm(&self, realm: u32) {
        self.mappings.purge(realm, &self.counters.forgotten);
        self.pins.purge(realm, &self.counters.forgotten);
        self.outbound_fragments.purge(realm);
        self.inbound_fragments.purge(realm);
    }

    /// All live mappings, in no order. What comes or goes during the walk may or may not be seen.
    pub fn flows(&self, now: Tick) -> impl Iterator<Item = Mapping> {
        (0..self.mappings.slab.used()).filter_map(move |number| {
            let record = self.mappings.flow(number)?.record;

            Some(Mapping {
                realm: record.realm,
                protocol: record.life.kind().protocol(),
                internal: internal_endpoint(&record),
                external: external_endpoint(&record),
                state: self.mappings.state(record.life, now)?,
                idle_seconds: now.since(record.life.seen()),
            })
        })
    }

    /// Counters and gauges.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.counters.statistics(self.mappings.live(), self.pins.live())
    }

    /// Bytes of memory taken up. Exact but for the allocator's own.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let fragments = self.fragment_tables().map(Fragments::memory_bytes).sum::<usize>();

        size_of::<Self>() + self.mappings.memory_bytes() + self.pins.memory_bytes() + fragments
    }

    /// What [`Self::memory_bytes`] cannot exceed, by the [`Limits`].
    #[must_use]
    pub fn max_memory_bytes(&self) -> usize {
        let fragments = self.fragment_tables().map(Fragments::max_memory_bytes).sum::<usize>();
        let flows = self.mappings.max_memory_bytes() + self.pins.max_memory_bytes();

        size_of::<Self>() + flows + fragments
    }

    fn random(&self) -> u64 {
        self.mappings.hash.random(self.turn.fetch_add(1, Ordering::Relaxed))
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
