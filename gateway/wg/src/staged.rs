//! Packets that wait for a session.

use std::collections::VecDeque;

use super::tunnel::MAX_STAGED_PACKETS;
use strait_packet::ecn::Ecn;
use strait_packet::segment::Segments;

/// Packets in the order they came, each with the congestion mark its datagram is to have.
#[derive(Debug, Default)]
pub struct Staged {
    packets: VecDeque<(Vec<u8>, Ecn)>,
}

impl Staged {
    /// Keeps the segments of a frame, as many as may be kept; returns how many were too many.
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

    /// Adds what waited elsewhere. It may have been kept there, so it may be kept here.
    pub fn append(&mut self, mut others: Self) {
        self.packets.append(&mut others.packets);
    }

    /// The packet that waits longest.
    #[must_use]
    pub fn first(&self) -> Option<(&[u8], Ecn)> {
        self.packets.front().map(|(packet, ecn)| (packet.as_slice(), *ecn))
    }

    /// Forgets the packet that waits longest.
    pub fn remove_first(&mut self) {
        self.packets.pop_front();
    }

    #[cfg(test)]
    pub(crate) fn one(packet: &[u8]) -> Self {
        Self { packets: [(packet.to_vec(), Ecn::NotEct)].into() }
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}
