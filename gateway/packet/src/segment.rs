//! Segmentation: cuts one frame of the TUN device into packets.
//!
//! A frame is up to 64 KiB of payload with one header. Payload is never moved: the header of each segment
//! is written into the frame, in front of its payload, over the tail of the segment before,
//! which the caller has consumed by then.
//!
//! ```text
//!   frame      [ header ][ payload 0 ][ payload 1 ][ payload 2 ]
//!   segment 0  [ header ][ payload 0 ]
//!   segment 1             ..[ header ][ payload 1 ]
//!   segment 2                          ..[ header ][ payload 2 ]
//! ```
//!
//! The fields that differ between segments are known (length, identification, sequence number and
//! flags), so the sums of all other header bytes are computed once a frame.
//!
//! In a frame of an overlay the packet that is cut is inside a UDP datagram; the header then includes the outer headers.

use super::virtio::{Gso, VirtioHeader};
use super::{Fragment, Header, Malformed, Transport, field};
use crate::counters::as_u64;

use overlay::Inner;
use template::HeaderTemplate;

pub(crate) use template::header_len;

mod ip_fields;
mod overlay;
mod template;
#[cfg(test)]
mod tests;

/// The packets of one frame, in order. A *lending* iterator: each packet is valid until the next.
#[derive(Debug)]
pub struct Segments<'a> {
    frame: &'a mut [u8],
    next: usize,
    count: usize,
    /// `None` if the frame is one packet, which stays unchanged.
    template: Option<HeaderTemplate>,
}

/// [`Segments`] without the frame, so that both can be sent to another thread.
#[derive(Debug)]
pub struct DetachedSegments {
    len: usize,
    next: usize,
    count: usize,
    template: Option<HeaderTemplate>,
}

impl DetachedSegments {
    /// The packets of `frame`, which must be the one that this was [detached](Segments::detach) from, possibly
    /// moved. A shorter frame has no packets.
    #[must_use]
    pub fn attach(self, frame: &mut [u8]) -> Segments<'_> {
        let Self { len, next, count, template } = self;
        match frame.get_mut(..len) {
            Some(frame) => Segments { frame, next, count, template },
            None => Segments { frame: &mut [], next: count, count, template: None },
        }
    }
}

impl<'a> Segments<'a> {
    /// Separates the segmentation from the frame.
    #[must_use]
    pub fn detach(self) -> DetachedSegments {
        let Self { frame, next, count, template } = self;

        DetachedSegments { len: frame.len(), next, count, template }
    }

    /// Prepares `frame`, which starts with the IP header that `header` describes and is preceded on
    /// the device by `virtio`. Completes the transport checksum if the frame is one packet.
    ///
    /// The checksum field of a frame to be cut is not read but computed from the addresses in the
    /// frame (with a routing header: adjusted), so the frame may be rewritten before.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if `virtio` contradicts the frame.
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
            return Ok(Self { frame, next: 0, count: 1, template: None });
        }

        let inner = Inner::find(frame, virtio, header)?;
        let Inner { header: segmented, .. } = &inner;
        let fits = match virtio.gso {
            Gso::TcpV4 => segmented.transport() == Transport::Tcp && !segmented.is_ipv6(),
            Gso::TcpV6 => segmented.transport() == Transport::Tcp && segmented.is_ipv6(),
            Gso::UdpL4 => segmented.transport() == Transport::Udp,
            Gso::None | Gso::UdpFragment => false,
        };
        if !fits || segmented.fragment() != Fragment::None {
            return Err(Malformed::Offload);
        }
        let template = HeaderTemplate::new(frame, virtio, header, &inner)?;

        Ok(Self { next: 0, count: template.count(), frame, template: Some(template) })
    }

    /// The number of packets of the frame; at least one.
    #[must_use]
    #[inline]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The number of packets that remain.
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

        Some(
            self.template
                .as_ref()
                .map_or(self.frame.len(), |template| template.range(self.next).len()),
        )
    }

    /// The lengths of the packets that remain, in bytes.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        let whole = self.frame.len();

        (self.next..self.count).map(move |index| {
            self.template.as_ref().map_or(whole, |template| template.range(index).len())
        })
    }

    /// The total bytes of all packets of the frame, headers included.
    #[must_use]
    #[inline]
    pub fn total_bytes(&self) -> usize {
        let repeated = self.template.as_ref().map_or(0, HeaderTemplate::header_len);

        self.frame.len() + (self.count - 1) * repeated
    }

    /// Skips all packets that remain, and returns their number.
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

        let Some(template) = &self.template else {
            return Some(self.frame);
        };
        let segment = self.frame.get_mut(template.range(index))?;
        template.write(segment, index);

        Some(segment)
    }
}

/// The length of the longest packet that `frame` is cut into, in bytes. `None` if `virtio` contradicts the frame.
#[must_use]
#[inline]
pub fn longest_packet(frame: &[u8], virtio: &VirtioHeader, header: &Header) -> Option<usize> {
    if virtio.gso == Gso::None {
        return Some(header.packet_len());
    }
    let Inner { offset, header } = Inner::find(frame, virtio, header).ok()?;
    let header_len = header_len(frame.get(offset..)?, &header)?;

    Some(offset + header_len + usize::from(virtio.gso_size))
}

/// Completes a partial checksum over everything from its start to the end of the packet.
fn complete_checksum(frame: &mut [u8], virtio: &VirtioHeader) -> Result<(), Malformed> {
    let covered = frame.get_mut(usize::from(virtio.checksum_start)..).ok_or(Malformed::Offload)?;
    let sum = remap::checksum::sum(covered);
    let checksum =
        field::bytes_mut(covered, usize::from(virtio.checksum_offset)).ok_or(Malformed::Offload)?;

    // Zero means "none" in UDP; for other protocols 0xffff is the same sum.
    *checksum = match remap::checksum::complete(sum) {
        0 => [0xff; 2],
        value => value.to_be_bytes(),
    };

    Ok(())
}
