//! Cluster to tunnel: classify, remap the destination, rewrite once, choose the peer, segment, seal. Who
//! sends what goes nowhere is told.
//!
//! A large frame may be left to another thread to segment and seal: a [`Job`]. What must be in order is done
//! by then.

use std::sync::Arc;
use std::time::Instant;

use remap::Reader;

use super::Forwarding;
use super::Settings;
use super::flows::Flows;
use super::notice::Notice;
use super::outside::{self, UDP_HEADER_BYTES};
use super::race;
use super::translate::{self, Context, Memory, Outgoing};
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::Transport;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::counters::{Counters, as_u64};
use strait_packet::ecn;
use strait_packet::reply::Cause;
use strait_packet::segment::{Cut, Segments};
use strait_packet::virtio::{Gso, VirtioHeader};
use strait_wg::Peer;
use strait_wg::message::MAX_DATAGRAM_OVERHEAD_BYTES;
use strait_wg::tunnel::Reserved;

/// The least MTU of a link that carries IPv6, in bytes (RFC 8200 section 5).
const MIN_MTU_V6: u16 = 1280;

/// Frames of fewer bytes are not worth handing to another thread: to seal this much takes several times as
/// long as to wake one.
const JOB_MIN_BYTES: usize = 16 * 1024;

/// A frame that is ready to be segmented and sealed, by anybody: translated, with its peer and its counters.
#[derive(Debug)]
pub struct Job {
    reserved: Reserved,
    cut: Cut,
    outer: Outer,
}

impl Job {
    /// Segments and seals `frame`, the packet that [`Outbound::handle_backlog`] was given, into `out`, which
    /// is empty and of the usual size.
    pub fn seal(self, frame: &mut [u8], out: &mut TransmitBatch) {
        let Self { reserved, cut, outer } = self;

        reserved.seal(&mut cut.attach(frame), outer, out);
    }
}

/// The outbound direction. One thread owns it.
#[derive(Debug)]
pub struct Outbound {
    forwarding: Reader<Forwarding>,
    flows: Arc<Flows>,
    account: Arc<Counters>,
    notice: Notice,
}

/// What is left to do for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Disposition {
    /// Nothing: it was sealed, staged or dropped.
    Taken,
    /// It is for this cluster: have [`Outbound::handle_hairpin`] write it back to the device.
    Hairpin,
    /// Only an ICMP error for its sender: it was dropped, or is too big. Write [`Outbound::reply`] to the device,
    /// with an empty virtio header, and report that to [`Outbound::handle_reply`].
    Reply,
}

impl Outbound {
    pub(super) fn new(
        forwarding: Reader<Forwarding>,
        flows: Arc<Flows>,
        account: Arc<Counters>,
        settings: Settings,
    ) -> Self {
        Self { forwarding, flows, account, notice: Notice::new(settings.seed, settings.start) }
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
        self.handle(virtio, frame, now, (out, None), flush)
    }

    /// As [`Self::handle_frame`], but a large frame is not sealed if that can be done later: `job` is to seal
    /// it. Its datagrams have their place behind everything that is in `out`, and before everything that
    /// will be.
    pub fn handle_backlog(
        &mut self,
        virtio: &VirtioHeader,
        frame: &mut [u8],
        now: Instant,
        (out, job): (&mut TransmitBatch, &mut Option<Job>),
        flush: impl FnMut(&mut TransmitBatch),
    ) -> Disposition {
        self.handle(virtio, frame, now, (out, Some(job)), flush)
    }

    #[inline]
    fn handle(
        &mut self,
        virtio: &VirtioHeader,
        frame: &mut [u8],
        now: Instant,
        out: (&mut TransmitBatch, Option<&mut Option<Job>>),
        flush: impl FnMut(&mut TransmitBatch),
    ) -> Disposition {
        let Self { forwarding, flows, account, notice } = self;

        let context = Context {
            forwarding: forwarding.load(),
            flows,
            memory: Memory::Updated,
            now: flows.tick(now),
        };
        match forward(context, (account, notice), virtio, frame, now, out, flush) {
            Ok(disposition) => disposition,
            Err(Dropped { reason, packets, bytes }) => {
                account.packets_in.add(packets);
                account.bytes_in.add(bytes);
                account.count_drops(reason, packets);
                if notice.prepare(frame, reason, now) {
                    Disposition::Reply
                } else {
                    Disposition::Taken
                }
            }
        }
    }

