//! What would become of a packet, told without a trace: for whoever asks instead of sending.
//!
//! The answer is what the packet would get if it were the next one. Left out is what only doing it would
//! show: which lock another thread holds just then, and whose port an eviction frees.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use super::Masquerade;
use super::create::{SAMPLE, SAMPLE_REACH, SWEEP, SWEEP_HARDER};
use super::entry::{Kind, bits};
use super::flow::{Endpoint, Flow, Protocol, Tick};
use super::idlest::Idlest;
use super::lookup::external_endpoint;
use super::outcome::Refused;
use super::pin::source_of;
use super::place::{Search, outlets};
use super::pool::Pool;
use super::table::{Found, Table};
use super::tally::Tally;

impl Masquerade {
    /// As [`Self::outbound`], but makes no mapping, refreshes none and counts nothing.
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
            && table.state(found.record.life, now).is_some()
            && pool.contains(external_endpoint(&found.record).address)
        {
            return Ok(external_endpoint(&found.record));
        }

        let kind = Kind::new(flow.protocol, flow.source.address);
        let source = Tally::source(realm, kind, bits(flow.source.address));
        let paired = self.paired(realm, flow.source.address, pool).ok_or(Refused::NoAddress)?;
        // One that is there still, expired or out of date, would leave its room to the new one.
        if known.is_none() {
            room(table, &source, now)?;
        }

        self.probe_port(realm, flow, pool.addresses_from(paired), now)
    }

    /// As [`Self::pin`], but remembers nothing, refreshes nothing and counts nothing.
    ///
    /// # Errors
    ///
    /// [`Refused`], as the packet would be.
    pub fn probe_pin(&self, realm: u32, flow: &Flow, now: Tick) -> Result<(), Refused> {
        // One that is there already is kept, or leaves its room to the new one.
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
        let source = Tally::source(realm, kind, bits(flow.source.address));
        let new_tallies = if table.tally(&source).is_some() { 1 } else { 2 };
        let mut turn = self.turn.load(Ordering::Relaxed);
        let mut search = Search::default();

        for (address, class) in outlets(flow, addresses) {
            let taken = match table.tally(&Tally::outlet(realm, kind, bits(address))) {
                Some(tally) => class.count(tally.record.c),
                None if table.tallies.has_room(new_tallies) => 0,
                None => return Err(Refused::Sources),
            };
            let draw = || {
                turn += 1;
                table.hash.random(turn - 1)
            };
            let port = search.port(flow, class, taken, draw, |idlest, port| {
                let address = bits(address);
                let Some(found) = self.find_external_record(external, realm, kind, address, port)
                else {
                    return true;
                };
                let state = table.state(found.record.life, now);
                if let Some(state) = state {
                    idlest.compare(found, state, now);
                }
                state.is_none()
            });
            if let Some(port) = port {
                return Ok(Endpoint::new(address, port));
            }
        }

        search.idlest.found().map(|found| external_endpoint(&found.record)).ok_or(Refused::Ports)
    }
}

/// Whether one more flow of `source` finds room, in its share and in the table.
fn room(table: &Table, source: &Tally, now: Tick) -> Result<(), Refused> {
    let has_expired = |found: &Found<'_>| table.state(found.record.life, now).is_none();
    let [of_source, _] = match table.tally(source) {
        Some(tally) => tally.record.c,
        None if table.tallies.has_room(1) || sweeps_a_source(table, now) => [0; 2],
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
    let mut idlest = Idlest::default();
    for found in table.upcoming(SWEEP..SWEEP + SAMPLE_REACH) {
        let Some(state) = table.state(found.record.life, now) else {
            return Ok(());
        };
        idlest.compare(found, state, now);
        if idlest.compared() == SAMPLE {
            break;
        }
    }

    idlest.found().map(|_| ()).ok_or(Refused::Full)
}

/// Whether what has expired among the next entries was the last of its source.
fn sweeps_a_source(table: &Table, now: Tick) -> bool {
    let expired =
        || table.upcoming(0..SWEEP).filter(|found| table.state(found.record.life, now).is_none());

    expired().map(|found| table.source_of(&found.record)).any(|source| {
        let swept = expired().filter(|found| table.source_of(&found.record) == source).count();
        table.tally(&source).is_none_or(|tally| {
            let [of_source, _] = tally.record.c;
            usize::try_from(of_source).is_ok_and(|of_source| of_source <= swept)
        })
    })
}
