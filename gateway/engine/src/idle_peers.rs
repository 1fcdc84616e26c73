//! Remembers which peers are idle, so that most timer scans skip them.
//!
//! Thousands may be idle, and the state of each is a cache miss: scanning ten thousand of them ten times a second took
//! two fifths of the time of an idle gateway.

use std::time::{Duration, Instant};

use remap::PeerId;

/// An idle peer is checked in one of so many scans. If a packet has started a handshake meanwhile, its retry is due
/// only after 5 s (whitepaper, section 6.1), and from the first message of the peer on every scan checks it.
const SCANS_PER_CHECK: usize = 10;

/// After a gap of this length between scans, as when the machine was suspended, every timer may be due.
const SUSPENDED: Duration = Duration::from_secs(1);

/// Which peers were idle when last checked, by peer id.
#[derive(Debug, Default)]
pub(super) struct IdlePeers {
    is_idle: Vec<bool>,
    scan: usize,
    last_scan: Option<Instant>,
    /// The number of requested searches for peers at the last scan.
    sought: u64,
}

impl IdlePeers {
    /// Marks all peers as active: the peers have changed, and there are `count` now.
    pub(super) fn reset(&mut self, count: usize) {
        self.is_idle.clear();
        self.is_idle.resize(count, false);
    }

    /// Starts the next scan of all peers. `sought` counts the searches for peers that were requested until now.
    pub(super) fn begin_scan(&mut self, sought: u64, now: Instant) {
        self.scan = (self.scan + 1) % SCANS_PER_CHECK;
        let last = self.last_scan.replace(now);
        let was_suspended =
            last.is_none_or(|last| now.saturating_duration_since(last) >= SUSPENDED);
        if was_suspended || std::mem::replace(&mut self.sought, sought) != sought {
            self.is_idle.fill(false);
        }
    }

    /// Marks a peer as active: a handshake message came from it, so it may have a session from now on.
    pub(super) fn mark_active(&mut self, peer: PeerId) {
        let place = usize::try_from(peer.0).unwrap_or(usize::MAX);
        if let Some(is_idle) = self.is_idle.get_mut(place) {
            *is_idle = false;
        }
    }

    /// Whether this scan skips the peer at `place`. Calls `check` if it is its turn, or if it was active before.
    pub(super) fn is_skipped(&mut self, place: usize, check: impl FnOnce() -> bool) -> bool {
        let Some(is_idle) = self.is_idle.get_mut(place) else { return false };
        if !*is_idle || place % SCANS_PER_CHECK == self.scan {
            *is_idle = check();
        }

        *is_idle
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    proptest! {
        /// Once every peer was checked, an active one is in every scan; if all are idle, none is.
        #[test]
        fn active_peer_is_found_within_ten_scans(
            count in 1usize..40,
            active in prop::collection::btree_set(0usize..40, 0..10),
        ) {
            let mut all = All::new(count);
            let active: BTreeSet<_> = active.into_iter().filter(|place| *place < count).collect();
            all.scan(TICK, &BTreeSet::new());
            for _ in 0..SCANS_PER_CHECK {
                prop_assert_eq!(all.scan(TICK, &BTreeSet::new()), BTreeSet::new());
            }

            for _ in 1..SCANS_PER_CHECK {
                all.scan(TICK, &active);
            }
            for _ in 0..2 * SCANS_PER_CHECK {
                prop_assert_eq!(&all.scan(TICK, &active), &active);
            }
        }

        #[test]
        fn peer_that_was_heard_is_scanned_at_once(
            count in 1usize..40,
            heard in 0usize..40,
            scans in 1usize..19,
        ) {
            let mut all = All::new(count);
            for _ in 0..scans {
                all.scan(TICK, &BTreeSet::new());
            }
            let heard = heard % count;
            all.idle_peers.mark_active(PeerId(u32::try_from(heard).unwrap()));
            let active = BTreeSet::from([heard]);

            prop_assert_eq!(&all.scan(TICK, &active), &active);
        }

        #[test]
        fn all_peers_are_scanned_after_a_suspend(count in 1usize..40, scans in 1usize..9) {
            let mut all = All::new(count);
            for _ in 0..scans {
                all.scan(TICK, &BTreeSet::new());
            }
            let active: BTreeSet<_> = (0..count).collect();

            prop_assert_eq!(&all.scan(SUSPENDED, &active), &active);
        }

        #[test]
        fn sought_peer_is_scanned_at_once(count in 1usize..40, scans in 1usize..9) {
            let mut all = All::new(count);
            for _ in 0..scans {
                all.scan(TICK, &BTreeSet::new());
            }
            all.sought += 1;
            let active = BTreeSet::from([count - 1]);

            prop_assert_eq!(&all.scan(TICK, &active), &active);
        }
    }

    #[test]
    fn each_scan_checks_a_tenth_of_idle_peers() {
        let start = Instant::now();
        let mut idle_peers = IdlePeers::default();
        idle_peers.reset(100);
        let mut checks = [0; 5];
        for (number, checks) in (0..).zip(&mut checks) {
            idle_peers.begin_scan(0, start + TICK * number);
            for place in 0..100 {
                idle_peers.is_skipped(place, || {
                    *checks += 1;
                    true
                });
            }
        }

        assert_eq!(checks, [100, 10, 10, 10, 10]);
    }

    #[test]
    fn reset_makes_all_peers_active() {
        let mut all = All::new(8);
        all.scan(TICK, &BTreeSet::new());

        all.idle_peers.reset(4);
        all.count = 4;

        let active = (0..4).collect();
        assert_eq!(all.scan(TICK, &active), active);
        assert!(!all.idle_peers.is_skipped(4, || true));
    }

    struct All {
        idle_peers: IdlePeers,
        count: usize,
        sought: u64,
        now: Instant,
    }

    impl All {
        fn new(count: usize) -> Self {
            let mut idle_peers = IdlePeers::default();
            idle_peers.reset(count);

            Self { idle_peers, count, sought: 0, now: Instant::now() }
        }

        /// The peers that a scan after so long does not skip, if some are `active`.
        fn scan(&mut self, after: Duration, active: &BTreeSet<usize>) -> BTreeSet<usize> {
            self.now += after;
            self.idle_peers.begin_scan(self.sought, self.now);
            let mut is_scanned =
                |place: &usize| !self.idle_peers.is_skipped(*place, || !active.contains(place));

            (0..self.count).filter(|place| is_scanned(place)).collect()
        }
    }
}
