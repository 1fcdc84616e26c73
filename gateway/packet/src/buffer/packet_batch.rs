//! The packets of a batch.

use std::ops::Range;

/// Packets that were opened, in order of arrival.
#[derive(Debug)]
pub struct PacketBatch {
    bytes: Box<[u8]>,
    len: usize,
    packets: Vec<Range<usize>>,
}

impl PacketBatch {
    /// A batch of at most `capacity` bytes and `packets` packets.
    #[must_use]
    pub fn with_capacity(capacity: usize, packets: usize) -> Self {
        Self {
            bytes: vec![0; capacity].into_boxed_slice(),
            len: 0,
            packets: Vec::with_capacity(packets),
        }
    }

    /// A buffer of at least `needed` bytes for the next packet; `None` if there is no room.
    #[inline]
    pub fn room(&mut self, needed: usize) -> Option<&mut [u8]> {
        if self.packets.len() == self.packets.capacity() {
            return None;
        }

        self.bytes.get_mut(self.len..).filter(|room| room.len() >= needed)
    }

    /// Appends the first `len` bytes of the room as one packet.
    #[inline]
    pub fn commit(&mut self, len: usize) {
        self.packets.push(self.len..self.len + len);
        self.len += len;
    }

    /// All unused bytes, and the number of packets that may be appended.
    #[inline]
    pub fn rest(&mut self) -> (&mut [u8], usize) {
        let packets = self.packets.capacity() - self.packets.len();

        (self.bytes.get_mut(self.len..).unwrap_or_default(), packets)
    }

    /// Uses the first `room_len` bytes of the rest, and appends the first `packet_len` of these as one packet,
    /// if there is one.
    #[inline]
    pub fn commit_within(&mut self, packet_len: Option<usize>, room_len: usize) {
        self.packets.extend(packet_len.map(|len| self.len..self.len + len));
        self.len += room_len;
    }

    /// The ranges of the packets.
    #[must_use]
    pub fn packets(&self) -> &[Range<usize>] {
        &self.packets
    }

    /// All bytes; [`Self::packets`] are the ranges of the packets.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes, to rewrite in place, and the ranges of the packets from number `first` on.
    pub fn packets_from(&mut self, first: usize) -> (&mut [u8], &[Range<usize>]) {
        (&mut self.bytes, self.packets.get(first..).unwrap_or_default())
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.len = 0;
        self.packets.clear();
    }
}
