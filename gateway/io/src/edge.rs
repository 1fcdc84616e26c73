//! The edge: the cluster side of a gateway, where packets come from pods and go to pods.
//!
//! The outbound thread owns a [`FrameReader`]. All packet threads write to the [`Edge`]. Both are chosen at the start, as the
//! variant of an enum, so that a frame costs no indirect call.

mod frame_buffer;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::overlay::{self, Overlay};
use super::tun::Tun;
use strait_engine::inbound::FrameSink;
use strait_engine::outbound::Unread;
use strait_engine::{Accounts, Inbound};
use strait_packet::DropReason;
use strait_packet::coalesce::{Frame, Merge};
use strait_packet::virtio::VirtioHeader;

pub(super) use frame_buffer::FrameBuffer;

/// The cluster side of a gateway, for writing.
pub(super) trait Edge {
    /// The descriptors that become readable when there is a frame to read, in the order of their numbers.
    fn inputs(&self) -> Vec<BorrowedFd<'_>>;

    /// The MTU in bytes to report to senders of longer packets; `None` if the kernel reports it.
    fn mtu(&self) -> Option<u16>;

    /// Kinds of packets that are worth merging into one frame.
    fn merge(&self) -> Merge;

    /// Whether frames of overlays between pods arrive unsegmented.
    fn has_overlay_offload(&self) -> bool;

    /// Writes one frame.
    ///
    /// # Errors
    ///
    /// The reason to count, if it was not written. Its packets may be written one by one then.
    fn write(&self, virtio: &VirtioHeader, packet: &[u8]) -> Result<(), DropReason>;

    /// Writes all frames of a batch, whose ranges refer to `bytes`, and counts each of their packets.
    fn write_frames<'a>(
        &self,
        frames: impl Iterator<Item = Frame<'a>>,
        bytes: &[u8],
        accounts: &Accounts,
    );

    /// Writes and counts all frames that `inbound` has collected.
    fn write_all(&self, inbound: &mut Inbound)
    where
        Self: Sized,
    {
        inbound.drain_to(&mut EdgeSink(self));
    }
}

/// The cluster side of a gateway, for reading.
pub(super) trait FrameReader {
    /// Reads one frame of an input without waiting, into `buffer`.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no frame; any other error means that nothing can be read any more.
    fn read(&mut self, input: usize, buffer: &mut FrameBuffer) -> io::Result<Read>;
}

/// What was read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Read {
    /// A packet of this length in bytes, with its offload header.
    Packet(VirtioHeader, usize),
    /// Nothing to forward.
    Unread(Unread),
}

/// An edge as the sink of a batch.
pub(super) struct EdgeSink<'a, E>(pub(super) &'a E);

impl<E: Edge> FrameSink for EdgeSink<'_, E> {
    #[inline]
    fn write_frames<'a>(
        &mut self,
        frames: impl Iterator<Item = Frame<'a>>,
        bytes: &[u8],
        accounts: &Accounts,
    ) {
        self.0.write_frames(frames, bytes, accounts);
    }
}

/// The edge of a gateway.
#[derive(Debug)]
pub(super) enum ClusterEdge {
    /// A TUN device: the kernel forwards between it and the pods.
    Device(Arc<Tun>),
    /// UDP sockets to the nodes.
    Overlay(Arc<Overlay>),
}

impl ClusterEdge {
    /// The reader, of which there is one.
    pub(super) fn reader(&self) -> ClusterReader {
        match self {
            Self::Device(tun) => ClusterReader::Device(Arc::clone(tun)),
            Self::Overlay(overlay) => {
                ClusterReader::Overlay(Box::new(overlay::Reader::new(Arc::clone(overlay))))
            }
        }
    }

    /// The overlay, if it is one.
    pub(super) const fn overlay(&self) -> Option<&Arc<Overlay>> {
        match self {
            Self::Device(_) => None,
            Self::Overlay(overlay) => Some(overlay),
        }
    }
}

impl Edge for ClusterEdge {
    fn inputs(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Device(tun) => tun.inputs(),
            Self::Overlay(overlay) => overlay.inputs(),
        }
    }

    fn mtu(&self) -> Option<u16> {
        match self {
            Self::Device(tun) => tun.mtu(),
            Self::Overlay(overlay) => overlay.mtu(),
        }
    }

    fn merge(&self) -> Merge {
        match self {
            Self::Device(tun) => tun.merge(),
            Self::Overlay(overlay) => overlay.merge(),
        }
    }

    fn has_overlay_offload(&self) -> bool {
        match self {
            Self::Device(tun) => tun.has_overlay_offload(),
            Self::Overlay(overlay) => overlay.has_overlay_offload(),
        }
    }

    fn write(&self, virtio: &VirtioHeader, packet: &[u8]) -> Result<(), DropReason> {
        match self {
            Self::Device(tun) => tun.write(virtio, packet),
            Self::Overlay(overlay) => overlay.write(virtio, packet),
        }
    }

    fn write_frames<'a>(
        &self,
        frames: impl Iterator<Item = Frame<'a>>,
        bytes: &[u8],
        accounts: &Accounts,
    ) {
        match self {
            Self::Device(tun) => tun.write_frames(frames, bytes, accounts),
            Self::Overlay(overlay) => overlay.write_frames(frames, bytes, accounts),
        }
    }
}

/// The reader of the edge of a gateway.
#[derive(Debug)]
pub(super) enum ClusterReader {
    /// See [`ClusterEdge::Device`].
    Device(Arc<Tun>),
    /// See [`ClusterEdge::Overlay`].
    Overlay(Box<overlay::Reader>),
}

impl FrameReader for ClusterReader {
    #[inline]
    fn read(&mut self, input: usize, buffer: &mut FrameBuffer) -> io::Result<Read> {
        match self {
            Self::Device(tun) => tun.read(input, buffer),
            Self::Overlay(reader) => reader.read(input, buffer),
        }
    }
}
