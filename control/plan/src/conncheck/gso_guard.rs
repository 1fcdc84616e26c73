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

/// Damaged datagrams from one report to the next that are more than forgeries on the path or a faulty link cause.
const MANY: u64 = 8;

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
    /// One by one. The first report may still count datagrams that were sent before.
    Trial {
        is_first: bool,
    },
    Settled {
        is_harmful: bool,
    },
}

impl GsoGuard {
    /// Handles a report: `damaged` is the count of the other end. Returns whether segmentation is harmful.
    pub(super) fn handle_report(&mut self, damaged: u64) -> bool {
        // A gateway that was restarted counts from 0.
        let before = self.damaged.replace(damaged).unwrap_or(damaged);
        let is_damaged = damaged.saturating_sub(before) >= MANY;

        self.state = match (self.state, is_damaged) {
            (State::Watching, true) => State::Trial { is_first: true },
            (State::Trial { is_first: true }, true) => State::Trial { is_first: false },
            (State::Trial { .. }, is_damaged) => State::Settled { is_harmful: !is_damaged },
            (state @ (State::Watching | State::Settled { .. }), _) => state,
        };

        matches!(self.state, State::Trial { .. } | State::Settled { is_harmful: true })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn damage_stops_segmentation_for_good() {
        let harm = judge(&[500, 500, 530, 540, 540, 900, 1800]);

        assert_eq!(harm, [false, false, true, true, true, true, true]);
    }

    #[test]
    fn damage_of_single_datagrams_resumes_segmentation() {
        let harm = judge(&[0, 40, 60, 90, 120, 150]);

        assert_eq!(harm, [false, true, true, false, false, false]);
    }

    #[test]
    fn a_restarted_gateway_starts_a_new_count() {
        assert_eq!(judge(&[900, 3, 4, 5]), [false; 4]);
    }

    proptest! {
        #[test]
        fn rare_damage_is_no_harm(growth in prop::collection::vec(0..MANY, 0..50)) {
            let mut guard = GsoGuard::default();
            let mut total = 0;
            for more in growth {
                total += more;
                prop_assert!(!guard.handle_report(total));
            }
        }
    }

    fn judge(reports: &[u64]) -> Vec<bool> {
        let mut guard = GsoGuard::default();

        reports.iter().map(|damaged| guard.handle_report(*damaged)).collect()
    }
}
