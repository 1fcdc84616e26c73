//! Receives datagrams of nodes and takes the packets out of them.
//!
//! A node on another host sends each packet in a datagram of its own. Consecutive ones of a flow that were received at once are
//! merged into one frame, as a kernel would merge them for a device: it is translated once, and sealing it fills the lanes of
//! the AEAD. No packet waits for others.
//!
//! Measured and rejected: not asking a socket again after a call that did not fill all messages. The thread then sends what
//! waits for a full send before the next frame arrives; 3 % more CPU per byte (16 pairs of runs, pods on the gateway's host).

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Overlay;
use super::host::Host;
use super::nodes::{KnownNode, Nodes};
use super::writer::Run;
use crate::edge::{FrameBuffer, FrameReader, Read};
use crate::sys;
use crate::worker::ReceiveErrors;
use strait_engine::outbound::{Outcome, Unread};
use strait_packet::coalesce::GrowingFrame;
use strait_packet::counters::as_u64;
use strait_packet::ecn::{self, Ecn};
use strait_packet::overlay::ethernet::{self, Cast, Ethernet};
use strait_packet::overlay::neighbor::{MAX_FRAME_LEN, Message};
use strait_packet::overlay::{Encapsulation, Limits, Merged, describe, merged};
use strait_packet::path::canonical;
use strait_packet::segment::Segments;
use strait_packet::virtio::{Gso, VirtioHeader};
use strait_packet::{DropReason, Header, rewrite};

/// Messages of one receive call, each up to 64 KiB: nodes whose datagrams the kernel does not merge, because they have no
/// outer checksum, send one packet a message.
const MESSAGES: usize = 32;

/// Packets up to this length, in bytes, fit every path: no segment size is looked up for them.
const ALWAYS_FITS_BYTES: usize = 576;

/// Reads the overlay. One thread owns it.
pub(crate) struct Reader {
    overlay: Arc<Overlay>,
    nodes: Arc<Nodes>,
    buffers: [FrameBuffer; MESSAGES],
    messages: [sys::Message; MESSAGES],
    /// The number of messages that were received.
    received: usize,
    /// The next datagram: its message, and its offset in it.
    current: usize,
    offset: usize,
    /// Of the current message: see [`strides`].
    strides: (usize, Option<u16>),
    /// Was taken to be merged with the packets before it, but was not.
    pending: Option<Taken>,
    errors: ReceiveErrors,
}

/// What a datagram holds.
enum Content {
    /// A packet.
    Packet(Packet),
    /// A message of address resolution, or a packet to the gateway itself.
    ToGateway,
}

/// A packet in a datagram.
struct Packet {
    /// Its place in the datagram.
    range: Range<usize>,
    header: Header,
    virtio: VirtioHeader,
}

/// A datagram that was taken.
enum Taken {
    /// A packet, at this offset in the buffer of this message.
    Packet { message: usize, start: usize, is_only: bool, packet: Packet },
    /// Nothing to forward.
    Unread(Unread),
}

impl Reader {
    pub(crate) fn new(overlay: Arc<Overlay>) -> Self {
        let nodes = overlay.nodes.load_full();

        Self {
            overlay,
            nodes,
            buffers: std::array::from_fn(|_| FrameBuffer::new()),
            messages: sys::empty_messages(),
            received: 0,
            current: 0,
            offset: 0,
            strides: (1, None),
            pending: None,
            errors: ReceiveErrors::default(),
        }
    }

    /// Receives from a socket.
    fn receive(&mut self, input: usize) -> io::Result<()> {
        let Self { overlay, nodes, buffers, messages, .. } = self;
        let in_force = overlay.nodes.load();
        if !Arc::ptr_eq(nodes, &in_force) {
            *nodes = Arc::clone(&in_force);
        }
        let socket = overlay.sockets.get(input).ok_or(io::ErrorKind::NotConnected)?;

        let received = sys::receive(socket.as_fd(), buffers, messages)?;
        (self.received, self.current, self.offset) = (received, 0, 0);

        Ok(())
    }

    /// Takes the next packet that was received, and those of its flow that follow it. `None` if there is none.
    fn take_frame(&mut self, buffer: &mut FrameBuffer) -> Option<Read> {
        let first = match self.pending.take() {
            Some(pending) => pending,
            None => self.take()?,
        };
        let (message, start, is_only, packet) = match first {
            Taken::Packet { message, start, is_only, packet } => (message, start, is_only, packet),
            Taken::Unread(unread) => return Some(Read::Unread(unread)),
        };
        let Packet { range, header, virtio } = packet;
        let len = range.len();
        let part = self.buffers.get_mut(message)?;
        if is_only {
            part.set_packet(range.start);
            mem::swap(part, buffer);
        } else {
            let range = start + range.start..start + range.end;
            buffer.copy_packet(part.as_mut().get(range).unwrap_or_default());
        }
        let alone = Some(Read::Packet(virtio, len));
        if self.current >= self.received || virtio.gso != Gso::None {
            return alone;
        }

        let first = buffer.packet_mut().get(..header.packet_len()).unwrap_or_default();
        let checksum = virtio.checksum(&header);
        let Some(mut frame) = GrowingFrame::start(first, &header, checksum) else { return alone };
        while let Some(next) = self.take() {
            if !self.append(&mut frame, &next, buffer) {
                self.pending = Some(next);
                break;
            }
        }

        match frame.finish(buffer.packet_mut()) {
            Some((virtio, len)) => Some(Read::Packet(virtio, len)),
            None => alone,
        }
    }

