//! Cluster to tunnel: classify, remap the destination, rewrite once, choose the peer, segment, seal.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use remap::Reader;

use super::Forwarding;
use crate::DropReason;
use crate::buffer::{Outer, TransmitBatch};
use crate::counters::{Counters, as_u64};
use crate::packet::rewrite::{self, Checksum, Mismatch, Side};
use crate::packet::segment::Segments;
use crate::packet::virtio::VirtioHeader;
use crate::packet::{Header, Transport, ecn, icmp};

/// The outbound direction. One thread owns it.
#[derive(Debug)]
pub struct Outbound {
    forwarding: Reader<Forwarding>,
    account: Arc<Counters>,
}

impl Outbound {
    pub(super) const fn new(forwarding: Reader<Forwarding>, account: Arc<Counters>) -> Self {
        Self { forwarding, account }
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
    ) {
        let Self { forwarding, account } = self;

        if let Err(Dropped { reason, packets, bytes }) =
            forward(forwarding.load(), account, virtio, frame, now, out, flush)
        {
            account.packets_in.add(packets);
            account.bytes_in.add(bytes);
            account.count_drops(reason, packets);
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
    forwarding: &Forwarding,
    account: &Counters,
    virtio: &VirtioHeader,
    frame: &mut [u8],
    now: Instant,
    out: &mut TransmitBatch,
    mut flush: impl FnMut(&mut TransmitBatch),
) -> Result<(), Dropped> {
    let bytes = as_u64(frame.len());
    let whole = |reason| Dropped { reason, packets: 1, bytes };

    let mut header = Header::parse(frame).map_err(|_| whole(DropReason::Malformed))?;
    if header.transport() == Transport::AuthenticationHeader {
        return Err(whole(DropReason::AddressAuthenticated));
    }
    let route = forwarding.outbound(header.destination()).ok_or(whole(DropReason::NoRoute))?;

    let checksum = virtio.checksum(&header);
    translate(forwarding, frame, &mut header, route.destination, checksum)
        .map_err(|_| whole(DropReason::Malformed))?;

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
        let outer = Outer { destination, ecn: outer_ecn };
        let sealed = route.peer.tunnel.seal(&mut segments, outer, out, now);
        account.count_drops(DropReason::StagingFull, sealed.overflow);
        route.peer.transmit.packets.add(sealed.packets);
        route.peer.transmit.bytes.add(sealed.bytes);

        if segments.next_len().is_none() {
            return Ok(());
        }
        if out.is_empty() {
            let left = as_u64(segments.remaining());
            account.count_drops(DropReason::Malformed, left);
            return Ok(());
        }
        flush(out);
    }
}

/// Gives the packet the addresses of the remote's realm: its destination, and in an ICMP error the
/// source of the embedded packet, which came from there.
fn translate(
    forwarding: &Forwarding,
    packet: &mut [u8],
    header: &mut Header,
    destination: IpAddr,
    checksum: Checksum,
) -> Result<(), Mismatch> {
    if let Some(mut embedded) = icmp::embedded(packet, header)
        && let Some(route) = forwarding.table().outbound(embedded.source())
    {
        let real = route.destination;
        rewrite::embedded_address(packet, header, &mut embedded, Side::Source, real)?;
    }

    rewrite::address(packet, header, Side::Destination, destination, checksum)
}
