//! Predicts the translation of a packet without changing state, for `explain`.
//!
//! The result is that of the next packet, except for what cannot be predicted: which locks other threads
//! hold then, and which port an eviction frees.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use super::Masquerade;
use super::allocation::{Search, port_classes};
use super::create::{SAMPLE, SAMPLE_REACH, SWEEP, SWEEP_HARDER};
use super::entry::{Kind, bits};
use super::eviction::EvictionCandidate;
use super::flow::{Endpoint, Flow, Protocol, Tick};
use super::lookup::external_endpoint;
use super::outcome::Refused;
use super::pin::source_of;
use super::pool::Pool;
use super::table::{Found, Table};
use super::usage::Usage;

impl Masquerade {
    /// As [`Self::outbound`], but creates and refreshes no mapping and counts nothing.
    ///
    /// # Errors
    ///
    /// [`Refused`], as the packet would be.
    pub fn probe(
        &self,
        realm: u32,
        flow: &Flow,
        pool: &Pool,
        now: Tick,
    ) -> Result<Endpoint, Refused> {
        if let Protocol::Raw(_) = flow.protocol {
            return Err(Refused::Protocol);
        }
        let table = &self.mappings;
        let known = self.find_internal(realm, flow.protocol, flow.source);
        if let Some(found) = known
            && table.state(found.record.status, now).is_some()
            && pool.contains(external_endpoint(&found.record).address)
        {
            return Ok(external_endpoint(&found.record));
        }

        let kind = Kind::new(flow.protocol, flow.source.address);
        let source = Usage::source(realm, kind, bits(flow.source.address));
        let paired = self.paired(realm, flow.source.address, pool).ok_or(Refused::NoAddress)?;
        // An expired or outdated mapping would be replaced, so the new one needs no more room.
        if known.is_none() {
            room(table, &source, now)?;
        }

        self.probe_port(realm, flow, pool.addresses_from(paired), now)
    }

    /// As [`Self::pin`], but creates and refreshes no pin and counts nothing.
    ///
    /// # Errors
    ///
    /// [`Refused`], as the packet would be.
    pub fn probe_pin(&self, realm: u32, flow: &Flow, now: Tick) -> Result<(), Refused> {
        // An existing pin is kept or replaced.
        if self.find_pin(realm, flow.protocol, flow.destination, flow.source).is_some() {
            return Ok(());
        }

        room(&self.pins, &source_of(realm, flow), now)
    }

    fn probe_port(
        &self,
        realm: u32,
        flow: &Flow,
        addresses: impl Iterator<Item = IpAddr>,
        now: Tick,
    ) -> Result<Endpoint, Refused> {
        let table = &self.mappings;
        let external = table.external.as_ref().ok_or(Refused::NoAddress)?;
        let kind = Kind::new(flow.protocol, flow.source.address);
        let source = Usage::source(realm, kind, bits(flow.source.address));
        let new_usages = if table.usage(&source).is_some() { 1 } else { 2 };
        let mut draws = self.draws.load(Ordering::Relaxed);
        let mut search = Search::default();

        for (address, class) in port_classes(flow, addresses) {
            let taken = match table.usage(&Usage::port_pool(realm, kind, bits(address))) {
                Some(usage) => class.count(usage.record.c),
                None if table.usages.has_room(new_usages) => 0,
                None => return Err(Refused::Sources),
            };
            let draw = || {
                draws += 1;
                table.hash.random(draws - 1)
            };
            let port = search.port(flow, class, taken, draw, |candidate, port| {
                let address = bits(address);
                let Some(found) = self.find_external_record(external, realm, kind, address, port)
                else {
                    return true;
                };
                let state = table.state(found.record.status, now);
                if let Some(state) = state {
                    candidate.compare(found, state, now);
                }
                state.is_none()
            });
            if let Some(port) = port {
                return Ok(Endpoint::new(address, port));
            }
        }

        search.candidate.found().map(|found| external_endpoint(&found.record)).ok_or(Refused::Ports)
    }
}

/// Whether there is room for one more flow of `source`, in its share and in the table.
fn room(table: &Table, source: &Usage, now: Tick) -> Result<(), Refused> {
    let has_expired = |found: &Found<'_>| table.state(found.record.status, now).is_none();
    let [of_source, _] = match table.usage(source) {
        Some(usage) => usage.record.c,
        None if table.usages.has_room(1) || sweeps_a_source(table, now) => [0; 2],
        None => return Err(Refused::Sources),
    };
    if of_source >= u64::from(table.max_per_source)
        && !table
            .upcoming(0..SWEEP + SWEEP_HARDER)
            .any(|found| has_expired(&found) && table.source_of(&found.record) == *source)
    {
        return Err(Refused::SourceShare);
    }

    if table.flows.has_room(1) || table.upcoming(0..SWEEP).any(|found| has_expired(&found)) {
        return Ok(());
    }
    let mut candidate = EvictionCandidate::default();
    for found in table.upcoming(SWEEP..SWEEP + SAMPLE_REACH) {
        let Some(state) = table.state(found.record.status, now) else {
            return Ok(());
        };
        candidate.compare(found, state, now);
        if candidate.compared() == SAMPLE {
            break;
        }
    }

    candidate.found().map(|_| ()).ok_or(Refused::Full)
}

/// Whether the next sweep ends all flows of some source and so frees its record.
fn sweeps_a_source(table: &Table, now: Tick) -> bool {
    let expired =
        || table.upcoming(0..SWEEP).filter(|found| table.state(found.record.status, now).is_none());

    expired().map(|found| table.source_of(&found.record)).any(|source| {
        let swept = expired().filter(|found| table.source_of(&found.record) == source).count();
        table.usage(&source).is_none_or(|usage| {
            let [of_source, _] = usage.record.c;
            usize::try_from(of_source).is_ok_and(|of_source| of_source <= swept)
        })
    })
}