    /// Appends a packet that was taken to the frame in `buffer`. Returns whether it belongs to it.
    #[inline]
    fn append(
        &mut self,
        frame: &mut GrowingFrame,
        taken: &Taken,
        buffer: &mut FrameBuffer,
    ) -> bool {
        let Taken::Packet { message, start, packet, .. } = taken else { return false };
        if packet.virtio.gso != Gso::None {
            return false;
        }
        let at = start + packet.range.start;
        let bytes = self.buffers.get_mut(*message).map(FrameBuffer::as_mut).unwrap_or_default();
        let next = bytes.get(at..at + packet.header.packet_len()).unwrap_or_default();

        let checksum = packet.virtio.checksum(&packet.header);

        frame.append(buffer.packet_mut(), next, &packet.header, checksum)
    }

    /// Takes the next datagram that was received. `None` if there is none.
    #[inline]
    fn take(&mut self) -> Option<Taken> {
        let Self { overlay, nodes, buffers, messages, received, current, offset, strides, .. } =
            self;
        let number = *current;
        let message = messages.get(..*received)?.get(number)?;
        let part = buffers.get_mut(number)?;
        let start = *offset;
        let source = message.source.map(|source| canonical(source).ip());
        let Some(node) = source.and_then(|source| nodes.of_source(source)) else {
            // All datagrams of a message are from one source.
            (*current, *offset) = (*current + 1, 0);
            let bytes = message.len.saturating_sub(start);
            let packets = as_u64(bytes.div_ceil(message.stride.max(1)).max(1));
            let outcome = Outcome::Dropped(DropReason::OverlaySource);
            return Some(Taken::Unread(Unread { outcome, packets, bytes: as_u64(bytes) }));
        };
        if start == 0 {
            *strides = self::strides(overlay.encapsulation, part.as_mut(), message);
        }
        let (stride, datagram_len) = *strides;
        let end = message.len.min(start + stride);
        let is_only = start == 0 && end == message.len;
        (*current, *offset) = if end == message.len { (*current + 1, 0) } else { (*current, end) };

        let datagram = part.as_mut().get_mut(start..end).unwrap_or_default();
        let outer_ecn = Ecn::from_traffic_class(message.traffic_class);
        Some(match overlay.parse(nodes, node, datagram, (outer_ecn, datagram_len)) {
            Ok(Content::Packet(packet)) => {
                Taken::Packet { message: number, start, is_only, packet }
            }
            Ok(Content::ToGateway) => {
                let bytes = as_u64(datagram.len());
                Taken::Unread(Unread { outcome: Outcome::Answered, packets: 1, bytes })
            }
            Err(reason) => Taken::Unread(Unread::dropped(reason, as_u64(datagram.len()))),
        })
    }
}

/// Delivers `packet` of a node to the gateway itself, complete.
#[cold]
fn deliver(
    host: &Host,
    packet: &mut [u8],
    header: &Header,
    virtio: &VirtioHeader,
) -> Result<(), DropReason> {
    let mut segments = Segments::new(packet, virtio, header).map_err(|_| DropReason::Malformed)?;
    while let Some(segment) = segments.next_segment() {
        host.deliver_of_node(segment)?;
    }

    Ok(())
}

/// The length in bytes of each datagram in `message` but the last, and of each datagram in the frame of UDP that it holds
/// instead. `bytes` starts with the message.
#[inline]
fn strides(
    encapsulation: Encapsulation,
    bytes: &[u8],
    message: &sys::Message,
) -> (usize, Option<u16>) {
    let sys::Message { len, stride, .. } = *message;
    let Some(size) = u16::try_from(stride).ok().filter(|_| stride < len) else {
        return (len.max(1), None);
    };

    match merged(encapsulation, bytes.get(..len).unwrap_or_default(), size) {
        Merged::Datagrams(len) => (usize::from(len).max(1), None),
        Merged::Frame(size) => (len.max(1), Some(size)),
    }
}

