//! Pins: replies that must leave with the external address that the request came to.
//!
//! An address that is also reachable under another name, a host map, has two names. A packet that
//! came in for the second one must be answered under the second one, while everything else that the
//! address sends keeps the first. So the pair of the internal and the remote endpoint is remembered,
//! and with it the external address. Ports are not translated; nothing has to be unique.

use std::net::IpAddr;

use super::Masquerade;
use super::entry::{Kind, Life, Record, Role, bits, halves};
use super::flow::{Endpoint, Flow, Protocol, Signal, Tick};
use super::lookup::Met;
use super::outcome::{Refused, bump};
use super::state::{Side, State};
use super::table::{Found, Outlet};
use super::tally::Tally;

/// How many entries a new pin looks at for expired ones.
const SWEEP: u32 = 2;

impl Masquerade {
    /// Inbound: notes that `flow`, from a remote endpoint to an internal one, came to `external`.
    ///
    /// The flow is as it is after translation: `destination` is the internal endpoint. For an echo
    /// the identifier is the port of the internal endpoint. Once noted, this takes no lock. If the
    /// same two endpoints meet under another external address, the last one counts: to the internal
    /// host both are one conversation.
    ///
    /// # Errors
    ///
    /// [`Refused::SourceShare`], [`Refused::Full`] and [`Refused::Sources`]: the pin cannot be
    /// remembered, and the reply would leave under the wrong name. The share is the remote address's.
    #[inline]
    pub fn pin(
        &self,
        realm: u32,
        flow: &Flow,
        external: IpAddr,
        signal: Signal,
        now: Tick,
    ) -> Result<(), Refused> {
        if let Some(found) = self.find_pin(realm, flow.protocol, flow.destination, flow.source)
            && self.pins.state(found.record.life, now).is_some()
            && external_address(&found.record) == external
        {
            self.meet(&self.pins, &found, Side::Initiator, signal, flow.source, now);
            return Ok(());
        }

        self.create_pin(realm, flow, external, signal, now)
    }

    /// Inbound: notes that `flow`, from a remote endpoint to an internal one, came to the internal
    /// address itself, so that replies leave with that: the last name counts.
    ///
    /// A connection keeps the name it was opened under, so only a SYN changes that of TCP. Takes a lock
    /// only if there is a pin to end.
    #[inline]
    pub fn unpin(&self, realm: u32, flow: &Flow, signal: Signal, now: Tick) {
        if flow.protocol == Protocol::Tcp && signal != Signal::Syn {
            return;
        }
        if self.find_pin(realm, flow.protocol, flow.destination, flow.source).is_some() {
            self.end_pin(realm, flow, now);
        }
    }

    /// Outbound: the external address that `flow`, from an internal endpoint to a remote one, must
    /// leave with, if it answers a pinned one. Takes no lock.
    #[must_use]
    #[inline]
    pub fn pinned(&self, realm: u32, flow: &Flow, signal: Signal, now: Tick) -> Option<IpAddr> {
        let found = self.find_pin(realm, flow.protocol, flow.source, flow.destination)?;
        self.pins.state(found.record.life, now)?;
        self.meet(&self.pins, &found, Side::Responder, signal, flow.destination, now);

        Some(external_address(&found.record))
    }

    /// As [`Self::pinned`], but leaves no trace: for a packet within an ICMP error, and to explain.
    #[must_use]
    pub fn peek_pinned(&self, realm: u32, flow: &Flow, now: Tick) -> Option<IpAddr> {
        let found = self.find_pin(realm, flow.protocol, flow.source, flow.destination)?;
        self.pins.state(found.record.life, now)?;

        Some(external_address(&found.record))
    }

    #[cold]
    #[inline(never)]
    fn end_pin(&self, realm: u32, flow: &Flow, now: Tick) {
        let table = &self.pins;
        let _held = table.hold(&source_of(realm, flow));

        // The reply may refresh it between the look and the end; then look again.
        while let Some(found) = self.find_pin(realm, flow.protocol, flow.destination, flow.source) {
            let has_expired = table.state(found.record.life, now).is_none();
            table.remove(&found, Outlet::Free, self.counters.replaced_or_expired(has_expired));
        }
    }

    #[cold]
    #[inline(never)]
    fn create_pin(
        &self,
        realm: u32,
        flow: &Flow,
        external: IpAddr,
        signal: Signal,
        now: Tick,
    ) -> Result<(), Refused> {
        let table = &self.pins;
        let kind = Kind::new(flow.protocol, flow.source.address);
        let source = source_of(realm, flow);
        table.sweep(SWEEP, None, &self.counters.expired, now);

        let held = table.hold(&source);
        while let Some(found) = self.find_pin(realm, flow.protocol, flow.destination, flow.source) {
            let has_expired = table.state(found.record.life, now).is_none();
            if !has_expired && external_address(&found.record) == external {
                let met = self.meet(table, &found, Side::Initiator, signal, flow.source, now);
                debug_assert_eq!(met, Met::Done, "a pin has one remote endpoint");
                return Ok(());
            }
            table.remove(&found, Outlet::Free, self.counters.replaced_or_expired(has_expired));
        }

        let admitted = self.join(table, &source, 0, held.place, now).and_then(|()| {
            self.make_room(table, held.place, now)
                .and_then(|()| {
                    self.settle_pin(realm, kind, flow, external, now)
                        .ok_or(Refused::Full)
                        .inspect_err(|_| table.unreserve())
                })
                .inspect_err(|_| table.leave(&source))
        });

        admitted
            .inspect(|()| bump(&self.counters.created))
            .map_err(|refused| self.counters.count(refused))
    }

    fn settle_pin(
        &self,
        realm: u32,
        kind: Kind,
        flow: &Flow,
        external: IpAddr,
        now: Tick,
    ) -> Option<()> {
        let table = &self.pins;
        let state = match flow.protocol {
            Protocol::Tcp => State::Opening,
            Protocol::Udp | Protocol::UdpLite | Protocol::Echo | Protocol::Raw(_) => State::Fresh,
        };
        let (high, low) = halves(bits(external));
        let record = Record {
            life: Life::new(Role::Flow(state), kind, now),
            realm,
            ports: [flow.destination.port, flow.source.port],
            a: bits(flow.destination.address),
            b: bits(flow.source.address),
            c: [high, low],
        };
        let number = table.slab.take()?;
        let entry = table.slab.get(number)?;
        let life = entry.write(&record);
        if table.index.insert(table.hash_of(&record), number) {
            return Some(());
        }
        entry.retire(life);
        table.slab.give_back(number);

        None
    }

    #[inline]
    pub(super) fn find_pin(
        &self,
        realm: u32,
        protocol: Protocol,
        internal: Endpoint,
        remote: Endpoint,
    ) -> Option<Found<'_>> {
        let kind = Kind::new(protocol, internal.address);
        let addresses = [bits(internal.address), bits(remote.address)];
        let ports = [internal.port, remote.port];
        let table = &self.pins;

        table.find(&table.index, table.hash.pair(realm, kind, addresses, ports), |record| {
            [record.a, record.b] == addresses
                && record.ports == ports
                && record.realm == realm
                && record.life.kind() == kind
                && record.life.state().is_some()
        })
    }
}

/// Whose share the pin of an inbound flow counts against.
pub(super) fn source_of(realm: u32, flow: &Flow) -> Tally {
    let remote = flow.source.address;

    Tally::source(realm, Kind::new(flow.protocol, remote), bits(remote))
}

fn external_address(record: &Record) -> IpAddr {
    let [high, low] = record.c.map(u128::from);

    record.life.kind().address((high << 64) | low)
}
