//! The thread for handshakes and time.
//!
//! It receives handshakes from sockets of their own, or gets them from the inbound thread, if they came
//! to its socket (see [`steering`](super::steering)). In a flood it looks once in eight milliseconds, so that
//! neither the kernel nor the inbound thread wakes anybody, and takes no more than a part of a core.

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
use super::worker::{Alive, ReceiveErrors, Shared, Sink as _, Wait};
use strait_engine::Handshakes;
use strait_packet::buffer::TransmitBatch;
use strait_packet::counters::as_u64;
use strait_packet::path::Path;
use strait_wg::message::MAX_HANDSHAKE_BYTES;

/// How often the timers of all peers are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Messages that the inbound thread may have handed on: a flood of half a million a second for half a [`PERIOD`] and as
/// long again as the scheduler may let this thread wait. The ring takes memory only where messages have been.
const QUEUE_LEN: usize = 4096;

/// Messages of the inbound thread that are looked at before the socket and the clock are again.
const BATCH_LEN: usize = 64;

/// In a flood this thread begins to look once in so long: to be woken for each message costs more
/// than the message does, and to interrupt those that carry packets costs them more than the time it takes. The
/// receive buffers hold what comes meanwhile.
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

/// By which the inbound thread hands on messages.
#[derive(Debug)]
pub(super) struct Relay {
    queue: Producer<Message>,
    waker: Arc<Waker>,
    is_flood: Arc<AtomicBool>,
    /// Whether anything was handed on since [`Self::wake`].
    is_used: bool,
}

/// The other end.
#[derive(Debug)]
pub(super) struct Queue {
    messages: Consumer<Message>,
    is_flood: Arc<AtomicBool>,
}

/// A way for messages to the thread that `waker` wakes.
pub(super) fn relay(waker: &Arc<Waker>) -> (Relay, Queue) {
    let (queue, messages) = RingBuffer::new(QUEUE_LEN);
    let is_flood = Arc::new(AtomicBool::new(false));
    let relay =
        Relay { queue, waker: Arc::clone(waker), is_flood: Arc::clone(&is_flood), is_used: false };

    (relay, Queue { messages, is_flood })
}

impl Relay {
    /// Says whether there was room.
    pub(super) fn push(&mut self, message: &[u8], path: Path) -> bool {
        let is_taken =
            Message::new(message, path).is_some_and(|message| self.queue.push(message).is_ok());
        self.is_used |= is_taken;

        is_taken
    }

    /// Lets the other end look, unless it does so anyway. Call it when all is pushed.
    pub(super) fn wake(&mut self) {
        // If the flood ends at this very moment, what was pushed waits for the next tick.
        if mem::take(&mut self.is_used) && !self.is_flood.load(Ordering::Relaxed) {
            // Who cannot be woken looks with the next tick.
            let _ = self.waker.wake();
        }
    }
}

