//! A frame in one buffer, for a reader whose packets come one after another.

use crate::Header;
use crate::virtio::VirtioHeader;

use crate::rewrite::Checksum;

use super::Merge;
use super::candidate::Candidate;
use super::flow::Key;
use super::group::Group;

/// A frame that grows by the packets that follow its first one in a flow.
///
/// It follows the rules of a [`Coalescer`](super::Coalescer), but a partial checksum needs no verification, as it says nothing,
/// and it takes no UDP without checksum: segmentation would add one,
/// and the receiver is not the kernel of this host.
#[derive(Debug)]
pub struct GrowingFrame {
    key: Key,
    group: Group,
}

impl GrowingFrame {
    /// Starts with `packet`, whose headers are `header`. `None` if no packet can be appended to it.
    #[must_use]
    #[inline]
    pub fn start(packet: &[u8], header: &Header, checksum: Checksum) -> Option<Self> {
        let key = Key::of(packet, header)?;
        let leader = candidate(packet, header).filter(|leader| !leader.is_last)?;
        let mut group = Group::new(0, packet.len(), Some(&leader));
        if checksum == Checksum::Partial {
            group.trust_first();
        }

        Some(Self { key, group })
    }

    /// Appends the payload of `next`, whose headers are `header`, to the frame at the start of `room`. Returns whether it was
    /// appended: only if segmentation would restore it as the packet after the last one, and if there is room.
    ///
    /// The first packet must be at the start of `room`, unchanged, and after it what was appended before.
    #[inline]
    pub fn append(
        &mut self,
        room: &mut [u8],
        next: &[u8],
        header: &Header,
        checksum: Checksum,
    ) -> bool {
        let Self { key, group } = self;
        if group.is_complete() || Key::of(next, header).as_ref() != Some(key) {
            return false;
        }
        let Some(candidate) = candidate(next, header) else { return false };
        let Some((frame, rest)) = room.split_at_mut_checked(group.frame_len()) else {
            return false;
        };
        let first = frame.get(..group.first_len()).unwrap_or_default();
        let payload = next.get(candidate.header_len..).unwrap_or_default();
        let Some(place) = rest.get_mut(..payload.len()) else { return false };
        // The sums cover all payload, so they are computed last, and only once for the first packet.
        if !group.accepts(first, &candidate)
            || !group.verify_first(first, &candidate)
            || checksum == Checksum::Complete && !candidate.verify()
        {
            return false;
        }
        place.copy_from_slice(payload);
        group.grow(&candidate);

        true
    }

    /// Completes the headers of the frame at the start of `room`. Returns the offload header and the length of the frame in
    /// bytes; `None` if it is still the first packet alone, unchanged.
    #[inline]
    pub fn finish(self, room: &mut [u8]) -> Option<(VirtioHeader, usize)> {
        let Self { group, .. } = self;
        if group.count() == 1 {
            return None;
        }
        group.finish(room.get_mut(..group.header_len())?);

        Some((group.virtio(), group.frame_len()))
    }
}

#[inline]
fn candidate<'a>(packet: &'a [u8], header: &Header) -> Option<Candidate<'a>> {
    let merge = Merge { tcp: true, udp: true };

    Candidate::of(packet, header, merge).filter(|candidate| candidate.has_checksum)
}
