//! Controlled delay (CoDel, RFC 8289): which packets of a queue are marked as congested, so that the queue stays short.
//!
//! A queue that absorbs a burst is empty soon after it. A queue that stays long delays every packet, and carries no more.
//! So a packet is marked when all packets of an interval have waited for a target time or longer, and then others, ever
//! more often, until a packet has waited for less or the queue is empty.
//!
//! # Target and interval
//!
//! RFC 8289 has 5 and 100 ms, for links of the Internet (sections 4.2 and 4.3). Here the queue is a receive buffer, which
//! is full after 4 ms at 8 Gb/s. Pairs of the comparison on two cores of a Zen 4, one TCP stream, relative to no marks
//! (`--pairs 8` to `20`, `--pings --seconds 4`, 95 % confidence):
//!
//! | target, interval | TCP | 99th percentile of pings beside it |
//! |---|---|---|
//! | 1.5 ms, 100 ms | 0.99 [0.97, 1.01] | 1.03 [1.00, 1.22] |
//! | 1.5 ms, 20 ms | 0.98 [0.95, 1.05] | 0.81 [0.65, 0.89] |
//! | 2 ms, 10 ms | 1.03 [0.98, 1.07] | 0.80 [0.74, 0.86] |
//! | the same in other pairs | 1.01 [0.93, 1.08] | 0.70 [0.61, 0.83] |
//! | 1.5 ms, 10 ms | 1.01 [0.93, 1.04] | 0.75 [0.68, 0.86] |
//! | 1 ms, 10 ms | 0.94 [0.90, 0.99] | 0.65 [0.50, 0.73] |
//! | 0.5 ms, 10 ms | 0.82 [0.80, 0.95] | 0.57 [0.36, 0.69] |
//!
//! About one packet a second was marked. The shorter the queue, the more often the threads wait and wake, each time for
//! fewer packets: CPU s per GB, without pings, 1.02 [1.01, 1.07] with 2 ms and 1.06 [1.02, 1.11] with 1.5 ms (20 pairs).

use std::time::{Duration, Instant};

/// The sojourn time up to which the queue counts as short.
const TARGET: Duration = Duration::from_millis(2);

/// How long all sojourn times must reach the target before the first packet is marked.
const INTERVAL: Duration = Duration::from_millis(10);

/// If marking begins again within so many intervals after it ended, it goes on at about the former rate.
const MEMORY_INTERVALS: u32 = 16;

/// The state for one queue, with the names of RFC 8289 section 5.2 in parentheses.
#[derive(Debug, Default)]
pub struct Codel {
    /// One interval after the sojourn time has reached the target; `None` while it is below (`first_above_time`).
    first_mark_at: Option<Instant>,
    /// Packets are being marked (`dropping`).
    is_marking: bool,
    /// When the next packet is to be marked; kept when marking ends (`drop_next`).
    next_mark_at: Option<Instant>,
    /// Number of marks from which the next pause follows (`count`).
    count: u32,
    /// `count` when marking began (`lastcount`).
    first_count: u32,
}

impl Codel {
    /// Handles a packet that has left the queue at `now`, after it has waited for `sojourn`. Returns whether to mark it.
    ///
    /// # Source
    ///
    /// RFC 8289 section 5.5, with one mark for each call.
    pub fn handle_packet(&mut self, sojourn: Duration, now: Instant) -> bool {
        if sojourn < TARGET {
            self.handle_empty();
            return false;
        }
        let first_mark_at = *self.first_mark_at.get_or_insert(now + INTERVAL);

        match self.next_mark_at {
            Some(next) if self.is_marking => {
                let is_due = now >= next;
                if is_due {
                    self.count = self.count.saturating_add(1);
                    self.next_mark_at = Some(next + self.pause());
                }
                is_due
            }
            _ if now >= first_mark_at => {
                self.begin(now);
                true
            }
            _ => false,
        }
    }

    /// Handles an empty queue. What left it has waited for a processor of this host, and not behind other packets.
    pub fn handle_empty(&mut self) {
        self.first_mark_at = None;
        self.is_marking = false;
    }

    /// Begins to mark packets, with the one at `now`.
    fn begin(&mut self, now: Instant) {
        let is_recent = self
            .next_mark_at
            .is_some_and(|next| now.saturating_duration_since(next) < MEMORY_INTERVALS * INTERVAL);
        let marked = self.count - self.first_count;
        self.count = if is_recent { marked.max(1) } else { 1 };
        self.first_count = self.count;
        self.next_mark_at = Some(now + self.pause());
        self.is_marking = true;
    }

    /// The time until the next mark (`control_law`). It falls with the root of the number of marks, because the throughput
    /// of TCP falls with the root of its loss (RFC 8289 section 3.3).
    fn pause(&self) -> Duration {
        INTERVAL.div_f64(f64::from(self.count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The time between two packets.
    const STEP: Duration = Duration::from_micros(100);

    /// A queue and the time. Each test chooses the sojourn times.
    struct World {
        codel: Codel,
        now: Instant,
    }

    impl World {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        fn new() -> Self {
            Self { codel: Codel::default(), now: Instant::now() }
        }

        /// Packets leave for `period`. Returns when some were marked, since its start.
        fn run(&mut self, period: Duration, sojourn: Duration) -> Vec<Duration> {
            let start = self.now;
            let mut marks = Vec::new();
            while self.now < start + period {
                if self.codel.handle_packet(sojourn, self.now) {
                    marks.push(self.now - start);
                }
                self.now += STEP;
            }

            marks
        }
    }

    #[test]
    fn marks_become_ever_more_frequent() {
        let mut world = World::new();
        let marks = world.run(Duration::from_millis(200), TARGET);

        let mut wanted = Duration::ZERO;
        for (mark, number) in marks.iter().zip(0_u32..) {
            wanted += INTERVAL.div_f64(f64::from(number.max(1)).sqrt());
            assert!(*mark >= wanted && *mark < wanted + STEP, "{number}: {mark:?}, {wanted:?}");
        }
        // The sum of the pauses is about twice the interval times the root of their number.
        assert!((100..=110).contains(&marks.len()), "{}", marks.len());
    }

    #[test]
    fn the_frequency_is_kept_for_a_while() {
        let count = |idle| {
            let mut world = World::new();
            world.run(Duration::from_millis(200), TARGET);
            world.run(idle, Duration::ZERO);
            world.run(Duration::from_millis(30), TARGET).len()
        };

        assert!(count(MEMORY_INTERVALS * INTERVAL / 2) > 10);
        assert_eq!(count(2 * MEMORY_INTERVALS * INTERVAL), 3);
    }

    proptest! {
        #[test]
        fn bursts_are_not_marked(
            bursts in prop::collection::vec((1..100_u32, 0..50_000_u64), 0..100),
        ) {
            let mut world = World::new();
            for (packets, sojourn_us) in bursts {
                let marks = world.run(packets * STEP, Duration::from_micros(sojourn_us));
                prop_assert_eq!(marks, []);
                world.run(STEP, TARGET - STEP);
            }
        }

        #[test]
        fn one_short_wait_ends_the_marks(
            periods in prop::collection::vec((1..3_000_u32, any::<bool>()), 1..5),
        ) {
            let mut world = World::new();
            for (packets, is_empty) in periods {
                let marks = world.run(packets * STEP, 2 * TARGET);
                prop_assert!(marks.first().is_none_or(|first| *first >= INTERVAL));
                if is_empty {
                    world.codel.handle_empty();
                } else {
                    prop_assert_eq!(world.run(STEP, TARGET - STEP), []);
                }
            }
        }
    }
}
