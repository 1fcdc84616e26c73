//! Which peers rest, so that most looks at all of them read nothing of those.
//!
//! Thousands do at any time, and what is read of one is in nobody's cache: ten thousand of them, looked at ten
//! times a second, took two fifths of the time of an idle gateway.

use std::time::{Duration, Instant};

use remap::PeerId;

/// One of so many looks is at a peer that rests. A handshake that a packet has begun with it meanwhile is to be
/// repeated after 5 s (whitepaper, section 6.1), and from the first message of the peer on every look is at it.
const LOOKS: usize = 10;

/// When nobody has looked for so long, as while the machine slept, anything may be due at once.
const SLEEP: Duration = Duration::from_secs(1);

/// What was found of peers, by their places.
#[derive(Debug, Default)]
pub(super) struct IdlePeers {
    is_dormant: Vec<bool>,
    look: usize,
    looked: Option<Instant>,
    /// How often a peer had been sought at the last look.
    sought: u64,
}

impl IdlePeers {
    /// Forgets what was found: there are `count` peers now, or others.
    pub(super) fn reset(&mut self, count: usize) {
        self.is_dormant.clear();
        self.is_dormant.resize(count, false);
    }

    /// Another look at all peers begins, one of which has been `sought` so often until now.
    pub(super) fn begin_look(&mut self, sought: u64, now: Instant) {
        self.look = (self.look + 1) % LOOKS;
        let last = self.looked.replace(now);
        let has_slept = last.is_none_or(|last| now.saturating_duration_since(last) >= SLEEP);
        if has_slept || std::mem::replace(&mut self.sought, sought) != sought {
            self.is_dormant.fill(false);
        }
    }

    /// A message of a handshake came from the peer: it may have a session from now on.
    pub(super) fn wake(&mut self, peer: PeerId) {
        let place = usize::try_from(peer.0).unwrap_or(usize::MAX);
        if let Some(is_dormant) = self.is_dormant.get_mut(place) {
            *is_dormant = false;
        }
    }

    /// Whether the peer at `place` has nothing to do in this look. Whether it `is_dormant` is asked when its
    /// turn is, or if it was not when it was asked before.
    pub(super) fn includes(&mut self, place: usize, is_dormant: impl FnOnce() -> bool) -> bool {
        let Some(known) = self.is_dormant.get_mut(place) else { return false };
        if !*known || place % LOOKS == self.look {
            *known = is_dormant();
        }

        *known
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    proptest! {
        /// A peer that is awake is seen to be in every look once each has been looked at, and none is when all rest.
        #[test]
        fn a_peer_that_wakes_up_is_noticed_within_ten_looks(
            count in 1usize..40,
            awake in prop::collection::btree_set(0usize..40, 0..10),
        ) {
            let mut all = All::new(count);
            let awake: BTreeSet<_> = awake.into_iter().filter(|place| *place < count).collect();
            all.look(TICK, &BTreeSet::new());
            for _ in 0..LOOKS {
                prop_assert_eq!(all.look(TICK, &BTreeSet::new()), BTreeSet::new());
            }

            for _ in 1..LOOKS {
                all.look(TICK, &awake);
            }
            for _ in 0..2 * LOOKS {
                prop_assert_eq!(&all.look(TICK, &awake), &awake);
            }
        }

        #[test]
        fn a_peer_that_was_heard_is_noticed_at_once(
            count in 1usize..40,
            heard in 0usize..40,
            looks in 1usize..19,
        ) {
            let mut all = All::new(count);
            for _ in 0..looks {
                all.look(TICK, &BTreeSet::new());
            }
            let heard = heard % count;
            all.rest.wake(PeerId(u32::try_from(heard).unwrap()));
            let awake = BTreeSet::from([heard]);

            prop_assert_eq!(&all.look(TICK, &awake), &awake);
        }

        #[test]
        fn whoever_woke_up_before_a_sleep_is_noticed_after_it(count in 1usize..40, looks in 1usize..9) {
            let mut all = All::new(count);
            for _ in 0..looks {
                all.look(TICK, &BTreeSet::new());
            }
            let awake: BTreeSet<_> = (0..count).collect();

            prop_assert_eq!(&all.look(SLEEP, &awake), &awake);
        }

        #[test]
        fn a_sought_peer_is_noticed_at_once(count in 1usize..40, looks in 1usize..9) {
            let mut all = All::new(count);
            for _ in 0..looks {
                all.look(TICK, &BTreeSet::new());
            }
            all.sought += 1;
            let awake = BTreeSet::from([count - 1]);

            prop_assert_eq!(&all.look(TICK, &awake), &awake);
        }
    }

    #[test]
    fn a_tenth_of_resting_peers_is_asked_per_look() {
        let start = Instant::now();
        let mut rest = IdlePeers::default();
        rest.reset(100);
        let mut asked = [0; 5];
        for (number, asked) in (0..).zip(&mut asked) {
            rest.begin_look(0, start + TICK * number);
            for place in 0..100 {
                rest.includes(place, || {
                    *asked += 1;
                    true
                });
            }
        }

        assert_eq!(asked, [100, 10, 10, 10, 10]);
    }

    #[test]
    fn of_others_nothing_is_known() {
        let mut all = All::new(8);
        all.look(TICK, &BTreeSet::new());

        all.rest.reset(4);
        all.count = 4;

        let awake = (0..4).collect();
        assert_eq!(all.look(TICK, &awake), awake);
        assert!(!all.rest.includes(4, || true));
    }

    struct All {
        rest: IdlePeers,
        count: usize,
        sought: u64,
        now: Instant,
    }

    impl All {
        fn new(count: usize) -> Self {
            let mut rest = IdlePeers::default();
            rest.reset(count);

            Self { rest, count, sought: 0, now: Instant::now() }
        }

        /// Who has something to do in a look after so long, if some are `awake`.
        fn look(&mut self, after: Duration, awake: &BTreeSet<usize>) -> BTreeSet<usize> {
            self.now += after;
            self.rest.begin_look(self.sought, self.now);
            let mut asks = |place: &usize| !self.rest.includes(*place, || !awake.contains(place));

            (0..self.count).filter(|place| asks(place)).collect()
        }
    }
}