    /// The ICMP error that [`Disposition::Reply`] spoke of last.
    #[must_use]
    pub fn reply(&self) -> &[u8] {
        self.notice.bytes()
    }

    /// Counts an ICMP error that was to be written to the device, and was, or was not.
    pub fn handle_reply(&self, is_written: bool) {
        if is_written {
            self.account.icmp_errors.add(1);
        }
    }

    /// Has `write` write back a frame that is for this cluster, with its virtio header, and counts what it stands
    /// for. A frame that the device refuses, as some kernels do after they have accepted the offload, is written
    /// packet by packet. `write` says whether the device took what it was given.
    pub fn handle_hairpin(
        &self,
        virtio: &VirtioHeader,
        frame: &mut [u8],
        mut write: impl FnMut(&VirtioHeader, &[u8]) -> bool,
    ) {
        let count = |packets: usize, bytes: usize, is_written: bool| {
            let Self { account, .. } = self;
            let (packets, bytes) = (as_u64(packets), as_u64(bytes));
            account.packets_in.add(packets);
            account.bytes_in.add(bytes);
            if is_written {
                account.packets_out.add(packets);
                account.bytes_out.add(bytes);
            } else {
                account.count_drops(DropReason::WriteFailed, packets);
            }
        };
        let is_written = write(virtio, frame);
        let len = frame.len();
        let header = Header::parse(frame).ok().filter(|_| virtio.gso != Gso::None);
        let segments = header.and_then(|header| Segments::new(frame, virtio, &header).ok());
        match segments {
            Some(mut segments) if !is_written => {
                while let Some(packet) = segments.next_segment() {
                    count(1, packet.len(), write(&VirtioHeader::default(), packet));
                }
            }
            Some(segments) => count(segments.count(), segments.total_bytes(), is_written),
            None => count(1, len, is_written),
        }
    }

    /// Counts a frame whose virtio header makes no sense.
    pub fn handle_unreadable_frame(&self) {
        self.account.packets_in.add(1);
        self.account.count_drops(DropReason::Malformed, 1);
    }
}

/// A whole frame that goes nowhere. Unless it is an ICMP error, it is as it was, but for a checksum that was
/// left to us.
struct Dropped {
    reason: DropReason,
    packets: u64,
    bytes: u64,
}

