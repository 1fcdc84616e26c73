//! The two buffers of a batch: datagrams to send, and packets that were received.
//!
//! Both are allocated once and reused for every batch. They are not zeroed between batches: a range is only
//! read after it was written in the same batch.

mod packet_batch;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::counters::as_u64;
use crate::ecn::Ecn;
use crate::path::Path;

pub use packet_batch::PacketBatch;

/// The most datagrams that the kernel accepts as one segmented send (`UDP_MAX_SEGMENTS` before Linux 6.9).
pub const MAX_SEGMENTS: usize = 64;

/// The most payload bytes of one segmented send: the largest payload of an IPv4 datagram.
pub const MAX_TRANSMIT_BYTES: usize = 65_507;

/// More than a frame in the smallest segments that TCP allows.
const TRANSMIT_CAPACITY_BYTES: usize = 320 * 1024;

/// The most sends of a batch.
const TRANSMIT_CAPACITY: usize = 1024;

/// Unsent bytes are moved to the start of the batch if there is less room than this from their start on: the
/// room for a full send and one more frame of 64 KiB, in segments of a fifth of any MTU in use.
const GROWTH_BYTES: usize = 160 * 1024;

/// The DSCP of handshake messages in [`Outer::traffic_class`]: AF41 (RFC 2597), as in the kernel's
/// WireGuard. Without a handshake no other message can be sent.
const HANDSHAKE_CLASS: u8 = 34 << 2;

/// The outer header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// The peer's endpoint, and the local address that it knows.
    pub path: Path,
    /// The congestion mark.
    pub ecn: Ecn,
    is_handshake: bool,
    /// Time to live or hop limit; `None` for the default of the host.
    pub hop_limit: Option<u8>,
}

impl Outer {
    /// For transport data. The DSCP of the inner packet is not copied.
    #[must_use]
    #[inline]
    pub fn data(path: impl Into<Path>, ecn: Ecn) -> Self {
        Self { path: path.into(), ecn, is_handshake: false, hop_limit: None }
    }

    /// For a keepalive or a cookie reply.
    #[must_use]
    pub fn message(path: impl Into<Path>) -> Self {
        Self::data(path, Ecn::NotEct)
    }

    /// For a handshake initiation or response.
    #[must_use]
    pub fn handshake(path: impl Into<Path>) -> Self {
        Self { is_handshake: true, ..Self::message(path) }
    }

    /// The type-of-service or traffic-class byte (RFC 2474 and RFC 3168).
    #[must_use]
    #[inline]
    pub const fn traffic_class(self) -> u8 {
        let class = if self.is_handshake { HANDSHAKE_CLASS } else { 0 };

        class | self.ecn.bits()
    }
}

/// One send: datagrams of `segment_bytes` each, the last one possibly shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The outer header of all datagrams.
    pub outer: Outer,
    /// The datagrams, back to back, in the bytes of the batch.
    pub range: Range<usize>,
    /// Length of every datagram but the last.
    pub segment_bytes: usize,
    /// The number of datagrams that carry a packet (the others are messages of the protocol).
    pub packets: u64,
    /// Bytes of the datagrams that carry a packet.
    pub packet_bytes: u64,
}

impl Transmit {
    /// The number of datagrams.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.range.len().div_ceil(self.segment_bytes.max(1))
    }

    /// Splits the counts into those of sent and those of lost datagrams; `datagrams` of `bytes` in total were
    /// lost.
    #[must_use]
    pub fn divide(&self, datagrams: u64, bytes: u64) -> (Self, Self) {
        let (packets, packet_bytes) = (datagrams.min(self.packets), bytes.min(self.packet_bytes));
        let sent = Self {
            packets: self.packets - packets,
            packet_bytes: self.packet_bytes - packet_bytes,
            ..self.clone()
        };

        (sent, Self { packets, packet_bytes, ..self.clone() })
    }

    /// Whether a datagram of `len` bytes with header `outer` can be appended.
    fn takes(&self, outer: Outer, len: usize) -> bool {
        self.outer == outer && len <= self.segment_bytes && self.has_room(len)
    }

    /// Whether `len` more bytes fit: only the last datagram may be shorter.
    fn has_room(&self, len: usize) -> bool {
        self.range.len().is_multiple_of(self.segment_bytes)
            && self.datagrams() < MAX_SEGMENTS
            && self.range.len() + len <= MAX_TRANSMIT_BYTES
    }
}

/// Datagrams to send, grouped into as few sends as the kernel's rules allow, in order.
#[derive(Debug)]
pub struct TransmitBatch {
    bytes: Box<[u8]>,
    len: usize,
    transmits: Vec<Transmit>,
}

impl Default for TransmitBatch {
    fn default() -> Self {
        Self::with_capacity(TRANSMIT_CAPACITY_BYTES)
    }
}

