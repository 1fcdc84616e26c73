//! Opening in two steps: decryption on any thread, then admission in the order of arrival.
//!
//! Decryption needs only the key, and is nearly all of the work. Admission checks the replay window, confirms a new
//! session, and counts.

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use super::tunnel::Opened;
use strait_packet::counters::as_u64;

/// The receiving key of a session, to open datagrams without the replay window.
pub trait OpeningKeys: Send + Sync {
    /// Opens every datagram of `run` in place, each `stride` bytes long but the last one, and records the authentic
    /// ones in `out`.
    fn open_in_place(&self, run: &mut [u8], stride: usize, out: &mut OpenedRun);
}

/// The key to open a run of transport data messages of one session.
pub struct Opening {
    keys: Arc<dyn OpeningKeys>,
}

impl Opening {
    pub(super) const fn new(keys: Arc<dyn OpeningKeys>) -> Self {
        Self { keys }
    }

    /// Opens in place the `run` that this was made for. Replaces the content of `out`.
    pub fn open(&self, run: &mut [u8], stride: usize, out: &mut OpenedRun) {
        out.clear();
        self.keys.open_in_place(run, stride.max(1), out);
    }

    /// Whether it uses these keys.
    pub(super) fn is_with<K>(&self, keys: &Arc<K>) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.keys), Arc::as_ptr(keys))
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}

/// A datagram with a valid tag; it may be a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentic {
    /// Its counter.
    pub counter: u64,
    /// The range of its content in the bytes of the run.
    pub content: Range<usize>,
    /// Its length, in bytes.
    pub datagram_bytes: usize,
}

/// The result of opening a run in place. Reused for many runs.
#[derive(Debug)]
pub struct OpenedRun {
    authentic: Vec<Authentic>,
    unauthenticated: u64,
    malformed: u64,
    replayed: u64,
    packets: Vec<Range<usize>>,
}

impl OpenedRun {
    /// With room for this many datagrams; it grows for more.
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

    /// The ranges of the admitted packets in the bytes of the run.
    #[must_use]
    pub fn packets(&self) -> &[Range<usize>] {
        &self.packets
    }

    /// How many datagrams the run had.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        as_u64(self.authentic.len()) + self.unauthenticated + self.malformed + self.replayed
    }

    /// The counts of the datagrams that were refused before admission.
    pub(super) fn refused(&self) -> Opened {
        Opened {
            unauthenticated: self.unauthenticated,
            malformed: self.malformed,
            replayed: self.replayed,
            ..Opened::default()
        }
    }

    /// Calls `admit` with each authentic datagram, in the order of the run. It returns the length of the packet at
    /// the start of the content; `None` drops the datagram.
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

    /// Counts a datagram whose counter is beyond `REJECT_AFTER_MESSAGES`.
    pub(super) const fn count_replayed(&mut self) {
        self.replayed += 1;
    }

    fn clear(&mut self) {
        self.authentic.clear();
        (self.unauthenticated, self.malformed, self.replayed) = (0, 0, 0);
        self.packets.clear();
    }
}
