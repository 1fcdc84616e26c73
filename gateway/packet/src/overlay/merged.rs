//! What the size counts that a kernel reports with a datagram (`UDP_GRO`).
//!
//! It means one of two things, and the kernel does not say which. Datagrams that arrived one after another were merged: each
//! has a header of the overlay. Or a pod on the host of this gateway has sent a frame of many UDP datagrams (`UDP_SEGMENT`),
//! as implementations of QUIC do: the frame has one header of the overlay, and the size is that of the pod's payloads.
//!
//! ```text
//!   datagrams   [ overlay | packet ][ overlay | packet ][ overlay | packet ]
//!                      size                size               rest
//!   frame       [ overlay | IP | UDP ][ payload ][ payload ][ payload ]
//!                                        size       size       rest
//! ```
//!
//! The packet in the first of merged datagrams ends within it. A frame is longer than the payload of one of its datagrams, or
//! the kernel would have made it a single one.

use super::Encapsulation;
use super::ethernet::{self, Content, Ethernet};
use crate::Header;

/// What a buffer with a reported size holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// Datagrams of this many bytes each; the last may be shorter.
    Datagrams(u16),
    /// One datagram with a frame of UDP, of which each datagram has this many bytes of payload; the last may be shorter.
    Frame(u16),
}

/// Tells what `size`, which the kernel has reported with `buffer`, counts. Bytes that are no packet in an overlay count as
/// datagrams.
#[must_use]
#[inline]
pub fn merged(encapsulation: Encapsulation, buffer: &[u8], size: u16) -> Merged {
    match packet_end(encapsulation, buffer) {
        Some(end) if end > usize::from(size) => Merged::Frame(size),
        _ => Merged::Datagrams(size),
    }
}

/// Where the first packet in `buffer` ends.
fn packet_end(encapsulation: Encapsulation, buffer: &[u8]) -> Option<usize> {
    let (_, offset) = encapsulation.parse(buffer).ok()?;
    let frame = buffer.get(offset..)?;
    if Ethernet::parse(frame).ok()?.content == Content::Arp {
        return None;
    }
    let header = Header::parse(frame.get(ethernet::HEADER_LEN..)?).ok()?;

    Some(offset + ethernet::HEADER_LEN + header.packet_len())
}
