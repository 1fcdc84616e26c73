//! The largest packet that reaches the other end: discovery of the path MTU by probes (RFC 8899).
//!
//! Every half second a small packet and one of the largest length that passes are sent. If only the small one is
//! answered, packets of several lengths follow together, in two rounds or more, until the largest that passes is known.
//! Loss alone changes nothing: the largest length has to fail five times in a row, while smaller packets are answered.
//! The small ones are padded as well, so an end that answers no padded packet shows nothing about the path. Every five
//! seconds larger ones are tried. No ICMP error is needed.

use std::time::{Duration, Instant};

/// The length of a small packet, in bytes: every host accepts it (RFC 791 section 3.1). No shorter one is found, as
/// this one shows that the path works (`BASE_PLPMTU` of RFC 8899 section 5.1.2).
pub const LEAST: u16 = 576;

/// The tunnel pads packets to a multiple of so many bytes: no other lengths differ on the path.
const STEP: u16 = 16;

const CHECK_INTERVAL: Duration = Duration::from_millis(500);

const RAISE_INTERVAL: Duration = Duration::from_secs(5);

/// How long an answer may take: the longer of both.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_ROUND_TRIPS: u32 = 3;

/// The most lengths that are tried in a round.
const TRIES: u16 = 8;

/// The fewest rounds before a shorter length comes into force.
const ROUNDS: u32 = 2;

/// The discovery for one path.
#[derive(Clone, Debug)]
pub struct PathMtuDiscovery {
    /// The longest length of interest, in bytes.
    limit: u16,
    /// The longest that passes, in bytes; until an answer, the longest of interest.
    largest: u16,
    is_known: bool,
    phase: Phase,
    due: Instant,
    raise_at: Instant,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    /// A small packet and one of the largest length were sent.
    Checking {
        is_small_answered: bool,
    },
    Searching(Search),
}

#[derive(Clone, Debug)]
struct Search {
    /// The longest length that was answered.
    passes: u16,
    /// The shortest that was not.
    fails: u16,
    /// The lengths of this round, ascending.
    tried: Vec<u16>,
    is_answered: bool,
    /// Whether the largest length, which is sent in each round, was answered as well.
    is_largest_answered: bool,
    rounds: u32,
}

impl PathMtuDiscovery {
    /// Looks for lengths up to `limit` bytes, from `now` on.
    #[must_use]
    pub fn new(limit: u16, now: Instant) -> Self {
        // One more than the limit is a length, too.
        let limit = limit.clamp(LEAST, u16::MAX - 1);

        Self {
            limit,
            largest: limit,
            is_known: false,
            phase: Phase::Waiting,
            due: now,
            raise_at: now,
        }
    }

    /// Looks for lengths up to `limit` bytes from now on: for longer ones at once.
    pub fn set_limit(&mut self, limit: u16, now: Instant) {
        let limit = limit.clamp(LEAST, u16::MAX - 1);
        if limit == self.limit {
            return;
        }
        self.limit = limit;
        self.largest = self.largest.min(limit);
        self.raise_at = now;
        self.phase = Phase::Waiting;
        self.due = now;
    }

