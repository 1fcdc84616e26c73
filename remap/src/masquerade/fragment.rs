//! Later fragments, which carry no ports, follow their first fragment.
//!
//! A small table of fixed size, taken up with the first of them, remembers what the address of the
//! first fragment became. It is divided into sets of eight places; a datagram has one set, and in a full set the oldest goes. So a
//! flood of fragments costs other fragmented datagrams at most, never a mapping and never memory
//! (RFC 4787 section 11, REQ-14a).
//!
//! Deviation: fragments that overtake their first are refused, where REQ-14 wants them kept until it
//! arrives. They would have to be stored; the path between two gateways seldom reorders, and
//! clusters seldom fragment.

use std::net::IpAddr;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::entry::{Kind, bits};
use super::flow::{Protocol, Tick};
use super::hash::Hash;
use super::slab::index;

/// Seconds that a first fragment is remembered: as long as hosts wait for the rest of a datagram.
/// RFC 1122 section 3.3.2 asks them for 60 to 120 s, most allow 30, and behind that the
/// identification may come round.
const LIFETIME_SECONDS: u32 = 30;
const PLACES: u32 = 8;

/// What the fragments of one datagram have in common (RFC 791 section 3.2, RFC 8200 section 4.5).
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
    /// The protocol number in IPv4. 0 in IPv6, whose fragments need not agree on what comes next:
    /// source, destination and identification are all that they have in common.
    pub protocol: u8,
}

/// One direction's table; the other direction shares no lock with it.
#[derive(Debug)]
pub(super) struct Fragments {
    sets: OnceLock<Box<[Mutex<Set>]>>,
    /// How many sets there are, or will be.
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
        Self { sets: OnceLock::new(), len: capacity.div_ceil(PLACES), hash }
    }

    /// Notes what the first fragment's address became. A first fragment that comes twice counts
    /// from the last time.
    pub(super) fn remember(&self, datagram: &Datagram, address: IpAddr, now: Tick) {
        let sets = self.sets.get_or_init(|| (0..self.len).map(|_| Mutex::default()).collect());
        self.with_set(sets, datagram, |set| {
            let place = set
                .iter_mut()
                // The same datagram, else a free place, else the oldest.
                .min_by_key(|place| match place {
                    Some(other) if other.datagram == *datagram => (0, Tick::default()),
                    None => (1, Tick::default()),
                    Some(other) => (2, other.seen),
                });
            if let Some(place) = place {
                *place = Some(Remembered { datagram: *datagram, address, seen: now });
            }
        });
    }

    /// What the address of a later fragment becomes.
    pub(super) fn recall(&self, datagram: &Datagram, now: Tick) -> Option<IpAddr> {
        self.with_set(self.sets.get()?, datagram, |set| {
            set.iter()
                .flatten()
                .find(|place| place.datagram == *datagram)
                .filter(|place| now.since(place.seen) <= LIFETIME_SECONDS)
                .map(|place| place.address)
        })?
    }

    pub(super) fn purge(&self, realm: u32) {
        for set in self.sets.get().into_iter().flatten() {
            for place in set.lock().iter_mut() {
                place.take_if(|remembered| remembered.datagram.realm == realm);
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.get().map_or(0, |sets| size_of_val(&**sets))
    }

    /// What [`Self::memory_bytes`] cannot exceed.
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
        let place = (hash >> 32) % u64::from(self.len.max(1));
        let set = sets.get(index(super::entry::low_u32(place)))?;

        Some(then(&mut set.lock()))
    }
}
