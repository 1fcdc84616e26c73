//! A group of packets that form one frame.

use std::ops::Range;

use remap::checksum::{add, complete, pseudo_header, sum};

use crate::transport::PSH;
use crate::virtio::{Gso, VirtioHeader};
use crate::{Transport, field};

use super::candidate::{Candidate, verify};

/// The longest header of a merged frame in bytes: IPv6 without extension headers, TCP with all its
/// options.
const MAX_HEADER_LEN: usize = 40 + 60;

/// The longest packet that an IPv4 header can describe, in bytes; the device accepts no longer frame.
const MAX_FRAME_LEN: usize = 65_535;

/// The most packets of one frame. For UDP the limit of older kernels (`UDP_MAX_SEGMENTS` before Linux
/// 6.9); for TCP it bounds the slices of one vectored write, and a frame of 64 KiB reaches it only
/// with segments smaller than any MTU in use.
pub const MAX_SEGMENTS: usize = 64;

/// Room for the header of a merged frame.
pub(super) type HeaderCopy = [u8; MAX_HEADER_LEN];

/// One packet of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    start: usize,
    end: usize,
    /// The index of the next member of the same group.
    next: Option<usize>,
}

impl Member {
    #[inline]
    pub(super) const fn new(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end, next: None }
    }

    #[inline]
    pub(super) const fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    pub(super) const fn next(&self) -> Option<usize> {
        self.next
    }

    #[inline]
    pub(super) const fn set_next(&mut self, index: usize) {
        self.next = Some(index);
    }
}

/// One frame under construction.
#[derive(Debug)]
pub(super) struct Group {
    first: usize,
    last: usize,
    count: usize,
    /// Bytes of the frame: the first packet and the payload of the others.
    frame_len: usize,
    /// Payload bytes of each packet but the last.
    segment_len: usize,
    header_len: usize,
    transport_offset: usize,
    transport: Transport,
    is_ipv6: bool,
    has_checksum: bool,
    /// The TCP sequence number that the next packet must have.
    next_sequence: u32,
    /// The IPv4 identification that the next packet must have; `None` if it has no meaning.
    next_identification: Option<u16>,
    /// Whether the first packet's checksums are right, if they were verified.
    first_is_right: Option<bool>,
    /// The sum of the pseudo-header without its length.
    pseudo_sum: u16,
    has_psh: bool,
    /// No packet may be added.
    is_complete: bool,
    /// From the second packet on: the index of the header of the frame.
    header_index: Option<usize>,
}

impl Group {
    /// The group of the member with index `first` and its `len` bytes.
    #[inline]
    pub(super) fn new(first: usize, len: usize, leader: Option<&Candidate<'_>>) -> Self {
        let mut group = Self {
            first,
            last: first,
            count: 1,
            frame_len: len,
            segment_len: 0,
            header_len: 0,
            transport_offset: 0,
            transport: Transport::None,
            is_ipv6: false,
            has_checksum: false,
            next_sequence: 0,
            next_identification: None,
            first_is_right: None,
            pseudo_sum: 0,
            has_psh: false,
            is_complete: leader.is_none(),
            header_index: None,
        };
        if let Some(leader) = leader {
            group.segment_len = leader.payload_len();
            group.header_len = leader.header_len;
            group.transport_offset = leader.header.transport_offset();
            group.transport = leader.header.transport();
            group.is_ipv6 = leader.header.is_ipv6();
            group.has_checksum = leader.has_checksum;
            group.advance(leader);
        }

        group
    }

    /// Whether segmentation would restore `candidate` as the next packet of the group. `first` is
    /// the first packet. Addresses, protocol and ports are known to be equal.
    #[inline]
    pub(super) fn accepts(&self, first: &[u8], candidate: &Candidate<'_>) -> bool {
        let payload_len = candidate.payload_len();
        if self.is_complete
            || payload_len > self.segment_len
            || self.frame_len + payload_len > MAX_FRAME_LEN
            || candidate.has_checksum != self.has_checksum
            || candidate.sequence != self.next_sequence
            || candidate.identification != self.next_identification
            || self.count == MAX_SEGMENTS
        {
            return false;
        }

        let agrees = |range: Range<usize>| first.get(range.clone()) == candidate.packet.get(range);
        let transport = self.transport_offset;
        let ip_agrees = if self.is_ipv6 {
            // Traffic class and flow label; hop limit.
            agrees(0..4) && agrees(7..8)
        } else {
            // Type of service; flags, fragment offset and time to live.
            agrees(0..2) && agrees(6..9)
        };
        // Acknowledgement and header length; window; urgent pointer and options.
        let tcp_agrees = || {
            agrees(transport + 8..transport + 13)
                && agrees(transport + 14..transport + 16)
                && agrees(transport + 18..self.header_len)
        };

        ip_agrees && (self.transport == Transport::Udp || tcp_agrees())
    }