    /// The longest packet that passes, in bytes, if one was answered.
    #[must_use]
    pub const fn get(&self) -> Option<u16> {
        if self.is_known { Some(self.largest) } else { None }
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub const fn next_timeout(&self) -> Instant {
        self.due
    }

    /// The lengths of the packets to send, in bytes.
    pub fn handle_timeout(&mut self, now: Instant, round_trip: Duration) -> Vec<u16> {
        if now < self.due {
            return Vec::new();
        }
        let patience = PATIENCE.max(round_trip.saturating_mul(PATIENCE_ROUND_TRIPS));
        self.due = now + patience;

        match &self.phase {
            Phase::Waiting if self.largest < self.limit && now >= self.raise_at => {
                self.search(Search::new(self.largest, self.limit + 1))
            }
            Phase::Waiting => {
                self.phase = Phase::Checking { is_small_answered: false };
                vec![LEAST, self.largest]
            }
            Phase::Checking { is_small_answered: true } => {
                self.search(Search::new(LEAST, self.largest))
            }
            Phase::Searching(search) if search.is_upward(self) && search.has_lost_the_largest() => {
                self.search(Search::new(LEAST, self.largest))
            }
            Phase::Searching(search) if search.is_answered => {
                let is_decided = search.is_upward(self) || search.rounds >= ROUNDS;
                let search = search.narrowed();
                if is_decided {
                    // In force at once; the rest of the search is for a longer one.
                    self.largest = search.passes;
                    self.is_known = true;
                    if search.lengths(self.limit).is_empty() {
                        self.wait(now);
                        return Vec::new();
                    }
                }
                self.search(search)
            }
            // No packet passes at all.
            Phase::Checking { .. } | Phase::Searching(_) => {
                self.wait(now);
                Vec::new()
            }
        }
    }

    /// Handles the answer to a packet of `bytes`, which may be late.
    pub fn handle_answer(&mut self, bytes: u16, now: Instant) {
        // The limit may have become shorter since.
        let bytes = bytes.min(self.limit);
        let is_largest = bytes >= self.largest;
        if is_largest {
            self.largest = bytes;
            self.is_known = true;
        }
        match &mut self.phase {
            Phase::Waiting => {}
            Phase::Checking { .. } if is_largest => self.wait(now),
            Phase::Checking { is_small_answered } => *is_small_answered = true,
            Phase::Searching(search) => {
                search.is_answered = true;
                search.is_largest_answered |= is_largest;
                search.passes = search.passes.max(bytes);
                // What failed was a loss.
                if search.fails <= search.passes {
                    self.wait(now);
                }
            }
        }
    }

    fn wait(&mut self, now: Instant) {
        self.phase = Phase::Waiting;
        self.due = now + CHECK_INTERVAL;
    }

    /// Starts the next round of `search`.
    fn search(&mut self, search: Search) -> Vec<u16> {
        let tried = search.lengths(self.limit);
        let sent = [LEAST, self.largest, self.largest].into_iter().chain(tried.iter().copied());
        let mut sent: Vec<_> = sent.collect();
        // A datagram may leave together with longer ones before it, and is lost with them.
        sent.sort_unstable();
        self.raise_at = self.due + RAISE_INTERVAL;
        self.phase = Phase::Searching(Search {
            tried,
            is_answered: false,
            is_largest_answered: false,
            rounds: search.rounds + 1,
            ..search
        });

        sent
    }
}

impl Search {
    const fn new(passes: u16, fails: u16) -> Self {
        Self {
            passes,
            fails,
            tried: Vec::new(),
            is_answered: false,
            is_largest_answered: false,
            rounds: 0,
        }
    }

    /// Whether it looks for a longer length than the one in force.
    const fn is_upward(&self, path_mtu: &PathMtuDiscovery) -> bool {
        self.fails > path_mtu.largest
    }

    const fn has_lost_the_largest(&self) -> bool {
        self.is_answered && !self.is_largest_answered
    }

    /// After a round: the shortest length without an answer fails.
    fn narrowed(&self) -> Self {
        let fails = self.tried.iter().copied().find(|length| *length > self.passes);

        Self { fails: fails.unwrap_or(self.fails), ..self.clone() }
    }

