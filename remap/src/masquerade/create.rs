//! The first packet of a mapping: whose share it is, which port it gets, who makes room.

use std::net::IpAddr;

use super::entry::{Kind, Life, Record, Role, bits, low_u32};
use super::flow::{Endpoint, Flow, Protocol, Signal, Tick};
use super::lock::Place;
use super::outcome::{Refused, bump};
use super::pool::Pool;
use super::port::Class;
use super::state::{Side, State};
use super::table::{External, Found, Outlet, Table, Tally};
use super::{DOMAIN, Masquerade, Met};

/// How many entries a new mapping looks at for expired ones. Two keep the table swept: one pass
/// over it costs half as many new mappings as it has entries.
const SWEEP: u32 = 2;
/// The same where the source has used up its share and expired mappings of it may be in the way.
const SWEEP_HARDER: u32 = 64;
/// How many mappings are compared to find one to evict.
const SAMPLE: u32 = 16;
/// How many entries are looked at in search of them.
const SAMPLE_REACH: u32 = 64;
/// A confirmed mapping that had a packet within so many seconds is in active use and never evicted.
const ACTIVE_SECONDS: u32 = 30;
/// How many taken ports are looked at for expired ones when all are taken.
const RECLAIM: u32 = 64;

/// What the first packet wants.
struct Wanted<'a> {
    realm: u32,
    flow: &'a Flow,
    kind: Kind,
    record: Record,
    /// The source lock that is held.
    held: Place,
    now: Tick,
}

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
        let Some(preferred) = pool.preferred(flow.source.address) else {
            return Err(self.counters.count(Refused::NoAddress));
        };
        let table = &self.mappings;
        let Some(external) = &table.external else {
            return Err(self.counters.count(Refused::NoAddress));
        };
        table.sweep(SWEEP, None, &self.counters, now);

        let kind = Kind::new(flow.protocol, flow.source.address);
        let source = Tally::source(realm, kind, bits(flow.source.address));
        let held = table.hold(&source);
        // Another thread may have been first; or its conversation is over and another begins.
        while let Some(found) = self.find_internal(realm, flow.protocol, flow.source) {
            if table.state(found.record.life, now).is_some() {
                if self.meet(table, &found, Side::Initiator, signal, flow.destination, now)
                    == Met::Adopt
                {
                    self.adopt(&found, flow.destination, now);
                }
                return Ok(external_endpoint(&found.record));
            }
            if table.remove(&found, Outlet::Free) {
                bump(&self.counters.expired);
            }
        }

        let wanted = Wanted {
            realm,
            flow,
            kind,
            record: self.first_record(realm, kind, flow, now),
            held: held.place,
            now,
        };
        self.admit(&wanted, &source, external, preferred, pool)
            .inspect(|_| bump(&self.counters.created))
            .map_err(|refused| self.counters.count(refused))
    }

    /// Counts the mapping in, and out again if it comes to nothing.
    fn admit(
        &self,
        wanted: &Wanted<'_>,
        source: &Tally,
        external: &External,
        preferred: IpAddr,
        pool: &Pool,
    ) -> Result<Endpoint, Refused> {
        let table = &self.mappings;
        // The share first: who is at its limit must not drive out others.
        let joined = self.join(table, source, bits(preferred), wanted.held, wanted.now)?;
        if let Err(refused) = self.make_room(table, wanted.held, wanted.now) {
            table.leave(source);
            return Err(refused);
        }

        let addresses = pool.addresses(preferred.is_ipv4());
        // What is remembered may have left the pool.
        let remembered = wanted.kind.address(joined.record.b);
        let paired = addresses
            .binary_search(&remembered)
            .or_else(|_| addresses.binary_search(&preferred))
            .unwrap_or_default();
        let (before, from) = addresses.split_at_checked(paired).unwrap_or((&[], addresses));

        let placed = self.place(wanted, external, from.iter().chain(before).copied());
        if placed.is_err() {
            table.unreserve();
            table.leave(source);
        }

        placed
    }

    /// Joins a source; if its share is used up, perhaps by mappings that have expired, looks for
    /// those and tries once more.
    pub(super) fn join<'a>(
        &self,
        table: &'a Table,
        source: &Tally,
        paired: u128,
        held: Place,
        now: Tick,
    ) -> Result<Found<'a>, Refused> {
        match table.join(source, paired) {
            Err(Refused::SourceShare) => {
                table.sweep(SWEEP_HARDER, Some(held), &self.counters, now);
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

    /// Ends the most idle of some flows: one that nobody answered before one that somebody did, and
    /// none that is in active use.
    fn evict(&self, table: &Table, held: Place, now: Tick) -> bool {
        let mut most_idle: Option<((bool, u32), Found<'_>)> = None;
        let mut compared = 0;

        for _ in 0..SAMPLE_REACH {
            let Some(found) = table.next_flow() else {
                continue;
            };
            let Some(state) = table.state(found.record.life, now) else {
                if table.try_remove(&found, Some(held), Outlet::Free) {
                    bump(&self.counters.expired);
                    return true;
                }
                continue;
            };
            let idle = now.since(found.record.life.seen());
            let rank = (!state.is_confirmed(), idle);
            if (!state.is_confirmed() || idle >= ACTIVE_SECONDS)
                && most_idle.as_ref().is_none_or(|(most, _)| rank > *most)
            {
                most_idle = Some((rank, found));
            }
            compared += 1;
            if compared == SAMPLE {
                break;
            }
        }

        let evicted =
            most_idle.is_some_and(|(_, found)| table.try_remove(&found, Some(held), Outlet::Free));
        if evicted {
            bump(&self.counters.evicted);
        }

        evicted
    }

    /// Gives the mapping a port on the first of `addresses` that has one free, and puts it where
    /// lookups find it.
    fn place(
        &self,
        wanted: &Wanted<'_>,
        external: &External,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Endpoint, Refused> {
        let table = &self.mappings;
        let number = table.slab.take().ok_or(Refused::Full)?;
        let mut reclaim = RECLAIM;

        let class = Class::of(wanted.flow.protocol, wanted.flow.source.port);
        let mut result = Err(Refused::Ports);
        for address in addresses {
            let outlet = Tally::outlet(wanted.realm, wanted.kind, bits(address));
            let _held = external.outlets.hold(table.place_of(&outlet));
            let Some(tally) = table.tally(&outlet).or_else(|| table.open(&outlet, 0)) else {
                result = Err(Refused::Sources);
                break;
            };
            // Counted before it is found, so that the record stays while expired ports are freed.
            table.change(&outlet, |counts| class.changed(counts, |count| count + 1));
            let taken = class.count(tally.record.c);
            if let Some(port) = self.free_port(wanted, external, address, taken, &mut reclaim)
                && let Some(endpoint) = self.settle(wanted, external, number, address, port)
            {
                return Ok(endpoint);
            }
            table.change(&outlet, |counts| class.changed(counts, |count| count.saturating_sub(1)));
        }
        table.slab.give_back(number);

        result
    }

    /// A free port of the outlet: the same as inside, or one of its class found from a random start.
    /// Under the lock of the outlet, so what is free stays free.
    fn free_port(
        &self,
        wanted: &Wanted<'_>,
        external: &External,
        address: IpAddr,
        taken: u32,
        reclaim: &mut u32,
    ) -> Option<u16> {
        let near = wanted.flow.source.port;
        let class = Class::of(wanted.flow.protocol, near);
        let is_free = |port| self.is_free(wanted, external, bits(address), port);
        if class.contains(near) && is_free(near) {
            return Some(near);
        }

        let start = low_u32(self.random() >> 32) % class.size();
        // With all taken only an expired one can be had, and the search must not be long. With some
        // free the search ends; it is long only where nearly all are taken, so each search that is
        // makes the next ones short.
        let is_full = taken >= class.size();
        let tries = if is_full { *reclaim } else { class.size() };
        let mut ports = (start..start + tries).map(|n| class.port(n));
        if is_full {
            *reclaim = 0;
        }

        ports.find(|port| is_free(*port))
    }

    /// Whether nobody has this port; an expired mapping that has it loses it.
    fn is_free(&self, wanted: &Wanted<'_>, external: &External, address: u128, port: u16) -> bool {
        let table = &self.mappings;
        let (realm, kind) = (wanted.realm, wanted.kind);
        let Some(found) = self.find_external_record(external, realm, kind, address, port) else {
            return true;
        };
        let is_over = table.state(found.record.life, wanted.now).is_none()
            && table.try_remove(&found, Some(wanted.held), Outlet::Held);
        if is_over {
            bump(&self.counters.expired);
        }

        is_over
    }

    /// Writes the record and enters it in both indexes; `None` if one of them has no place.
    fn settle(
        &self,
        wanted: &Wanted<'_>,
        external: &External,
        number: u32,
        address: IpAddr,
        port: u16,
    ) -> Option<Endpoint> {
        let table = &self.mappings;
        let entry = table.slab.get(number)?;
        let near = wanted.flow.source.port;
        let record = Record { ports: [near, port], b: bits(address), ..wanted.record };
        let life = entry.write(&record);
        let hash = table.hash.tuple(wanted.realm, wanted.kind, record.b, port.into());

        if external.index.insert(hash, number) {
            if table.index.insert(table.hash_of(&record), number) {
                return Some(Endpoint::new(address, port));
            }
            external.index.remove(hash, number);
        }
        entry.retire(life);

        None
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

pub(super) fn external_endpoint(record: &Record) -> Endpoint {
    let [_, port] = record.ports;

    Endpoint::new(record.life.kind().address(record.b), port)
}
