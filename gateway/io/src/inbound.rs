//! The thread from the tunnel to the cluster.
//!
//! Tried with one TCP stream, both gateways on two shared cores of a Xeon, and left out. Writing to the
//! device as soon as a frame's worth is opened, instead of when all messages of a call are (twelve
//! pairs of runs): the receiver wakes earlier and more often, CPU per byte rises by 9 %, throughput
//! falls by 10 %. Receiving at most two messages a call costs 4 % of CPU, at most sixteen gains nothing
//! over eight (eight pairs each).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::clock;
use super::handshakes::Relay;
use super::pool::Openers;
use super::pool::openers::Arrival;
use super::udp::{ReceiveBuffer, Udp};
use super::worker::{Alive, ReceiveErrors, Shared, Sink as _, Wait, start};
use strait_engine::Inbound;
use strait_packet::buffer::TransmitBatch;

/// Tunnel to cluster, until stopped. `wait` waits for `udp`, which may be in use no more when the thread
/// begins.
///
/// With backlog up to `workers` more threads open for it.
pub(super) fn run(
    shared: &Arc<Shared>,
    inbound: Inbound,
    (mut udp, mut wait): (Arc<Udp>, Wait),
    relay: Relay,
    workers: usize,
) {
    let _alive = Alive(shared);
    let mut buffer = ReceiveBuffer::new();
    let mut direction = Direction { shared, inbound, relay, batch: TransmitBatch::default() };
    let start = |worker| start(shared, "opener", worker);
    let mut errors = ReceiveErrors::default();
    let mut openers = Openers::new(workers, Arc::clone(&shared.accounts.inbound), &start);

    while !shared.is_stopping() {
        wait.wait();
        while !shared.is_stopping() {
            // Also while the one before has something to read: it may never have nothing.
            if let Some(next) = shared.successor(&udp) {
                if let Err(error) = wait.follow(udp.sockets(), next.sockets()) {
                    tracing::error!(%error, "cannot wait for the new UDP socket");
                    return;
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
                    if !openers.advance(|arrival| direction.hand_on(arrival)) {
                        break;
                    }
                    direction.send();
                    continue;
                }
                Err(error) if errors.handle_error(&error) => continue,
                Err(_) => return,
            };
            let now = clock::now();
            direction.inbound.set_merge(shared.tun.merge());
            if openers.is_engaged(count) {
                direction.handle_backlog(&mut buffer, count, &mut openers, now);
            } else {
                for number in 0..count {
                    direction.handle(&buffer, number, now);
                }
            }
            direction.relay.wake();
            shared.tun.write_all(&mut direction.inbound);
            direction.send();
        }
        openers.finish(|arrival| direction.hand_on(arrival));
        openers.rest();
        direction.send();
    }
}

/// What the thread carries messages through.
struct Direction<'a> {
    shared: &'a Shared,
    inbound: Inbound,
    relay: Relay,
    batch: TransmitBatch,
}

impl Direction<'_> {
    fn handle(&mut self, buffer: &ReceiveBuffer, number: usize, now: Instant) {
        let Self { inbound, relay, batch, .. } = self;
        if let Some(received) = buffer.message(number) {
            inbound
                .handle_datagrams(received, now, batch, |message, path| relay.push(message, path));
        }
    }

    /// Has others open what they can, and keeps the order.
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
                openers.push(job, part, |arrival| self.hand_on(arrival))
            });
            if !is_pushed {
                openers.finish(|arrival| self.hand_on(arrival));
                self.handle(buffer, number, now);
            }
        }
    }

    /// Translates and writes what was opened.
    fn hand_on(&mut self, arrival: &mut Arrival) {
        let Self { shared, inbound, batch, .. } = self;
        let Some((job, buffer, opened)) = arrival.take() else { return };

        inbound.handle_opened(
            job,
            buffer,
            opened,
            clock::now(),
            batch,
            |frame, bytes, accounts| {
                shared.tun.write_frame(frame, bytes, accounts);
            },
        );
    }

    fn send(&mut self) {
        self.shared.send_all(&mut self.batch);
    }
}
