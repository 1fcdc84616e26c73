//! The header of a frame, ready to be put in front of each segment.

use std::ops::Range;

use remap::checksum::{Delta, add, adjust_partial, complete, pseudo_header, sum};

use crate::Header;
use crate::Malformed;
use crate::Transport;
use crate::field;
use crate::transport::{CWR, FIN, PSH};
use crate::virtio::VirtioHeader;

/// The longest header that is repeated in front of every segment, in bytes. IPv4 and TCP with all
/// their options take 120; extension headers have the rest.
const MAX_HEADER_LEN: usize = 256;

const UDP_HEADER_LEN: usize = 8;

/// A header with every varying field zeroed, the values they start from, and the sums of the rest.
#[derive(Debug)]
pub(super) struct Stamp {
    template: [u8; MAX_HEADER_LEN],
    header_len: usize,
    transport_offset: usize,
    payload_len: usize,
    segment_len: usize,
    count: usize,
    ip: Ip,
    transport: Upper,
    /// Pseudo-header without its length, and transport header without its varying fields.
    transport_sum: u16,
}

#[derive(Debug)]
enum Ip {
    V4 { header_sum: u16, identification: u16 },
    V6,
}

#[derive(Debug)]
enum Upper {
    Tcp { sequence: u32, flags: u8 },
    Udp,
}

impl Stamp {
    /// Takes the header off `frame`, whose protocol is known to be the one that `virtio` names.
    pub(super) fn new(
        frame: &[u8],
        virtio: &VirtioHeader,
        header: &Header,
    ) -> Result<Self, Malformed> {
        let transport_offset = header.transport_offset();
        let header_len = header_len(frame, header).ok_or(Malformed::Offload)?;
        let segment_len = usize::from(virtio.gso_size);
        let payload_len = frame.len().checked_sub(header_len).ok_or(Malformed::Offload)?;
        if segment_len == 0 {
            return Err(Malformed::Offload);
        }
        let pseudo_sum = pseudo_sum(frame, virtio, header)?;

        let mut template = [0; MAX_HEADER_LEN];
        let bytes = template.get_mut(..header_len).ok_or(Malformed::Offload)?;
        bytes.copy_from_slice(frame.get(..header_len).ok_or(Malformed::Offload)?);
        let (ip_bytes, transport_bytes) =
            bytes.split_at_mut_checked(transport_offset).ok_or(Malformed::Offload)?;
        let ip = clear_ip(ip_bytes, header);
        let transport = clear_transport(transport_bytes, header).ok_or(Malformed::Offload)?;
        let transport_sum = add(pseudo_sum, sum(transport_bytes));

        Ok(Self {
            template,
            header_len,
            transport_offset,
            payload_len,
            segment_len,
            count: payload_len.div_ceil(segment_len).max(1),
            ip,
            transport,
            transport_sum,
        })
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) const fn header_len(&self) -> usize {
        self.header_len
    }

    /// Where segment `index` stands in the frame, header included.
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
        let Some((ip, transport)) = header.split_at_mut_checked(self.transport_offset) else {
            return;
        };

        self.write_ip(ip, packet_len, index);
        let constant = add(self.transport_sum, transport_len);
        self.write_transport(transport, add(constant, sum(payload)), transport_len, index);
    }

    #[inline]
    fn write_ip(&self, ip: &mut [u8], packet_len: usize, index: usize) {
        match self.ip {
            Ip::V4 { header_sum, identification } => {
                let Some(ip) = ip.first_chunk_mut::<20>() else {
                    return;
                };
                let len = field::length(packet_len);
                let step = u16::try_from(index).unwrap_or_default();
                let identification = identification.wrapping_add(step);

                [ip[2], ip[3]] = len.to_be_bytes();
                [ip[4], ip[5]] = identification.to_be_bytes();
                let sum = add(header_sum, add(len, identification));
                [ip[10], ip[11]] = complete(sum).to_be_bytes();
            }
            Ip::V6 => field::put_word(ip, 4, field::length(packet_len - 40)),
        }
    }

    /// `sum` covers the pseudo-header, the payload and the constant part of the transport header.
    #[inline]
    fn write_transport(&self, transport: &mut [u8], sum: u16, transport_len: u16, index: usize) {
        match self.transport {
            Upper::Tcp { sequence, flags } => {
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
            Upper::Udp => {
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

/// The bytes of IP and transport header, from the packet itself: the hint of the device is garbage
/// on forwarded frames.
fn header_len(frame: &[u8], header: &Header) -> Option<usize> {
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
/// the packet. The partial checksum of the frame has it already.
fn pseudo_sum(frame: &[u8], virtio: &VirtioHeader, header: &Header) -> Result<u16, Malformed> {
    if !header.is_routed() {
        return Ok(pseudo_header(header.source(), header.destination(), header.protocol(), 0));
    }
    if !virtio.needs_checksum {
        return Err(Malformed::Offload);
    }

    let at = header.transport().checksum_offset().ok_or(Malformed::Offload)?;
    let partial = field::word(frame, header.transport_offset() + at).ok_or(Malformed::Offload)?;
    let len = field::length(frame.len() - header.transport_offset());

    Ok(adjust_partial(partial, Delta::between_words(len, 0)))
}

/// Zeroes what varies in the IP header.
fn clear_ip(ip: &mut [u8], header: &Header) -> Ip {
    if header.is_ipv6() {
        field::put_word(ip, 4, 0);
        return Ip::V6;
    }

    let identification = field::word(ip, 4).unwrap_or_default();
    for at in [2, 4, 10] {
        field::put_word(ip, at, 0);
    }

    Ip::V4 { header_sum: sum(ip), identification }
}

/// Zeroes what varies in the transport header; `None` if it is too short.
fn clear_transport(transport: &mut [u8], header: &Header) -> Option<Upper> {
    if header.transport() == Transport::Udp {
        let udp = transport.first_chunk_mut::<UDP_HEADER_LEN>()?;
        udp[4..8].fill(0);
        return Some(Upper::Udp);
    }

    let tcp = transport.first_chunk_mut::<20>()?;
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let flags = tcp[13] & (FIN | PSH | CWR);
    tcp[4..8].fill(0);
    tcp[13] &= !flags;
    tcp[16..18].fill(0);

    Some(Upper::Tcp { sequence, flags })
}
