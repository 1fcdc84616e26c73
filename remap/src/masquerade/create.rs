//! The first packet of a mapping: whose share it is, and who makes room. `place` finds the port.

use super::Masquerade;
use super::entry::{Kind, Life, Record, Role, bits};
use super::flow::{Endpoint, Flow, Protocol, Signal, Tick};
use super::idlest::Idlest;
use super::lock::Place;
use super::lookup::{DOMAIN, Met, external_endpoint};
use super::outcome::{Refused, bump};
use super::place::Wanted;
use super::pool::Pool;
use super::state::{Side, State};
use super::table::{External, Found, Outlet, Table};
use super::tally::Tally;

/// How many entries a new mapping looks at for expired ones. Two keep the table swept: one pass
/// over it costs half as many new mappings as it has entries.
pub(super) const SWEEP: u32 = 2;
/// The same where the source has used up its share and expired mappings of it may be in the way.
pub(super) const SWEEP_HARDER: u32 = 64;
/// How many mappings are compared to find one to evict.
pub(super) const SAMPLE: usize = 16;
/// How many entries are looked at in search of them.
pub(super) const SAMPLE_REACH: u32 = 64;

impl Masquerade {
    /// Finds or makes the mapping of an outbound packet, under the lock of its source.
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
        let source = Tally::source(realm, kind, bits(flow.source.address));
        let held = table.hold(&source);
        // Another thread may have been first; or its conversation is over and another begins.
        while let Some(found) = self.find_internal(realm, flow.protocol, flow.source) {
            let has_expired = table.state(found.record.life, now).is_none();
            let known = external_endpoint(&found.record);
            if !has_expired && pool.contains(known.address) {
                if self.meet(table, &found, Side::Initiator, signal, flow.destination, now)
                    == Met::Adopt
                {
                    self.adopt(&found, flow.destination, now);
                }
                return Ok(known);
            }
            table.remove(&found, Outlet::Free, self.counters.replaced_or_expired(has_expired));
        }

        let wanted = Wanted {
            realm,
            flow,
            kind,
            record: self.first_record(realm, kind, flow, now),
            held: held.place,
            now,
        };
        self.admit(&wanted, &source, external, pool)
            .inspect(|_| bump(&self.counters.created))
            .map_err(|refused| self.counters.count(refused))
    }

    /// Counts the mapping in, and out again if it comes to nothing.
    fn admit(
        &self,
        wanted: &Wanted<'_>,
        source: &Tally,
        external: &External,
        pool: &Pool,
    ) -> Result<Endpoint, Refused> {
        let table = &self.mappings;
        let address = wanted.flow.source.address;
        let paired = self.paired(wanted.realm, address, pool).ok_or(Refused::NoAddress)?;
        // The share first: who is at its limit must not drive out others.
        self.join(table, source, bits(paired), wanted.held, wanted.now)?;
        if let Err(refused) = self.make_room(table, wanted.held, wanted.now) {
            table.leave(source);
            return Err(refused);
        }

        let placed = self.place(wanted, external, pool.addresses_from(paired));
        if placed.is_err() {
            table.unreserve();
            table.leave(source);
        }

        placed
    }

    /// Joins a source; if its share is used up, perhaps by mappings that have expired, looks for
    /// those and tries once more.
    pub(super) fn join(
        &self,
        table: &Table,
        source: &Tally,
        paired: u128,
        held: Place,
        now: Tick,
    ) -> Result<(), Refused> {
        match table.join(source, paired) {
            Err(Refused::SourceShare) => {
                table.sweep(SWEEP_HARDER, Some(held), &self.counters.expired, now);
                table.join(source, paired)
            }
            joined => joined,
        }
    }

    /// Reserves room for one flow, by ending an expired or an idle one if need be.
    pub(super) fn make_room(&self, table: &Table, held: Place, now: Tick) -> Result<(), Refused> {
        if table.reserve() || (self.evict(table, held, now) && table.reserve()) {
            Ok(())
        } else {
            Err(Refused::Full)
        }
    }

    /// Ends one of some flows: an expired one, or the most idle.
    fn evict(&self, table: &Table, held: Place, now: Tick) -> bool {
        let mut idlest = Idlest::default();

        for _ in 0..SAMPLE_REACH {
            let Some(found) = table.next_flow() else {
                continue;
            };
            let Some(state) = table.state(found.record.life, now) else {
                if table.try_remove(&found, Some(held), Outlet::Free, &self.counters.expired) {
                    return true;
                }
                continue;
            };
            idlest.compare(found, state, now);
            if idlest.compared() == SAMPLE {
                break;
            }
        }

        idlest.found().is_some_and(|found| {
            table.try_remove(&found, Some(held), Outlet::Free, &self.counters.evicted)
        })
    }

    /// A mapping whose conversation is over begins one with another remote endpoint.
    fn adopt(&self, found: &Found<'_>, remote: Endpoint, now: Tick) {
        let kind = found.record.life.kind();
        let tag = self.mappings.hash.tag(kind, bits(remote.address), remote.port);
        found.entry.set_c([tag, 0]);
        // The other direction may touch it meanwhile; under the lock nobody ends it.
        let mut life = found.record.life;
        while let Err(current) = found.entry.update(life, life.refreshed(State::Opening, now)) {
            life = current;
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
            life: Life::new(Role::Flow(state), kind, now),
            realm,
            ports: [flow.source.port, 0],
            a: bits(flow.source.address),
            b: 0,
            c: [tag, 0],
        }
    }
}
