//! Which external endpoint a new mapping gets, and how it comes into both indexes.

use std::net::IpAddr;

use super::Masquerade;
use super::entry::{Kind, Record, bits, low_u32};
use super::flow::{Endpoint, Flow, Tick};
use super::lock::Place;
use super::outcome::{Refused, bump};
use super::port::Class;
use super::table::{External, Outlet};
use super::tally::Tally;

/// How many taken ports are looked at for expired ones when all are taken.
const RECLAIM: u32 = 64;

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
    /// Gives the mapping a port on the first of `addresses` that has one free, and puts it where
    /// lookups find it.
    pub(super) fn place(
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
            tally.entry.set_c(class.changed(tally.record.c, |count| count + 1));
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
}