fn forward(
    context: Context<'_>,
    (account, notice): (&Counters, &mut Notice),
    virtio: &VirtioHeader,
    frame: &mut [u8],
    now: Instant,
    (out, job): (&mut TransmitBatch, Option<&mut Option<Job>>),
    mut flush: impl FnMut(&mut TransmitBatch),
) -> Result<Disposition, Dropped> {
    let bytes = as_u64(frame.len());
    let malformed = || Dropped { reason: DropReason::Malformed, packets: 1, bytes };

    let mut header = Header::parse(frame).map_err(|_| malformed())?;
    let checksum = virtio.checksum(&header);
    let outgoing = match translate::route(&context, frame, &header) {
        Ok(outgoing) => outgoing,
        Err(reason) => return Err(dropped(reason, virtio, frame, &header)),
    };
    let peer = match &outgoing {
        Outgoing::Hairpin => None,
        Outgoing::Peer(route) => match route.peer.path() {
            Some(path) => Some((route, path)),
            // Before anything is changed or remembered for a packet that cannot be sent.
            None => return Err(dropped(DropReason::NoEndpoint, virtio, frame, &header)),
        },
    };
    let hop_limit = outside::hop_limit(frame, &header);
    if peer.is_some() && hop_limit == Some(0) {
        return Err(dropped(DropReason::RoutingLoop, virtio, frame, &header));
    }
    let taken = match peer.and_then(|(route, _)| too_big(route.peer, virtio, frame, &header)) {
        // It is sent all the same, in fragments. Before the addresses change, as the error quotes them.
        Some(cause) if notice.prepare_cause(frame, cause, now) => Disposition::Reply,
        Some(_) | None => Disposition::Taken,
    };
    if let Err(reason) = translate::outbound(&context, &outgoing, frame, &mut header, checksum) {
        return Err(dropped(reason, virtio, frame, &header));
    }
    let Some((route, path)) = peer else {
        return Ok(Disposition::Hairpin);
    };

    let outer_ecn = ecn::encapsulate(header.ecn());
    let mut segments = Segments::new(frame, virtio, &header).map_err(|_| malformed())?;
    let packets = as_u64(segments.count());

    account.packets_in.add(packets);
    account.bytes_in.add(as_u64(segments.total_bytes()));
    let mut outer = Outer::data(path, outer_ecn);
    outer.hop_limit = hop_limit;
    if let Some(job) = job.filter(|_| is_worth_a_job(&segments))
        && let Some(reserved) = route.peer.tunnel.reserve(&segments, now)
    {
        let sealed = reserved.sealed();
        route.peer.transmit.packets.add(sealed.packets);
        route.peer.transmit.bytes.add(sealed.bytes);
        *job = Some(Job { reserved, cut: segments.detach(), outer });
        return Ok(taken);
    }

    loop {
        let before = out.len();
        let sealed = route.peer.tunnel.seal(&mut segments, outer, out, now);
        account.count_drops(DropReason::StagingFull, sealed.overflow);
        if sealed.packets == 0 {
            race::spread(route.peer, before, out, now);
        }
        route.peer.transmit.packets.add(sealed.packets);
        route.peer.transmit.bytes.add(as_u64(out.len() - before));

        if segments.next_len().is_none() {
            return Ok(taken);
        }
        if out.is_empty() {
            let left = as_u64(segments.remaining());
            account.count_drops(DropReason::Malformed, left);
            return Ok(taken);
        }
        flush(out);
    }
}

/// The ICMP error for the sender of a frame if its packets are larger than what the way to `peer` carries whole.
#[inline]
fn too_big(peer: &Peer, virtio: &VirtioHeader, frame: &[u8], header: &Header) -> Option<Cause> {
    let path_mtu = peer.path_mtu()?;
    // Whatever the link, no packet of IPv6 need be smaller (RFC 8200 section 5).
    let mtu = if header.is_ipv6() { path_mtu.max(MIN_MTU_V6) } else { path_mtu };
    let len = if virtio.gso == Gso::None {
        header.packet_len()
    } else {
        transport_end(frame, header)? + usize::from(virtio.gso_size)
    };

    (header.dont_fragment() && len > usize::from(mtu)).then_some(Cause::TooBig(mtu))
}

/// Where the payload of a TCP segment or a UDP datagram begins.
fn transport_end(frame: &[u8], header: &Header) -> Option<usize> {
    let at = header.transport_offset();
    let is_tcp = header.transport() == Transport::Tcp;

    Some(at + if is_tcp { usize::from(*frame.get(at + 12)? >> 4) * 4 } else { UDP_HEADER_BYTES })
}

/// Whether the segments are many, and one batch has room for them.
fn is_worth_a_job(segments: &Segments<'_>) -> bool {
    let (count, bytes) = (segments.count(), segments.total_bytes());

    bytes >= JOB_MIN_BYTES
        && TransmitBatch::is_enough_for(count, bytes + count * MAX_DATAGRAM_OVERHEAD_BYTES)
}

/// The packets of the frame are counted as they would have been sent.
#[cold]
fn dropped(
    reason: DropReason,
    virtio: &VirtioHeader,
    frame: &mut [u8],
    header: &Header,
) -> Dropped {
    let bytes = as_u64(frame.len());

    let (packets, bytes) = Segments::new(frame, virtio, header)
        .map_or((1, bytes), |segments| (as_u64(segments.count()), as_u64(segments.total_bytes())));

    Dropped { reason, packets, bytes }
}

