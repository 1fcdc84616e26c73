//! One frame, as it is written to the device.

use std::iter;
use std::ops::Range;

use crate::virtio::VirtioHeader;

use super::group::{Group, HeaderCopy, Member};

/// One frame for the device: offload header, packet header, payloads, for one
/// vectored write.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    group: &'a Group,
    header: &'a [u8],
    members: &'a [Member],
}

impl<'a> Frame<'a> {
    pub(super) fn new(
        group: &'a Group,
        header: Option<&'a HeaderCopy>,
        members: &'a [Member],
    ) -> Self {
        let header = header.and_then(|bytes| bytes.get(..group.header_len())).unwrap_or_default();

        Self { group, header, members }
    }

    /// The offload header; all zero for a single packet.
    #[must_use]
    pub fn virtio(&self) -> VirtioHeader {
        self.group.virtio()
    }

    /// IP and transport header of a merged frame; empty for a single packet, because its
    /// header is part of its payload.
    #[must_use]
    pub const fn header_bytes(&self) -> &'a [u8] {
        self.header
    }

    /// The payloads: ranges of the arena.
    pub fn payloads(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let skipped = self.header.len();

        self.members().map(move |packet| packet.start + skipped..packet.end)
    }

    /// The original packets: ranges of the arena. Each can be written alone, after an offload
    /// header of zeros.
    pub fn members(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let members = self.members;
        let first = members.get(self.group.first());

        iter::successors(first, move |member| member.next().and_then(|next| members.get(next)))
            .map(Member::range)
    }

    /// The number of packets in the frame.
    #[must_use]
    pub const fn packet_count(&self) -> usize {
        self.group.count()
    }

    /// Bytes of the frame after the offload header.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.group.frame_len()
    }
}
