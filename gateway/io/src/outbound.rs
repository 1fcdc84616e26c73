//! The thread from the cluster to the tunnel.
//!
//! A sealed frame of 64 KiB is a little longer than one send. The rest waits for the next frame, if the device has one,
//! instead of being sent as a few datagrams of its own. Compared with sending it at once (14 pairs of runs, both
//! gateways on two shared cores of a Xeon): 44 % fewer calls of `sendmsg`, 5.7 % more throughput of one TCP stream,
//! 5.7 % less CPU per GB. Moving the rest to the start of the batch each time: 1.7 % less CPU per GB.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock;
use super::edge::{Edge as _, FrameBuffer, FrameReader, Read};
use super::pool::Sealers;
use super::tun::turns::{Turn, Turns};
use super::worker::{ExitGuard, Shared, Sink, Wait, start};
use strait_engine::Outbound;
use strait_engine::outbound::{Disposition, Unread};
use strait_packet::buffer::TransmitBatch;
use strait_packet::virtio::VirtioHeader;

/// A batch with this many bytes is sent even if the device has more frames: a full send. What does not fill another
/// send stays for the next frame.
const FLUSH_AT_BYTES: usize = 60 * 1024;

/// A waiting batch is sent after this many frames that added nothing to it: they may be all that the device has for a
/// long time.
const MAX_FRUITLESS_FRAMES: u32 = 16;

/// Runs the thread until it is stopped or `reader` fails. Under backlog up to `workers` more threads seal for it.
pub(super) fn run(
    shared: &Arc<Shared>,
    outbound: Outbound,
    mut reader: impl FrameReader,
    mut wait: Wait,
    workers: usize,
) -> Outbound {
    let _guard = ExitGuard(shared);
    let mut frame = FrameBuffer::new();
    let start = |worker| start(shared, "sealer", worker);
    let sealers = Sealers::new(workers, Arc::clone(&shared.accounts.outbound), &start);
    let mut direction = Direction::new(outbound, sealers, &**shared);
    let mut turns = Turns::new();

    while !shared.is_stopping() {
        wait.wait();
        direction.outbound.set_mtu(shared.edge.mtu());
        wait.readable().for_each(|queue| turns.handle_readable(queue));
        while !shared.is_stopping() {
            let Some(turn) = turns.next() else {
                if !direction.advance() {
                    break;
                }
                look(&mut wait, &mut turns);
                continue;
            };
            match read_turn(shared, &mut reader, turn, &mut frame, &mut direction) {
                Ok(true) => turns.handle_empty(turn.queue),
                Ok(false) => turns.handle_rest(turn.queue),
                Err(error) => {
                    direction.handle_idle();
                    tracing::error!(%error, "the cluster side cannot be read any more");
                    return direction.outbound;
                }
            }
            if turns.is_bulk_next() {
                look(&mut wait, &mut turns);
            }
        }
        direction.handle_idle();
    }

    direction.outbound
}

/// Notes which queues have frames by now.
fn look(wait: &mut Wait, turns: &mut Turns) {
    wait.wait_for(Duration::ZERO);
    wait.readable().for_each(|queue| turns.handle_readable(queue));
}