    /// The lengths to try, evenly spaced between what passes and what fails: multiples of [`STEP`], and `limit`.
    fn lengths(&self, limit: u16) -> Vec<u16> {
        let (first, last) = (self.passes / STEP + 1, (self.fails - 1) / STEP);
        let count = (last + 1).saturating_sub(first);
        let tries = count.min(TRIES);
        let place = |number: u16| {
            u16::try_from(u32::from(count) * u32::from(number) / u32::from(tries)).unwrap_or(count)
        };
        let mut lengths: Vec<_> =
            (1..=tries).map(|number| (first + place(number) - 1) * STEP).collect();
        if self.fails > limit && self.passes < limit && lengths.last() != Some(&limit) {
            lengths.push(limit);
        }

        lengths
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A path that loses sends with packets of more than `passes` bytes without an ICMP error.
    struct World {
        path_mtu: PathMtuDiscovery,
        now: Instant,
        passes: u16,
        round_trip: Duration,
        sent: Vec<u16>,
    }

    impl World {
        fn new(limit: u16, passes: u16) -> Self {
            let now = Instant::now();
            let round_trip = Duration::from_millis(20);

            Self {
                path_mtu: PathMtuDiscovery::new(limit, now),
                now,
                passes,
                round_trip,
                sent: Vec::new(),
            }
        }

        /// Lets time pass until `is_done`, at most `most`; `is_lost` decides about packets that are short enough.
        fn run(
            &mut self,
            most: Duration,
            mut is_lost: impl FnMut() -> bool,
            is_done: impl Fn(&PathMtuDiscovery) -> bool,
        ) -> Duration {
            let start = self.now;
            let mut answers: Vec<(Instant, u16)> = Vec::new();
            while !is_done(&self.path_mtu) && self.now - start < most {
                let due = self.path_mtu.next_timeout();
                let next = answers.iter().map(|(at, _)| *at).min();
                self.now = next.map_or(due, |next| next.min(due));
                for (_, bytes) in answers.extract_if(.., |(at, _)| *at <= self.now) {
                    self.path_mtu.handle_answer(bytes, self.now);
                }
                let mut before = 0;
                for bytes in self.path_mtu.handle_timeout(self.now, self.round_trip) {
                    self.sent.push(bytes);
                    // A shorter datagram may share a send with the one before (UDP segmentation offload).
                    let longest = if bytes < before { before } else { bytes };
                    before = bytes;
                    if longest <= self.passes && !is_lost() {
                        answers.push((self.now + self.round_trip, bytes));
                    }
                }
            }

            self.now - start
        }
    }

    /// The longest length that the discovery can find.
    fn findable(limit: u16, passes: u16) -> u16 {
        if passes >= limit { limit } else { passes / STEP * STEP }
    }

    proptest! {
        #[test]
        fn shorter_lengths_are_in_force_within_a_second(
            limit in prop_oneof![4 => 600_u16..9_000, 1 => Just(u16::MAX - 1)],
            passes in prop::collection::vec(LEAST..9_000, 1..5),
        ) {
            let mut world = World::new(limit, u16::MAX);
            world.run(Duration::from_secs(1), || false, |path_mtu| path_mtu.get().is_some());
            prop_assert_eq!(world.path_mtu.get(), Some(limit));

            for passes in passes {
                world.passes = passes;
                let wanted = Some(findable(limit, passes));
                let in_force = world.run(
                    Duration::from_secs(20), || false, |path_mtu| path_mtu.get() <= wanted,
                );
                let is_found = |path_mtu: &PathMtuDiscovery| path_mtu.get() == wanted;
                let found = world.run(Duration::from_secs(20), || false, is_found);
                prop_assert!(in_force <= Duration::from_secs(1), "{:?} after {:?}", wanted, in_force);
                prop_assert!(found <= Duration::from_secs(7), "{:?} after {:?}", wanted, found);
            }
        }

        #[test]
        fn loss_alone_changes_nothing(losses in prop::collection::vec(0..100_u8, 4_000)) {
            let mut world = World::new(1340, u16::MAX);
            let mut losses = losses.into_iter().cycle();
            world.run(Duration::from_secs(600), || losses.next() == Some(0), |path_mtu| {
                path_mtu.get().is_some_and(|found| found < 1340)
            });
            prop_assert_eq!(world.path_mtu.get(), Some(1340));
        }

        /// The path changes before, while packets are lost, also all of them, and answers are late.
        #[test]
        fn the_length_is_found_after_any_disturbance(
            limit in 600_u16..9_000,
            disturbances in prop::collection::vec((0..9_000_u16, 0..=100_u8, 0..400_u64), 0..6),
            losses in prop::collection::vec(0..100_u8, 500),
            passes in LEAST..9_000,
        ) {
            let mut world = World::new(limit, u16::MAX);
            let mut losses = losses.into_iter().cycle();
            for (passes, loss, round_trip_ms) in disturbances {
                world.passes = passes;
                world.round_trip = Duration::from_millis(round_trip_ms);
                let is_lost = || losses.next().is_some_and(|random| random < loss);
                world.run(Duration::from_secs(9), is_lost, |_| false);
                prop_assert!(world.path_mtu.get().is_none_or(|found| (LEAST..=limit).contains(&found)));
            }

            world.passes = passes;
            world.run(Duration::from_secs(30), || false, |_| false);
            prop_assert_eq!(world.path_mtu.get(), Some(findable(limit, passes)));
        }
    }

    #[test]
    fn an_end_without_padded_answers_is_not_searched() {
        let mut world = World::new(1340, LEAST - 1);
        world.run(Duration::from_secs(60), || false, |_| false);

        assert_eq!(world.path_mtu.get(), None);
        assert!(world.sent.len() < 250, "{}", world.sent.len());
    }

    #[test]
    fn a_raised_limit_is_probed_first() {
        for passes in [u16::MAX, 5_000, 1_340] {
            let mut world = World::new(1340, passes);
            world.run(Duration::from_secs(3), || false, |_| false);
            assert_eq!(world.path_mtu.get(), Some(1340));

            world.path_mtu.set_limit(8920, world.now);
            assert_eq!(world.path_mtu.get(), Some(1340), "nothing longer was answered");
            let wanted = findable(8920, passes).max(1340);
            let took = world.run(
                Duration::from_secs(5),
                || false,
                |path_mtu| path_mtu.get() == Some(wanted),
            );
            assert!(took < Duration::from_secs(2), "{passes}: {took:?}");

            world.path_mtu.set_limit(1340, world.now);
            world.path_mtu.handle_answer(8920, world.now);
            assert_eq!(world.path_mtu.get(), Some(1340), "a late answer changes nothing");
        }
    }

    #[test]
    fn an_outage_changes_nothing() {
        for begins_with in 0..4 {
            let mut world = World::new(1340, u16::MAX);
            world.run(Duration::from_secs(3), || false, |_| false);
            let mut answered = 0;
            let is_lost = || {
                answered += 1;
                answered > begins_with
            };
            world.run(Duration::from_secs(60), is_lost, |_| false);

            assert_eq!(world.path_mtu.get(), Some(1340), "{begins_with}");
        }
    }

    #[test]
    fn a_second_takes_four_packets() {
        let mut world = World::new(1340, u16::MAX);
        world.run(Duration::from_secs(60), || false, |_| false);

        assert!((220..=245).contains(&world.sent.len()), "{}", world.sent.len());
    }
}
