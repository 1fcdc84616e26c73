//! The TUN device: each read and each write transfers one frame of up to 64 KiB.
//!
//! `tun-rs` creates and configures the device. Reads and writes are plain vectored calls on its descriptors, because a
//! frame must stay whole: the virtio header in front of it describes its offloads.
//!
//! The device has a queue for each of 32 groups of [flows](flow), which [take turns](turns): the packets of a flow do not
//! wait behind the megabytes that a bulk transfer keeps in the device. One thread reads them all, so packets of one queue
//! stay in order. Pings beside one TCP stream, four times 7 s each with and without, both gateways and
//! the load on two cores: median 1.4 in place of 2.8 ms, 99th percentile 5.4 in place of 6.4 ms; what is left is mostly
//! the scheduler's. TCP 1.009 [0.989, 1.033], CPU per GB 1.002 [0.995, 1.024] (80 pairs).

mod flow;
pub(super) mod turns;

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use tun_rs::{DeviceBuilder, SyncDevice};

use super::edge::{Edge, FrameBuffer, FrameReader, Read};
use super::sys;
use super::{Settings, StartError};
use strait_engine::Accounts;
use strait_engine::outbound::Unread;
use strait_packet::DropReason;
use strait_packet::coalesce::{Frame, MAX_SEGMENTS, Merge};
use strait_packet::counters::as_u64;
use strait_packet::virtio::{Gso, VIRTIO_LEN, VIRTIO_LEN_MIN, VirtioHeader};
use strait_wg::handover::{HandoverError, Reader, Writer};

/// Slices of one vectored write: virtio header, packet header, and payloads of the segments.
const MAX_SLICES: usize = MAX_SEGMENTS + 2;

/// Length of each queue in packets: 10 ms of full-size frames.
const TRANSMIT_QUEUE_LEN: u32 = 1000;

/// Queues of a new device. Two flows share one with a chance of 1 in 32.
const QUEUES: usize = 32;

/// The device, shared by the thread that reads and the thread that writes.
pub(super) struct Tun {
    // The device exists as long as one of them is open.
    queues: Vec<File>,
    // Keeps other gateways from the device.
    name: UnixDatagram,
    merges_tcp: AtomicBool,
    merges_udp: AtomicBool,
    has_overlay_offload: bool,
}

impl Tun {
    /// Creates the device, without addresses and down.
    pub(super) fn create(interface: &str, settings: &Settings) -> Result<Arc<Self>, StartError> {
        let name = interface.to_owned();
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => StartError::NoTun { source },
            _ => StartError::Device { interface: interface.to_owned(), source },
        };

        let reserved_name = reserve(&name).map_err(failed)?;
        // The administrator may have created it, with one queue.
        let exists = if_nametoindex(name.as_str()).is_ok();
        let device = DeviceBuilder::new()
            .name(name)
            .mtu(settings.mtu_bytes)
            .with(|builder| {
                builder.offload(true).multi_queue(!exists);
            })
            .enable(false)
            .build_sync()
            .map_err(failed)?;
        // Needs root of the host, not of a user namespace. The default length works as well.
        if let Err(error) = device.set_tx_queue_len(TRANSMIT_QUEUE_LEN) {
            tracing::debug!(%error, "the device keeps its default transmit queue");
        }
        let mut queues = vec![queue(&device).map_err(failed)?];
        for _ in 1..if exists { 1 } else { QUEUES } {
            let next = device.try_clone().and_then(|next| queue(&next));
            queues.push(next.map_err(failed)?);
        }
        // For all queues. Opening one has set the offloads of `tun-rs`.
        sys::set_tun_header_len(device.as_fd(), VIRTIO_LEN).map_err(failed)?;
        let offload = choose_offload(device.as_fd(), settings).map_err(failed)?;

