//! Staged packets: those that wait for a handshake.

use std::collections::VecDeque;

use super::tunnel::MAX_STAGED_PACKETS;
use strait_packet::ecn::Ecn;
use strait_packet::segment::Segments;

/// Packets in the order of arrival, each with the ECN mark for its datagram.
#[derive(Debug, Default)]
pub struct Staged {
    packets: VecDeque<(Vec<u8>, Ecn)>,
}

impl Staged {
    /// Stages the segments of a frame, up to [`MAX_STAGED_PACKETS`]. Returns how many were dropped.
    pub fn stage(&mut self, segments: &mut Segments<'_>, ecn: Ecn) -> u64 {
        let mut overflow = 0;
        while let Some(packet) = segments.next_segment() {
            if self.packets.len() < MAX_STAGED_PACKETS {
                self.packets.push_back((packet.to_vec(), ecn));
            } else {
                overflow += 1;
            }
        }

        overflow
    }

    /// Appends a packet, even beyond [`MAX_STAGED_PACKETS`].
    pub(super) fn push(&mut self, packet: &[u8], ecn: Ecn) {
        self.packets.push_back((packet.to_vec(), ecn));
    }

    /// All packets, the oldest first.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], Ecn)> {
        self.packets.iter().map(|(packet, ecn)| (packet.as_slice(), *ecn))
    }

    /// Appends the packets of another tunnel, even beyond [`MAX_STAGED_PACKETS`].
    pub fn append(&mut self, mut others: Self) {
        self.packets.append(&mut others.packets);
    }

    /// The oldest packet.
    #[must_use]
    pub fn first(&self) -> Option<(&[u8], Ecn)> {
        self.packets.front().map(|(packet, ecn)| (packet.as_slice(), *ecn))
    }

    /// Removes the oldest packet.
    pub fn remove_first(&mut self) {
        self.packets.pop_front();
    }

    #[cfg(test)]
    pub(crate) fn one(packet: &[u8]) -> Self {
        Self { packets: [(packet.to_vec(), Ecn::NotEct)].into() }
    }

    /// How many packets are staged.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether no packet is staged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}
