//! The header of a frame, prepared to be written in front of each segment.

use std::ops::Range;

use remap::checksum::{Delta, add, adjust_partial, complete, pseudo_header, sum};

use crate::transport::{CWR, FIN, PSH};
use crate::virtio::VirtioHeader;
use crate::{Header, Malformed, Transport, field};

use super::ip_fields::IpFields;
use super::overlay::{Inner, OuterHeaders, UDP_HEADER_LEN};

/// The longest header that is repeated in front of every segment, in bytes: IPv6, UDP, Geneve with all its options,
/// Ethernet with a VLAN tag, IPv6, and TCP with all its options take 426. The rest is for extension headers.
const MAX_HEADER_LEN: usize = 448;

/// A header with every varying field zeroed, the initial values of these fields, and the sums of the others.
#[derive(Debug)]
pub(super) struct HeaderTemplate {
    template: [u8; MAX_HEADER_LEN],
    header_len: usize,
    /// The headers before the IP header of the segmented packet.
    outer: Option<OuterHeaders>,
    /// Offset of the IP header of the segmented packet: 0 without an overlay.
    ip_offset: usize,
    transport_offset: usize,
    payload_len: usize,
    segment_len: usize,
    count: usize,
    ip: IpFields,
    transport: TransportFields,
    /// Of the pseudo-header without its length.
    pseudo_sum: u16,
    /// Of the transport header without its varying fields.
    transport_sum: u16,
}

#[derive(Debug)]
enum TransportFields {
    Tcp { sequence: u32, flags: u8 },
    Udp,
}

impl HeaderTemplate {
    /// Copies the headers of `frame` up to the payload of `inner`, whose protocol is known to be the one that `virtio`
    /// names. `header` is the first one: that of `inner` without an overlay.
    pub(super) fn new(
        frame: &[u8],
        virtio: &VirtioHeader,
        header: &Header,
        inner: &Inner,
    ) -> Result<Self, Malformed> {
        let ip_offset = inner.offset;
        let packet = frame.get(ip_offset..).ok_or(Malformed::Offload)?;
        let transport_offset = ip_offset + inner.header.transport_offset();
        let header_len = ip_offset + header_len(packet, &inner.header).ok_or(Malformed::Offload)?;
        let segment_len = usize::from(virtio.gso_size);
        let payload_len = frame.len().checked_sub(header_len).ok_or(Malformed::Offload)?;
        if segment_len == 0 {
            return Err(Malformed::Offload);
        }
        let pseudo_sum = pseudo_sum(packet, virtio, inner)?;

        let mut template = [0; MAX_HEADER_LEN];
        let bytes = template.get_mut(..header_len).ok_or(Malformed::Offload)?;
        bytes.copy_from_slice(frame.get(..header_len).ok_or(Malformed::Offload)?);
        let (before, transport_bytes) =
            bytes.split_at_mut_checked(transport_offset).ok_or(Malformed::Offload)?;
        let (outer_bytes, ip_bytes) =
            before.split_at_mut_checked(ip_offset).ok_or(Malformed::Offload)?;
        let outer = match &virtio.overlay {
            Some(overlay) => Some(OuterHeaders::take(outer_bytes, overlay, header)?),
            None => None,
        };
        let ip = IpFields::take(ip_bytes, &inner.header);
        let transport =
            clear_transport(transport_bytes, &inner.header).ok_or(Malformed::Offload)?;

        Ok(Self {
            header_len,
            outer,
            ip_offset,
            transport_offset,
            payload_len,
            segment_len,
            count: payload_len.div_ceil(segment_len).max(1),
            ip,
            transport,
            pseudo_sum,
            transport_sum: sum(transport_bytes),
            template,
        })
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) const fn header_len(&self) -> usize {
        self.header_len
    }

    /// The range of segment `index` in the frame, header included.
    #[inline]
    pub(super) fn range(&self, index: usize) -> Range<usize> {
        let start = index * self.segment_len;
        let payload_len = self.payload_len.saturating_sub(start).min(self.segment_len);

        start..start + self.header_len + payload_len
    }