    /// Whether the checksums of the first packet are right. Computed once; a first packet with
    /// a wrong one stays single. `candidate` has the same addresses, protocol and offsets.
    #[inline]
    pub(super) fn verify_first(&mut self, first: &[u8], candidate: &Candidate<'_>) -> bool {
        let is_right = *self.first_is_right.get_or_insert_with(|| verify(first, &candidate.header));
        self.is_complete |= !is_right;

        is_right
    }

    /// The checksums of the first packet need no verification.
    pub(super) const fn trust_first(&mut self) {
        self.first_is_right = Some(true);
    }

    /// Adds an accepted and verified `candidate`. The first call copies the header of the first packet
    /// as the header of the frame.
    #[inline]
    pub(super) fn add(
        &mut self,
        first: &[u8],
        candidate: &Candidate<'_>,
        headers: &mut Vec<HeaderCopy>,
    ) {
        if self.header_index.is_none() {
            let mut copy = [0; MAX_HEADER_LEN];
            if let Some((to, from)) =
                copy.get_mut(..self.header_len).zip(first.get(..self.header_len))
            {
                to.copy_from_slice(from);
            }
            self.header_index = Some(headers.len());
            headers.push(copy);
        }

        self.grow(candidate);
    }

    /// Adds an accepted and verified `candidate` to a frame whose header the caller keeps.
    #[inline]
    pub(super) fn grow(&mut self, candidate: &Candidate<'_>) {
        if self.count == 1 {
            let header = &candidate.header;
            self.pseudo_sum =
                pseudo_header(header.source(), header.destination(), header.protocol(), 0);
        }
        self.count += 1;
        self.frame_len += candidate.payload_len();
        self.has_psh |= candidate.is_last;
        self.is_complete = candidate.is_last || candidate.payload_len() < self.segment_len;
        self.advance(candidate);
    }

    /// Completes `header`, that of the first packet, for the whole frame. May be called again.
    pub(super) fn finish(&self, header: &mut [u8]) {
        let transport_len = field::length(self.frame_len - self.transport_offset);
        if self.is_ipv6 {
            field::put_word(header, 4, field::length(self.frame_len - 40));
        } else {
            field::put_word(header, 2, field::length(self.frame_len));
            field::put_word(header, 10, 0);
            let header_sum = header.get(..self.transport_offset).map_or(0, sum);
            field::put_word(header, 10, complete(header_sum));
        }

        if self.transport == Transport::Udp {
            field::put_word(header, self.transport_offset + 4, transport_len);
        } else if self.has_psh
            && let Some(flags) = header.get_mut(self.transport_offset + 13)
        {
            *flags |= PSH;
        }
        let partial = add(self.pseudo_sum, transport_len);
        let checksum_at = self.transport_offset + self.checksum_offset();
        field::put_word(header, checksum_at, partial);
    }

    /// The offload header of the frame.
    pub(super) fn virtio(&self) -> VirtioHeader {
        if self.count == 1 {
            return VirtioHeader::default();
        }

        VirtioHeader {
            needs_checksum: true,
            gso: match (self.transport, self.is_ipv6) {
                (Transport::Udp, _) => Gso::UdpL4,
                (_, true) => Gso::TcpV6,
                (_, false) => Gso::TcpV4,
            },
            header_len: field::length(self.header_len),
            gso_size: field::length(self.segment_len),
            checksum_start: field::length(self.transport_offset),
            checksum_offset: field::length(self.checksum_offset()),
            overlay: None,
        }
    }

    #[inline]
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) const fn first(&self) -> usize {
        self.first
    }

    pub(super) const fn last(&self) -> usize {
        self.last
    }

    pub(super) const fn set_last(&mut self, index: usize) {
        self.last = index;
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) const fn frame_len(&self) -> usize {
        self.frame_len
    }

    pub(super) const fn header_len(&self) -> usize {
        self.header_len
    }

    /// The length of the first packet in bytes, if another one may follow.
    pub(super) const fn first_len(&self) -> usize {
        self.header_len + self.segment_len
    }

    pub(super) const fn header_index(&self) -> Option<usize> {
        self.header_index
    }

    fn checksum_offset(&self) -> usize {
        self.transport.checksum_offset().unwrap_or_default()
    }

    /// Sets the fields that the packet after `candidate` must have.
    #[inline]
    fn advance(&mut self, candidate: &Candidate<'_>) {
        let step = u32::try_from(candidate.payload_len()).unwrap_or_default();
        if candidate.header.transport() == Transport::Tcp {
            self.next_sequence = candidate.sequence.wrapping_add(step);
        }
        self.next_identification = candidate.identification.map(|id| id.wrapping_add(1));
    }
}
