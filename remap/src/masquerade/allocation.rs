//! Allocates the external endpoint of a new mapping and enters the mapping in both indexes.

use std::iter;
use std::net::IpAddr;

use super::Masquerade;
use super::entry::{Kind, Record, bits, low_u32};
use super::eviction::EvictionCandidate;
use super::flow::{Endpoint, Flow, Tick};
use super::lock::LockIndex;
use super::lookup::external_endpoint;
use super::outcome::Refused;
use super::port::Class;
use super::table::{External, PortPoolLock};
use super::usage::Usage;

/// Taken ports that are checked for expired mappings when all ports of a class are taken.
const RECLAIM: u32 = 64;
/// Classes that are checked like this: both parities of the first address. This bounds an unsuccessful
/// search, independently of the number of addresses.
const RECLAIMED_CLASSES: u32 = 2;

/// The mapping that the first packet of a flow needs.
pub(super) struct MappingRequest<'a> {
    pub(super) realm: u32,
    pub(super) flow: &'a Flow,
    pub(super) kind: Kind,
    pub(super) record: Record,
    /// The source lock that is held.
    pub(super) held: LockIndex,
    pub(super) now: Tick,
}

impl Masquerade {
    /// Allocates a port on the first of `addresses` that has a free one, or else evicts the most idle
    /// mapping that the search found and takes its port. Then enters the mapping in the indexes.
    pub(super) fn allocate(
        &self,
        request: &MappingRequest<'_>,
        external: &External,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Endpoint, Refused> {
        let number = self.mappings.slab.take().ok_or(Refused::Full)?;

        self.allocate_entry(request, external, number, addresses)
            .inspect_err(|_| self.mappings.slab.release(number))
    }

    fn allocate_entry(
        &self,
        request: &MappingRequest<'_>,
        external: &External,
        number: u32,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Endpoint, Refused> {
        let mut search = Search::default();

        for (address, class) in port_classes(request.flow, addresses) {
            let allocated = self.take_port(request, external, number, address, class, |taken| {
                search.port(
                    request.flow,
                    class,
                    taken,
                    || self.random(),
                    |candidate, port| {
                        self.is_free(request, external, bits(address), port, candidate)
                    },
                )
            });
            if allocated != Err(Refused::Ports) {
                return allocated;
            }
        }

        let evicted = search.candidate.found().ok_or(Refused::Ports)?;
        let Endpoint { address, port } = external_endpoint(&evicted.record);
        let class = Class::of(request.flow.protocol, port);
        self.take_port(request, external, number, address, class, |_| {
            let (held, ended) = (Some(request.held), &self.counters.evicted);
            self.mappings.try_remove(&evicted, held, PortPoolLock::Held, ended).then_some(port)
        })
    }

    /// Inserts the mapping with the port that `choose` returns. `choose` is given the number of taken ports
    /// of `class` and runs under the lock of the port pool, so a free port stays free.
    pub(super) fn take_port(
        &self,
        request: &MappingRequest<'_>,
        external: &External,
        number: u32,
        address: IpAddr,
        class: Class,
        choose: impl FnOnce(u32) -> Option<u16>,
    ) -> Result<Endpoint, Refused> {
        let table = &self.mappings;
        let port_pool = Usage::port_pool(request.realm, request.kind, bits(address));
        let _held = external.port_pools.hold(table.lock_of(&port_pool));
        let usage = table.usage(&port_pool).or_else(|| table.create_usage(&port_pool, 0));
        let usage = usage.ok_or(Refused::Sources)?;

        // Counted before the search, so that the record stays while other ports are freed.
        usage.entry.set_c(class.changed(usage.record.c, |count| count + 1));
        let taken = class.count(usage.record.c);
        let inserted =
            choose(taken).and_then(|port| self.insert(request, external, number, address, port));
        if inserted.is_none() {
            table.change_usage(&port_pool, |counts| {
                class.changed(counts, |count| count.saturating_sub(1))
            });
        }

        inserted.ok_or(Refused::Ports)
    }

    /// Whether this port is free. Ends an expired mapping that has it; a live one becomes a candidate
    /// for eviction.
    fn is_free<'a>(
        &'a self,
        request: &MappingRequest<'_>,
        external: &External,
        address: u128,
        port: u16,
        candidate: &mut EvictionCandidate<'a>,
    ) -> bool {
        let table = &self.mappings;
        let (realm, kind) = (request.realm, request.kind);
        let Some(found) = self.find_external_record(external, realm, kind, address, port) else {
            return true;
        };

        match table.state(found.record.status, request.now) {
            Some(state) => {
                candidate.compare(found, state, request.now);
                false
            }
            None => {
                let (held, ended) = (Some(request.held), &self.counters.expired);
                table.try_remove(&found, held, PortPoolLock::Held, ended)
            }
        }
    }

    /// Writes the record and enters it in both indexes; `None` if one of them is full.
    fn insert(
        &self,
        request: &MappingRequest<'_>,
        external: &External,
        number: u32,
        address: IpAddr,
        port: u16,
    ) -> Option<Endpoint> {
        let table = &self.mappings;
        let entry = table.slab.get(number)?;
        let near = request.flow.source.port;
        let record = Record { ports: [near, port], b: bits(address), ..request.record };
        let status = entry.write(&record);
        let hash = table.hash.tuple(request.realm, request.kind, record.b, port.into());

        if external.index.insert(hash, number) {
            if table.index.insert(table.hash_of(&record), number) {
                return Some(Endpoint::new(address, port));
            }
            external.index.remove(hash, number);
        }
        entry.retire(status);

        None
    }
}

/// The port classes to search: for each address, the class of the internal port and then the other parity.
pub(super) fn port_classes(
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
    /// How many taken ports may still be checked in classes without a free port.
    reclaim: u32,
    /// Among the mappings of the taken ports.
    pub(super) candidate: EvictionCandidate<'a>,
}

impl Default for Search<'_> {
    fn default() -> Self {
        Self { reclaim: RECLAIM * RECLAIMED_CLASSES, candidate: EvictionCandidate::default() }
    }
}

impl<'a> Search<'a> {
    /// A port of `class` that `is_free`: the internal port, or the next one from a random start.
    pub(super) fn port(
        &mut self,
        flow: &Flow,
        class: Class,
        taken: u32,
        draw: impl FnOnce() -> u64,
        mut is_free: impl FnMut(&mut EvictionCandidate<'a>, u16) -> bool,
    ) -> Option<u16> {
        let near = flow.source.port;
        if class.contains(flow.protocol, near) && is_free(&mut self.candidate, near) {
            return Some(near);
        }

        let start = low_u32(draw() >> 32) % class.size();
        // If all are taken, only the port of an expired mapping can be used, and the search must be short.
        // Otherwise the search finds one. It is long only if nearly all are taken, and then the expired
        // mappings that it ends shorten the next searches.
        let tries = if taken < class.size() { class.size() } else { self.reclaim.min(RECLAIM) };
        if taken >= class.size() {
            self.reclaim -= tries;
        }

        (start..start + tries)
            .map(|n| class.port(n))
            .find(|port| is_free(&mut self.candidate, *port))
    }
}
