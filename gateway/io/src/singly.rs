//! Where the kernel refuses to segment, and datagrams go one by one.
//!
//! It refuses per route: with `EIO` where the device cannot checksum (before Linux 6.11), or an IPsec policy
//! covers the destination. Either may end, and other peers have other routes. So what is refused is
//! remembered per destination, and after many sends one by one tried again:
//!
//! ```text
//!               ┌──────────── taken ────────────┐
//!               ▼                               │
//!   together ───┴── refused ──▶ one by one ──▶ tried again
//!                                   ▲           │
//!                                   └─ refused ─┘
//! ```
//!
//! Destinations share [`SLOTS`] places. Two in one place cost each other nothing but system calls.
//!
//! Whoever asks is told of what is in use alone: a destination that nobody sends to any more is never tried
//! again, and nobody is the slower for it. Packets need no clock for that: a place that is used changes.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many places. More peers than a gateway usually has, and few enough to look through.
const SLOTS: usize = 64;

/// How many sends go one by one before the kernel is asked again: of full sends two seconds at 300 Mb/s, and
/// the question is one call in fifty thousand.
const PATIENCE: u32 = 1_024;

/// How long nobody sends to what is no longer in use. Longer than the pauses of a peer that would be faster
/// with segmentation, and shorter than anybody waits before an alert.
const QUIET: Duration = Duration::from_secs(60);

/// How the datagrams of one send are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel segments.
    Together,
    /// It refused, and is asked again.
    Again,
    /// It refused.
    Singly,
}

/// What is remembered.
#[derive(Debug)]
pub(super) struct Refusals {
    /// How many sends there are until the kernel is asked again; 0 where it never refused.
    slots: [AtomicU32; SLOTS],
    /// What each had when somebody asked last, and since when it has. For those who ask: no packet comes here.
    seen: Mutex<[Option<(u32, Instant)>; SLOTS]>,
}

impl Default for Refusals {
    fn default() -> Self {
        let slots = std::array::from_fn(|_| AtomicU32::new(0));

        Self { slots, seen: Mutex::new([None; SLOTS]) }
    }
}

impl Refusals {
    /// How the next datagrams to `remote` are to go.
    pub(super) fn way(&self, remote: SocketAddr) -> Way {
        let slot = self.slot(remote);
        match slot.load(Ordering::Relaxed) {
            0 => Way::Together,
            1 => Way::Again,
            // Threads that count at the same time may lose a count.
            left => {
                slot.store(left - 1, Ordering::Relaxed);
                Way::Singly
            }
        }
    }

    /// The kernel took what it was to segment for `remote`.
    pub(super) fn handle_taken(&self, remote: SocketAddr) {
        self.slot(remote).store(0, Ordering::Relaxed);
    }

    /// The kernel refused to segment for `remote`.
    pub(super) fn handle_refused(&self, remote: SocketAddr) {
        self.slot(remote).store(PATIENCE, Ordering::Relaxed);
    }

    /// Whether anything goes one by one, or did within [`QUIET`], as far as earlier questions can tell.
    pub(super) fn is_any(&self, now: Instant) -> bool {
        let mut seen = self.seen.lock();
        let mut is_any = false;
        for (slot, seen) in self.slots.iter().zip(seen.iter_mut()) {
            let left = slot.load(Ordering::Relaxed);
            let since = seen.filter(|(before, _)| *before == left).map_or(now, |(_, since)| since);
            *seen = Some((left, since));
            is_any |= left > 0 && now.saturating_duration_since(since) < QUIET;
        }

        is_any
    }

    fn slot(&self, remote: SocketAddr) -> &AtomicU32 {
        let number = match remote.ip() {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) => {
                let [.., a, b, c, d] = address.octets();
                u32::from_be_bytes([a, b, c, d])
            }
        };
        // Neighbours are in different places, and networks that are alike as well.
        let [folded, ..] = (number ^ (number >> 16)).to_le_bytes();
        let [first, ..] = &self.slots;

        self.slots.get(usize::from(folded) % SLOTS).unwrap_or(first)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_to_one_is_not_refused_to_others_nor_for_ever() {
        let refusals = Refusals::default();
        let [one, other] = ["192.0.2.1:51840", "[2001:db8::2]:51840"].map(|a| a.parse().unwrap());
        let now = Instant::now();

        refusals.handle_refused(one);

        assert_eq!(refusals.way(other), Way::Together);
        assert!(refusals.is_any(now));
        for _ in 1..PATIENCE {
            assert_eq!(refusals.way(one), Way::Singly);
        }
        assert_eq!(refusals.way(one), Way::Again);
        refusals.handle_refused(one);
        assert_eq!(refusals.way(one), Way::Singly);
        refusals.handle_taken(one);
        assert_eq!(refusals.way(one), Way::Together);
        assert!(!refusals.is_any(now));
    }

    #[test]
    fn what_was_refused_where_nobody_sends_any_more_is_not_reported() {
        let refusals = Refusals::default();
        let [left, used] = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 51840)));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);

        refusals.handle_refused(left);
        refusals.handle_refused(used);
        for second in 0..120 {
            assert_eq!(refusals.way(used), Way::Singly);
            assert!(refusals.is_any(at(second)), "{second}");
        }

        // Now nobody sends to either. The last send was a second ago.
        for second in 120..179 {
            assert!(refusals.is_any(at(second)), "{second}");
        }
        for second in 179..300 {
            assert!(!refusals.is_any(at(second)), "{second}");
        }
        assert_eq!(refusals.way(left), Way::Singly, "it is remembered all the same");
        assert!(refusals.is_any(at(300)));
        assert!(!refusals.is_any(at(360)));
    }

    #[test]
    fn neighbours_are_in_different_places() {
        let refusals = Refusals::default();
        let at = |last| SocketAddr::from(([10, 0, 0, last], 51840));

        refusals.handle_refused(at(1));

        assert!((2..60).all(|last| refusals.way(at(last)) == Way::Together));
    }
}
