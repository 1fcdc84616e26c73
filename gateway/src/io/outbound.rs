//! The thread from the cluster to the tunnel.

use std::io;
use std::sync::Arc;

use super::clock;
use super::pool::Sealers;
use super::tun::FrameBuffer;
use super::worker::{Alive, Shared, Wait, start};
use crate::buffer::TransmitBatch;
use crate::engine::Outbound;
use crate::engine::outbound::Disposition;
use crate::packet::virtio::VirtioHeader;

/// A batch goes out when it holds this much, even if more frames wait: a full send.
const FLUSH_AT_BYTES: usize = 60 * 1024;

/// Cluster to tunnel, until stopped or until the device is gone.
///
/// With backlog up to `workers` more threads seal for it.
pub(super) fn run(shared: &Arc<Shared>, mut outbound: Outbound, mut wait: Wait, workers: usize) {
    let _alive = Alive(shared);
    let mut frame = FrameBuffer::new();
    let mut batch = TransmitBatch::default();
    let send = |batch: &mut TransmitBatch| shared.send_all(batch);
    let start = |worker| start(shared, "sealer", worker);
    let mut sealers = Sealers::new(workers, Arc::clone(&shared.accounts.outbound), &start);

    while !shared.is_stopping() {
        wait.wait();
        while !shared.is_stopping() {
            match shared.tun.read(&mut frame) {
                Ok(Some((virtio, packet))) => {
                    let now = clock::now();
                    let mut job = None;
                    let disposition = if sealers.is_engaged() {
                        let out = (&mut batch, &mut job);
                        outbound.handle_backlog(&virtio, packet, now, out, |batch| {
                            sealers.finish(send);
                            send(batch);
                        })
                    } else {
                        outbound.handle_frame(&virtio, packet, now, &mut batch, send)
                    };
                    match disposition {
                        Disposition::Taken => {}
                        Disposition::Hairpin => {
                            let is_written = shared.tun.write(&virtio, packet);
                            outbound.handle_hairpin(packet, is_written);
                        }
                        Disposition::Reply => {
                            let reply = outbound.reply();
                            let is_written = shared.tun.write(&VirtioHeader::default(), reply);
                            outbound.handle_reply(is_written);
                        }
                    }
                    if let Some(job) = job {
                        sealers.push(job, &mut frame, &mut batch, send);
                    } else if batch.len() >= FLUSH_AT_BYTES {
                        sealers.place(&mut batch, send);
                    }
                }
                Ok(None) => outbound.handle_unreadable_frame(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !sealers.advance(send) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "the TUN device cannot be read any more");
                    return;
                }
            }
        }
        sealers.finish(send);
        sealers.rest();
        send(&mut batch);
    }
}
