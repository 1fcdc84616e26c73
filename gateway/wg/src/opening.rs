//! Opening in two steps: what any thread can do, and what is done in the order of arrival.
//!
//! The first takes keys and nothing else, and is nearly all of the work. The second asks the replay window,
//! learns that the peer uses a session, and counts.

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use super::tunnel::Opened;
use strait_packet::counters::as_u64;

/// The keys of a session, for who opens without a look at what was received before.
pub trait OpeningKeys: Send + Sync {
    /// Opens every datagram of `run` in place, each `stride` bytes long but the last one, and notes in `out`
    /// what is authentic.
    fn open_in_place(&self, run: &mut [u8], stride: usize, out: &mut OpenedRun);
}

/// What it takes to open a run of transport data messages of one session.
pub struct Opening {
    keys: Arc<dyn OpeningKeys>,
}

impl Opening {
    pub(super) const fn new(keys: Arc<dyn OpeningKeys>) -> Self {
        Self { keys }
    }

    /// Opens `run` in place: that which this was made for. `out` has nothing else afterwards.
    pub fn open(&self, run: &mut [u8], stride: usize, out: &mut OpenedRun) {
        out.clear();
        self.keys.open_in_place(run, stride.max(1), out);
    }

    /// Whether it is done with these keys.
    pub(super) fn is_with<K>(&self, keys: &Arc<K>) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.keys), Arc::as_ptr(keys))
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}

/// A datagram that comes from the peer, perhaps for the second time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentic {
    /// Its counter.
    pub counter: u64,
    /// Where its content is, in the bytes of the run.
    pub content: Range<usize>,
    /// Its length, in bytes.
    pub datagram_bytes: usize,
}

/// What became of a run that was opened in place. Reused for many.
#[derive(Debug)]
pub struct OpenedRun {
    authentic: Vec<Authentic>,
    unauthenticated: u64,
    malformed: u64,
    replayed: u64,
    packets: Vec<Range<usize>>,
}

impl OpenedRun {
    /// Room for so many datagrams; for more, it grows.
    #[must_use]
    pub fn with_capacity(datagrams: usize) -> Self {
        Self {
            authentic: Vec::with_capacity(datagrams),
            unauthenticated: 0,
            malformed: 0,
            replayed: 0,
            packets: Vec::with_capacity(datagrams),
        }
    }

    /// Where the packets are that the peer has sent, in the bytes of the run, once they are admitted.
    #[must_use]
    pub fn packets(&self) -> &[Range<usize>] {
        &self.packets
    }

    /// How many datagrams the run had.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        as_u64(self.authentic.len()) + self.unauthenticated + self.malformed + self.replayed
    }

    /// What is known of the run before anybody has asked the replay window.
    pub(super) fn refused(&self) -> Opened {
        Opened {
            unauthenticated: self.unauthenticated,
            malformed: self.malformed,
            replayed: self.replayed,
            ..Opened::default()
        }
    }

    /// Has `admit` say of every authentic datagram, in the order of the run, how long the packet is that it
    /// begins with; `None` if there is none, or none that counts.
    pub(super) fn admit(&mut self, mut admit: impl FnMut(&Authentic) -> Option<usize>) {
        let Self { authentic, packets, .. } = self;
        for datagram in authentic.drain(..) {
            let start = datagram.content.start;
            packets.extend(admit(&datagram).map(|len| start..start + len));
        }
    }

    pub(super) fn push(&mut self, datagram: Authentic) {
        self.authentic.push(datagram);
    }

    pub(super) const fn count_unauthenticated(&mut self) {
        self.unauthenticated += 1;
    }

    pub(super) const fn count_malformed(&mut self) {
        self.malformed += 1;
    }

    /// One with a counter that no message may have.
    pub(super) const fn count_replayed(&mut self) {
        self.replayed += 1;
    }

    fn clear(&mut self) {
        self.authentic.clear();
        (self.unauthenticated, self.malformed, self.replayed) = (0, 0, 0);
        self.packets.clear();
    }
}
