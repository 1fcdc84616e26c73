//! The TUN device: one read is a frame of up to 64 KiB, one write likewise.
//!
//! `tun-rs` creates and configures the device. Reading and writing are plain vectored calls on its
//! descriptor, because a frame must stay whole: the virtio header in front says what it stands for.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tun_rs::{DeviceBuilder, SyncDevice};

use super::Settings;
use super::StartError;
use super::sys;
use strait_engine::Accounts;
use strait_engine::Inbound;
use strait_packet::coalesce::{Frame, MAX_SEGMENTS, Merge};
use strait_packet::counters::as_u64;
use strait_packet::virtio::{Gso, VIRTIO_LEN, VirtioHeader};

/// Largest frame the kernel hands over: a virtio header and a packet of the largest size.
const MAX_FRAME_BYTES: usize = VIRTIO_LEN + 65_535;

/// Puts the packet behind the virtio header on a 16-byte boundary.
const ALIGNMENT_PAD_BYTES: usize = 6;

/// Slices of one vectored write: virtio header, packet header, and the payloads of one frame.
const MAX_SLICES: usize = MAX_SEGMENTS + 2;

/// Packets that the kernel may queue for us while we are busy: 10 ms of full-size frames.
const TRANSMIT_QUEUE_LEN: u32 = 1000;

/// The device, shared by the thread that reads and the thread that writes.
pub(super) struct Tun {
    // Keeps the device alive; all traffic goes through `file`, a descriptor of the same queue.
    _device: SyncDevice,
    file: File,
    merges_tcp: AtomicBool,
    merges_udp: AtomicBool,
}

impl Tun {
    /// Creates the device. It has no addresses yet, and is down.
    pub(super) fn create(settings: &Settings) -> Result<Arc<Self>, StartError> {
        let name = settings.interface.clone();
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => StartError::NoTun { source },
            _ => StartError::Device { interface: settings.interface.clone(), source },
        };

        let device = DeviceBuilder::new()
            .name(name)
            .mtu(settings.mtu_bytes)
            .with(|builder| {
                builder.offload(true);
            })
            .enable(false)
            .build_sync()
            .map_err(failed)?;
        // Only root of the machine may, not root of a user namespace; the default serves as well.
        if let Err(error) = device.set_tx_queue_len(TRANSMIT_QUEUE_LEN) {
            tracing::debug!(%error, "the device keeps its default transmit queue");
        }
        let (has_tso, has_uso) = choose_offload(device.as_fd(), settings).map_err(failed)?;
        device.set_nonblocking(true).map_err(failed)?;
        let file = File::from(device.as_fd().try_clone_to_owned().map_err(failed)?);

