//! Fallback where the kernel refuses UDP segmentation offload (`UDP_SEGMENT`): datagrams are sent one by one.
//!
//! The kernel refuses per route, with `EIO`: if the device cannot checksum (before Linux 6.11), or if an IPsec policy
//! covers the destination. Either may change, and other peers have other routes. So a refusal is remembered per
//! destination, and the offload is tried again after many single sends:
//!
//! ```text
//!            ┌─────────── accepted ───────────┐
//!            ▼                                │
//!   offload ─┴─ refused ──▶ one by one ──▶ trial
//!                                ▲            │
//!                                └─ refused ──┘
//! ```
//!
//! Destinations share [`SLOTS`] slots by a hash of the address. A collision costs only system calls.
//!
//! [`GsoRefusals::is_any`] ignores destinations that are out of use: without sends they are never tried again, and
//! nothing is slower because of them. The packet path needs no clock for that: a slot in use changes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// More than a gateway usually has peers, and few enough to scan.
const SLOTS: usize = 64;

/// Sends that go one by one before the next trial: two seconds of full sends at 300 Mb/s. A trial is one system call
/// in fifty thousand.
const SENDS_UNTIL_TRIAL: u32 = 1_024;

/// A destination without sends for this long is out of use. Longer than the pauses of a peer that would be faster with
/// the offload, and shorter than the delay of an alert.
const UNUSED_AFTER: Duration = Duration::from_secs(60);

/// How to send several datagrams to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendMode {
    /// With the offload.
    Offload,
    /// With the offload, as a trial after refusals.
    Trial,
    /// One by one, because the kernel refused.
    OneByOne,
}

/// The destinations for which the kernel refused the offload.
#[derive(Debug)]
pub(super) struct GsoRefusals {
    /// Sends until the next trial; 0 if the kernel did not refuse.
    slots: [AtomicU32; SLOTS],
    /// The value of each slot at the last [`Self::is_any`], and since when it has it. Not used by the packet path.
    seen: Mutex<[Option<(u32, Instant)>; SLOTS]>,
}

impl Default for GsoRefusals {
    fn default() -> Self {
        let slots = std::array::from_fn(|_| AtomicU32::new(0));

        Self { slots, seen: Mutex::new([None; SLOTS]) }
    }
}

impl GsoRefusals {
    /// The mode of the next send to `remote`.
    pub(super) fn mode(&self, remote: SocketAddr) -> SendMode {
        let slot = self.slot(remote);
        match slot.load(Ordering::Relaxed) {
            0 => SendMode::Offload,
            1 => SendMode::Trial,
            // Concurrent threads may lose a count.
            left => {
                slot.store(left - 1, Ordering::Relaxed);
                SendMode::OneByOne
            }
        }
    }

    /// Whether the `error` of a send to `remote` in this `mode` means that the kernel refused to segment, so that the
    /// datagrams must be sent one by one. Remembers that the route refuses.
    ///
    /// `EIO`: the route does not support it. `EINVAL` and `EMSGSIZE`: a datagram exceeds the path MTU and must be
    /// fragmented.
    pub(super) fn handle_error(
        &self,
        error: &io::Error,
        remote: SocketAddr,
        mode: SendMode,
    ) -> bool {
        match error.raw_os_error() {
            Some(libc::EIO) => {
                self.handle_refused(remote);
                if mode == SendMode::Offload {
                    tracing::warn!(
                        %remote,
                        "the kernel refuses to segment UDP: sending one by one, which is slower; \
                         look for checksum offload of the device and for IPsec policies"
                    );
                }
                true
            }
            Some(libc::EINVAL | libc::EMSGSIZE) => true,
            _ => false,
        }
    }

    /// The kernel accepted the offload for `remote`.
    pub(super) fn handle_accepted(&self, remote: SocketAddr) {
        self.slot(remote).store(0, Ordering::Relaxed);
    }

    /// The kernel refused the offload for `remote`.
    pub(super) fn handle_refused(&self, remote: SocketAddr) {
        self.slot(remote).store(SENDS_UNTIL_TRIAL, Ordering::Relaxed);
    }

    /// Whether a destination in use is sent to one by one: one whose slot changed within [`UNUSED_AFTER`], as seen by
    /// the calls of this function.
    pub(super) fn is_any(&self, now: Instant) -> bool {
        let mut seen = self.seen.lock();
        let mut is_any = false;
        for (slot, seen) in self.slots.iter().zip(seen.iter_mut()) {
            let left = slot.load(Ordering::Relaxed);
            let since = seen.filter(|(before, _)| *before == left).map_or(now, |(_, since)| since);
            *seen = Some((left, since));
            is_any |= left > 0 && now.saturating_duration_since(since) < UNUSED_AFTER;
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
        // Neighbouring addresses get different slots, and so do similar networks.
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
    fn a_refusal_concerns_one_destination_and_ends() {
        let refusals = GsoRefusals::default();
        let [one, other] = ["192.0.2.1:51840", "[2001:db8::2]:51840"].map(|a| a.parse().unwrap());
        let now = Instant::now();

        refusals.handle_refused(one);

        assert_eq!(refusals.mode(other), SendMode::Offload);
        assert!(refusals.is_any(now));
        for _ in 1..SENDS_UNTIL_TRIAL {
            assert_eq!(refusals.mode(one), SendMode::OneByOne);
        }
        assert_eq!(refusals.mode(one), SendMode::Trial);
        refusals.handle_refused(one);
        assert_eq!(refusals.mode(one), SendMode::OneByOne);
        refusals.handle_accepted(one);
        assert_eq!(refusals.mode(one), SendMode::Offload);
        assert!(!refusals.is_any(now));
    }

    #[test]
    fn refusals_out_of_use_are_not_reported() {
        let refusals = GsoRefusals::default();
        let [left, used] = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 51840)));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);

        refusals.handle_refused(left);
        refusals.handle_refused(used);
        for second in 0..120 {
            assert_eq!(refusals.mode(used), SendMode::OneByOne);
            assert!(refusals.is_any(at(second)), "{second}");
        }

        // No more sends to either. The last send was a second ago.
        for second in 120..179 {
            assert!(refusals.is_any(at(second)), "{second}");
        }
        for second in 179..300 {
            assert!(!refusals.is_any(at(second)), "{second}");
        }
        assert_eq!(refusals.mode(left), SendMode::OneByOne, "the refusal is still remembered");
        assert!(refusals.is_any(at(300)));
        assert!(!refusals.is_any(at(360)));
    }

    #[test]
    fn neighbours_have_different_slots() {
        let refusals = GsoRefusals::default();
        let at = |last| SocketAddr::from(([10, 0, 0, last], 51840));

        refusals.handle_refused(at(1));

        assert!((2..60).all(|last| refusals.mode(at(last)) == SendMode::Offload));
    }
}
