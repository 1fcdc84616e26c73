//! Creates a mapping for its first packet: counts it, makes room. `allocation` finds the port.

use super::Masquerade;
use super::allocation::MappingRequest;
use super::entry::{Kind, Record, Role, Status, bits};
use super::eviction::EvictionCandidate;
use super::flow::{Endpoint, Flow, Protocol, Signal, Tick};
use super::lock::LockIndex;
use super::lookup::{DOMAIN, Tracked, external_endpoint};
use super::outcome::{Refused, bump};
use super::pool::Pool;
use super::state::{Side, State};
use super::table::{External, Found, PortPoolLock, Table};
use super::usage::Usage;

/// Entries that a new mapping checks for expiry. Two keep the table swept: one pass
/// over it takes half as many new mappings as it has entries.
pub(super) const SWEEP: u32 = 2;
/// The same if the source has used up its share, perhaps with expired mappings.
pub(super) const SWEEP_HARDER: u32 = 64;
/// Mappings that are compared to find one to evict.
pub(super) const SAMPLE: usize = 16;
/// Entries that are checked to find these.
pub(super) const SAMPLE_REACH: u32 = 64;

impl Masquerade {
    /// Finds or creates the mapping of an outbound packet, under the lock of its source.
    #[cold]
    #[inline(never)]
    pub(super) fn create(
        &self,
        realm: u32,
        flow: &Flow,
        signal: Signal,
        pool: &Pool,
        now: Tick,
    ) -> Result<Endpoint, Refused> {
        if let Protocol::Raw(_) = flow.protocol {
            return Err(self.counters.count(Refused::Protocol));
        }
        let table = &self.mappings;
        let Some(external) = &table.external else {
            return Err(self.counters.count(Refused::NoAddress));
        };
        table.sweep(SWEEP, None, &self.counters.expired, now);

        let kind = Kind::new(flow.protocol, flow.source.address);
        let source = Usage::source(realm, kind, bits(flow.source.address));
        let held = table.hold(&source);
        // Another thread may have created it meanwhile, or a closed mapping gets a new connection.
        while let Some(found) = self.find_internal(realm, flow.protocol, flow.source) {
            let has_expired = table.state(found.record.status, now).is_none();
            let known = external_endpoint(&found.record);
            if !has_expired && pool.contains(known.address) {
                if self.track(table, &found, Side::Initiator, signal, flow.destination, now)
                    == Tracked::Adopt
                {
                    self.adopt(&found, flow.destination, now);
                }
                return Ok(known);
            }
            table.remove(
                &found,
                PortPoolLock::Free,
                self.counters.replaced_or_expired(has_expired),
            );
        }

        let request = MappingRequest {
            realm,
            flow,
            kind,
            record: self.first_record(realm, kind, flow, now),
            held: held.lock,
            now,
        };
        self.admit(&request, &source, external, pool)
            .inspect(|_| bump(&self.counters.created))
            .map_err(|refused| self.counters.count(refused))
    }

    /// Counts the mapping and allocates its port; undoes the count on failure.
    fn admit(
        &self,
        request: &MappingRequest<'_>,
        source: &Usage,
        external: &External,
        pool: &Pool,
    ) -> Result<Endpoint, Refused> {
        let table = &self.mappings;
        let address = request.flow.source.address;
        let paired = self.paired(request.realm, address, pool).ok_or(Refused::NoAddress)?;
        // The share first: a source at its limit must not evict mappings of others.
        self.add_flow(table, source, bits(paired), request.held, request.now)?;
        if let Err(refused) = self.make_room(table, request.held, request.now) {
            table.remove_flow(source);
            return Err(refused);
        }

        let allocated = self.allocate(request, external, pool.addresses_from(paired));
        if allocated.is_err() {
            table.unreserve();
            table.remove_flow(source);
        }

        allocated
    }

    /// Counts a flow of a source. If the share is used up, sweeps for expired flows and tries once more.
    pub(super) fn add_flow(
        &self,
        table: &Table,
        source: &Usage,
        paired: u128,
        held: LockIndex,
        now: Tick,
    ) -> Result<(), Refused> {
        match table.add_flow(source, paired) {
            Err(Refused::SourceShare) => {
                table.sweep(SWEEP_HARDER, Some(held), &self.counters.expired, now);
                table.add_flow(source, paired)
            }
            result => result,
        }
    }

    /// Reserves room for one flow; ends an expired or an idle one if necessary.
    pub(super) fn make_room(
        &self,
        table: &Table,
        held: LockIndex,
        now: Tick,
    ) -> Result<(), Refused> {
        if table.reserve() || (self.evict(table, held, now) && table.reserve()) {
            Ok(())
        } else {
            Err(Refused::Full)
        }
    }

    /// Ends one flow of a sample: an expired one, else the most idle.
    fn evict(&self, table: &Table, held: LockIndex, now: Tick) -> bool {
        let mut candidate = EvictionCandidate::default();

        for _ in 0..SAMPLE_REACH {
            let Some(found) = table.next_flow() else {
                continue;
            };
            let Some(state) = table.state(found.record.status, now) else {
                if table.try_remove(&found, Some(held), PortPoolLock::Free, &self.counters.expired)
                {
                    return true;
                }
                continue;
            };
            candidate.compare(found, state, now);
            if candidate.compared() == SAMPLE {
                break;
            }
        }

        candidate.found().is_some_and(|found| {
            table.try_remove(&found, Some(held), PortPoolLock::Free, &self.counters.evicted)
        })
    }

    /// Tracks a new connection, to another remote endpoint, on a mapping whose connection is closed.
    fn adopt(&self, found: &Found<'_>, remote: Endpoint, now: Tick) {
        let kind = found.record.status.kind();
        let tag = self.mappings.hash.tag(kind, bits(remote.address), remote.port);
        found.entry.set_c([tag, 0]);
        // The other direction may update it concurrently; ending it needs the lock that is held.
        let mut status = found.record.status;
        while let Err(current) = found.entry.update(status, status.refreshed(State::Opening, now)) {
            status = current;
        }
    }

    fn first_record(&self, realm: u32, kind: Kind, flow: &Flow, now: Tick) -> Record {
        let remote = flow.destination;
        let state = match flow.protocol {
            Protocol::Tcp => State::Opening,
            Protocol::Udp if remote.port == DOMAIN => State::Query,
            Protocol::Udp | Protocol::UdpLite | Protocol::Echo | Protocol::Raw(_) => State::Fresh,
        };
        let tag = if kind.is_tcp() {
            self.mappings.hash.tag(kind, bits(remote.address), remote.port)
        } else {
            0
        };

        Record {
            status: Status::new(Role::Flow(state), kind, now),
            realm,
            ports: [flow.source.port, 0],
            a: bits(flow.source.address),
            b: 0,
            c: [tag, 0],
        }
    }
}