/// Handshakes and timers, until stopped. `wait` waits for what `udp`
/// gets of them, which may be in use no more when the thread begins.
pub(super) fn run(
    shared: &Shared,
    mut handshakes: Handshakes,
    (mut udp, mut wait): (Arc<Udp>, Wait),
    mut queue: Queue,
) {
    let _alive = Alive(shared);
    let mut buffer = HandshakeBuffer::new();
    let mut batch = TransmitBatch::default();
    let mut next_tick = clock::now();
    let mut next_look = next_tick;
    let mut pace = Pace::default();
    let mut errors = Steered::ALL.map(|_| ReceiveErrors::default());
    let mut lost = udp.lost_handshakes();

    while !shared.is_stopping() {
        if let Some(next) = shared.successor(&udp) {
            if let Err(error) = wait.follow(udp.handshakes(), next.handshakes()) {
                tracing::error!(%error, "cannot wait for the new UDP socket");
                return;
            }
            udp = next;
            lost = udp.lost_handshakes();
        }
        let now = clock::now();
        if now >= next_tick || shared.is_hurried.swap(false, Ordering::Relaxed) {
            let before = mem::replace(&mut lost, udp.lost_handshakes());
            let lost = lost.wrapping_sub(before);
            handshakes.handle_lost(lost);
            handshakes.handle_wall_clock(clock::epoch());
            pace.handle_tick(lost);
            queue.is_flood.store(pace.is_flood, Ordering::Relaxed);
            if shared.begins_sessions.load(Ordering::Relaxed) {
                handshakes.handle_timeout(now, &mut batch, |batch| shared.send_all(batch));
            } else {
                handshakes.handle_passive_timeout(now);
            }
            shared.send_all(&mut batch);
            next_tick = now + TICK;
        }

        let mut count = 0;
        for (steered, errors) in Steered::ALL.into_iter().zip(&mut errors) {
            let received = match udp.receive_handshakes(steered, &mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    errors.handle_success();
                    continue;
                }
                Err(error) if errors.handle_error(&error) => continue,
                Err(_) => return,
            };
            errors.handle_success();
            count += received;
            for received in buffer.received(received) {
                handshakes.handle_datagrams(received, now, &mut batch);
                // Cookie replies to one address and port leave together.
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
            Next::Look => {}
            Next::Pause => {
                let now = clock::now();
                thread::sleep(next_look.saturating_duration_since(now));
                next_look = now.max(next_look) + PERIOD;
            }
            Next::Wait => wait.wait_for(next_tick.saturating_duration_since(clock::now())),
        }
    }
}

/// How fast messages come, and what to do about it.
#[derive(Debug, Default)]
struct Pace {
    in_tick: usize,
    since_pause: usize,
    is_flood: bool,
    exceeds_answers: bool,
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Looks whether there is more.
    Look,
    /// Leaves it alone for the rest of a [`PERIOD`].
    Pause,
    /// Waits until there is more.
    Wait,
}

impl Pace {
    /// More than so many within a [`TICK`] are a flood: five thousand a second.
    const BEGINS_ABOVE: usize = 500;

    /// With fewer than so many it is over.
    const ENDS_BELOW: usize = 250;

    /// So many are taken in a [`PERIOD`] of a flood: 128,000 a second, a few more than are all answered.
    const IN_PERIOD: usize = 1024;

    /// The same if more than those come, of which few are answered: what the receive buffer does not hold, the kernel
    /// drops, which costs this thread nothing.
    const IN_PERIOD_AT_MOST: usize = 512;

    /// More than so many within a [`TICK`] are more than [`Self::IN_PERIOD`].
    const EXCEEDS_ABOVE: u64 = 12_800;

    /// So many messages came at once.
    fn handle_batch(&mut self, count: usize) -> Next {
        self.in_tick = self.in_tick.saturating_add(count);
        self.since_pause = self.since_pause.saturating_add(count);
        let limit = if self.exceeds_answers { Self::IN_PERIOD_AT_MOST } else { Self::IN_PERIOD };
        let is_enough = count == 0 || self.since_pause >= limit;

        match (self.is_flood, count) {
            (true, _) if is_enough => {
                self.since_pause = 0;
                Next::Pause
            }
            (false, 0) => Next::Wait,
            _ => Next::Look,
        }
    }

    /// A [`TICK`] is over, within which the kernel has dropped `lost` messages.
    fn handle_tick(&mut self, lost: u32) {
        let limit = if self.is_flood { Self::ENDS_BELOW } else { Self::BEGINS_ABOVE + 1 };
        let taken = mem::take(&mut self.in_tick);
        self.is_flood = taken >= limit;
        self.exceeds_answers = as_u64(taken) + u64::from(lost) > Self::EXCEEDS_ABOVE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_begins_above_one_rate_and_ends_below_another() {
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
    fn only_in_a_flood_there_are_pauses_and_never_many_messages_between_two() {
        let mut pace = Pace::default();

        assert_eq!(pace.handle_batch(0), Next::Wait);
        assert!((0..100).all(|_| pace.handle_batch(32) == Next::Look));
        for (lost, in_period) in [(0, 1024), (9_000, 512), (8_000, 1024)] {
            pace.handle_tick(lost);
            assert_eq!(pace.handle_batch(0), Next::Pause, "no message has to wake it");
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
