//! Cluster to tunnel: classify, remap the destination, rewrite once, choose the peer, segment, seal. The sender of a
//! packet that cannot be delivered gets an ICMP error.
//!
//! A large frame may be segmented and sealed by another thread: a [`Job`]. The steps that depend on packet order are
//! done before.

use std::sync::Arc;
use std::time::Instant;

use remap::Reader;

use super::flows::{FlowAccess, Flows};
use super::icmp_errors::IcmpErrors;
use super::initiation_fanout;
use super::loop_guard;
use super::translate::{self, Context, Outgoing};
use super::{Forwarding, Settings};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::counters::{Counters, as_u64};
use strait_packet::icmp_error::Cause;
use strait_packet::segment::{DetachedSegments, Segments, longest_packet};
use strait_packet::virtio::{Gso, VirtioHeader};
use strait_packet::{Header, ecn};
use strait_wg::Peer;
use strait_wg::message::MAX_DATAGRAM_OVERHEAD_BYTES;
use strait_wg::tunnel::Reserved;

/// The least MTU of a link that carries IPv6, in bytes (RFC 8200 section 5).
pub(crate) const MIN_MTU_V6: u16 = 1280;

/// The smallest frame, in bytes, that is passed to another thread: sealing it takes several times as long as waking a
/// thread.
const JOB_MIN_BYTES: usize = 16 * 1024;

/// A frame that any thread can segment and seal: translated, with its peer and its reserved sending counters.
#[derive(Debug)]
pub struct Job {
    reserved: Reserved,
    cut: DetachedSegments,
    outer: Outer,
}

impl Job {
    /// Segments and seals `frame`, the packet that was passed to [`Outbound::handle_backlog`], into `out`, which is
    /// empty and of the default size.
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
    icmp_errors: IcmpErrors,
    /// The MTU in bytes to report to senders of longer packets; `None` with a device, whose kernel reports it.
    mtu: Option<u16>,
}

/// What the caller still has to do for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Disposition {
    /// Nothing: it was sealed, staged or dropped.
    Taken,
    /// Write it back to the device with [`Outbound::handle_hairpin`]: it is for this cluster.
    Hairpin,
    /// Write the ICMP error [`Outbound::reply`] to the device, with an empty virtio header, and report that to
    /// [`Outbound::handle_reply`]: the frame was dropped, or was sent but exceeds the MTU.
    Reply,
}

impl Outbound {
    pub(super) fn new(
        forwarding: Reader<Forwarding>,
        flows: Arc<Flows>,
        account: Arc<Counters>,
        settings: Settings,
    ) -> Self {
        Self {
            forwarding,
            flows,
            account,
            icmp_errors: IcmpErrors::new(settings.seed, settings.start),
            mtu: None,
        }
    }

