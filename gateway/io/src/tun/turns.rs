//! The order in which the queues of the device are read, so that the packets of one flow do not wait behind all frames
//! of another.
//!
//! Round robin, with those queues first that were empty, after RFC 8290 section 4.2 (`fq_codel`): a flow with few packets
//! finds its queue empty, and waits for one turn of a full queue at most. Before each of those turns the device is asked
//! again which queues have frames. Between two of them each other queue has one turn at most, so a full queue never
//! starves.

use std::collections::VecDeque;

/// The largest number of queues.
pub(in super::super) const QUEUES_MAX: usize = 64;

/// A turn ends after this many bytes: a frame of full size.
const TURN_BYTES: usize = 64 * 1024;

/// A turn ends after this many frames.
const TURN_FRAMES: usize = 32;

/// A turn of a queue, and how much was read in it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Turn {
    pub(in super::super) queue: usize,
    bytes: usize,
    frames: usize,
}

impl Turn {
    const fn of(queue: usize) -> Self {
        Self { queue, bytes: 0, frames: 0 }
    }

    /// A frame of `bytes` was read. Returns whether another one may be.
    #[inline]
    pub(in super::super) const fn handle_frame(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.frames += 1;

        self.bytes < TURN_BYTES && self.frames < TURN_FRAMES
    }
}

/// Schedules the queues that have frames.
#[derive(Debug)]
pub(in super::super) struct Turns {
    /// Were empty until now. They come first, once.
    sparse: VecDeque<usize>,
    /// Had frames left at the end of their turn.
    bulk: VecDeque<usize>,
    /// Bitmap of the queues that are in `sparse` or `bulk`, or are being read.
    scheduled: u64,
}

impl Turns {
    pub(in super::super) fn new() -> Self {
        let list = || VecDeque::with_capacity(QUEUES_MAX);

        Self { sparse: list(), bulk: list(), scheduled: 0 }
    }

    /// A frame was added to `queue` since it was empty, or since this was last called.
    pub(in super::super) fn handle_readable(&mut self, queue: usize) {
        let bit = bit(queue);
        if self.scheduled & bit == 0 {
            self.scheduled |= bit;
            self.sparse.push_back(queue);
        }
    }

    /// The next turn; `None` if no queue has a frame. It ends with [`Self::handle_empty`] or [`Self::handle_rest`].
    pub(in super::super) fn next(&mut self) -> Option<Turn> {
        self.sparse.pop_front().or_else(|| self.bulk.pop_front()).map(Turn::of)
    }

    /// The turn ended because `queue` is empty.
    pub(in super::super) fn handle_empty(&mut self, queue: usize) {
        self.scheduled &= !bit(queue);
    }

    /// The turn ended before `queue` was empty.
    pub(in super::super) fn handle_rest(&mut self, queue: usize) {
        self.bulk.push_back(queue);
    }

    /// Whether the next turn is of a queue that was full: others may have frames by now.
    pub(in super::super) fn is_bulk_next(&self) -> bool {
        self.sparse.is_empty() && !self.bulk.is_empty()
    }
}

fn bit(queue: usize) -> u64 {
    debug_assert!(queue < QUEUES_MAX, "{queue}");

    1 << (queue % QUEUES_MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::mem;

    use proptest::prelude::*;

    use super::*;

    const QUEUES: usize = 6;

    #[test]
    fn a_turn_ends_after_bytes_or_frames() {
        let mut long = Turn::of(0);
        assert!(long.handle_frame(TURN_BYTES - 1));
        assert!(!long.handle_frame(1));

        let mut short = Turn::of(0);
        assert_eq!((0..).take_while(|_| short.handle_frame(60)).count(), TURN_FRAMES - 1);
    }

    proptest! {
        #[test]
        fn sparse_queues_wait_for_one_bulk_turn(
            arrivals in prop::collection::vec((0..QUEUES, 1_usize..100), 1..200),
        ) {
            let mut turns = Turns::new();
            let mut frames = [0; QUEUES];
            // What the device would report.
            let mut readable = BTreeSet::new();
            // Turns of other full queues that each queue has waited for.
            let mut waited = [0; QUEUES];
            let mut arrivals = arrivals.into_iter();
            loop {
                let arrival = arrivals.next();
                if let Some((queue, count)) = arrival {
                    if frames[queue] == 0 {
                        waited[queue] = 0;
                    }
                    frames[queue] += count;
                    readable.insert(queue);
                }
                let is_bulk = turns.is_bulk_next();
                let Some(mut turn) = turns.next() else {
                    if readable.is_empty() && arrival.is_none() {
                        break;
                    }
                    mem::take(&mut readable).into_iter().for_each(|one| turns.handle_readable(one));
                    continue;
                };

                let queue = turn.queue;
                if frames[queue] == 0 {
                    // Reported once more before its last frame was read.
                    turns.handle_empty(queue);
                    continue;
                }
                let most = if is_bulk { QUEUES - 1 } else { 1 };
                prop_assert!(waited[queue] <= most, "{queue} waited for {}", waited[queue]);
                waited[queue] = 0;
                if is_bulk {
                    let others = (0..QUEUES).filter(|other| *other != queue && frames[*other] > 0);
                    others.for_each(|other| waited[other] += 1);
                }
                loop {
                    frames[queue] -= 1;
                    let has_room = turn.handle_frame(1000);
                    if frames[queue] == 0 {
                        turns.handle_empty(queue);
                        break;
                    }
                    if !has_room {
                        turns.handle_rest(queue);
                        break;
                    }
                }
                if turns.is_bulk_next() {
                    mem::take(&mut readable).into_iter().for_each(|one| turns.handle_readable(one));
                }
            }
            prop_assert_eq!(frames, [0; QUEUES]);
        }
    }
}