    /// Writes the header of segment `index` to the start of `segment`.
    #[inline]
    pub(super) fn write(&self, segment: &mut [u8], index: usize) {
        let packet_len = segment.len();
        let transport_len = field::length(packet_len - self.transport_offset);
        let Some((header, payload)) = segment.split_at_mut_checked(self.header_len) else {
            return;
        };
        let Some(template) = self.template.get(..self.header_len) else {
            return;
        };
        header.copy_from_slice(template);
        let Some((before, transport)) = header.split_at_mut_checked(self.transport_offset) else {
            return;
        };
        let Some((outer, ip)) = before.split_at_mut_checked(self.ip_offset) else {
            return;
        };

        self.ip.write(ip, packet_len - self.ip_offset, index);
        let pseudo_sum = add(self.pseudo_sum, transport_len);
        let constant = add(pseudo_sum, self.transport_sum);
        self.write_transport(transport, add(constant, sum(payload)), transport_len, index);
        if let Some(headers) = &self.outer {
            // With the pseudo-header, the transport segment has the sum zero.
            let inner_sum = add(sum(ip), complete(pseudo_sum));
            headers.write(outer, packet_len, index, inner_sum);
        }
    }

    /// `sum` covers the pseudo-header, the payload and the constant part of the transport header.
    #[inline]
    fn write_transport(&self, transport: &mut [u8], sum: u16, transport_len: u16, index: usize) {
        match self.transport {
            TransportFields::Tcp { sequence, flags } => {
                let Some(tcp) = transport.first_chunk_mut::<20>() else {
                    return;
                };
                let step = u32::try_from(index * self.segment_len).unwrap_or_default();
                let [s0, s1, s2, s3] = sequence.wrapping_add(step).to_be_bytes();
                let flags = flags & self.allowed_flags(index);

                [tcp[4], tcp[5], tcp[6], tcp[7]] = [s0, s1, s2, s3];
                tcp[13] |= flags;
                let varying = add(u16::from_be_bytes([s0, s1]), u16::from_be_bytes([s2, s3]));
                let sum = add(add(sum, varying), u16::from(flags));
                [tcp[16], tcp[17]] = complete(sum).to_be_bytes();
            }
            TransportFields::Udp => {
                let Some(udp) = transport.first_chunk_mut::<UDP_HEADER_LEN>() else {
                    return;
                };

                [udp[4], udp[5]] = transport_len.to_be_bytes();
                [udp[6], udp[7]] = match complete(add(sum, transport_len)) {
                    0 => [0xff; 2],
                    value => value.to_be_bytes(),
                };
            }
        }
    }

    /// The varying flags that segment `index` may keep.
    #[inline]
    const fn allowed_flags(&self, index: usize) -> u8 {
        let first = if index == 0 { CWR } else { 0 };
        let last = if index + 1 == self.count { FIN | PSH } else { 0 };

        first | last
    }
}

/// The length of IP and transport header, from the packet itself: the hint of the device is invalid
/// for forwarded frames.
pub(crate) fn header_len(frame: &[u8], header: &Header) -> Option<usize> {
    let transport = frame.get(header.transport_offset()..)?;
    if header.transport() == Transport::Udp {
        return Some(header.transport_offset() + UDP_HEADER_LEN);
    }
    let len = usize::from(transport.get(12)? >> 4) * 4;

    (len >= 20).then_some(header.transport_offset() + len)
}

/// The sum of the pseudo-header without its length.
///
/// With segments left in a routing header the destination of the pseudo-header is not the one of
/// the packet. The partial checksum of the frame already contains it.
fn pseudo_sum(packet: &[u8], virtio: &VirtioHeader, inner: &Inner) -> Result<u16, Malformed> {
    let header = &inner.header;
    if !header.is_routed() {
        return Ok(pseudo_header(header.source(), header.destination(), header.protocol(), 0));
    }
    if !virtio.needs_checksum {
        return Err(Malformed::Offload);
    }

    let at = header.transport().checksum_offset().ok_or(Malformed::Offload)?;
    let partial = field::word(packet, header.transport_offset() + at).ok_or(Malformed::Offload)?;
    let len = field::length(packet.len() - header.transport_offset());

    Ok(adjust_partial(partial, Delta::between_words(len, 0)))
}

/// Zeroes the varying fields of the transport header; `None` if it is too short.
fn clear_transport(transport: &mut [u8], header: &Header) -> Option<TransportFields> {
    if header.transport() == Transport::Udp {
        let udp = transport.first_chunk_mut::<UDP_HEADER_LEN>()?;
        udp[4..8].fill(0);
        return Some(TransportFields::Udp);
    }

    let tcp = transport.first_chunk_mut::<20>()?;
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let flags = tcp[13] & (FIN | PSH | CWR);
    tcp[4..8].fill(0);
    tcp[13] &= !flags;
    tcp[16..18].fill(0);

    Some(TransportFields::Tcp { sequence, flags })
}