    /// Sets the MTU in bytes to report to senders of longer packets; `None` with a device, whose kernel reports it. Without it
    /// only the path MTU of a peer limits packets.
    pub const fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = mtu;
    }

    /// Takes one frame from the device: a virtio header, and a packet of up to 64 KiB that is to be segmented as the
    /// header says.
    ///
    /// Sealed datagrams are appended to `out`. If it fills up in the middle of the frame, the caller drains it and
    /// [resumes](Handled::resume).
    #[inline]
    pub fn handle_frame<'a>(
        &'a mut self,
        virtio: &VirtioHeader,
        frame: &'a mut [u8],
        now: Instant,
        out: &mut TransmitBatch,
    ) -> Handled<'a> {
        self.handle(virtio, frame, now, out, Sealing::Here)
    }

    /// As [`Self::handle_frame`], but a large frame is left to a `job` if its tunnel supports that. The caller must
    /// send its datagrams after everything that is in `out`, and before everything that is appended later.
    #[inline]
    pub fn handle_backlog<'a>(
        &'a mut self,
        virtio: &VirtioHeader,
        frame: &'a mut [u8],
        now: Instant,
        out: &mut TransmitBatch,
        job: &mut Option<Job>,
    ) -> Handled<'a> {
        self.handle(virtio, frame, now, out, Sealing::Job(job))
    }

    #[inline]
    fn handle<'a>(
        &'a mut self,
        virtio: &VirtioHeader,
        frame: &'a mut [u8],
        now: Instant,
        out: &mut TransmitBatch,
        sealing: Sealing<'_>,
    ) -> Handled<'a> {
        let Self { forwarding, flows, account, icmp_errors, mtu } = self;

        let context = Context {
            forwarding: forwarding.load(),
            flows,
            flow_access: FlowAccess::Update,
            now: flows.tick(now),
        };
        let routed = match route(&context, icmp_errors, *mtu, virtio, frame, now) {
            Ok(routed) => routed,
            Err(Dropped { reason, packets, bytes }) => {
                account.packets_in.add(packets);
                account.bytes_in.add(bytes);
                account.count_drops(reason, packets);
                return if icmp_errors.prepare(frame, reason, now) {
                    Disposition::Reply.into()
                } else {
                    Disposition::Taken.into()
                };
            }
        };
        let Routed::Peer { peer, header, outer, disposition } = routed else {
            return Disposition::Hairpin.into();
        };
        let bytes = as_u64(frame.len());
        let Ok(segments) = Segments::new(frame, virtio, &header) else {
            account.packets_in.add(1);
            account.bytes_in.add(bytes);
            account.count_drops(DropReason::Malformed, 1);
            return Disposition::Taken.into();
        };

        account.packets_in.add(as_u64(segments.count()));
        account.bytes_in.add(as_u64(segments.total_bytes()));
        if let Sealing::Job(job) = sealing
            && is_worth_a_job(&segments)
            && let Some(reserved) = peer.tunnel.reserve(&segments, now)
        {
            let sealed = reserved.sealed();
            peer.transmit.packets.add(sealed.packets);
            peer.transmit.bytes.add(sealed.bytes);
            *job = Some(Job { reserved, cut: segments.detach(), outer });
            return disposition.into();
        }
        let mut unsealed = Unsealed { peer, account, segments, outer };
        let is_complete = unsealed.seal(now, out);

        Handled { disposition, unsealed: (!is_complete).then_some(unsealed) }
    }

    /// The ICMP error of the last [`Disposition::Reply`].
    #[must_use]
    pub fn reply(&self) -> &[u8] {
        self.icmp_errors.bytes()
    }

    /// Counts an ICMP error if it was written to the device.
    pub fn handle_reply(&self, is_written: bool) {
        if is_written {
            self.account.icmp_errors.add(1);
        }
    }

    /// Writes a frame for this cluster back to the device, with its virtio header, and counts its packets. A frame that
    /// the device refuses, as some kernels do although they have accepted the offload, is written packet by packet.
    /// `write` returns why a packet was not written.
    pub fn handle_hairpin(
        &self,
        virtio: &VirtioHeader,
        frame: &mut [u8],
        mut write: impl FnMut(&VirtioHeader, &[u8]) -> Result<(), DropReason>,
    ) {
        let count = |packets: usize, bytes: usize, written: Result<(), DropReason>| {
            let Self { account, .. } = self;
            let (packets, bytes) = (as_u64(packets), as_u64(bytes));
            account.packets_in.add(packets);
            account.bytes_in.add(bytes);
            match written {
                Ok(()) => {
                    account.packets_out.add(packets);
                    account.bytes_out.add(bytes);
                }
                Err(reason) => account.count_drops(reason, packets),
            }
        };
        let written = write(virtio, frame);
        let len = frame.len();
        let is_offloaded = virtio.gso != Gso::None || virtio.needs_checksum;
        let header = Header::parse(frame).ok().filter(|_| is_offloaded);
        let segments = header.and_then(|header| Segments::new(frame, virtio, &header).ok());
        match segments {
            Some(mut segments) if written.is_err() => {
                while let Some(packet) = segments.next_segment() {
                    count(1, packet.len(), write(&VirtioHeader::default(), packet));
                }
            }
            Some(segments) => count(segments.count(), segments.total_bytes(), written),
            None => count(1, len, written),
        }
    }

    /// Counts what was read but is no frame for [`Self::handle_frame`].
    pub fn handle_unread(&self, unread: Unread) {
        let Self { account, .. } = self;
        let Unread { outcome, packets, bytes } = unread;
        account.packets_in.add(packets);
        account.bytes_in.add(bytes);
        match outcome {
            Outcome::Answered => account.protocol_messages.add(packets),
            Outcome::Dropped(reason) => account.count_drops(reason, packets),
        }
    }
}

