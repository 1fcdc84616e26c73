//! Pins: replies that must leave with the external address that the request came to.
//!
//! A host that remotes know by its own address, and that has a host map, has two addresses. A reply to a
//! packet for the external address must leave with the external address; all other packets keep the
//! internal one. So a pin stores the pair of the internal and the remote endpoint, with the
//! external address. Ports are not translated and need not be unique.

use std::net::IpAddr;

use super::Masquerade;
use super::entry::{Kind, Record, Role, Status, bits, halves};
use super::flow::{Endpoint, Flow, Protocol, Signal, Tick};
use super::lookup::Tracked;
use super::outcome::{Refused, bump};
use super::state::{Side, State};
use super::table::{Found, PortPoolLock};
use super::usage::Usage;

/// Entries that a new pin checks for expiry.
const SWEEP: u32 = 2;

impl Masquerade {
    /// Inbound: records that `flow`, from a remote endpoint to an internal one, was sent to `external`.
    ///
    /// `flow` is the flow after translation: `destination` is the internal endpoint. For an echo
    /// the identifier is the port of the internal endpoint. Takes a lock only for a new pin. If the
    /// same two endpoints use another external address later, the last one counts: to the internal
    /// host both are one connection.
    ///
    /// # Errors
    ///
    /// [`Refused::SourceShare`], [`Refused::Full`] and [`Refused::Sources`]: the pin cannot be
    /// stored, and the reply would leave with the wrong address. The share is that of the remote address.
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
            && self.pins.state(found.record.status, now).is_some()
            && external_address(&found.record) == external
        {
            self.track(&self.pins, &found, Side::Initiator, signal, flow.source, now);
            return Ok(());
        }

        self.create_pin(realm, flow, external, signal, now)
    }

    /// Inbound: records that `flow`, from a remote endpoint to an internal one, was sent to the internal
    /// address itself, so that replies keep it: the last address counts.
    ///
    /// A TCP connection keeps the address it was opened with, so only a SYN ends its pin. Takes a lock
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
    /// leave with, if it replies to a pinned flow. Takes no lock.
    #[must_use]
    #[inline]
    pub fn pinned(&self, realm: u32, flow: &Flow, signal: Signal, now: Tick) -> Option<IpAddr> {
        let found = self.find_pin(realm, flow.protocol, flow.source, flow.destination)?;
        self.pins.state(found.record.status, now)?;
        self.track(&self.pins, &found, Side::Responder, signal, flow.destination, now);

        Some(external_address(&found.record))
    }

    /// As [`Self::pinned`], but changes nothing: for packets quoted in ICMP errors, and for `explain`.
    #[must_use]
    pub fn peek_pinned(&self, realm: u32, flow: &Flow, now: Tick) -> Option<IpAddr> {
        let found = self.find_pin(realm, flow.protocol, flow.source, flow.destination)?;
        self.pins.state(found.record.status, now)?;

        Some(external_address(&found.record))
    }

    #[cold]
    #[inline(never)]
    fn end_pin(&self, realm: u32, flow: &Flow, now: Tick) {
        let table = &self.pins;
        let _held = table.hold(&source_of(realm, flow));

        // A reply may refresh the pin between the lookup and the removal; then look again.
        while let Some(found) = self.find_pin(realm, flow.protocol, flow.destination, flow.source) {
            let has_expired = table.state(found.record.status, now).is_none();
            table.remove(
                &found,
                PortPoolLock::Free,
                self.counters.replaced_or_expired(has_expired),
            );
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
            let has_expired = table.state(found.record.status, now).is_none();
            if !has_expired && external_address(&found.record) == external {
                let tracked = self.track(table, &found, Side::Initiator, signal, flow.source, now);
                debug_assert_eq!(tracked, Tracked::Done, "a pin has one remote endpoint");
                return Ok(());
            }
            table.remove(
                &found,
                PortPoolLock::Free,
                self.counters.replaced_or_expired(has_expired),
            );
        }

        let admitted = self.add_flow(table, &source, 0, held.lock, now).and_then(|()| {
            self.make_room(table, held.lock, now)
                .and_then(|()| {
                    self.insert_pin(realm, kind, flow, external, now)
                        .ok_or(Refused::Full)
                        .inspect_err(|_| table.unreserve())
                })
                .inspect_err(|_| table.remove_flow(&source))
        });

        admitted
            .inspect(|()| bump(&self.counters.created))
            .map_err(|refused| self.counters.count(refused))
    }

    fn insert_pin(
        &self,
        realm: u32,
        kind: Kind,
        flow: &Flow,
        external: IpAddr,
        now: Tick,
    ) -> Option<()> {
        let state = match flow.protocol {
            Protocol::Tcp => State::Opening,
            Protocol::Udp | Protocol::UdpLite | Protocol::Echo | Protocol::Raw(_) => State::Fresh,
        };
        let (high, low) = halves(bits(external));
        let record = Record {
            status: Status::new(Role::Flow(state), kind, now),
            realm,
            ports: [flow.destination.port, flow.source.port],
            a: bits(flow.destination.address),
            b: bits(flow.source.address),
            c: [high, low],
        };

        self.insert_pin_record(&record)
    }

    /// Enters a pin in the index. Call it under the lock of its source.
    pub(super) fn insert_pin_record(&self, record: &Record) -> Option<()> {
        let table = &self.pins;
        let number = table.slab.take()?;
        let entry = table.slab.get(number)?;
        let status = entry.write(record);
        if table.index.insert(table.hash_of(record), number) {
            return Some(());
        }
        entry.retire(status);
        table.slab.release(number);

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
                && record.status.kind() == kind
                && record.status.state().is_some()
        })
    }
}

/// The source whose share the pin of an inbound flow counts against.
pub(super) fn source_of(realm: u32, flow: &Flow) -> Usage {
    let remote = flow.source.address;

    Usage::source(realm, Kind::new(flow.protocol, remote), bits(remote))
}

fn external_address(record: &Record) -> IpAddr {
    let [high, low] = record.c.map(u128::from);

    record.status.kind().address((high << 64) | low)
}
