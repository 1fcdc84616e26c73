//! A buffer for one frame.

use strait_packet::overlay::PREFIX_LEN;
use strait_packet::virtio::VIRTIO_LEN;

/// The longest packet, and the longest payload of UDP, in bytes.
const MAX_PACKET_BYTES: usize = 65_535;

/// Where the virtio header starts: the packet behind it is on a 16-byte boundary.
const FRAME_AT: usize = 8;

const PACKET_AT: usize = FRAME_AT + VIRTIO_LEN;

/// Where the datagram of an overlay starts, so that the packet in it is on the same boundary.
const DATAGRAM_AT: usize = PACKET_AT - PREFIX_LEN;

/// A buffer for one frame: a virtio header and a packet, or the datagram of an overlay with a packet in it.
#[derive(Debug)]
pub(crate) struct FrameBuffer {
    bytes: Box<[u8]>,
    packet_at: usize,
}

impl FrameBuffer {
    pub(crate) fn new() -> Self {
        let bytes = vec![0; PACKET_AT + MAX_PACKET_BYTES].into_boxed_slice();

        Self { bytes, packet_at: PACKET_AT }
    }

    /// Room for a virtio header and a packet.
    pub(crate) fn frame_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(FRAME_AT..).unwrap_or_default()
    }

    /// Makes the bytes from `offset` in the datagram on the packet.
    pub(crate) const fn set_packet(&mut self, offset: usize) {
        self.packet_at = DATAGRAM_AT + offset;
    }

    /// Copies `packet`, of at most the maximum length, to its place behind a virtio header.
    pub(crate) fn copy_packet(&mut self, packet: &[u8]) {
        self.packet_at = PACKET_AT;
        if let Some(room) = self.packet_mut().get_mut(..packet.len()) {
            room.copy_from_slice(packet);
        }
    }

    /// Room for a packet without a header of an offload.
    pub(crate) fn plain_packet_mut(&mut self) -> &mut [u8] {
        self.packet_at = PACKET_AT;

        self.packet_mut()
    }

    /// The packet that was read, and the unused rest of the buffer.
    pub(crate) fn packet_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.packet_at..).unwrap_or_default()
    }
}

/// Room for the datagrams of one message.
impl AsMut<[u8]> for FrameBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(DATAGRAM_AT..).unwrap_or_default()
    }
}