impl FrameReader for Reader {
    fn read(&mut self, input: usize, buffer: &mut FrameBuffer) -> io::Result<Read> {
        // Behind the sockets.
        if let Some(host) = &self.overlay.host
            && let Some(number) = input.checked_sub(self.overlay.sockets.len())
        {
            return if number == 0 { host.read(buffer) } else { self.overlay.relay(host, buffer) };
        }
        loop {
            if let Some(read) = self.take_frame(buffer) {
                return Ok(read);
            }
            match self.receive(input) {
                Ok(()) => self.errors.handle_success(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.errors.handle_success();
                    return Err(error);
                }
                Err(error) if self.errors.handle_error(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("overlay", &self.overlay).finish_non_exhaustive()
    }
}

impl Overlay {
    /// Parses a datagram of `node` with this outer mark and, if it holds a frame of UDP, the length in bytes of the payload
    /// of its datagrams. Answers if it asks for a station.
    #[inline]
    fn parse(
        &self,
        nodes: &Nodes,
        node: &KnownNode,
        datagram: &mut [u8],
        (outer_ecn, datagram_len): (Ecn, Option<u16>),
    ) -> Result<Content, DropReason> {
        let (vni, frame_at) = self.encapsulation.parse(datagram)?;
        if vni != node.vni() {
            return Err(DropReason::OverlayVni);
        }
        let frame = datagram.get_mut(frame_at..).unwrap_or_default();
        let ethernet = Ethernet::parse(frame)?;
        if let Some(message) = Message::parse(frame, &ethernet)? {
            node.learn_mac(ethernet.source);
            self.answer(nodes, node, &message);
            return Ok(Content::ToGateway);
        }

        let packet = frame.get_mut(ethernet::HEADER_LEN..).unwrap_or_default();
        let mut header = Header::parse(packet).map_err(|_| DropReason::Malformed)?;
        if ethernet.destination.cast() != Cast::Unicast && !header.destination().is_multicast() {
            return Err(DropReason::OverlayFrame);
        }
        node.learn_mac(ethernet.source);
        node.count_received(as_u64(packet.len()));
        let limits = || Limits { datagram_len, ..self.limits(packet, &header) };
        let virtio = describe(packet, &header, limits);
        if let Some(host) = &self.host
            && node.gateway() == Some(header.destination())
        {
            deliver(host, packet, &header, &virtio)?;
            return Ok(Content::ToGateway);
        }
        if let Some(source) = node.shared_source() {
            let checksum = virtio.checksum(&header);
            source.replace(packet, &mut header, checksum)?;
        }
        let inner_ecn = header.ecn();
        let merged_ecn =
            ecn::decapsulate(inner_ecn, outer_ecn).ok_or(DropReason::CongestionUnmarkable)?;
        if merged_ecn != inner_ecn {
            rewrite::set_ecn(packet, &mut header, merged_ecn)?;
        }
        let start = frame_at + ethernet::HEADER_LEN;

        Ok(Content::Packet(Packet { range: start..start + packet.len(), header, virtio }))
    }

    /// How large the packets may be that a frame is cut into.
    fn limits(&self, packet: &[u8], header: &Header) -> Limits {
        let mtu = self.mtu_bytes.load(Ordering::Relaxed);
        if packet.len() <= ALWAYS_FITS_BYTES {
            return Limits { packet_len: mtu.into(), mss: None, datagram_len: None };
        }
        let path_mtu = self.segment_sizes.path_mtu(header.destination());

        Limits {
            packet_len: path_mtu.map_or(mtu, |path_mtu| path_mtu.min(mtu)).into(),
            mss: self.segment_sizes.mss(packet, header),
            datagram_len: None,
        }
    }

    /// Sends the packets of this process to nodes as they are: their destinations are not replaced by the sources that nodes
    /// share. Returns the error of the socket once there are no more.
    #[cold]
    fn relay(&self, host: &Host, buffer: &mut FrameBuffer) -> io::Result<Read> {
        loop {
            let packet = host.read_for_node(buffer)?;
            let (nodes, mut run) = (self.nodes.load(), Run::new());
            let Some(node) = nodes.of_packet(packet) else { continue };
            run.push(node, packet);
            // The node asks again.
            if !self.writer().is_some_and(|writer| writer.send_run(&run).is_complete()) {
                tracing::debug!(node = %node.remote(), "a node gets no answer");
            }
        }
    }

    /// Answers for every address that no node has: the gateway leads to all of them. A node that announces an address and
    /// asks for the same one looks for a conflict (RFC 5227), which there is none; one that announces none does too.
    #[cold]
    fn answer(&self, nodes: &Nodes, node: &KnownNode, message: &Message) {
        let (Some(question), Some(announced)) = (&message.question, &message.announced) else {
            return;
        };
        let target = question.target();
        if target == announced.address || nodes.of_pod(target).is_some() {
            return;
        }
        let mut buffer = [0; MAX_FRAME_LEN];
        let answer = question.answer(self.mac, &mut buffer);
        // The node asks again.
        if let Err(error) = self.send_frame(node, answer) {
            tracing::debug!(%error, "a node gets no answer");
        }
    }
}
