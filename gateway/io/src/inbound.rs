//! The thread from the tunnel to the cluster.
//!
//! Measured and rejected (one TCP stream, both gateways on two shared cores of a Xeon):
//!
//! - Writing to the device as soon as one frame is opened, instead of after all messages of a call: the receiver wakes
//!   earlier and more often, 9 % more CPU per byte, 10 % less throughput (twelve pairs of runs).
//! - Receiving at most two messages a call: 4 % more CPU. At most sixteen: no gain over eight (eight pairs each).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::clock;
use super::edge::{Edge as _, EdgeSink};
use super::handshakes::Relay;
use super::pool::Openers;
use super::pool::openers::OpenSlot;
use super::udp::{ReceiveBuffer, Udp};
use super::worker::{ExitGuard, ReceiveErrors, Shared, Sink as _, Wait, start};
use strait_engine::Inbound;
use strait_engine::inbound::MAX_MESSAGE_BYTES;
use strait_packet::buffer::TransmitBatch;

/// Runs the thread until it is stopped. `wait` waits for `udp`, which may already be replaced when the thread starts.
///
/// Under backlog up to `workers` more threads open for it.
pub(super) fn run(
    shared: &Arc<Shared>,
    inbound: Inbound,
    mut udp: Arc<Udp>,
    mut wait: Wait,
    relay: Relay,
    workers: usize,
) -> Inbound {
    let _guard = ExitGuard(shared);
    let mut buffer = ReceiveBuffer::new();
    let mut direction = Direction { shared, inbound, relay, batch: TransmitBatch::default() };
    let start = |worker| start(shared, "opener", worker);
    let mut errors = ReceiveErrors::default();
    let mut openers = Openers::new(workers, Arc::clone(&shared.accounts.inbound), &start);

    while !shared.is_stopping() {
        wait.wait();
        while !shared.is_stopping() {
            // Even if the old socket has more to read: it may never run empty.
            if let Some(next) = shared.new_socket(&udp) {
                if let Err(error) = wait.switch(udp.sockets(), next.sockets()) {
                    tracing::error!(%error, "cannot wait for the new UDP socket");
                    return direction.inbound;
                }
                udp = next;
            }
            let count = match udp.receive(&mut buffer) {
                Ok(count) => {
                    errors.handle_success();
                    count
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    errors.handle_success();
                    if !openers.advance(|slot| direction.handle_opened(slot)) {
                        break;
                    }
                    direction.send();
                    continue;
                }
                Err(error) if errors.handle_error(&error) => continue,
                Err(_) => return direction.inbound,
            };
            let now = clock::now();
            direction.inbound.set_merge(shared.edge.merge());
            if openers.has_backlog(count) {
                direction.handle_backlog(&mut buffer, count, &mut openers, now);
            } else {
                for number in 0..count {
                    direction.handle(&buffer, number, now);
                }
            }
            direction.relay.wake();
            shared.edge.write_all(&mut direction.inbound);
            direction.send();
        }
        openers.finish(|slot| direction.handle_opened(slot));
        openers.end_backlog();
        direction.send();
    }

    direction.inbound
}

/// The engine and the batch of the thread.
struct Direction<'a> {
    shared: &'a Shared,
    inbound: Inbound,
    relay: Relay,
    batch: TransmitBatch,
}

impl Direction<'_> {
    fn handle(&mut self, buffer: &ReceiveBuffer, number: usize, now: Instant) {
        // What is relayed fills it.
        if !self.batch.has_room(MAX_MESSAGE_BYTES) {
            self.send();
        }
        let Self { inbound, relay, batch, .. } = self;
        if let Some(received) = buffer.message(number) {
            inbound
                .handle_datagrams(received, now, batch, |message, path| relay.push(message, path));
        }
    }

    /// Queues what workers can open, and keeps the order.
    fn handle_backlog(
        &mut self,
        buffer: &mut ReceiveBuffer,
        count: usize,
        openers: &mut Openers<'_>,
        now: Instant,
    ) {
        for number in 0..count {
            let Some(received) = buffer.message(number) else { continue };
            let job = self.inbound.handle_backlog(&received, now);
            let is_pushed = job.zip(buffer.part_mut(number)).is_some_and(|(job, part)| {
                openers.push(job, part, |slot| self.handle_opened(slot))
            });
            if !is_pushed {
                openers.finish(|slot| self.handle_opened(slot));
                self.handle(buffer, number, now);
            }
        }
    }

    /// Translates and writes an opened message.
    fn handle_opened(&mut self, slot: &mut OpenSlot) {
        let Self { shared, inbound, batch, .. } = self;
        let Some((job, buffer, opened)) = slot.take() else { return };

        let mut sink = EdgeSink(&shared.edge);
        inbound.handle_opened(job, buffer, opened, clock::now(), batch, &mut sink);
    }

    fn send(&mut self) {
        self.shared.send_all(&mut self.batch);
    }
}
