//! Cutting one frame of the TUN device into the packets that it stands for.
//!
//! A frame is up to 64 KiB of payload behind one header. Payload is never moved: each segment's header is
//! stamped into the frame itself, right in front of its payload, over the tail of the segment before,
//! which the caller has consumed by then.
//!
//! ```text
//!   frame      [ header ][ payload 0 ][ payload 1 ][ payload 2 ]
//!   segment 0  [ header ][ payload 0 ]
//!   segment 1             ..[ header ][ payload 1 ]
//!   segment 2                          ..[ header ][ payload 2 ]
//! ```
//!
//! What differs between segments is known beforehand (length, identification, sequence number and
//! flags), so the sums of all other header bytes are taken once a frame.

use super::Fragment;
use super::Header;
use super::Malformed;
use super::Transport;
use super::field;
use super::virtio::{Gso, VirtioHeader};
use crate::counters::as_u64;

use stamp::Stamp;

mod stamp;
#[cfg(test)]
mod tests;

/// The packets of one frame, in order. A *lending* iterator: each packet is valid until the next.
#[derive(Debug)]
pub struct Segments<'a> {
    frame: &'a mut [u8],
    next: usize,
    count: usize,
    /// `None` if the frame is one packet and leaves as it is.
    stamp: Option<Stamp>,
}

/// How a frame is to be cut, apart from the frame: the two may travel together to another thread.
#[derive(Debug)]
pub struct Cut {
    len: usize,
    next: usize,
    count: usize,
    stamp: Option<Stamp>,
}

impl Cut {
    /// The packets of `frame`, which must be the one that this was [detached](Segments::detach) from, moved
    /// at the most. A shorter one has none.
    #[must_use]
    pub fn attach(self, frame: &mut [u8]) -> Segments<'_> {
        let Self { len, next, count, stamp } = self;
        match frame.get_mut(..len) {
            Some(frame) => Segments { frame, next, count, stamp },
            None => Segments { frame: &mut [], next: count, count, stamp: None },
        }
    }
}

impl<'a> Segments<'a> {
    /// Leaves the frame where it is and keeps how it is to be cut.
    #[must_use]
    pub fn detach(self) -> Cut {
        let Self { frame, next, count, stamp } = self;

        Cut { len: frame.len(), next, count, stamp }
    }

    /// Prepares `frame`, which starts with the IP header that `header` describes and is preceded on
    /// the device by `virtio`. Completes the transport checksum where that is all there is to do.
    ///
    /// The checksum field of a frame to be cut is not read but computed from the addresses in the
    /// frame (with a routing header: adjusted), so rewriting the frame before is fine.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if `virtio` asks for something that the frame is not.
    #[inline]
    pub fn new(
        frame: &'a mut [u8],
        virtio: &VirtioHeader,
        header: &Header,
    ) -> Result<Self, Malformed> {
        let available = frame.len();
        let needed = header.packet_len();
        let frame = frame.get_mut(..needed).ok_or(Malformed::Truncated { needed, available })?;

        if virtio.gso == Gso::None {
            if virtio.needs_checksum {
                complete_checksum(frame, virtio)?;
            }
            return Ok(Self { frame, next: 0, count: 1, stamp: None });
        }

        let fits = match virtio.gso {
            Gso::TcpV4 => header.transport() == Transport::Tcp && !header.is_ipv6(),
            Gso::TcpV6 => header.transport() == Transport::Tcp && header.is_ipv6(),
            Gso::UdpL4 => header.transport() == Transport::Udp,
            Gso::None | Gso::UdpFragment => false,
        };
        if !fits || header.fragment() != Fragment::None {
            return Err(Malformed::Offload);
        }
        let stamp = Stamp::new(frame, virtio, header)?;

        Ok(Self { next: 0, count: stamp.count(), frame, stamp: Some(stamp) })
    }

    /// How many packets the frame stands for in all; at least one.
    #[must_use]
    #[inline]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// How many packets are still to come.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.count - self.next
    }

    /// The length of the next packet in bytes; `None` after the last.
    #[must_use]
    #[inline]
    pub fn next_len(&self) -> Option<usize> {
        if self.next == self.count {
            return None;
        }

        Some(self.stamp.as_ref().map_or(self.frame.len(), |stamp| stamp.range(self.next).len()))
    }

    /// The lengths of the packets that are still to come, in bytes.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        let whole = self.frame.len();

        (self.next..self.count)
            .map(move |index| self.stamp.as_ref().map_or(whole, |stamp| stamp.range(index).len()))
    }

    /// The bytes of all packets of the frame together, headers included.
    #[must_use]
    #[inline]
    pub fn total_bytes(&self) -> usize {
        let repeated = self.stamp.as_ref().map_or(0, Stamp::header_len);

        self.frame.len() + (self.count - 1) * repeated
    }

    /// Passes all packets by that are still to come, and says how many those are.
    pub fn skip(&mut self) -> u64 {
        let skipped = self.remaining();
        self.next = self.count;

        as_u64(skipped)
    }

    /// The next packet, complete with all its checksums; `None` after the last.
    #[inline]
    pub fn next_segment(&mut self) -> Option<&[u8]> {
        if self.next == self.count {
            return None;
        }
        let index = self.next;
        self.next += 1;

        let Some(stamp) = &self.stamp else {
            return Some(self.frame);
        };
        let segment = self.frame.get_mut(stamp.range(index))?;
        stamp.write(segment, index);

        Some(segment)
    }
}

/// Completes a partial checksum over everything from its start to the end of the packet.
fn complete_checksum(frame: &mut [u8], virtio: &VirtioHeader) -> Result<(), Malformed> {
    let covered = frame.get_mut(usize::from(virtio.checksum_start)..).ok_or(Malformed::Offload)?;
    let sum = remap::checksum::sum(covered);
    let checksum =
        field::bytes_mut(covered, usize::from(virtio.checksum_offset)).ok_or(Malformed::Offload)?;

    // Zero means "none" in UDP, and to all others it is the same sum.
    *checksum = match remap::checksum::complete(sum) {
        0 => [0xff; 2],
        value => value.to_be_bytes(),
    };

    Ok(())
}
