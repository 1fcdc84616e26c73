//! The replay window: the counters of a session that were received.
//!
//! Source: RFC 6479. It has one block more than the window, so that moving it forward clears whole blocks and never a
//! counter within the window.

/// How far the counter of a datagram may be behind the greatest one.
pub(super) const WINDOW: u64 = 8192;

const BLOCK_BITS: u64 = 64;

/// Blocks of the window, and the one that is being cleared.
const BLOCKS: u64 = WINDOW / BLOCK_BITS + 1;

/// The same as a length.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "it is 129")]
pub(crate) const WINDOW_BLOCKS: usize = BLOCKS as usize;

/// The counters of one session. Empty at first.
#[derive(Debug)]
pub(super) struct Window {
    /// One above the greatest counter that was seen.
    next: u64,
    seen: Box<[u64]>,
}

impl Default for Window {
    fn default() -> Self {
        Self { next: 0, seen: (0..BLOCKS).map(|_| 0).collect() }
    }
}

impl Window {
    /// One above the greatest counter that was seen.
    #[inline]
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// The window of a predecessor: one above the greatest counter, and its blocks.
    pub(super) fn imported(next: u64, seen: Vec<u64>) -> Self {
        debug_assert_eq!(seen.len(), WINDOW_BLOCKS, "the hand-over is checked when it is read");

        Self { next, seen: seen.into_boxed_slice() }
    }

    /// Its blocks.
    pub(super) const fn blocks(&self) -> &[u64] {
        &self.seen
    }

    /// Whether `counter` is neither too old nor seen. Call [`Self::accept`] only for authentic datagrams.
    #[inline]
    pub(super) fn is_new(&self, counter: u64) -> bool {
        if counter >= self.next {
            return true;
        }
        if self.next - counter > WINDOW {
            return false;
        }
        let (block, bit) = place(counter);

        self.seen.get(block).is_some_and(|seen| seen & bit == 0)
    }

    /// Records the `counter` of an authentic datagram. Returns whether it was new.
    #[inline]
    pub(super) fn accept(&mut self, counter: u64) -> bool {
        if !self.is_new(counter) {
            return false;
        }
        if counter >= self.next {
            self.advance(counter);
        }
        let (block, bit) = place(counter);
        if let Some(seen) = self.seen.get_mut(block) {
            *seen |= bit;
        }

        true
    }

    /// Clears the blocks that counters up to `counter` will need.
    fn advance(&mut self, counter: u64) {
        // The block of the greatest counter so far is in use already.
        let first = if self.next == 0 { 0 } else { (self.next - 1) / BLOCK_BITS + 1 };
        let last = counter / BLOCK_BITS;
        let count = (last + 1).saturating_sub(first).min(BLOCKS);
        for block in (last + 1 - count)..=last {
            let (place, _) = place(block * BLOCK_BITS);
            if let Some(seen) = self.seen.get_mut(place) {
                *seen = 0;
            }
        }
        self.next = counter + 1;
    }
}

/// Block and bit of a counter.
#[inline]
fn place(counter: u64) -> (usize, u64) {
    let block = (counter / BLOCK_BITS) % BLOCKS;

    (usize::try_from(block).unwrap_or(usize::MAX), 1 << (counter % BLOCK_BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Remembers all counters.
    #[derive(Default)]
    struct Oracle {
        seen: BTreeSet<u64>,
    }

    impl Oracle {
        fn accept(&mut self, counter: u64) -> bool {
            let newest = self.seen.last().copied();
            let is_too_old = newest.is_some_and(|newest| newest.saturating_sub(counter) >= WINDOW);

            !is_too_old && self.seen.insert(counter)
        }
    }

    fn counters() -> impl Strategy<Value = Vec<u64>> {
        let step = prop_oneof![
            8 => -70..200_i64,
            2 => -9_000..9_000_i64,
            1 => -20_000..100_000_i64,
        ];

        (0..u64::MAX / 2, vec(step, 1..400)).prop_map(|(start, steps)| {
            let start = if start % 3 == 0 { 0 } else { start };
            steps
                .into_iter()
                .scan(start, |counter, step| {
                    *counter = counter.saturating_add_signed(step);
                    Some(*counter)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_perfect_memory(counters in counters()) {
            let (mut window, mut oracle) = (Window::default(), Oracle::default());

            for counter in counters {
                let is_new = oracle.accept(counter);
                prop_assert_eq!(window.is_new(counter), is_new, "{}", counter);
                prop_assert_eq!(window.accept(counter), is_new, "{}", counter);
            }
        }
    }

    #[test]
    fn eight_thousand_datagrams_may_overtake_one() {
        let mut window = Window::default();
        for counter in 1..8_001 {
            assert!(window.accept(counter));
        }

        assert!(window.accept(0));
        assert!(!window.accept(0));
    }

    #[test]
    fn counters_behind_the_window_are_refused() {
        let mut window = Window::default();

        assert!(window.accept(WINDOW));
        assert!(!window.is_new(0));
        assert!(window.is_new(1));
    }
}
