//! What the sender of a packet left to be done, as a TUN device says it in the offload header.
//!
//! A pod on the host of this gateway sends TCP as frames of up to 64 KiB, and the kernel cuts them, and completes their
//! checksums, when they leave for a network card. Between pods of one host they never do: the datagram of the overlay then
//! holds the frame as the pod made it. No field says so, but the checksum does: the sender's kernel has stored the sum of the
//! pseudo-header in its place. Virtual machines of one host can do this to each other as well, so the address of a node says
//! nothing about it.
//!
//! # A checksum that looks incomplete
//!
//! The sum of the pseudo-header, `P`, can by chance be the checksum of a packet. Completion does not change it: with `R` as the
//! sum of all else, completion writes the complement of `P + R`, and the right checksum is by definition the complement of
//! the same sum. (`P` is never `0x0000`, because the protocol is part of it, so a UDP datagram without checksum stays without.)
//! A *wrong* checksum that equals `P` becomes right, because nothing distinguishes it from an incomplete one; of corrupted
//! packets, one in 65,536 has it. Every other wrong checksum stays wrong. For that, only frames with an incomplete checksum
//! are cut, as cutting computes all checksums; the kernel leaves no other checksum in a frame that is to be cut.

use remap::checksum::pseudo_header;

use crate::virtio::{Gso, VirtioHeader};
use crate::{Fragment, Header, Transport, field, mss, segment};

/// The smallest maximum segment size that is respected, in bytes, as in Linux (`TCP_MIN_SND_MSS`): 8 of payload and 40 of
/// options. A receiver could otherwise make one frame into 64 Ki packets.
const MIN_MSS: u16 = 48;

/// How large the packets may be that a frame is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest packet that fits the tunnel, in bytes.
    pub packet_len: usize,
    /// The maximum segment size of the flow's receiver (RFC 9293 section 3.7.1), if it is known: bytes of payload and of
    /// TCP options in one segment.
    pub mss: Option<u16>,
    /// The bytes of payload in one datagram of a frame of UDP, if the kernel has reported them: see
    /// [`Merged::Frame`](super::Merged::Frame).
    pub datagram_len: Option<u16>,
}

/// The offload header of `packet`, which starts with the IP header that `header` describes.
///
/// [`Segments`](crate::segment::Segments) then completes the packet, or cuts it. A packet that is too long and that cannot be
/// cut stays one packet. `limits` is called only for an incomplete checksum. With segments left in a routing header, a checksum counts as complete.
#[must_use]
#[inline]
pub fn describe(packet: &[u8], header: &Header, limits: impl FnOnce() -> Limits) -> VirtioHeader {
    let Some(checksum_offset) = partial_checksum(packet, header) else {
        return VirtioHeader::default();
    };
    let virtio = VirtioHeader {
        needs_checksum: true,
        checksum_start: field::length(header.transport_offset()),
        checksum_offset: field::length(checksum_offset),
        ..VirtioHeader::default()
    };

    match segmentation(packet, header, limits()) {
        Some((gso, header_len, gso_size)) => {
            VirtioHeader { gso, header_len: field::length(header_len), gso_size, ..virtio }
        }
        None => virtio,
    }
}

/// The offset of the checksum from the transport header, if the checksum is incomplete.
#[inline]
fn partial_checksum(packet: &[u8], header: &Header) -> Option<usize> {
    let transport = header.transport();
    if !matches!(transport, Transport::Tcp | Transport::Udp)
        || header.fragment() != Fragment::None
        || header.is_routed()
    {
        return None;
    }

    let at = transport.checksum_offset()?;
    let len = u32::try_from(header.packet_len() - header.transport_offset()).ok()?;
    let sum = pseudo_header(header.source(), header.destination(), header.protocol(), len);
    let is_partial = field::word(packet, header.transport_offset() + at)? == sum;

    is_partial.then_some(at)
}

/// The kind of the frame, the length of its headers, and that of the payload of each segment; `None` if it is one segment.
#[inline]
fn segmentation(packet: &[u8], header: &Header, limits: Limits) -> Option<(Gso, usize, u16)> {
    let header_len = segment::header_len(packet, header)?;
    let payload_len = header.packet_len().checked_sub(header_len)?;
    let (gso, size) = if header.transport() == Transport::Udp {
        (Gso::UdpL4, usize::from(limits.datagram_len?))
    } else {
        let gso = if header.is_ipv6() { Gso::TcpV6 } else { Gso::TcpV4 };
        (gso, tcp_payload(packet, header, header_len, limits)?)
    };

    (size > 0 && payload_len > size).then_some((gso, header_len, u16::try_from(size).ok()?))
}

/// The bytes of payload in a segment of TCP; `None` if the frame may not be cut.
///
/// A SYN is never cut: the flag counts as one byte of the stream, and Linux sends it with no more data than fits.
#[inline]
fn tcp_payload(packet: &[u8], header: &Header, header_len: usize, limits: Limits) -> Option<usize> {
    if mss::opens_connection(packet, header) {
        return None;
    }

    let fitting = limits.packet_len.checked_sub(header_len)?;
    let options_len = header_len.checked_sub(header.transport_offset() + mss::TCP_LEN)?;
    let accepted = limits.mss.map(|mss| usize::from(mss.max(MIN_MSS)) - options_len);

    Some(accepted.map_or(fitting, |accepted| accepted.min(fitting)))
}