impl TransmitBatch {
    /// A batch of at most `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: vec![0; capacity].into_boxed_slice(),
            len: 0,
            transmits: Vec::with_capacity(TRANSMIT_CAPACITY),
        }
    }

    /// Whether an empty batch of the default size has room for `datagrams` of `bytes` in total, of any
    /// lengths.
    #[must_use]
    pub const fn is_enough_for(datagrams: usize, bytes: usize) -> bool {
        datagrams <= TRANSMIT_CAPACITY && bytes <= TRANSMIT_CAPACITY_BYTES
    }

    /// A buffer of at least `needed` bytes for the next datagram; `None` if there is no room.
    #[inline]
    pub fn room(&mut self, needed: usize) -> Option<&mut [u8]> {
        if self.transmits.len() == self.transmits.capacity() {
            return None;
        }

        self.bytes.get_mut(self.len..).filter(|room| room.len() >= needed)
    }

    /// Whether [`Self::room`] would return `needed` bytes.
    #[must_use]
    #[inline]
    pub fn has_room(&self, needed: usize) -> bool {
        self.transmits.len() < self.transmits.capacity() && self.bytes.len() - self.len >= needed
    }

    /// Appends the first `len` bytes of the room as one datagram.
    #[inline]
    pub fn commit(&mut self, len: usize, outer: Outer, carries_packet: bool) {
        let range = self.len..self.len + len;
        self.len = range.end;
        let packets = u64::from(carries_packet);
        let packet_bytes = packets * as_u64(len);

        match self.transmits.last_mut() {
            Some(last) if last.takes(outer, len) => {
                last.range.end = range.end;
                last.packets += packets;
                last.packet_bytes += packet_bytes;
            }
            _ => self.transmits.push(Transmit {
                outer,
                range,
                segment_bytes: len,
                packets,
                packet_bytes,
            }),
        }
    }

    /// Appends a message of the protocol itself. Returns whether there was room; otherwise the message is
    /// lost.
    pub fn push_message(&mut self, message: &[u8], outer: Outer) -> bool {
        let len = message.len();
        let Some(room) = self.room(len).and_then(|room| room.get_mut(..len)) else { return false };
        room.copy_from_slice(message);
        self.commit(len, outer, false);

        true
    }

    /// The sends, in order.
    #[must_use]
    pub fn transmits(&self) -> &[Transmit] {
        &self.transmits
    }

    /// The number of sends, from the first, that cannot grow any more: all, or all but the last.
    #[must_use]
    pub fn complete(&self) -> usize {
        let last = self.transmits.last();
        let is_open = last.is_some_and(|last| last.has_room(last.segment_bytes));

        self.transmits.len() - usize::from(is_open)
    }

    /// The bytes of one send.
    #[must_use]
    pub fn bytes(&self, transmit: &Transmit) -> &[u8] {
        self.bytes.get(transmit.range.clone()).unwrap_or_default()
    }

    /// The written bytes from offset `start` on.
    #[must_use]
    #[inline]
    pub fn bytes_from(&mut self, start: usize) -> &mut [u8] {
        self.bytes.get_mut(start..self.len).unwrap_or_default()
    }

    /// The datagrams after the first `len` bytes, which end at a datagram boundary, and their paths; the
    /// newest sends first.
    pub fn datagrams_behind(&self, len: usize) -> impl Iterator<Item = (&[u8], Path)> {
        let newest =
            self.transmits.iter().rev().take_while(move |transmit| transmit.range.end > len);

        newest.flat_map(move |transmit| {
            let range = transmit.range.start.max(len)..transmit.range.end;
            let bytes = self.bytes.get(range).unwrap_or_default();
            let datagrams = bytes.chunks(transmit.segment_bytes.max(1));
            datagrams.map(|datagram| (datagram, transmit.outer.path))
        })
    }

    /// Changes the path of the handshakes after the first `len` bytes, which end at a datagram boundary, to the
    /// one that `redirected` returns. Does not change a handshake in the same send as an earlier datagram.
    pub fn redirect_handshakes(&mut self, len: usize, redirected: impl Fn(Path) -> Path) {
        let newest = self.transmits.iter_mut().rev();
        for transmit in newest.take_while(|transmit| transmit.range.start >= len) {
            if transmit.outer.is_handshake {
                transmit.outer.path = redirected(transmit.outer.path);
            }
        }
    }

    /// The number of sends for which there is room, independently of their lengths.
    #[must_use]
    pub const fn spare_transmits(&self) -> usize {
        self.transmits.capacity() - self.transmits.len()
    }

    /// The number of written bytes, including sent ones that were not removed yet.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The number of bytes to send.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.transmits.first().map_or(0, |transmit| self.len - transmit.range.start)
    }

    /// Whether there is no send.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.transmits.is_empty()
    }

    /// Removes the first `count` sends.
    pub fn forget(&mut self, count: usize) {
        let Some(start) = self.transmits.get(count).map(|transmit| transmit.range.start) else {
            self.clear();
            return;
        };
        self.transmits.drain(..count);

        if self.bytes.len() - start < GROWTH_BYTES {
            self.bytes.copy_within(start..self.len, 0);
            self.len -= start;
            for Transmit { range, .. } in &mut self.transmits {
                *range = range.start - start..range.end - start;
            }
        }
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.len = 0;
        self.transmits.clear();
    }
}