#[cfg(test)]
mod tests {
    use remap::{Cluster, HostMap, Table};

    use super::*;
    use crate::Engine;
    use strait_packet::fixtures::{Packet, TCP, UDP, cut, tcp};
    use strait_wg::PrivateKey;
    use strait_wg::boringtun::BoringtunIdentity;

    const MSS: u16 = 1_000;

    /// Some kernels accept an offload and then refuse the frames.
    #[test]
    fn a_hairpin_frame_that_the_device_refuses_is_written_packet_by_packet() {
        for refused in [false, true] {
            let (outbound, mut frame, virtio) = (outbound(), frame(), offload());
            let whole = frame.clone();
            let mut written = Vec::new();

            outbound.handle_hairpin(&virtio, &mut frame, |virtio, packet| {
                let is_taken = virtio.gso == Gso::None || !refused;
                if is_taken {
                    written.push(packet.to_vec());
                }
                is_taken
            });

            let packets = cut(&whole, MSS.into());
            let bytes = as_u64(packets.iter().map(Vec::len).sum());
            let account = outbound.account.snapshot();
            assert_eq!(written, if refused { packets.clone() } else { vec![whole] });
            assert_eq!([account.packets_in, account.packets_out], [as_u64(packets.len()); 2]);
            assert_eq!([account.bytes_in, account.bytes_out], [bytes; 2]);
        }
    }

    #[test]
    fn a_hairpin_frame_that_is_not_written_is_dropped_whole() {
        let (outbound, mut frame) = (outbound(), frame());

        outbound.handle_hairpin(&offload(), &mut frame, |_, _| false);

        let account = outbound.account.snapshot();
        assert_eq!((account.packets_in, account.packets_out), (3, 0));
        assert_eq!(account.drops(DropReason::WriteFailed), 3);
    }

    /// It is no datagram of ours that a peer gets in another.
    #[test]
    fn a_fragment_for_an_address_of_ours_may_end_its_hops() {
        let map = |internal: &str, external: &str| {
            HostMap::new(internal.parse().unwrap(), external.parse().unwrap()).unwrap()
        };
        let cluster = Cluster {
            host_maps: vec![map("192.0.2.8", "10.70.0.8"), map("192.0.2.9", "10.70.0.9")],
            ..Cluster::default()
        };
        let Engine { mut outbound, mut control, .. } = engine();
        control.apply(Vec::new(), Table::build(1, &cluster, []).0);
        let [source, destination] = ["192.0.2.8", "10.70.0.9"].map(|ip| ip.parse().unwrap());
        let mut packet = Packet::new(source, destination, UDP, vec![7; 32]);
        (packet.fragment, packet.hop_limit) = (100, 8);

        let disposition = outbound.handle_frame(
            &VirtioHeader::default(),
            &mut packet.build(),
            start(),
            &mut TransmitBatch::default(),
            |_| (),
        );

        assert_eq!(disposition, Disposition::Hairpin);
    }

    fn frame() -> Vec<u8> {
        let segment = tcp([40_000, 80], 7, 0x10, &[], &[5; 2_500]);

        Packet::new("10.244.1.5".parse().unwrap(), "10.244.1.6".parse().unwrap(), TCP, segment)
            .build()
    }

    fn offload() -> VirtioHeader {
        VirtioHeader {
            needs_checksum: true,
            gso: Gso::TcpV4,
            header_len: 40,
            gso_size: MSS,
            checksum_start: 20,
            checksum_offset: 16,
        }
    }

    fn outbound() -> Outbound {
        engine().outbound
    }

    fn engine() -> Engine {
        let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
        let settings = Settings { max_flows: 1024, seed: 1, start: start() };

        Engine::new(identity, settings).unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
    fn start() -> Instant {
        Instant::now()
    }
}
