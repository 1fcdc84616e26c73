//! A packet that may be part of a merged frame, judged without its neighbours.

use remap::checksum::{add, pseudo_header, sum};

use crate::transport::{ACK, PSH};
use crate::{Fragment, Header, Transport, field};

use super::Merge;

const DONT_FRAGMENT: u16 = 0x4000;

/// A packet that segmentation can restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// The packet, without padding.
    pub(super) packet: &'a [u8],
    pub(super) header: Header,
    /// Bytes of IP and transport header.
    pub(super) header_len: usize,
    /// Whether there is a checksum. UDP may have none, as overlays do.
    pub(super) has_checksum: bool,
    /// The TCP sequence number; 0 in UDP.
    pub(super) sequence: u32,
    /// The IPv4 identification, where it has a meaning: without DF (RFC 6864 section 4.1).
    pub(super) identification: Option<u16>,
    /// It must be the last packet of a frame: TCP with PSH.
    pub(super) is_last: bool,
}

impl<'a> Candidate<'a> {
    #[inline]
    pub(super) fn of(packet: &'a [u8], header: &Header, merge: Merge) -> Option<Self> {
        // Options and extension headers would be repeated; fragments cannot be segmented again.
        if !header.is_plain() || header.fragment() != Fragment::None {
            return None;
        }

        let transport_offset = header.transport_offset();
        let transport = packet.get(transport_offset..)?;
        let is_tcp = header.transport() == Transport::Tcp && merge.tcp;
        let is_udp = header.transport() == Transport::Udp && merge.udp;
        let (transport_len, sequence, is_last) = if is_tcp {
            plain_tcp(transport)?
        } else if is_udp && fills_packet(transport) {
            (8, 0, false)
        } else {
            return None;
        };
        let has_checksum = has_checksum(transport, header);

        // Merging pure acknowledgements would reduce their number.
        let header_len = transport_offset + transport_len;
        if packet.len() <= header_len {
            return None;
        }

        let identification = if header.is_ipv6() {
            None
        } else {
            let may_be_fragmented = field::word(packet, 6)? & DONT_FRAGMENT == 0;
            may_be_fragmented.then_some(field::word(packet, 4)?)
        };

        Some(Self {
            packet,
            header: *header,
            header_len,
            has_checksum,
            sequence,
            identification,
            is_last,
        })
    }

    #[inline]
    pub(super) const fn payload_len(&self) -> usize {
        self.packet.len() - self.header_len
    }

    /// Whether all checksums are right.
    #[inline]
    pub(super) fn verify(&self) -> bool {
        verify(self.packet, &self.header)
    }
}

/// Header length, sequence number and whether PSH is set; `None` if any flag but ACK and PSH is set,
/// or ACK is not.
#[inline]
fn plain_tcp(segment: &[u8]) -> Option<(usize, u32, bool)> {
    let tcp = segment.first_chunk::<20>()?;
    let len = usize::from(tcp[12] >> 4) * 4;
    let has_plain_flags = tcp[12] & 0x0f == 0 && tcp[13] & !PSH == ACK;
    if len < 20 || !has_plain_flags {
        return None;
    }
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);

    Some((len, sequence, tcp[13] & PSH != 0))
}

/// Whether the datagram fills its packet.
#[inline]
fn fills_packet(datagram: &[u8]) -> bool {
    field::word(datagram, 4).map(usize::from) == Some(datagram.len())
}

/// Whether the TCP segment or UDP datagram has a checksum.
#[inline]
fn has_checksum(transport: &[u8], header: &Header) -> bool {
    header.transport() == Transport::Tcp || field::word(transport, 6) != Some(0)
}

/// Whether all checksums of `packet` are right. `header` is its header, or that of another packet
/// with the same addresses, protocol and offsets.
#[inline]
pub(super) fn verify(packet: &[u8], header: &Header) -> bool {
    let Some((ip, transport)) = packet.split_at_checked(header.transport_offset()) else {
        return false;
    };
    let len = u32::from(field::length(transport.len()));
    let pseudo = pseudo_header(header.source(), header.destination(), header.protocol(), len);

    // With the checksum itself, the sum is all ones: the negative zero of one's complement.
    (header.is_ipv6() || sum(ip) == 0xffff)
        && (!has_checksum(transport, header) || add(pseudo, sum(transport)) == 0xffff)
}
