//! The reports of the masquerade: reasons for refusal, counters, live mappings.

use std::sync::atomic::{AtomicU64, Ordering};

use super::flow::{Endpoint, Protocol};
use super::state::State;

/// Why a packet was not translated. The gateway maps each to a drop reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The pool has no external address of this IP version.
    #[error("no external address of this IP version")]
    NoAddress,
    /// The protocol has neither ports nor an identifier that distinguish flows.
    #[error("the protocol has no ports")]
    Protocol,
    /// The source has as many mappings as one source may have.
    #[error("the source has used up its share of mappings")]
    SourceShare,
    /// Every port of the same range is taken, on every address of the pool, and the mappings that were
    /// checked are in active use.
    #[error("no free port on any external address")]
    Ports,
    /// The table is full, and the mappings that were checked are in active use.
    #[error("the table of mappings is full")]
    Full,
    /// More sources have mappings than there is room for.
    #[error("too many sources")]
    Sources,
    /// A later fragment whose first fragment was not seen, or was seen too long ago.
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

/// One live mapping, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapping {
    /// The number of the peer's realm.
    pub realm: u32,
    /// The protocol.
    pub protocol: Protocol,
    /// The endpoint in this cluster.
    pub internal: Endpoint,
    /// The endpoint that the remote cluster sees.
    pub external: Endpoint,
    /// The state of the connection.
    pub state: State,
    /// Seconds since the last refresh.
    pub idle_seconds: u32,
}

/// Counters since the start, and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Live mappings, including expired ones that were not removed yet.
    pub mappings: u64,
    /// Live pins, likewise.
    pub pins: u64,
    /// Mappings and pins created. Each is live, or ended for one of the four causes below.
    pub created: u64,
    /// Mappings and pins that ended after their timeout.
    pub expired: u64,
    /// Mappings and pins that were ended early to make room for another.
    pub evicted: u64,
    /// Mappings and pins that ended because their external address was out of date: it left the pool,
    /// or the pair of a pin used another address.
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

/// The same as atomics. Written when mappings are created and ended, not for each packet.
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
    /// The counter for a flow that is replaced: it had expired, or its external address is out of date.
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