/// Packets from the cluster side that were read but are not to be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// What became of them.
    pub outcome: Outcome,
    /// Their number.
    pub packets: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// What became of packets that are not to be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They were messages of the overlay itself, and were answered if they asked.
    Answered,
    /// They were dropped.
    Dropped(DropReason),
}

impl Unread {
    /// One packet of `bytes` that was dropped.
    #[must_use]
    pub const fn dropped(reason: DropReason, bytes: u64) -> Self {
        Self { outcome: Outcome::Dropped(reason), packets: 1, bytes }
    }
}

/// A frame that was handled, and what of it is not sealed yet.
#[derive(Debug)]
#[must_use]
pub struct Handled<'a> {
    disposition: Disposition,
    unsealed: Option<Unsealed<'a>>,
}

impl Handled<'_> {
    /// Whether the batch was full before the whole frame was sealed: drain it, and [`Self::resume`].
    #[inline]
    #[must_use]
    pub const fn is_incomplete(&self) -> bool {
        self.unsealed.is_some()
    }

    /// Goes on with an incomplete frame. `out` is empty.
    #[cold]
    pub fn resume(&mut self, now: Instant, out: &mut TransmitBatch) {
        if self.unsealed.as_mut().is_some_and(|unsealed| unsealed.seal(now, out)) {
            self.unsealed = None;
        }
    }

    /// What the caller still has to do for the frame. Packets that are not sealed yet are not sent.
    #[inline]
    pub const fn disposition(&self) -> Disposition {
        self.disposition
    }
}

impl From<Disposition> for Handled<'_> {
    #[inline]
    fn from(disposition: Disposition) -> Self {
        Self { disposition, unsealed: None }
    }
}

/// The packets of a frame that are not sealed yet.
#[derive(Debug)]
struct Unsealed<'a> {
    peer: &'a Peer,
    account: &'a Counters,
    segments: Segments<'a>,
    outer: Outer,
}

impl Unsealed<'_> {
    /// Seals until the frame ends or `out` is full. Returns whether the frame is complete.
    #[inline]
    fn seal(&mut self, now: Instant, out: &mut TransmitBatch) -> bool {
        let Self { peer, account, segments, outer } = self;
        let before = out.len();
        let sealed = peer.tunnel.seal(segments, *outer, out, now);
        account.count_drops(DropReason::StagingFull, sealed.overflow);
        if sealed.packets == 0 {
            initiation_fanout::fan_out(peer, before, out, now);
        }
        peer.transmit.packets.add(sealed.packets);
        peer.transmit.bytes.add(as_u64(out.len() - before));

        if segments.next_len().is_none() {
            return true;
        }
        // An empty batch has no room for the next packet: it is no packet of this device.
        if out.is_empty() {
            account.count_drops(DropReason::Malformed, as_u64(segments.remaining()));
            return true;
        }

        false
    }
}

/// A whole frame that is dropped. Unless it is an ICMP error, it is unchanged except for an offloaded checksum.
struct Dropped {
    reason: DropReason,
    packets: u64,
    bytes: u64,
}

/// Where a large frame is sealed.
enum Sealing<'a> {
    /// On this thread.
    Here,
    /// On another thread, by the job that is stored here, if the tunnel supports it.
    Job(&'a mut Option<Job>),
}

/// The way of a frame, which has been translated for it.
enum Routed<'a> {
    /// Back to the device.
    Hairpin,
    /// To `peer`, in datagrams with these `outer` headers.
    Peer { peer: &'a Peer, header: Header, outer: Outer, disposition: Disposition },
}

