//! Which peers rest, so that most looks at all of them read nothing of those.
//!
//! Thousands do at any time, and what is read of one is in nobody's cache: ten thousand of them, looked at ten
//! times a second, took two fifths of the time of an idle gateway.

/// One of so many looks is at a peer that rests. What such a peer may have begun meanwhile asks for nothing
/// within the next seconds (whitepaper, section 6.1), and from then on every look is at it.
const LOOKS: usize = 4;

/// What was found of peers, by their places.
#[derive(Debug, Default)]
pub(super) struct Rest {
    is_dormant: Vec<bool>,
    look: usize,
}

impl Rest {
    /// Forgets what was found: there are `count` peers now, or others.
    pub(super) fn reset(&mut self, count: usize) {
        self.is_dormant.clear();
        self.is_dormant.resize(count, false);
    }

    /// Another look at all peers begins.
    pub(super) fn begin_look(&mut self) {
        self.look = (self.look + 1) % LOOKS;
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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whoever is awake is seen to be in every look from the fourth on, and nobody is when all rest.
        #[test]
        fn whoever_wakes_up_is_noticed_within_four_looks(
            count in 1usize..40,
            awake in prop::collection::btree_set(0usize..40, 0..10),
        ) {
            let mut rest = Rest::default();
            rest.reset(count);
            let awake: BTreeSet<_> = awake.into_iter().filter(|place| *place < count).collect();
            for _ in 0..LOOKS {
                look(&mut rest, count, &BTreeSet::new());
            }
            prop_assert_eq!(look(&mut rest, count, &BTreeSet::new()), BTreeSet::new());

            for _ in 1..LOOKS {
                look(&mut rest, count, &awake);
            }
            for _ in 0..2 * LOOKS {
                prop_assert_eq!(&look(&mut rest, count, &awake), &awake);
            }
        }
    }

    #[test]
    fn a_quarter_of_those_that_rest_is_asked_in_a_look() {
        let mut rest = Rest::default();
        rest.reset(100);
        let mut asked = [0; 5];
        for asked in &mut asked {
            rest.begin_look();
            for place in 0..100 {
                rest.includes(place, || {
                    *asked += 1;
                    true
                });
            }
        }

        assert_eq!(asked, [100, 25, 25, 25, 25]);
    }

    #[test]
    fn of_others_nothing_is_known() {
        let mut rest = Rest::default();
        rest.reset(8);
        look(&mut rest, 8, &BTreeSet::new());

        rest.reset(4);

        let all = (0..4).collect();
        assert_eq!(look(&mut rest, 4, &all), all);
        assert!(!rest.includes(4, || true));
    }

    /// Who has something to do in a look at `count` peers of which some are `awake`.
    fn look(rest: &mut Rest, count: usize, awake: &BTreeSet<usize>) -> BTreeSet<usize> {
        rest.begin_look();

        (0..count).filter(|place| !rest.includes(*place, || !awake.contains(place))).collect()
    }
}
