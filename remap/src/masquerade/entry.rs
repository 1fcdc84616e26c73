//! One cache line, protected by a sequence lock: many readers, one writer.
//!
//! The word `status` contains a sequence number that is odd while the
//! other words are being written. A reader loads the number, the words and the number again; equal
//! and even means that the words belong together. Otherwise the reader returns nothing, which
//! is correct: at some moment during the read the record did not exist.
//!
//! `status` also contains what the packet path changes, the state and the time of the last packet, so
//! that a change is one compare-and-exchange. It fails if the entry was reused for another mapping in
//! the meantime, because the sequence number is part of the comparison.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::flow::{Protocol, Tick};
use super::state::State;

/// An entry of the slab.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Entry {
    status: AtomicU64,
    /// Realm and both ports.
    scope: AtomicU64,
    a: [AtomicU64; 2],
    b: [AtomicU64; 2],
    c: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Entry>() == 64, "a lookup must cost one cache line");

/// The content of an entry. The meaning of the fields depends on the role:
///
/// | role | `a`, `ports[0]` | `b`, `ports[1]` | `c` |
/// |---|---|---|---|
/// | mapping | internal | external | tag of the tracked remote endpoint |
/// | pin | internal | remote | external address |
/// | source | source | its external address | number of its mappings |
/// | port pool | external address | | number of ports taken, by class |
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) status: Status,
    pub(super) realm: u32,
    pub(super) ports: [u16; 2],
    pub(super) a: u128,
    pub(super) b: u128,
    pub(super) c: [u64; 2],
}

impl Entry {
    /// The record, or `None` if there is none or it is being written or retired.
    #[inline]
    pub(super) fn read(&self) -> Option<Record> {
        let status = Status(self.status.load(Ordering::Acquire));
        if status.is_absent() {
            return None;
        }

        let scope = self.scope.load(Ordering::Relaxed);
        let [c0, c1] = &self.c;
        let record = Record {
            status,
            realm: low_u32(scope >> 32),
            ports: [low_u16(scope >> 16), low_u16(scope)],
            a: load(&self.a),
            b: load(&self.b),
            c: [c0.load(Ordering::Relaxed), c1.load(Ordering::Relaxed)],
        };
        // Pairs with the fence in `write`: a word of the next record seen above makes its odd
        // sequence number visible below.
        fence(Ordering::Acquire);

        status.is_same_record(self.status()).then_some(record)
    }

    /// Writes a record. Only for the thread that took the entry from the free list.
    pub(super) fn write(&self, record: &Record) -> Status {
        let writing = self.status().advanced(1);
        self.status.store(writing.0, Ordering::Relaxed);
        fence(Ordering::Release);

        let [near, far] = record.ports.map(u64::from);
        let scope = (u64::from(record.realm) << 32) | (near << 16) | far;
        self.scope.store(scope, Ordering::Relaxed);
        store(&self.a, record.a);
        store(&self.b, record.b);
        self.set_c(record.c);

        let status = writing.advanced(1).with_content_of(record.status);
        self.status.store(status.0, Ordering::Release);

        status
    }

    /// Ends the record, unless `status` changed since it was read: a packet that refreshed the record
    /// keeps it.
    pub(super) fn retire(&self, status: Status) -> bool {
        let absent = status.advanced(2).without_content();

        let ended =
            self.status.compare_exchange(status.0, absent.0, Ordering::AcqRel, Ordering::Relaxed);
        // Pairs with the fence in `read`: a reader that sees the link of the free list, which overlays a word
        // of the record, finds the record ended.
        fence(Ordering::Release);

        ended.is_ok()
    }