/// Chooses the peer of a frame, and translates it.
#[inline]
fn route<'a>(
    context: &Context<'a>,
    icmp_errors: &mut IcmpErrors,
    mtu: Option<u16>,
    virtio: &VirtioHeader,
    frame: &mut [u8],
    now: Instant,
) -> Result<Routed<'a>, Dropped> {
    let bytes = as_u64(frame.len());
    let mut header = Header::parse(frame).map_err(|_| Dropped {
        reason: DropReason::Malformed,
        packets: 1,
        bytes,
    })?;
    let checksum = virtio.checksum(&header);
    let outgoing = match translate::route(context, frame, &header) {
        Ok(outgoing) => outgoing,
        Err(reason) => return Err(dropped(reason, virtio, frame, &header)),
    };
    let peer = match &outgoing {
        Outgoing::Hairpin => None,
        Outgoing::Peer(route) => match route.peer.path() {
            Some(path) => Some((route.peer, path)),
            // Before the packet or the flows are changed.
            None => return Err(dropped(DropReason::NoEndpoint, virtio, frame, &header)),
        },
    };
    let hop_limit = loop_guard::hop_limit(frame, &header);
    if peer.is_some() && hop_limit == Some(0) {
        return Err(dropped(DropReason::RoutingLoop, virtio, frame, &header));
    }
    let disposition = match peer.and_then(|(peer, _)| too_big(peer, mtu, virtio, frame, &header)) {
        // The packet is still sent, in fragments. The error quotes it, so it is written before the translation.
        Some(cause) if icmp_errors.prepare_cause(frame, cause, now) => Disposition::Reply,
        Some(_) | None => Disposition::Taken,
    };
    if let Err(reason) = translate::outbound(context, &outgoing, frame, &mut header, checksum) {
        return Err(dropped(reason, virtio, frame, &header));
    }
    let Some((peer, path)) = peer else {
        return Ok(Routed::Hairpin);
    };
    let mut outer = Outer::data(path, ecn::encapsulate(header.ecn()));
    outer.hop_limit = hop_limit;

    Ok(Routed::Peer { peer, header, outer, disposition })
}

/// The ICMP error for the sender of a frame whose packets exceed the path MTU to `peer`, or `mtu`.
#[inline]
fn too_big(
    peer: &Peer,
    mtu: Option<u16>,
    virtio: &VirtioHeader,
    frame: &[u8],
    header: &Header,
) -> Option<Cause> {
    let path_mtu = [peer.path_mtu_bytes(), mtu].into_iter().flatten().min()?;
    // An IPv6 packet of this size must pass every link (RFC 8200 section 5).
    let mtu = if header.is_ipv6() { path_mtu.max(MIN_MTU_V6) } else { path_mtu };
    let len = longest_packet(frame, virtio, header)?;

    (header.dont_fragment() && len > usize::from(mtu)).then_some(Cause::TooBig(mtu))
}

/// Whether the segments are worth another thread, and fit into one batch.
fn is_worth_a_job(segments: &Segments<'_>) -> bool {
    let (count, bytes) = (segments.count(), segments.total_bytes());

    bytes >= JOB_MIN_BYTES
        && TransmitBatch::is_enough_for(count, bytes + count * MAX_DATAGRAM_OVERHEAD_BYTES)
}

/// A drop that counts the packets into which the frame would have been segmented.
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
    fn refused_hairpin_frame_is_written_by_packet() {
        for refused in [false, true] {
            let (outbound, mut frame, virtio) = (outbound(), frame(), offload());
            let whole = frame.clone();
            let mut written = Vec::new();

            outbound.handle_hairpin(&virtio, &mut frame, |virtio, packet| {
                if refused && virtio.gso != Gso::None {
                    return Err(DropReason::WriteFailed);
                }
                written.push(packet.to_vec());
                Ok(())
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
    fn unwritable_hairpin_frame_counts_all_packets() {
        let (outbound, mut frame) = (outbound(), frame());

        outbound.handle_hairpin(&offload(), &mut frame, |_, _| Err(DropReason::NoNode));

        let account = outbound.account.snapshot();
        assert_eq!((account.packets_in, account.packets_out), (3, 0));
        assert_eq!(account.drops(DropReason::NoNode), 3);
    }

    /// The reduced hop limit is for packets that go into a tunnel.
    #[test]
    fn hairpin_fragment_may_have_low_hop_limit() {
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

        let (mut frame, mut out) = (packet.build(), TransmitBatch::default());
        let handled =
            outbound.handle_frame(&VirtioHeader::default(), &mut frame, start(), &mut out);

        assert_eq!(handled.disposition(), Disposition::Hairpin);
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
            overlay: None,
        }
    }

    fn outbound() -> Outbound {
        engine().outbound
    }

    fn engine() -> Engine {
        let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
        let settings = Settings { max_flows: 1024, seed: 1, index_seed: 1, start: start() };

        Engine::new(identity, settings).unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
    fn start() -> Instant {
        Instant::now()
    }
}
