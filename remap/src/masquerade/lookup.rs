//! Finds the mapping of a packet and updates its state. Every packet takes this path; it takes no lock.

use super::Masquerade;
use super::entry::{Kind, Record, bits};
use super::flow::{Endpoint, Protocol, Signal, Tick};
use super::state::{self, Side, Step};
use super::table::{External, Found, Table};

/// The port of DNS; see [`super::Timeouts::dns`].
pub(super) const DOMAIN: u16 = 53;

/// The result of tracking a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracked {
    Done,
    /// The flow must adopt a new remote endpoint, under the lock of its source.
    Adopt,
}

impl Masquerade {
    /// Updates the state of a flow after a packet from `side`.
    #[inline]
    pub(super) fn track(
        &self,
        table: &Table,
        found: &Found<'_>,
        side: Side,
        signal: Signal,
        remote: Endpoint,
        now: Tick,
    ) -> Tracked {
        let mut status = found.record.status;
        let kind = status.kind();
        let is_tcp = kind.is_tcp();
        // A pin has one remote endpoint, a mapping tracks one.
        let is_known = !is_tcp
            || table.external.is_none()
            || found.record.c == [table.hash.tag(kind, bits(remote.address), remote.port), 0];

        while let Some(state) = status.state() {
            let step = if is_tcp {
                state::segment(state, side, signal, is_known)
            } else {
                state::datagram(state, side, remote.port == DOMAIN)
            };
            let changed = match step {
                Step::Keep => return Tracked::Done,
                Step::Adopt => return Tracked::Adopt,
                Step::Refresh(state) => status.refreshed(state, now),
            };
            if changed == status {
                return Tracked::Done;
            }
            match found.entry.update(status, changed) {
                // The other direction changed it first; apply this change to the new state.
                Err(current) if current.is_same_record(status) => status = current,
                Ok(()) | Err(_) => return Tracked::Done,
            }
        }

        Tracked::Done
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
                && record.status.kind() == kind
                && record.status.state().is_some()
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
                && record.status.kind() == kind
                && record.status.state().is_some()
        })
    }
}

pub(super) fn external_endpoint(record: &Record) -> Endpoint {
    let [_, port] = record.ports;

    Endpoint::new(record.status.kind().address(record.b), port)
}

pub(super) fn internal_endpoint(record: &Record) -> Endpoint {
    let [port, _] = record.ports;

    Endpoint::new(record.status.kind().address(record.a), port)
}
