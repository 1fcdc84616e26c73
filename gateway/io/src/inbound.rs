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
use strait_engine::codel::Codel;
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
    let mut queue = SocketQueue::default();

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
            let marked = queue.marked(&buffer, count, now);
            if openers.has_backlog(count) {
                direction.handle_backlog(&mut buffer, count, marked, &mut openers, now);
            } else {
                for number in 0..count {
                    direction.handle(&buffer, number, marked == Some(number), now);
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

/// The receive buffer of the socket, as a queue whose length is controlled.
#[derive(Default)]
struct SocketQueue(Codel);

impl SocketQueue {
    /// Which of the `count` messages that were received at `now` to mark as congested: the one with the most datagrams,
    /// which are of a flow that fills the queue.
    fn marked(&mut self, buffer: &ReceiveBuffer, count: usize, now: Instant) -> Option<usize> {
        if !buffer.is_full() {
            self.0.handle_empty();
            return None;
        }
        let sojourn = buffer.sojourn(clock::wall())?;
        if !self.0.handle_packet(sojourn, now) {
            return None;
        }

        buffer.longest(count)
    }
}

/// The engine and the batch of the thread.
struct Direction<'a> {
    shared: &'a Shared,
    inbound: Inbound,
    relay: Relay,
    batch: TransmitBatch,
}

impl Direction<'_> {
    /// Handles message `number`; if it `is_marked`, its first datagram is marked as congested.
    fn handle(&mut self, buffer: &ReceiveBuffer, number: usize, is_marked: bool, now: Instant) {
        // What is relayed fills it.
        if !self.batch.has_room(MAX_MESSAGE_BYTES) {
            self.send();
        }
        let Self { inbound, relay, batch, .. } = self;
        let Some(received) = buffer.message(number) else { return };
        let handshake = |message: &_, path| relay.push(message, path);
        if is_marked {
            inbound.handle_congested(received, now, batch, handshake);
        } else {
            inbound.handle_datagrams(received, now, batch, handshake);
        }
    }

    /// Queues what workers can open, and keeps the order.
    fn handle_backlog(
        &mut self,
        buffer: &mut ReceiveBuffer,
        count: usize,
        marked: Option<usize>,
        openers: &mut Openers<'_>,
        now: Instant,
    ) {
        for number in 0..count {
            let Some(received) = buffer.message(number) else { continue };
            let is_marked = marked == Some(number);
            let job = if is_marked { None } else { self.inbound.handle_backlog(&received, now) };
            let is_pushed = job.zip(buffer.part_mut(number)).is_some_and(|(job, part)| {
                openers.push(job, part, |slot| self.handle_opened(slot))
            });
            if !is_pushed {
                openers.finish(|slot| self.handle_opened(slot));
                self.handle(buffer, number, is_marked, now);
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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;
    use std::thread;
    use std::time::Duration;

    use strait_engine::inbound::MAX_MESSAGES;

    use super::*;
    use crate::{Offload, sys};

    /// Longer than the target, and than the interval.
    const LONG: Duration = Duration::from_millis(20);

    /// With datagrams that waited in the receive buffer of a socket.
    #[test]
    fn a_long_queue_marks_its_longest_message() {
        let udp = Udp::bind(0, Offload::default()).unwrap();
        assert!(udp.coalesces(), "the kernel merges datagrams");
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = ReceiveBuffer::new();
        let mut queue = SocketQueue::default();
        let mut marked = |messages| {
            for message in 0..messages {
                let datagrams = if message == 5 { 3 } else { 1 };
                let segment = if datagrams > 1 { 100 } else { 0 };
                sys::set_option(client.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, segment).unwrap();
                client.send_to(&[4; 300][..100 * datagrams], ("127.0.0.1", udp.port())).unwrap();
            }
            thread::sleep(LONG);
            let count = udp.receive(&mut buffer).unwrap();
            assert_eq!(count, messages);
            queue.marked(&buffer, count, clock::now())
        };

        // The kernel begins to note times a moment after it was asked to.
        let begins = (0..100).position(|_| marked(MAX_MESSAGES).is_some());
        assert!(begins.is_some_and(|calls| calls > 0), "{begins:?}");
        assert_eq!(marked(MAX_MESSAGES), Some(5));

        // These waited for this thread only.
        let marks = [(); 5].map(|()| marked(MAX_MESSAGES - 1));
        assert_eq!(marks, [None; 5]);
        assert_eq!(marked(MAX_MESSAGES), None);
    }
}
