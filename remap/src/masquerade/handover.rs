//! Mappings and pins for a successor: another process that goes on with them.
//!
//! The successor has the same seed, which keys the tags of tracked remote endpoints, and the same start of its ticks.

use std::net::IpAddr;

use super::Masquerade;
use super::allocation::MappingRequest;
use super::entry::{Kind, Record, Role, Status};
use super::flow::{Endpoint, Flow, Tick};
use super::lookup::{external_endpoint, internal_endpoint};
use super::outcome::bump;
use super::port::Class;
use super::table::{External, Table};

/// A mapping or a pin, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord([u8; Self::LEN]);

impl FlowRecord {
    /// Its length in bytes.
    pub const LEN: usize = 1 + 4 + 2 + 2 + 4 + 2 * 2 + 2 * 16 + 2 * 8;

    /// The record in these bytes, which come from [`Self::as_bytes`].
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    fn new(is_pin: bool, record: &Record) -> Self {
        let mut bytes = [0; Self::LEN];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            if let Some((room, behind)) =
                std::mem::take(&mut rest).split_at_mut_checked(field.len())
            {
                room.copy_from_slice(field);
                rest = behind;
            }
        };
        put(&[u8::from(is_pin)]);
        put(&record.realm.to_be_bytes());
        put(&record.status.kind().bits().to_be_bytes());
        put(&record.status.role().code().to_be_bytes());
        put(&record.status.seen().as_secs().to_be_bytes());
        record.ports.iter().for_each(|port| put(&port.to_be_bytes()));
        [record.a, record.b].iter().for_each(|address| put(&address.to_be_bytes()));
        record.c.iter().for_each(|word| put(&word.to_be_bytes()));

        Self(bytes)
    }

    /// Whether it is a pin, and the record. `None` if it is not that of a flow.
    fn read(&self) -> Option<(bool, Record)> {
        let mut rest = &self.0[..];
        let is_pin = take(&mut rest).map(|[byte]| byte == 1)?;
        let realm = u32::from_be_bytes(take(&mut rest)?);
        let kind = Kind::from_bits(u16::from_be_bytes(take(&mut rest)?))?;
        let role = Role::from_code(u16::from_be_bytes(take(&mut rest)?));
        let seen = Tick::from_secs(u32::from_be_bytes(take(&mut rest)?).into());
        let ports = [take(&mut rest)?, take(&mut rest)?].map(u16::from_be_bytes);
        let [a, b] = [take(&mut rest)?, take(&mut rest)?].map(u128::from_be_bytes);
        let c = [take(&mut rest)?, take(&mut rest)?].map(u64::from_be_bytes);
        let status = Status::new(role, kind, seen);

        status.state().map(|_| (is_pin, Record { status, realm, ports, a, b, c }))
    }
}

/// The next bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;

    Some(*taken)
}

impl Masquerade {
    /// All live mappings and pins, in no order. No packet may create one meanwhile.
    pub fn export(&self, now: Tick) -> impl Iterator<Item = FlowRecord> {
        [(false, &self.mappings), (true, &self.pins)]
            .into_iter()
            .flat_map(move |(is_pin, table)| records(table, now).map(move |it| (is_pin, it)))
            .map(|(is_pin, record)| FlowRecord::new(is_pin, &record))
    }

    /// Adds a mapping or a pin of the predecessor of this process, whose seed and start were the same. Returns whether
    /// there was room for it.
    pub fn import(&self, record: &FlowRecord, now: Tick) -> bool {
        let Some((is_pin, record)) = record.read() else { return false };
        let is_added =
            if is_pin { self.import_pin(&record) } else { self.import_mapping(&record, now) };
        if is_added {
            bump(&self.counters.created);
        }

        is_added
    }

    fn import_mapping(&self, record: &Record, now: Tick) -> bool {
        let (table, realm, kind) = (&self.mappings, record.realm, record.status.kind());
        let (internal, external) = (internal_endpoint(record), external_endpoint(record));
        let Some(index) = &table.external else { return false };
        let source = table.source_of(record);
        let held = table.hold(&source);
        let is_taken = self.find_internal(realm, kind.protocol(), internal).is_some()
            || self.find_external(realm, kind.protocol(), external).is_some();
        if is_taken || table.add_flow(&source, record.b).is_err() {
            return false;
        }
        let flow = Flow { protocol: kind.protocol(), source: internal, destination: external };
        let request =
            MappingRequest { realm, flow: &flow, kind, record: *record, held: held.lock, now };
        let is_reserved = table.reserve();
        let is_added =
            is_reserved && self.restore_port(&request, index, external.address, external.port);
        if !is_added {
            if is_reserved {
                table.unreserve();
            }
            table.remove_flow(&source);
        }

        is_added
    }

    /// Enters the mapping of `request` with the port that it had.
    fn restore_port(
        &self,
        request: &MappingRequest<'_>,
        index: &External,
        address: IpAddr,
        port: u16,
    ) -> bool {
        let table = &self.mappings;
        let Some(number) = table.slab.take() else { return false };
        let class = Class::of(request.flow.protocol, port);
        let entered = self.take_port(request, index, number, address, class, |_| Some(port));
        if entered.is_err() {
            table.slab.release(number);
        }

        entered.is_ok()
    }

    fn import_pin(&self, record: &Record) -> bool {
        let table = &self.pins;
        let source = table.source_of(record);
        let _held = table.hold(&source);
        let kind = record.status.kind();
        let [internal, remote] = [(record.a, 0), (record.b, 1)].map(|(address, place)| {
            let port = record.ports.get(place).copied().unwrap_or_default();
            Endpoint::new(kind.address(address), port)
        });
        let is_taken = self.find_pin(record.realm, kind.protocol(), internal, remote).is_some();
        if is_taken || table.add_flow(&source, 0).is_err() {
            return false;
        }
        let is_reserved = table.reserve();
        let is_added = is_reserved && self.insert_pin_record(record).is_some();
        if !is_added {
            if is_reserved {
                table.unreserve();
            }
            table.remove_flow(&source);
        }

        is_added
    }
}

/// The live records of a table.
fn records(table: &Table, now: Tick) -> impl Iterator<Item = Record> {
    (0..table.slab.used()).filter_map(move |number| {
        let record = table.flow(number)?.record;

        table.state(record.status, now).map(|_| record)
    })
}
