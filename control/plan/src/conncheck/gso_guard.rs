//! A guard against kernels and network cards that damage datagrams when they segment them (`UDP_SEGMENT`).
//!
//! The sender cannot see the damage: the kernel accepts the send. The receiver can, because no tag is right. So a gateway
//! counts such datagrams and reports the count in its answers. A gateway whose datagrams arrive damaged sends
//! them one by one. If they still arrive damaged, segmentation is not the cause, and it is switched on again:
//!
//! ```text
//!                 damage            no damage
//!   watching ──────────────▶ trial ───────────▶ settled: one by one
//!                              │ still damage
//!                              └──────────────▶ settled: segmented
//! ```
//!
//! There is no second trial: each costs as many packets as the first. Stock gateways report nothing. The retransmissions
//! of TCP inside the tunnel would be a hint, but the packet path keeps no state of those.

/// Damaged datagrams that are more than forgeries on the path or a faulty link cause between two reports.
const MANY: u64 = 8;

/// Packets that have to be sent one by one without damage: a path that damages one in a hundred shows it.
const TRIAL_PACKETS: u64 = 1_000;

/// Counts the datagrams of the other end that arrived damaged, for the reports to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DamageCount {
    total: u64,
    /// The counter of the tunnel at the last call, if the connection was established then.
    last: Option<u64>,
}

impl DamageCount {
    /// `damaged` is the counter of the tunnel.
    ///
    /// Before the connection is established nothing counts: the other end may still send in sessions of a former process,
    /// which had the same receiver indices and other keys.
    pub(super) fn handle_traffic(&mut self, damaged: u64, is_connected: bool) {
        let last = std::mem::replace(&mut self.last, is_connected.then_some(damaged));

        if let (Some(last), true) = (last, is_connected) {
            self.total += damaged.saturating_sub(last);
        }
    }

    /// The count.
    pub(super) const fn total(self) -> u64 {
        self.total
    }
}

/// Judges whether what the kernel segments arrives damaged at the other end.
#[derive(Clone, Debug, Default)]
pub(super) struct GsoGuard {
    state: State,
    /// The last reported count.
    damaged: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Watching,
    /// One by one, but the next report may still count datagrams that were sent before.
    Draining,
    /// One by one, from these counts on.
    Trial {
        damaged: u64,
        sent: u64,
    },
    Settled {
        is_harmful: bool,
    },
}

impl GsoGuard {
    /// Handles a report: `damaged` is the count of the other end, and `sent` the number of packets sent to it. Returns
    /// whether segmentation is harmful.
    pub(super) fn handle_report(&mut self, damaged: u64, sent: u64) -> bool {
        // A gateway that was restarted counts from 0.
        let before = self.damaged.replace(damaged).unwrap_or(damaged);

        self.state = match self.state {
            State::Watching if damaged.saturating_sub(before) >= MANY => State::Draining,
            State::Draining => State::Trial { damaged, sent },
            State::Trial { damaged: first, .. } if damaged.saturating_sub(first) >= MANY => {
                State::Settled { is_harmful: false }
            }
            State::Trial { sent: first, .. } if sent.saturating_sub(first) >= TRIAL_PACKETS => {
                State::Settled { is_harmful: true }
            }
            state @ (State::Watching | State::Trial { .. } | State::Settled { .. }) => state,
        };

        !matches!(self.state, State::Watching | State::Settled { is_harmful: false })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn damage_stops_segmentation_for_good() {
        let reports = [(500, 0), (500, 90), (530, 200), (540, 900), (541, 1900), (900, 2900)];

        assert_eq!(judge(&reports), [false, false, true, true, true, true]);
    }

    #[test]
    fn damage_of_single_datagrams_resumes_segmentation() {
        let reports = [(0, 0), (40, 100), (60, 200), (64, 300), (69, 400), (150, 500)];

        assert_eq!(judge(&reports), [false, true, true, true, false, false]);
    }

    #[test]
    fn without_packets_a_trial_goes_on() {
        let mut reports = vec![(0, 0), (40, 100), (40, 100)];
        reports.extend([(40, 100); 20]);
        reports.push((60, 200));

        let harm = judge(&reports);

        assert_eq!(harm.iter().filter(|is_harmful| **is_harmful).count(), 22);
        assert_eq!(harm.last(), Some(&false));
    }

    #[test]
    fn a_restarted_gateway_starts_a_new_count() {
        assert_eq!(judge(&[(900, 0), (3, 10), (4, 20), (5, 30)]), [false; 4]);
    }

    proptest! {
        #[test]
        fn rare_damage_is_no_harm(growth in prop::collection::vec(0..MANY, 0..50)) {
            let mut guard = GsoGuard::default();
            let mut total = 0;
            for (more, sent) in growth.into_iter().zip(0..) {
                total += more;
                prop_assert!(!guard.handle_report(total, sent * 1000));
            }
        }
    }

    #[test]
    fn damage_counts_while_connected() {
        let mut count = DamageCount::default();
        let totals = [(70, false), (75, true), (80, true), (90, false), (99, true), (100, true)]
            .map(|(damaged, is_connected)| {
                count.handle_traffic(damaged, is_connected);
                count.total()
            });

        assert_eq!(totals, [0, 0, 5, 5, 5, 6]);
        // The peer was configured again.
        count.handle_traffic(1, true);
        assert_eq!(count.total(), 6);
    }

    fn judge(reports: &[(u64, u64)]) -> Vec<bool> {
        let mut guard = GsoGuard::default();

        reports.iter().map(|(damaged, sent)| guard.handle_report(*damaged, *sent)).collect()
    }
}