        Ok(Arc::new(Self {
            queues,
            name: reserved_name,
            merges_tcp: AtomicBool::new(offload.tso),
            merges_udp: AtomicBool::new(offload.uso),
            has_overlay_offload: offload.overlay,
        }))
    }

    /// Writes what a successor must know of the device. Returns its descriptors, in the order in which it reads them.
    pub(super) fn export(&self, out: &mut Writer) -> Vec<BorrowedFd<'_>> {
        out.u8(u8::try_from(self.queues.len()).unwrap_or(u8::MAX));
        out.flag(self.merges_tcp.load(Ordering::Relaxed));
        out.flag(self.merges_udp.load(Ordering::Relaxed));
        out.flag(self.has_overlay_offload);

        self.queues.iter().map(AsFd::as_fd).chain([self.name.as_fd()]).collect()
    }

    /// Goes on with the device of the predecessor of this process.
    ///
    /// # Errors
    ///
    /// [`HandoverError`] if it is not that of [`Self::export`].
    pub(super) fn import(
        from: &mut Reader<'_>,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Arc<Self>, HandoverError> {
        let count = usize::from(from.u8()?);
        let (merges_tcp, merges_udp, has_overlay_offload) =
            (from.flag()?, from.flag()?, from.flag()?);
        let queues: Vec<_> = descriptors.take(count).map(File::from).collect();
        let name = descriptors.next().map(UnixDatagram::from);
        if queues.len() != count || count == 0 || count > turns::QUEUES_MAX {
            return Err(HandoverError::Invalid("number of queues"));
        }

        Ok(Arc::new(Self {
            queues,
            name: name.ok_or(HandoverError::Invalid("number of queues"))?,
            merges_tcp: AtomicBool::new(merges_tcp),
            merges_udp: AtomicBool::new(merges_udp),
            has_overlay_offload,
        }))
    }

    /// The queue of the flow of `packet`, for writing.
    #[inline]
    fn queue_of(&self, packet: &[u8]) -> io::Result<&File> {
        let queue = flow::queue_of(packet, self.queues.len());

        self.queues.get(queue).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Writes a merged frame.
    ///
    /// If the kernel refuses it, it is written again packet by packet, and frames of its kind are no longer merged: some
    /// kernels accept the offload and then refuse the frames.
    fn write_merged(&self, frame: &Frame<'_>, bytes: &[u8], accounts: &Accounts) {
        let virtio = frame.virtio().to_bytes();
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let parts = [&virtio[..], frame.header_bytes()]
            .into_iter()
            .chain(frame.payloads().map(|range| bytes.get(range).unwrap_or_default()));
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
            count += 1;
        }

        let slices = slices.get(..count).unwrap_or_default();
        match self.write_parts(frame.header_bytes(), slices) {
            Ok(_) => count_frame(frame, accounts, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.stop_merging(frame);
                self.write_members(frame, bytes, accounts);
            }
            Err(_) => count_frame(frame, accounts, false),
        }
    }

    fn write_members(&self, frame: &Frame<'_>, bytes: &[u8], accounts: &Accounts) {
        let plain = VirtioHeader::default().to_bytes();

        for range in frame.members() {
            let packet = bytes.get(range).unwrap_or_default();
            let slices = [IoSlice::new(&plain), IoSlice::new(packet)];
            let is_written = self.write_parts(packet, &slices).is_ok();
            let len = as_u64(packet.len());
            accounts.handle_frame(1, len, is_written);
        }
    }

    /// Writes one frame to the queue of its flow. `header` is what its packet begins with.
    #[inline]
    fn write_parts(&self, header: &[u8], parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.queue_of(header)?.write_vectored(parts)
    }

    fn stop_merging(&self, frame: &Frame<'_>) {
        let is_udp = frame.virtio().gso == Gso::UdpL4;
        let merges = if is_udp { &self.merges_udp } else { &self.merges_tcp };
        if merges.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                is_udp,
                "the kernel refuses offload frames on the TUN device: writing packet by packet"
            );
        }
    }
}

impl Edge for Tun {
    /// The queues of the device.
    fn inputs(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().map(AsFd::as_fd).collect()
    }

    /// The kernel of the device tells senders what exceeds its MTU.
    fn mtu(&self) -> Option<u16> {
        None
    }

    /// Kinds of merged frames that the kernel accepts.
    fn merge(&self) -> Merge {
        Merge {
            tcp: self.merges_tcp.load(Ordering::Relaxed),
            udp: self.merges_udp.load(Ordering::Relaxed),
        }
    }

    fn has_overlay_offload(&self) -> bool {
        self.has_overlay_offload
    }

    fn write(&self, virtio: &VirtioHeader, packet: &[u8]) -> Result<(), DropReason> {
        let virtio = virtio.to_bytes();
        let parts = [IoSlice::new(&virtio), IoSlice::new(packet)];

        self.write_parts(packet, &parts).map_or(Err(DropReason::WriteFailed), |_| Ok(()))
    }

    #[inline]
    fn write_frames<'a>(
        &self,
        frames: impl Iterator<Item = Frame<'a>>,
        bytes: &[u8],
        accounts: &Accounts,
    ) {
        for frame in frames {
            if frame.packet_count() > 1 {
                self.write_merged(&frame, bytes, accounts);
            } else {
                self.write_members(&frame, bytes, accounts);
            }
        }
    }
}

