//! The edge: the cluster side of a gateway, where packets come from pods and go to pods.
//!
//! The outbound thread owns the [`FrameReader`]. All packet threads write to the [`Edge`]. The implementation is a type
//! parameter or the variant of an enum, so that a frame costs no indirect call.

use std::io;
use std::os::fd::BorrowedFd;

use strait_engine::{Accounts, Inbound};
use strait_packet::coalesce::{Frame, Merge};
use strait_packet::virtio::{VIRTIO_LEN, VirtioHeader};

/// The largest frame: a virtio header and a packet of maximum length.
pub(super) const MAX_FRAME_BYTES: usize = VIRTIO_LEN + 65_535;

/// Puts the packet behind the virtio header on a 16-byte boundary.
const ALIGNMENT_PAD_BYTES: usize = 8;

/// The cluster side of a gateway, for writing.
pub(super) trait Edge {
    /// The descriptors that become readable when there is a frame to read, in the order of their numbers.
    fn inputs(&self) -> impl Iterator<Item = BorrowedFd<'_>>;

    /// Kinds of merged frames that the edge accepts.
    fn merge(&self) -> Merge;

    /// Whether frames of overlays between pods arrive unsegmented.
    fn has_overlay_offload(&self) -> bool;

    /// Writes one frame. Returns whether it was accepted.
    fn write(&self, virtio: &VirtioHeader, packet: &[u8]) -> bool;

    /// Writes one frame of a batch and counts it. A merged frame that the kernel refuses is written packet by packet.
    fn write_frame(&self, frame: &Frame<'_>, bytes: &[u8], accounts: &Accounts);

    /// Writes all frames of the batch and counts them.
    fn write_all(&self, inbound: &mut Inbound) {
        inbound.drain(|frame, bytes, accounts| self.write_frame(frame, bytes, accounts));
    }
}

/// The cluster side of a gateway, for reading.
pub(super) trait FrameReader {
    /// Reads one frame of an input without waiting. Returns its virtio header and the length of its packet; `None` if it
    /// holds no packet.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no frame; any other error means that nothing can be read any more.
    fn read(
        &mut self,
        input: usize,
        buffer: &mut FrameBuffer,
    ) -> io::Result<Option<(VirtioHeader, usize)>>;
}

/// A buffer for one frame.
#[derive(Debug)]
pub(super) struct FrameBuffer {
    bytes: Box<[u8]>,
}

impl FrameBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; ALIGNMENT_PAD_BYTES + MAX_FRAME_BYTES].into_boxed_slice() }
    }

    /// Room for a virtio header and a packet.
    pub(super) fn frame_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(ALIGNMENT_PAD_BYTES..).unwrap_or_default()
    }

    /// The packet that was read, and the unused rest of the buffer.
    pub(super) fn packet_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(ALIGNMENT_PAD_BYTES + VIRTIO_LEN..).unwrap_or_default()
    }
}