/// Reads a queue for a turn. Returns whether it is empty.
fn read_turn(
    shared: &Shared,
    reader: &mut impl FrameReader,
    mut turn: Turn,
    frame: &mut FrameBuffer,
    direction: &mut Direction<'_, Shared>,
) -> io::Result<bool> {
    loop {
        let len = match reader.read(turn.queue, frame) {
            Ok(Read::Packet(virtio, len)) => {
                handle(shared, &virtio, len, frame, direction);
                len
            }
            Ok(Read::Unread(unread)) => {
                direction.handle_unread(unread);
                0
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        if !turn.handle_frame(len) {
            return Ok(false);
        }
    }
}

/// Handles the packet of `len` bytes in `frame`.
#[inline]
fn handle(
    shared: &Shared,
    virtio: &VirtioHeader,
    len: usize,
    frame: &mut FrameBuffer,
    direction: &mut Direction<'_, Shared>,
) {
    let disposition = direction.handle_frame(virtio, frame, len, clock::now());
    let outbound = &direction.outbound;
    match disposition {
        Disposition::Taken => {}
        Disposition::Hairpin => {
            let packet = frame.packet_mut().get_mut(..len).unwrap_or_default();
            let write = |virtio: &_, packet: &_| shared.edge.write(virtio, packet);
            outbound.handle_hairpin(virtio, packet, write);
        }
        Disposition::Reply => {
            let reply = outbound.reply();
            let is_written = shared.edge.write(&VirtioHeader::default(), reply).is_ok();
            outbound.handle_reply(is_written);
        }
    }
}

/// The engine, the workers and the batch of the thread.
pub(super) struct Direction<'a, S> {
    outbound: Outbound,
    sealers: Sealers<'a>,
    batch: TransmitBatch,
    /// Frames that added nothing to the waiting batch.
    fruitless_frames: u32,
    sink: &'a S,
}

impl<'a, S: Sink> Direction<'a, S> {
    pub(super) fn new(outbound: Outbound, sealers: Sealers<'a>, sink: &'a S) -> Self {
        Self { outbound, sealers, batch: TransmitBatch::default(), fruitless_frames: 0, sink }
    }

    /// Handles the packet of `len` bytes in `frame`. If it is [taken](Disposition::Taken), `frame` may be replaced by
    /// another buffer.
    #[inline]
    pub(super) fn handle_frame(
        &mut self,
        virtio: &VirtioHeader,
        frame: &mut FrameBuffer,
        len: usize,
        now: Instant,
    ) -> Disposition {
        let Self { outbound, sealers, batch, sink, .. } = self;
        let send = |batch: &mut TransmitBatch| sink.send_all(batch);
        let packet = frame.packet_mut().get_mut(..len).unwrap_or_default();
        let before = batch.len();

        let mut job = None;
        let mut handled = if sealers.has_backlog() {
            outbound.handle_backlog(virtio, packet, now, batch, &mut job)
        } else {
            outbound.handle_frame(virtio, packet, now, batch)
        };
        while handled.is_incomplete() {
            sealers.finish(send);
            send(batch);
            handled.resume(now, batch);
        }
        let disposition = handled.disposition();

        if let Some(job) = job {
            sealers.push(job, frame, batch, send);
        } else if batch.unsent_bytes() >= FLUSH_AT_BYTES {
            if sealers.is_empty() {
                sink.send_complete(batch);
            } else {
                sealers.push_batch(batch, send);
            }
        } else if batch.len() == before {
            self.handle_fruitless();
        }

        disposition
    }

    /// What was read is no packet to forward.
    pub(super) fn handle_unread(&mut self, unread: Unread) {
        self.outbound.handle_unread(unread);
        self.handle_fruitless();
    }

    /// The device has no frame: takes one step with the queued frames. Returns `false` if none is queued.
    pub(super) fn advance(&mut self) -> bool {
        self.sealers.advance(|batch| self.sink.send_all(batch))
    }

    /// The device has no frame, or is gone: sends everything that waits.
    pub(super) fn handle_idle(&mut self) {
        self.finish();
        self.sealers.end_backlog();
    }

    #[cold]
    fn handle_fruitless(&mut self) {
        if self.batch.is_empty() && self.sealers.is_empty() {
            return;
        }
        self.fruitless_frames += 1;
        if self.fruitless_frames >= MAX_FRUITLESS_FRAMES {
            self.finish();
        }
    }

    fn finish(&mut self) {
        self.sealers.finish(|batch| self.sink.send_all(batch));
        self.sink.send_all(&mut self.batch);
        self.fruitless_frames = 0;
    }
}