impl FrameReader for Arc<Tun> {
    /// An error other than `WouldBlock` means that the device is gone or down.
    fn read(&mut self, queue: usize, buffer: &mut FrameBuffer) -> io::Result<Read> {
        let unreadable = Read::Unread(Unread::dropped(DropReason::Malformed, 0));
        let room = buffer.frame_mut();
        let mut queue = self.queues.get(queue).ok_or(io::ErrorKind::NotConnected)?;
        let len = match io::Read::read(&mut queue, room) {
            Err(error) if is_dropped_frame(&error) => return Ok(unreadable),
            result => result?,
        };

        let frame = room.get(..len).unwrap_or_default();
        let parsed = VirtioHeader::parse(frame).ok().zip(len.checked_sub(VIRTIO_LEN));
        Ok(parsed.map_or(unreadable, |(virtio, len)| Read::Packet(virtio, len)))
    }
}

impl Drop for Tun {
    /// A device of the administrator remains: another program expects the shortest header.
    fn drop(&mut self) {
        if let Some(queue) = self.queues.first() {
            let _ = sys::set_tun_header_len(queue.as_fd(), VIRTIO_LEN_MIN);
        }
    }
}

impl fmt::Debug for Tun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tun").field("queues", &self.queues).field("merge", &self.merge()).finish()
    }
}

/// A descriptor of the queue of `device`, which does not wait.
fn queue(device: &SyncDevice) -> io::Result<File> {
    device.set_nonblocking(true)?;

    device.as_fd().try_clone_to_owned().map(File::from)
}

/// Reserves the name of a device in this network namespace for as long as the result lives: any process may attach
/// further queues to a device with several.
///
/// # Errors
///
/// `EBUSY` if another process has reserved it.
fn reserve(name: &str) -> io::Result<UnixDatagram> {
    let address = SocketAddr::from_abstract_name(format!("strait/tun/{name}"))?;

    UnixDatagram::bind_addr(&address).map_err(|error| {
        if error.kind() == io::ErrorKind::AddrInUse { Errno::EBUSY.into() } else { error }
    })
}

/// Whether the kernel dropped a frame for which it could not build a virtio header, such as one with a segment size but
/// without a type of segments. The next frame can be read.
fn is_dropped_frame(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

/// The frames that arrive unsegmented.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceOffload {
    tso: bool,
    uso: bool,
    overlay: bool,
}

/// Enables the offloads that are set and that the kernel supports.
fn choose_offload(device: BorrowedFd<'_>, settings: &Settings) -> io::Result<DeviceOffload> {
    const TSO: u32 = sys::TUN_F_TSO4 | sys::TUN_F_TSO6;
    const USO: u32 = sys::TUN_F_USO4 | sys::TUN_F_USO6;
    const OVERLAY: u32 = sys::TUN_F_UDP_TUNNEL_GSO | sys::TUN_F_UDP_TUNNEL_GSO_CSUM;

    let wanted = settings.offload;
    let mut flags = 0;
    sys::set_tun_offload(device, flags)?;
    for (is_wanted, more, name, since) in [
        (wanted.tun_tso, sys::TUN_F_CSUM | TSO, "TCP segmentation offload", "2.6.27"),
        (wanted.tun_uso, sys::TUN_F_CSUM | USO, "UDP segmentation offload", "6.2"),
        (wanted.tun_udp_tunnel, OVERLAY, "segmentation offload of overlays", "6.17"),
    ] {
        // What is inside an overlay needs its own offload.
        if !is_wanted || (more == OVERLAY && flags & TSO == 0) {
            continue;
        }
        match sys::set_tun_offload(device, flags | more) {
            Ok(()) => flags |= more,
            Err(_) => tracing::info!("the kernel has no {name} on TUN devices (Linux {since})"),
        }
    }

    Ok(DeviceOffload {
        tso: flags & TSO != 0,
        uso: flags & USO != 0,
        overlay: flags & OVERLAY != 0,
    })
}

fn count_frame(frame: &Frame<'_>, accounts: &Accounts, is_written: bool) {
    let packets = as_u64(frame.packet_count());
    let bytes = as_u64(frame.byte_count());

    accounts.handle_frame(packets, bytes, is_written);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_device_ends_reading() {
        let is_dropped = |errno| is_dropped_frame(&io::Error::from_raw_os_error(errno));

        assert!(is_dropped(libc::EINVAL));
        assert!(![libc::EBADFD, libc::EAGAIN, libc::EIO].into_iter().any(is_dropped));
    }
}
