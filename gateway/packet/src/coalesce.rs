//! Coalescing (GRO): merges the packets of a batch into few frames for the TUN device.
//!
//! The inverse of [`segment`](super::segment): consecutive packets of a flow become one frame with
//! an offload header, which the kernel forwards as one as far as it can. Segmenting a frame again must
//! restore exactly the packets that were merged. So two packets merge only
//! if all header bytes are equal that segmentation does not restore, and only if all their
//! checksums are right, because the checksums of a frame are computed from scratch. The exception is
//! UDP without checksum, as overlays send it: segmentation adds one, which a receiver must accept (RFC 768).
//! Without that, TCP in such an overlay has a third of the throughput.
//!
//! ```text
//!              not mergeable: closes the flow's group, stays single
//!   push ──┬──▶ joins the open group of its flow ──▶ shorter, PSH or full: group closed
//!          └──▶ opens a new group, closing the one before
//! ```
//!
//! Payload is never moved and the packets are not changed, in the arena of the caller: a frame is a
//! header and a list of ranges. If the kernel refuses a frame, its members can still
//! be written one by one.
//!
//! # Invariants
//!
//! - The packets of a flow keep their order. Frames are in the order of their first packets.
//! - Nothing allocates after [`Coalescer::new`].

use std::ops::Range;

use super::{Header, Transport};

use candidate::Candidate;
use flow::{FlowTable, Key};
use group::{Group, Member};

mod candidate;
mod flow;
mod frame;
mod group;
mod growing;
#[cfg(test)]
mod tests;

pub use frame::Frame;
pub use group::MAX_SEGMENTS;
pub use growing::GrowingFrame;

/// The capacity of a batch: 16 receive buffers of 64 coalesced datagrams.
pub const MAX_PACKETS: usize = 1024;

/// Which protocols to merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// TCP segments, where the device supports TCP segmentation.
    pub tcp: bool,
    /// UDP datagrams, where the device supports UDP segmentation. Note that
    /// not every device to which such a frame is forwarded supports it.
    pub udp: bool,
}

/// Collects the packets of one batch and returns them as frames. Reused for all batches.
#[derive(Debug)]
pub struct Coalescer {
    members: Vec<Member>,
    groups: Vec<Group>,
    headers: Vec<group::HeaderCopy>,
    flows: FlowTable,
}

impl Coalescer {
    /// Reserves the memory for a full batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            members: Vec::with_capacity(MAX_PACKETS),
            groups: Vec::with_capacity(MAX_PACKETS),
            // Only groups of two or more packets have a header.
            headers: Vec::with_capacity(MAX_PACKETS / 2),
            flows: FlowTable::default(),
        }
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        self.members.clear();
        self.groups.clear();
        self.headers.clear();
        self.flows.clear();
    }

    /// Adds the packet at `packet` in `arena`, whose headers are `header`. All packets of a batch
    /// are in the same arena.
    ///
    /// Returns whether there was room: after [`MAX_PACKETS`] packets, write the frames and
    /// [`clear`](Self::clear) before pushing this one again.
    #[must_use]
    #[inline]
    pub fn push(
        &mut self,
        arena: &[u8],
        packet: Range<usize>,
        header: &Header,
        merge: Merge,
    ) -> bool {
        if self.members.len() == MAX_PACKETS {
            return false;
        }

        // Bytes after the packet are padding.
        let end = packet.end.min(packet.start.saturating_add(header.packet_len()));
        let member = Member::new(packet.start..end);
        let bytes = arena.get(member.range()).unwrap_or_default();

        match Key::of(bytes, header) {
            Some(key) => {
                let candidate = Candidate::of(bytes, header, merge);
                self.push_flow(arena, member, key, candidate.as_ref());
            }
            None => {
                if header.transport() == Transport::None {
                    // It may belong to any flow between the two hosts: none may overtake it.
                    self.flows.close_pair(header.source(), header.destination());
                }
                self.start_group(member, None);
            }
        }

        true
    }

    /// The frames of the batch, in the order of their first packets.
    ///
    /// Closes all open groups: packets pushed later start new frames.
    pub fn frames(&mut self) -> impl Iterator<Item = Frame<'_>> {
        self.flows.clear();
        for group in &self.groups {
            if let Some(header) = group.header_index().and_then(|at| self.headers.get_mut(at)) {
                group.finish(header);
            }
        }

        let (groups, headers, members) = (&self.groups, &self.headers, &self.members);
        groups.iter().map(move |group| {
            let header = group.header_index().and_then(|at| headers.get(at));
            Frame::new(group, header, members)
        })
    }

    /// Adds a packet whose flow is known.
    #[inline]
    fn push_flow(
        &mut self,
        arena: &[u8],
        member: Member,
        key: Key,
        candidate: Option<&Candidate<'_>>,
    ) {
        let open = self.flows.find(&key);
        let joined = match (open, candidate) {
            (Some(open), Some(candidate)) => self.join(arena, open.group, candidate),
            (None, _) | (_, None) => Joined::No,
        };

        if let (Joined::Yes, Some(open)) = (joined, open) {
            self.append(open.group, member);
            if self.groups.get(open.group).is_none_or(Group::is_complete) {
                self.flows.close(open.slot);
            }
            return;
        }

        if let Some(open) = open {
            self.flows.close(open.slot);
        }
        let leader = candidate.filter(|leader| joined != Joined::BadChecksum && !leader.is_last);
        let group = self.start_group(member, leader);
        if leader.is_some() {
            self.flows.open(key, group);
        }
    }

    /// Adds `candidate` to the header of an open group, but not yet to its members.
    #[inline]
    fn join(&mut self, arena: &[u8], group: usize, candidate: &Candidate<'_>) -> Joined {
        let Some(group) = self.groups.get_mut(group) else {
            return Joined::No;
        };
        let first = self.members.get(group.first()).map(Member::range);
        let Some(first) = first.and_then(|range| arena.get(range)) else {
            return Joined::No;
        };
        // The sums cover all payload, so they are computed last, and only once for the first packet.
        if !group.accepts(first, candidate) || !group.verify_first(first, candidate) {
            return Joined::No;
        }
        if !candidate.verify() {
            return Joined::BadChecksum;
        }

        group.add(first, candidate, &mut self.headers);

        Joined::Yes
    }

    fn append(&mut self, group: usize, member: Member) {
        let index = self.members.len();
        if let Some(group) = self.groups.get_mut(group) {
            if let Some(last) = self.members.get_mut(group.last()) {
                last.set_next(index);
            }
            group.set_last(index);
        }
        self.members.push(member);
    }

    /// Starts a group with one member; without `leader` the member stays single.
    fn start_group(&mut self, member: Member, leader: Option<&Candidate<'_>>) -> usize {
        let index = self.groups.len();
        self.groups.push(Group::new(self.members.len(), member.len(), leader));
        self.members.push(member);

        index
    }
}

impl Default for Coalescer {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a packet joined a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joined {
    Yes,
    No,
    /// No, and a checksum of the packet is wrong: no packet may join it either.
    BadChecksum,
}
