//! What the masquerade reports: why it refused, what it counted, what it holds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::flow::{Endpoint, Protocol};
use super::state::State;

/// Why a packet was not translated. The gateway makes a drop reason of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The pool has no external address of this IP version.
    #[error("no external address of this IP version")]
    NoAddress,
    /// The protocol has neither ports nor an identifier to tell flows apart by.
    #[error("the protocol has no ports")]
    Protocol,
    /// The source has as many mappings as one source may have.
    #[error("the source has used up its share of mappings")]
    SourceShare,
    /// Every port of the same range is taken, on every address of the pool, and none that was looked
    /// at can be had: their mappings are in active use.
    #[error("no free port on any external address")]
    Ports,
    /// The table is full, and all that was looked at is in active use.
    #[error("the table of mappings is full")]
    Full,
    /// More sources have mappings than there is room for.
    #[error("too many sources")]
    Sources,
    /// A later fragment whose first fragment was not seen, or too long ago.
    #[error("a later fragment without its first")]
    Fragment,
}

impl Refused {
    /// The value of a `reason` label. Part of the public interface: renaming one breaks alerts.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoAddress => "masquerade_no_address",
            Self::Protocol => "masquerade_protocol",
            Self::SourceShare => "masquerade_source_share",
            Self::Ports => "masquerade_ports",
            Self::Full => "masquerade_full",
            Self::Sources => "masquerade_sources",
            Self::Fragment => "masquerade_fragment",
        }
    }
}

/// One live mapping, for people to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapping {
    /// The peer, as the caller numbered it.
    pub realm: u32,
    /// The protocol.
    pub protocol: Protocol,
    /// The endpoint here.
    pub internal: Endpoint,
    /// The endpoint that the remote cluster sees.
    pub external: Endpoint,
    /// How far the conversation has got.
    pub state: State,
    /// Seconds since the last packet that counted.
    pub idle_seconds: u32,
}

/// What was counted since the start, and what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Live mappings, those included that have expired but were not looked at since.
    pub mappings: u64,
    /// Live pins, likewise.
    pub pins: u64,
    /// Mappings and pins created. Each one lives, or ended for one of the four causes below.
    pub created: u64,
    /// Mappings and pins that ended after their timeout.
    pub expired: u64,
    /// Mappings and pins that ended early, to make room for another.
    pub evicted: u64,
    /// Mappings and pins that ended because their external address was out of date: it left the pool,
    /// or the two endpoints of a pin met under another name.
    pub replaced: u64,
    /// Mappings and pins that ended with their peer.
    pub forgotten: u64,
    /// Refusals because a source had used up its share.
    pub refused_source_share: u64,
    /// Refusals because no port was free.
    pub refused_ports: u64,
    /// Refusals because the table was full of active mappings.
    pub refused_full: u64,
    /// Refusals because there were too many sources.
    pub refused_sources: u64,
}

/// The same as atomics. They are written where mappings come and go, never once a packet.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) created: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) replaced: AtomicU64,
    pub(super) forgotten: AtomicU64,
    source_share: AtomicU64,
    ports: AtomicU64,
    full: AtomicU64,
    sources: AtomicU64,
}

impl Counters {
    /// Why a flow is over that a newer one replaces: it had `expired` by then, or its external address
    /// is out of date.
    pub(super) const fn replaced_or_expired(&self, has_expired: bool) -> &AtomicU64 {
        if has_expired { &self.expired } else { &self.replaced }
    }

    pub(super) fn count(&self, refused: Refused) -> Refused {
        match refused {
            Refused::SourceShare => bump(&self.source_share),
            Refused::Ports => bump(&self.ports),
            Refused::Full => bump(&self.full),
            Refused::Sources => bump(&self.sources),
            Refused::NoAddress | Refused::Protocol | Refused::Fragment => {}
        }

        refused
    }

    pub(super) fn statistics(&self, mappings: u32, pins: u32) -> Statistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);

        Statistics {
            mappings: mappings.into(),
            pins: pins.into(),
            created: read(&self.created),
            expired: read(&self.expired),
            evicted: read(&self.evicted),
            replaced: read(&self.replaced),
            forgotten: read(&self.forgotten),
            refused_source_share: read(&self.source_share),
            refused_ports: read(&self.ports),
            refused_full: read(&self.full),
            refused_sources: read(&self.sources),
        }
    }
}

pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
