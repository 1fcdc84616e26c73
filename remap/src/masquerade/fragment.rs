//! Translates later fragments, which carry no ports, like their first fragment.
//!
//! A small table of fixed size, allocated with the first fragment, stores the translated address of each
//! first fragment. It is divided into sets of eight slots; a datagram hashes to one set, and a full
//! set evicts its oldest. So a flood of fragments affects other fragmented datagrams at most, never a
//! mapping and never memory (RFC 4787 section 11, REQ-14a).
//!
//! Deviation: fragments that overtake their first are refused, where REQ-14 requires to keep them until it
//! arrives. They would have to be stored; the path between two gateways seldom reorders, and
//! clusters seldom fragment.

use std::net::IpAddr;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::entry::{Kind, bits};
use super::flow::{Protocol, Tick};
use super::hash::Hash;
use super::slab::index;

/// Seconds that a first fragment is stored: the reassembly timeout of hosts.
/// RFC 1122 section 3.3.2 recommends 60 to 120 s, most use 30, and later the
/// identification may be reused.
const LIFETIME_SECONDS: u32 = 30;
const SLOTS_PER_SET: u32 = 8;

/// Identifies the fragments of one datagram (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datagram {
    /// The peer, as for every mapping.
    pub realm: u32,
    /// The sender, before any translation.
    pub source: IpAddr,
    /// The receiver, before any translation.
    pub destination: IpAddr,
    /// The identification field: 16 bits in IPv4, 32 in IPv6.
    pub identification: u32,
    /// The protocol number in IPv4. 0 in IPv6, where the next header may differ between fragments:
    /// only source, destination and identification are equal.
    pub protocol: u8,
}

/// The table of one direction; the two directions share no lock.
#[derive(Debug)]
pub(super) struct Fragments {
    sets: OnceLock<Box<[Mutex<Set>]>>,
    /// The number of sets, also before they are allocated.
    len: u32,
    hash: Hash,
}

type Set = [Option<Remembered>; 8];

#[derive(Clone, Copy, Debug)]
struct Remembered {
    datagram: Datagram,
    address: IpAddr,
    seen: Tick,
}

impl Fragments {
    pub(super) fn new(capacity: u32, hash: Hash) -> Self {
        Self { sets: OnceLock::new(), len: capacity.div_ceil(SLOTS_PER_SET), hash }
    }

    /// Stores the translated address of a first fragment. A repeated first fragment restarts its lifetime.
    pub(super) fn remember(&self, datagram: &Datagram, address: IpAddr, now: Tick) {
        let sets = self.sets.get_or_init(|| (0..self.len).map(|_| Mutex::default()).collect());
        self.with_set(sets, datagram, |set| {
            let slot = set
                .iter_mut()
                // The same datagram, else a free slot, else the oldest.
                .min_by_key(|slot| match slot {
                    Some(other) if other.datagram == *datagram => (0, Tick::default()),
                    None => (1, Tick::default()),
                    Some(other) => (2, other.seen),
                });
            if let Some(slot) = slot {
                *slot = Some(Remembered { datagram: *datagram, address, seen: now });
            }
        });
    }

    /// The translated address for a later fragment.
    pub(super) fn recall(&self, datagram: &Datagram, now: Tick) -> Option<IpAddr> {
        self.with_set(self.sets.get()?, datagram, |set| {
            set.iter()
                .flatten()
                .find(|slot| slot.datagram == *datagram)
                .filter(|slot| now.since(slot.seen) <= LIFETIME_SECONDS)
                .map(|slot| slot.address)
        })?
    }

    pub(super) fn purge(&self, realm: u32) {
        for set in self.sets.get().into_iter().flatten() {
            for slot in set.lock().iter_mut() {
                slot.take_if(|remembered| remembered.datagram.realm == realm);
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.get().map_or(0, |sets| size_of_val(&**sets))
    }

    /// The upper bound of [`Self::memory_bytes`].
    pub(super) fn max_memory_bytes(&self) -> usize {
        index(self.len) * size_of::<Mutex<Set>>()
    }

    fn with_set<T>(
        &self,
        sets: &[Mutex<Set>],
        datagram: &Datagram,
        then: impl FnOnce(&mut Set) -> T,
    ) -> Option<T> {
        let kind = Kind::new(Protocol::Raw(datagram.protocol), datagram.source);
        let identification = datagram.identification.to_be_bytes();
        let [a, b, c, d] = identification;
        let hash = self.hash.pair(
            datagram.realm,
            kind,
            [bits(datagram.source), bits(datagram.destination)],
            [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])],
        );
        let set_index = (hash >> 32) % u64::from(self.len.max(1));
        let set = sets.get(index(super::entry::low_u32(set_index)))?;

        Some(then(&mut set.lock()))
    }
}
