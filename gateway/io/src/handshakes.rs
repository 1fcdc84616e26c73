//! The thread for handshakes and timers.
//!
//! It receives handshake messages from sockets of their own, or from the inbound thread if they arrived on its socket
//! (see [`steering`](super::steering)). During a flood it polls every eight milliseconds: neither the kernel nor the
//! inbound thread wakes it, and it uses only a part of a core.

use std::io;
use std::iter;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use mio::Waker;
use rtrb::{Consumer, Producer, RingBuffer};

use super::clock;
use super::steering::Steered;
use super::udp::{HandshakeBuffer, Udp};
use super::worker::{ExitGuard, ReceiveErrors, Shared, Sink as _, Wait};
use strait_engine::Handshakes;
use strait_packet::buffer::TransmitBatch;
use strait_packet::counters::as_u64;
use strait_packet::path::Path;
use strait_wg::message::MAX_HANDSHAKE_BYTES;

/// How often the timers of all peers run.
const TICK: Duration = Duration::from_millis(100);

/// Capacity of the queue from the inbound thread: a flood of half a million messages a second for half a [`PERIOD`], and
/// for as long again in which the scheduler may delay this thread. The ring uses memory only where messages have been.
const QUEUE_LEN: usize = 4096;

/// Messages of the inbound thread that are handled before the sockets and the clock are checked again.
const BATCH_LEN: usize = 64;

/// Poll interval of this thread during a flood. A wake-up for each message costs more than the message, and interrupts
/// the packet threads. The receive buffers hold what arrives in between.
const PERIOD: Duration = Duration::from_millis(8);

/// A handshake message on its way from the inbound thread.
#[derive(Debug)]
pub(super) struct Message {
    bytes: [u8; MAX_HANDSHAKE_BYTES],
    len: usize,
    path: Path,
}

impl Message {
    fn new(message: &[u8], path: Path) -> Option<Self> {
        let mut bytes = [0; MAX_HANDSHAKE_BYTES];
        bytes.get_mut(..message.len())?.copy_from_slice(message);

        Some(Self { bytes, len: message.len(), path })
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The sending half of the queue of messages, for the inbound thread.
#[derive(Debug)]
pub(super) struct Relay {
    queue: Producer<Message>,
    waker: Arc<Waker>,
    is_flood: Arc<AtomicBool>,
    /// Whether a message was pushed since the last [`Self::wake`].
    is_used: bool,
}

/// The receiving half, for the handshake thread.
#[derive(Debug)]
pub(super) struct Queue {
    messages: Consumer<Message>,
    is_flood: Arc<AtomicBool>,
}

/// Creates a queue of messages for the thread that `waker` wakes.
pub(super) fn relay(waker: &Arc<Waker>) -> (Relay, Queue) {
    let (queue, messages) = RingBuffer::new(QUEUE_LEN);
    let is_flood = Arc::new(AtomicBool::new(false));
    let relay =
        Relay { queue, waker: Arc::clone(waker), is_flood: Arc::clone(&is_flood), is_used: false };

    (relay, Queue { messages, is_flood })
}

impl Relay {
    /// Queues a message. Returns whether there was room.
    pub(super) fn push(&mut self, message: &[u8], path: Path) -> bool {
        let is_taken =
            Message::new(message, path).is_some_and(|message| self.queue.push(message).is_ok());
        self.is_used |= is_taken;

        is_taken
    }

    /// Wakes the handshake thread, unless it polls. Call it after the last [`Self::push`] of a batch.
    pub(super) fn wake(&mut self) {
        // If the flood ends at this moment, the messages wait for the next tick.
        if mem::take(&mut self.is_used) && !self.is_flood.load(Ordering::Relaxed) {
            // A thread that cannot be woken reads the queue at the next tick.
            let _ = self.waker.wake();
        }
    }
}

/// Runs the thread until it is stopped. `wait` waits for the handshake sockets of `udp`, which may already be replaced
/// when the thread starts.
pub(super) fn run(
    shared: &Shared,
    mut handshakes: Handshakes,
    mut udp: Arc<Udp>,
    mut wait: Wait,
    mut queue: Queue,
) -> (Handshakes, Queue) {
    let _guard = ExitGuard(shared);
    let mut buffer = HandshakeBuffer::new();
    let mut batch = TransmitBatch::default();
    let mut next_tick = clock::now();
    let mut next_poll = next_tick;
    let mut pace = Pace::default();
    let mut errors = Steered::ALL.map(|_| ReceiveErrors::default());
    let mut dropped = udp.dropped_handshakes();

    while !shared.is_stopping() {
        if let Some(next) = shared.new_socket(&udp) {
            if let Err(error) = wait.switch(udp.handshakes(), next.handshakes()) {
                tracing::error!(%error, "cannot wait for the new UDP socket");
                return (handshakes, queue);
            }
            udp = next;
            dropped = udp.dropped_handshakes();
        }
        let now = clock::now();
        if now >= next_tick || shared.runs_timers_now.swap(false, Ordering::Relaxed) {
            let before = mem::replace(&mut dropped, udp.dropped_handshakes());
            let lost = dropped.wrapping_sub(before);
            handshakes.handle_lost(lost);
            handshakes.handle_wall_clock(clock::epoch());
            pace.handle_tick(lost);
            queue.is_flood.store(pace.is_flood, Ordering::Relaxed);
            if shared.is_initiating.load(Ordering::Relaxed) {
                let mut scan = handshakes.handle_timeout(now);
                while scan.fill(&mut batch) {
                    shared.send_all(&mut batch);
                }
            } else {
                handshakes.handle_passive_timeout(now);
            }
            shared.send_all(&mut batch);
            next_tick = now + TICK;
        }
        while handshakes.send_copies(now, &mut batch) {
            shared.send_all(&mut batch);
        }
        shared.send_all(&mut batch);

        let mut count = 0;
        for (steered, errors) in Steered::ALL.into_iter().zip(&mut errors) {
            let received = match udp.receive_handshakes(steered, &mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    errors.handle_success();
                    continue;
                }
                Err(error) if errors.handle_error(&error) => continue,
                Err(_) => return (handshakes, queue),
            };
            errors.handle_success();
            count += received;
            for received in buffer.received(received) {
                handshakes.handle_datagrams(received, now, &mut batch);
                // Cookie replies to one endpoint are sent together.
                shared.send_complete(&mut batch);
            }
            shared.send_all(&mut batch);
        }
        for message in iter::from_fn(|| queue.messages.pop().ok()).take(BATCH_LEN) {
            count += 1;
            handshakes.handle_message(message.bytes(), message.path, now, &mut batch);
            shared.send_all(&mut batch);
        }
        match pace.handle_batch(count) {
            Next::Poll => {}
            Next::Pause => {
                let now = clock::now();
                thread::sleep(next_poll.saturating_duration_since(now));
                next_poll = now.max(next_poll) + PERIOD;
            }
            Next::Wait => {
                let until = handshakes.next_copy().map_or(next_tick, |copy| next_tick.min(copy));
                wait.wait_for(until.saturating_duration_since(clock::now()));
            }
        }
    }

    (handshakes, queue)
}

impl Queue {
    /// Handles the messages that are left after the threads have ended.
    pub(super) fn finish(mut self, shared: &Shared, handshakes: &mut Handshakes) {
        let mut batch = TransmitBatch::default();
        while let Ok(message) = self.messages.pop() {
            handshakes.handle_message(message.bytes(), message.path, clock::now(), &mut batch);
            shared.send_all(&mut batch);
        }
    }
}

/// The rate of messages, and how the thread reacts to it.
#[derive(Debug, Default)]
struct Pace {
    in_tick: usize,
    since_pause: usize,
    is_flood: bool,
    is_overloaded: bool,
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Receives again at once.
    Poll,
    /// Sleeps for the rest of the [`PERIOD`].
    Pause,
    /// Waits until a message arrives.
    Wait,
}

impl Pace {
    /// More messages than this in a [`TICK`] are a flood: five thousand a second.
    const BEGINS_ABOVE: usize = 500;

