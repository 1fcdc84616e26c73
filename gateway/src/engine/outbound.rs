//! Cluster to tunnel: classify, remap the destination, rewrite once, choose the peer, segment, seal.

use std::sync::Arc;
use std::time::Instant;

use remap::Reader;

use super::Forwarding;
use super::flows::Flows;
use super::race;
use super::translate::{self, Context, Memory, Outgoing};
use crate::DropReason;
use crate::buffer::{Outer, TransmitBatch};
use crate::counters::{Counters, as_u64};
use crate::packet::segment::Segments;
use crate::packet::virtio::VirtioHeader;
use crate::packet::{Header, ecn};

/// The outbound direction. One thread owns it.
#[derive(Debug)]
pub struct Outbound {
    forwarding: Reader<Forwarding>,
    flows: Arc<Flows>,
    account: Arc<Counters>,
}

/// What is left to do for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Disposition {
    /// Nothing: it was sealed, staged or dropped.
    Taken,
    /// Write it back to the device, with the virtio header it came with, and report that to
    /// [`Outbound::handle_hairpin`]: it is for this cluster.
    Hairpin,
}

impl Outbound {
    pub(super) const fn new(
        forwarding: Reader<Forwarding>,
        flows: Arc<Flows>,
        account: Arc<Counters>,
    ) -> Self {
        Self { forwarding, flows, account }
    }

    /// Takes one frame as the device gave it: a virtio header, and a packet of up to 64 KiB that
    /// stands for as many segments as the header says.
    ///
    /// Sealed datagrams are appended to `out`. If it fills up in the middle of a frame, `flush` must
    /// empty it.
    pub fn handle_frame(
        &mut self,
        virtio: &VirtioHeader,
        frame: &mut [u8],
        now: Instant,
        out: &mut TransmitBatch,
        flush: impl FnMut(&mut TransmitBatch),
    ) -> Disposition {
        let Self { forwarding, flows, account } = self;

        let context = Context {
            forwarding: forwarding.load(),
            flows,
            memory: Memory::Updated,
            now: flows.tick(now),
        };
        match forward(context, account, virtio, frame, now, out, flush) {
            Ok(disposition) => disposition,
            Err(Dropped { reason, packets, bytes }) => {
                account.packets_in.add(packets);
                account.bytes_in.add(bytes);
                account.count_drops(reason, packets);
                Disposition::Taken
            }
        }
    }

    /// Counts a frame that was to be written back to the device, and was, or was not.
    pub fn handle_hairpin(&self, frame: &[u8], is_written: bool) {
        let Self { account, .. } = self;
        let bytes = as_u64(frame.len());

        account.packets_in.add(1);
        account.bytes_in.add(bytes);
        if is_written {
            account.packets_out.add(1);
            account.bytes_out.add(bytes);
        } else {
            account.count_drops(DropReason::WriteFailed, 1);
        }
    }

    /// Counts a frame whose virtio header makes no sense.
    pub fn handle_unreadable_frame(&self) {
        self.account.packets_in.add(1);
        self.account.count_drops(DropReason::Malformed, 1);
    }
}

/// A whole frame that goes nowhere.
struct Dropped {
    reason: DropReason,
    packets: u64,
    bytes: u64,
}

fn forward(
    context: Context<'_>,
    account: &Counters,
    virtio: &VirtioHeader,
    frame: &mut [u8],
    now: Instant,
    out: &mut TransmitBatch,
    mut flush: impl FnMut(&mut TransmitBatch),
) -> Result<Disposition, Dropped> {
    let bytes = as_u64(frame.len());
    let whole = |reason| Dropped { reason, packets: 1, bytes };

    let mut header = Header::parse(frame).map_err(|_| whole(DropReason::Malformed))?;
    let checksum = virtio.checksum(&header);
    let route = match translate::outbound(&context, frame, &mut header, checksum).map_err(whole)? {
        Outgoing::Peer(route) => route,
        Outgoing::Hairpin => return Ok(Disposition::Hairpin),
    };

    let outer_ecn = ecn::encapsulate(header.ecn());
    let mut segments =
        Segments::new(frame, virtio, &header).map_err(|_| whole(DropReason::Malformed))?;
    let packets = as_u64(segments.count());
    let bytes = as_u64(segments.total_bytes());
    let Some(destination) = route.peer.endpoint() else {
        return Err(Dropped { reason: DropReason::NoEndpoint, packets, bytes });
    };

    account.packets_in.add(packets);
    account.bytes_in.add(bytes);
    loop {
        let outer = Outer::data(destination, outer_ecn);
        let before = out.len();
        let sealed = route.peer.tunnel.seal(&mut segments, outer, out, now);
        account.count_drops(DropReason::StagingFull, sealed.overflow);
        if sealed.packets == 0 {
            race::spread(route.peer, before, out, now);
        }
        route.peer.transmit.packets.add(sealed.packets);
        route.peer.transmit.bytes.add(sealed.bytes);

        if segments.next_len().is_none() {
            return Ok(Disposition::Taken);
        }
        if out.is_empty() {
            let left = as_u64(segments.remaining());
            account.count_drops(DropReason::Malformed, left);
            return Ok(Disposition::Taken);
        }
        flush(out);
    }
}