        Ok(Arc::new(Self {
            _device: device,
            file,
            merges_tcp: AtomicBool::new(has_tso),
            merges_udp: AtomicBool::new(has_uso),
        }))
    }

    /// Which merged frames the kernel still takes.
    pub(super) fn merge(&self) -> Merge {
        Merge {
            tcp: self.merges_tcp.load(Ordering::Relaxed),
            udp: self.merges_udp.load(Ordering::Relaxed),
        }
    }

    /// Reads one frame without waiting, and says how long its packet is; `None` if that is no packet.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; anything else means the device is gone or down.
    pub(super) fn read(
        &self,
        buffer: &mut FrameBuffer,
    ) -> io::Result<Option<(VirtioHeader, usize)>> {
        let room = buffer.bytes.get_mut(ALIGNMENT_PAD_BYTES..).unwrap_or_default();
        let len = match (&self.file).read(room) {
            Err(error) if is_lost(&error) => return Ok(None),
            result => result?,
        };

        let frame = room.get(..len).unwrap_or_default();
        Ok(VirtioHeader::parse(frame).ok().zip(len.checked_sub(VIRTIO_LEN)))
    }

    /// Writes one frame as it was read, but for its addresses. Says whether the kernel took it.
    pub(super) fn write(&self, virtio: &VirtioHeader, packet: &[u8]) -> bool {
        let virtio = virtio.to_bytes();

        (&self.file).write_vectored(&[IoSlice::new(&virtio), IoSlice::new(packet)]).is_ok()
    }

    /// Writes every frame of the batch and accounts for each.
    pub(super) fn write_all(&self, inbound: &mut Inbound) {
        inbound.drain(|frame, bytes, accounts| self.write_frame(frame, bytes, accounts));
    }

    /// Writes one frame and accounts for it.
    ///
    /// A merged frame that the kernel refuses is written again packet by packet, and frames of its
    /// kind are merged no more: some kernels accept the offload and then refuse the frames.
    pub(super) fn write_frame(&self, frame: &Frame<'_>, bytes: &[u8], accounts: &Accounts) {
        if frame.packet_count() > 1 {
            self.write_merged(frame, bytes, accounts);
        } else {
            self.write_members(frame, bytes, accounts);
        }
    }

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

        match (&self.file).write_vectored(slices.get(..count).unwrap_or_default()) {
            Ok(_) => account(frame, accounts, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.stop_merging(frame);
                self.write_members(frame, bytes, accounts);
            }
            Err(_) => account(frame, accounts, false),
        }
    }

    fn write_members(&self, frame: &Frame<'_>, bytes: &[u8], accounts: &Accounts) {
        let plain = VirtioHeader::default().to_bytes();

        for range in frame.members() {
            let packet = bytes.get(range).unwrap_or_default();
            let slices = [IoSlice::new(&plain), IoSlice::new(packet)];
            let is_written = (&self.file).write_vectored(&slices).is_ok();
            let len = as_u64(packet.len());
            accounts.handle_frame(1, len, is_written);
        }
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

impl fmt::Debug for Tun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tun").field("file", &self.file).field("merge", &self.merge()).finish()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Memory for one frame.
#[derive(Debug)]
pub(super) struct FrameBuffer {
    bytes: Box<[u8]>,
}

impl FrameBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; ALIGNMENT_PAD_BYTES + MAX_FRAME_BYTES].into_boxed_slice() }
    }

    /// Where the packet is that was read, and what lies behind.
    pub(super) fn packet_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(ALIGNMENT_PAD_BYTES + VIRTIO_LEN..).unwrap_or_default()
    }
}

/// Whether the kernel had a frame that it could not describe, such as one with a segment size and no kind of
/// segments. It is gone; the next one can be read.
fn is_lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

/// Switches on what is wished for and what the kernel has. Returns whether TCP and UDP frames come
/// unsegmented.
fn choose_offload(device: BorrowedFd<'_>, settings: &Settings) -> io::Result<(bool, bool)> {
    let tcp = sys::TUN_F_CSUM | sys::TUN_F_TSO4 | sys::TUN_F_TSO6;
    let udp = sys::TUN_F_CSUM | sys::TUN_F_USO4 | sys::TUN_F_USO6;
    let (wants_tso, wants_uso) = (settings.offload.tun_tso, settings.offload.tun_uso);

    if wants_uso {
        let flags = if wants_tso { tcp | udp } else { udp };
        if sys::set_tun_offload(device, flags).is_ok() {
            return Ok((wants_tso, true));
        }
        tracing::info!("the kernel has no UDP segmentation offload on TUN devices (Linux 6.2)");
    }
    if wants_tso && sys::set_tun_offload(device, tcp).is_ok() {
        return Ok((true, false));
    }

    sys::set_tun_offload(device, 0).map(|()| (false, false))
}

fn account(frame: &Frame<'_>, accounts: &Accounts, is_written: bool) {
    let packets = as_u64(frame.packet_count());
    let bytes = as_u64(frame.byte_count());

    accounts.handle_frame(packets, bytes, is_written);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_is_gone_ends_the_reading() {
        let is_lost = |errno| is_lost(&io::Error::from_raw_os_error(errno));

        assert!(is_lost(libc::EINVAL));
        assert!(![libc::EBADFD, libc::EAGAIN, libc::EIO].into_iter().any(is_lost));
    }
}