    /// A flood ends with a [`TICK`] of fewer messages than this.
    const ENDS_BELOW: usize = 250;

    /// Messages that are received in a [`PERIOD`] of a flood: 128,000 a second, slightly more than can all be answered.
    const PER_PERIOD: usize = 1024;

    /// The limit under overload, when few of the messages can be answered. The kernel drops what does not fit into the
    /// receive buffer, at no cost for this thread.
    const PER_PERIOD_OVERLOADED: usize = 512;

    /// More messages than this in a [`TICK`] are overload: more than [`Self::PER_PERIOD`] allows.
    const OVERLOADED_ABOVE: u64 = 12_800;

    /// Handles the receipt of `count` messages.
    fn handle_batch(&mut self, count: usize) -> Next {
        self.in_tick = self.in_tick.saturating_add(count);
        self.since_pause = self.since_pause.saturating_add(count);
        let limit = if self.is_overloaded { Self::PER_PERIOD_OVERLOADED } else { Self::PER_PERIOD };
        let is_enough = count == 0 || self.since_pause >= limit;

        match (self.is_flood, count) {
            (true, _) if is_enough => {
                self.since_pause = 0;
                Next::Pause
            }
            (false, 0) => Next::Wait,
            _ => Next::Poll,
        }
    }

    /// Ends a [`TICK`] in which the kernel dropped `lost` messages.
    fn handle_tick(&mut self, lost: u32) {
        let limit = if self.is_flood { Self::ENDS_BELOW } else { Self::BEGINS_ABOVE + 1 };
        let taken = mem::take(&mut self.in_tick);
        self.is_flood = taken >= limit;
        self.is_overloaded = as_u64(taken) + u64::from(lost) > Self::OVERLOADED_ABOVE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_begins_and_ends_with_hysteresis() {
        let mut pace = Pace::default();
        let mut tick = |count| {
            pace.handle_batch(count);
            pace.handle_tick(0);
            pace.is_flood
        };

        let counts = [0, 500, 501, 300, 250, 249, 250, 500, 20_000, 0];

        assert_eq!(
            counts.map(&mut tick),
            [false, false, true, true, true, false, false, false, true, false]
        );
    }

    #[test]
    fn a_flood_pauses_after_a_bounded_batch() {
        let mut pace = Pace::default();

        assert_eq!(pace.handle_batch(0), Next::Wait);
        assert!((0..100).all(|_| pace.handle_batch(32) == Next::Poll));
        for (lost, in_period) in [(0, 1024), (9_000, 512), (8_000, 1024)] {
            pace.handle_tick(lost);
            assert_eq!(pace.handle_batch(0), Next::Pause, "it polls during a flood");
            for _ in 0..4 {
                let between = (1..=200).find(|_| pace.handle_batch(32) == Next::Pause).unwrap();
                assert_eq!(between * 32, in_period);
            }
        }
        for _ in 0..2 {
            pace.handle_tick(0);
        }
        assert_eq!(pace.handle_batch(0), Next::Wait);
    }
}
