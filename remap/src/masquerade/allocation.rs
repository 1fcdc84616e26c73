//! Which external endpoint a new mapping gets, and how it comes into both indexes.

use std::iter;
use std::net::IpAddr;

use super::Masquerade;
use super::entry::{Kind, Record, bits, low_u32};
use super::flow::{Endpoint, Flow, Tick};
use super::idlest::Idlest;
use super::lock::Place;
use super::lookup::external_endpoint;
use super::outcome::Refused;
use super::port::Class;
use super::table::{External, Outlet};
use super::tally::Tally;

/// How many taken ports of a class are looked at when all of it are taken.
const RECLAIM: u32 = 64;
/// How many classes are looked at that closely: both parities of the first address. A search that finds
/// nothing must not be long, however many addresses there are.
const RECLAIMED_CLASSES: u32 = 2;

/// What the first packet wants.
pub(super) struct Wanted<'a> {
    pub(super) realm: u32,
    pub(super) flow: &'a Flow,
    pub(super) kind: Kind,
    pub(super) record: Record,
    /// The source lock that is held.
    pub(super) held: Place,
    pub(super) now: Tick,
}

impl Masquerade {
    /// Gives the mapping a port on the first of `addresses` that has one free, or else the port of the
    /// most idle mapping that was met on the way, and puts it where lookups find it.
    pub(super) fn place(
        &self,
        wanted: &Wanted<'_>,
        external: &External,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Endpoint, Refused> {
        let number = self.mappings.slab.take().ok_or(Refused::Full)?;

        self.place_entry(wanted, external, number, addresses)
            .inspect_err(|_| self.mappings.slab.give_back(number))
    }

    fn place_entry(
        &self,
        wanted: &Wanted<'_>,
        external: &External,
        number: u32,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Endpoint, Refused> {
        let mut search = Search::default();

        for (address, class) in outlets(wanted.flow, addresses) {
            let placed = self.take_port(wanted, external, number, (address, class), |taken| {
                search.port(
                    wanted.flow,
                    class,
                    taken,
                    || self.random(),
                    |idlest, port| self.is_free(wanted, external, bits(address), port, idlest),
                )
            });
            if placed != Err(Refused::Ports) {
                return placed;
            }
        }

        let evicted = search.idlest.found().ok_or(Refused::Ports)?;
        let Endpoint { address, port } = external_endpoint(&evicted.record);
        let class = Class::of(wanted.flow.protocol, port);
        self.take_port(wanted, external, number, (address, class), |_| {
            let (held, ended) = (Some(wanted.held), &self.counters.evicted);
            self.mappings.try_remove(&evicted, held, Outlet::Held, ended).then_some(port)
        })
    }

    /// Gives the mapping the port of an external address that `choose` finds, given how many of its
    /// class are taken. Under the lock of the outlet, so what is free stays free.
    fn take_port(
        &self,
        wanted: &Wanted<'_>,
        external: &External,
        number: u32,
        (address, class): (IpAddr, Class),
        choose: impl FnOnce(u32) -> Option<u16>,
    ) -> Result<Endpoint, Refused> {
        let table = &self.mappings;
        let outlet = Tally::outlet(wanted.realm, wanted.kind, bits(address));
        let _held = external.outlets.hold(table.place_of(&outlet));
        let tally = table.tally(&outlet).or_else(|| table.open(&outlet, 0));
        let tally = tally.ok_or(Refused::Sources)?;

        // Counted before it is found, so that the record stays while other ports are freed.
        tally.entry.set_c(class.changed(tally.record.c, |count| count + 1));
        let taken = class.count(tally.record.c);
        let settled =
            choose(taken).and_then(|port| self.settle(wanted, external, number, address, port));
        if settled.is_none() {
            table.change(&outlet, |counts| class.changed(counts, |count| count.saturating_sub(1)));
        }

        settled.ok_or(Refused::Ports)
    }

    /// Whether nobody has this port; an expired mapping that has it loses it, a live one is compared.
    fn is_free<'a>(
        &'a self,
        wanted: &Wanted<'_>,
        external: &External,
        address: u128,
        port: u16,
        idlest: &mut Idlest<'a>,
    ) -> bool {
        let table = &self.mappings;
        let (realm, kind) = (wanted.realm, wanted.kind);
        let Some(found) = self.find_external_record(external, realm, kind, address, port) else {
            return true;
        };

        match table.state(found.record.life, wanted.now) {
            Some(state) => {
                idlest.compare(found, state, wanted.now);
                false
            }
            None => {
                let (held, ended) = (Some(wanted.held), &self.counters.expired);
                table.try_remove(&found, held, Outlet::Held, ended)
            }
        }
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
}

/// Where a port may come from: of each address, the class of the port inside and then its other parity.
pub(super) fn outlets(
    flow: &Flow,
    addresses: impl Iterator<Item = IpAddr>,
) -> impl Iterator<Item = (IpAddr, Class)> {
    let own = Class::of(flow.protocol, flow.source.port);

    addresses.flat_map(move |address| {
        iter::once(own).chain(own.other_parity()).map(move |class| (address, class))
    })
}

/// The search for a free port, class by class.
#[derive(Debug)]
pub(super) struct Search<'a> {
    /// How many taken ports may still be looked at where all are taken.
    reclaim: u32,
    /// Of the mappings that were in the way.
    pub(super) idlest: Idlest<'a>,
}

impl Default for Search<'_> {
    fn default() -> Self {
        Self { reclaim: RECLAIM * RECLAIMED_CLASSES, idlest: Idlest::default() }
    }
}

impl<'a> Search<'a> {
    /// A port of `class` that `is_free`: the same as inside, or one from a start that is drawn.
    pub(super) fn port(
        &mut self,
        flow: &Flow,
        class: Class,
        taken: u32,
        draw: impl FnOnce() -> u64,
        mut is_free: impl FnMut(&mut Idlest<'a>, u16) -> bool,
    ) -> Option<u16> {
        let near = flow.source.port;
        if class.contains(flow.protocol, near) && is_free(&mut self.idlest, near) {
            return Some(near);
        }

        let start = low_u32(draw() >> 32) % class.size();
        // With all taken only that of an expired mapping can be had, and the search must not be long.
        // With some free the search ends; it is long only where nearly all are taken, so each search
        // that is makes the next ones short.
        let tries = if taken < class.size() { class.size() } else { self.reclaim.min(RECLAIM) };
        if taken >= class.size() {
            self.reclaim -= tries;
        }

        (start..start + tries).map(|n| class.port(n)).find(|port| is_free(&mut self.idlest, *port))
    }
}