    /// Changes state and time, unless `status` changed since it was read.
    #[inline]
    pub(super) fn update(&self, status: Status, changed: Status) -> Result<(), Status> {
        self.status
            .compare_exchange(status.0, changed.0, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
            .map_err(Status)
    }

    /// Changes the words that no index contains. Only under the lock of the record's source.
    pub(super) fn set_c(&self, words: [u64; 2]) {
        for (word, value) in self.c.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The link of the free list; it overlays `a`.
    pub(super) fn link(&self) -> &AtomicU64 {
        let [link, _] = &self.a;

        link
    }

    fn status(&self) -> Status {
        Status(self.status.load(Ordering::Relaxed))
    }
}

/// The word that changes with packets: sequence number, role or state, kind, and time of the last packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(u64);

/// 23 bits. A reader would be wrong only if its entry were reused exactly 2^22 times, or a multiple of it,
/// during one read.
const SEQUENCE: u64 = (1 << ROLE_SHIFT) - 1;
const ROLE_SHIFT: u32 = 23;
const KIND_SHIFT: u32 = 27;
const SEEN_SHIFT: u32 = 36;

impl Status {
    pub(super) fn new(role: Role, kind: Kind, seen: Tick) -> Self {
        Self(
            (u64::from(role.code()) << ROLE_SHIFT)
                | (u64::from(kind.0) << KIND_SHIFT)
                | (u64::from(seen.as_secs()) << SEEN_SHIFT),
        )
    }

    /// The same record with another state and time.
    #[inline]
    pub(super) fn refreshed(self, state: State, now: Tick) -> Self {
        let content = Self::new(Role::Flow(state), self.kind(), self.seen().max(now));

        content.with_sequence_of(self)
    }

    #[inline]
    pub(super) fn role(self) -> Role {
        Role::from_code(low_u16(self.0 >> ROLE_SHIFT) & 0xf)
    }

    #[inline]
    pub(super) fn state(self) -> Option<State> {
        match self.role() {
            Role::Flow(state) => Some(state),
            Role::Absent | Role::Source | Role::PortPool => None,
        }
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        Kind(low_u16(self.0 >> KIND_SHIFT) & 0x1ff)
    }

    #[inline]
    pub(super) fn seen(self) -> Tick {
        Tick::from_secs(self.0 >> SEEN_SHIFT)
    }

    #[inline]
    pub(super) const fn is_same_record(self, other: Self) -> bool {
        (self.0 ^ other.0) & SEQUENCE == 0
    }

    const fn is_absent(self) -> bool {
        self.0 & 1 == 1 || (self.0 >> ROLE_SHIFT) & 0xf == 0
    }

    const fn advanced(self, by: u64) -> Self {
        Self((self.0 & !SEQUENCE) | (self.0.wrapping_add(by) & SEQUENCE))
    }

    const fn without_content(self) -> Self {
        Self(self.0 & SEQUENCE)
    }

    const fn with_content_of(self, other: Self) -> Self {
        other.with_sequence_of(self)
    }

    const fn with_sequence_of(self, other: Self) -> Self {
        Self((self.0 & !SEQUENCE) | (other.0 & SEQUENCE))
    }
}

/// The use of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Absent,
    Source,
    PortPool,
    Flow(State),
}

impl Role {
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Absent => 0,
            Self::Flow(State::Fresh) => 1,
            Self::Flow(State::Answered) => 2,
            Self::Flow(State::Query) => 3,
            Self::Flow(State::Opening) => 4,
            Self::Flow(State::Established) => 5,
            Self::Flow(State::FinFromInitiator) => 6,
            Self::Flow(State::FinFromResponder) => 7,
            Self::Flow(State::Closing) => 8,
            Self::Flow(State::Reset) => 9,
            Self::Flow(State::SharedOpening) => 10,
            Self::Flow(State::Shared) => 11,
            Self::Source => 12,
            Self::PortPool => 13,
        }
    }

    pub(super) const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Flow(State::Fresh),
            2 => Self::Flow(State::Answered),
            3 => Self::Flow(State::Query),
            4 => Self::Flow(State::Opening),
            5 => Self::Flow(State::Established),
            6 => Self::Flow(State::FinFromInitiator),
            7 => Self::Flow(State::FinFromResponder),
            8 => Self::Flow(State::Closing),
            9 => Self::Flow(State::Reset),
            10 => Self::Flow(State::SharedOpening),
            11 => Self::Flow(State::Shared),
            12 => Self::Source,
            13 => Self::PortPool,
            _ => Self::Absent,
        }
    }
}

/// Protocol and IP version in nine bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(u16);

const IPV6: u16 = 1 << 8;

impl Kind {
    #[inline]
    pub(super) fn new(protocol: Protocol, address: IpAddr) -> Self {
        Self(u16::from(protocol.code()) | if address.is_ipv6() { IPV6 } else { 0 })
    }

    /// The IP version alone: sources are counted over all protocols.
    pub(super) const fn version(self) -> Self {
        Self(self.0 & IPV6)
    }

    pub(super) fn protocol(self) -> Protocol {
        Protocol::from_code(low_u8(self.0))
    }

    #[inline]
    pub(super) const fn is_echo(self) -> bool {
        self.0 & !IPV6 == 0
    }

    #[inline]
    pub(super) const fn is_tcp(self) -> bool {
        self.0 & !IPV6 == 6
    }

    pub(super) const fn bits(self) -> u16 {
        self.0
    }

    /// The kind with these bits; `None` if there are too many.
    pub(super) const fn from_bits(bits: u16) -> Option<Self> {
        if bits < IPV6 << 1 { Some(Self(bits)) } else { None }
    }

    pub(super) fn address(self, bits: u128) -> IpAddr {
        if self.0 & IPV6 == 0 {
            IpAddr::V4(low_u32(halves(bits).1).into())
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
    }
}

/// An address as a number; the [`Kind`] contains its version.
#[inline]
pub(super) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// High and low half.
#[inline]
pub(super) fn halves(number: u128) -> (u64, u64) {
    let low = |number: u128| u64::try_from(number & u128::from(u64::MAX)).unwrap_or_default();

    (low(number >> 64), low(number))
}

#[inline]
pub(super) fn low_u32(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).unwrap_or_default()
}

#[inline]
fn low_u16(word: u64) -> u16 {
    u16::try_from(word & 0xffff).unwrap_or_default()
}

fn low_u8(word: u16) -> u8 {
    u8::try_from(word & 0xff).unwrap_or_default()
}

#[inline]
fn load([high, low]: &[AtomicU64; 2]) -> u128 {
    let [high, low] = [high, low].map(|word| u128::from(word.load(Ordering::Relaxed)));

    (high << 64) | low
}

fn store([high_word, low_word]: &[AtomicU64; 2], number: u128) {
    let (high, low) = halves(number);
    high_word.store(high, Ordering::Relaxed);
    low_word.store(low, Ordering::Relaxed);
}
