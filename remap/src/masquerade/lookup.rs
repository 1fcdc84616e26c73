//! How a packet finds its mapping, and what it does to it: the path of every packet, without a lock.

use super::Masquerade;
use super::entry::{Kind, Record, bits};
use super::flow::{Endpoint, Protocol, Signal, Tick};
use super::state::{self, Side, Step};
use super::table::{External, Found, Table};

/// The port of DNS; see [`super::Timeouts::dns`].
pub(super) const DOMAIN: u16 = 53;

/// What meeting a packet did to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    Done,
    /// It must be adopted, under the lock of its source.
    Adopt,
}

impl Masquerade {
    /// Lets a packet of one side act on a flow.
    #[inline]
    pub(super) fn meet(
        &self,
        table: &Table,
        found: &Found<'_>,
        side: Side,
        signal: Signal,
        remote: Endpoint,
        now: Tick,
    ) -> Met {
        let mut life = found.record.life;
        let kind = life.kind();
        let is_tcp = kind.is_tcp();
        // A pin has one remote endpoint, a mapping tracks one.
        let is_known = !is_tcp
            || table.external.is_none()
            || found.record.c == [table.hash.tag(kind, bits(remote.address), remote.port), 0];

        while let Some(state) = life.state() {
            let step = if is_tcp {
                state::segment(state, side, signal, is_known)
            } else {
                state::datagram(state, side, remote.port == DOMAIN)
            };
            let changed = match step {
                Step::Keep => return Met::Done,
                Step::Adopt => return Met::Adopt,
                Step::Refresh(state) => life.refreshed(state, now),
            };
            if changed == life {
                return Met::Done;
            }
            match found.entry.update(life, changed) {
                // The other direction was first; its change counts, and then ours.
                Err(current) if current.is_same_record(life) => life = current,
                Ok(()) | Err(_) => return Met::Done,
            }
        }

        Met::Done
    }

    #[inline]
    pub(super) fn find_internal(
        &self,
        realm: u32,
        protocol: Protocol,
        internal: Endpoint,
    ) -> Option<Found<'_>> {
        let kind = Kind::new(protocol, internal.address);
        let address = bits(internal.address);
        let table = &self.mappings;
        let hash = table.hash.tuple(realm, kind, address, internal.port.into());

        table.find(&table.index, hash, |record| {
            let [port, _] = record.ports;

            record.a == address
                && port == internal.port
                && record.realm == realm
                && record.life.kind() == kind
                && record.life.state().is_some()
        })
    }

    #[inline]
    pub(super) fn find_external(
        &self,
        realm: u32,
        protocol: Protocol,
        external: Endpoint,
    ) -> Option<Found<'_>> {
        let kind = Kind::new(protocol, external.address);
        let tuples = self.mappings.external.as_ref()?;

        self.find_external_record(tuples, realm, kind, bits(external.address), external.port)
    }

    #[inline]
    pub(super) fn find_external_record(
        &self,
        tuples: &External,
        realm: u32,
        kind: Kind,
        address: u128,
        external_port: u16,
    ) -> Option<Found<'_>> {
        let table = &self.mappings;
        let hash = table.hash.tuple(realm, kind, address, external_port.into());

        table.find(&tuples.index, hash, |record| {
            let [_, port] = record.ports;

            record.b == address
                && port == external_port
                && record.realm == realm
                && record.life.kind() == kind
                && record.life.state().is_some()
        })
    }
}

pub(super) fn external_endpoint(record: &Record) -> Endpoint {
    let [_, port] = record.ports;

    Endpoint::new(record.life.kind().address(record.b), port)
}

pub(super) fn internal_endpoint(record: &Record) -> Endpoint {
    let [port, _] = record.ports;

    Endpoint::new(record.life.kind().address(record.a), port)
}
