//! The gateway's own address in the tunnel: with an overlay no kernel has it.
//!
//! Packets to this address go to a socket that the process reads itself, and what it writes there is sent into the
//! tunnel. The connection check runs over it.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use super::nodes::destination;
use crate::edge::{FrameBuffer, Read};
use strait_packet::DropReason;
use strait_packet::virtio::VirtioHeader;

/// The address and the socket pair. Each datagram is one IP packet.
#[derive(Debug)]
pub(super) struct Host {
    address: IpAddr,
    inside: UnixDatagram,
    outside: UnixDatagram,
}

impl Host {
    /// Creates the socket pair.
    pub(super) fn new(address: IpAddr) -> io::Result<Self> {
        let (inside, outside) = UnixDatagram::pair()?;
        inside.set_nonblocking(true)?;
        outside.set_nonblocking(true)?;

        Ok(Self { address, inside, outside })
    }

    /// A socket for the packets of the address, which does not wait.
    pub(super) fn socket(&self) -> io::Result<UnixDatagram> {
        self.outside.try_clone()
    }

    /// What becomes readable when the process has sent a packet.
    pub(super) fn input(&self) -> BorrowedFd<'_> {
        self.inside.as_fd()
    }

    /// Whether `packet` is for the address.
    #[inline]
    pub(super) fn is_destination_of(&self, packet: &[u8]) -> bool {
        destination(packet) == Some(self.address)
    }

    /// Delivers `packet`, which is for the address.
    ///
    /// # Errors
    ///
    /// [`DropReason::WriteFailed`] if the process does not read.
    pub(super) fn deliver(&self, packet: &[u8]) -> Result<(), DropReason> {
        self.inside.send(packet).map(drop).map_err(|_| DropReason::WriteFailed)
    }

    /// Reads a packet of the process.
    pub(super) fn read(&self, buffer: &mut FrameBuffer) -> io::Result<Read> {
        let len = self.inside.recv(buffer.plain_packet_mut())?;

        Ok(Read::Packet(VirtioHeader::default(), len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_pass_in_both_directions() {
        let host = Host::new([169, 254, 18, 1].into()).unwrap();
        let socket = host.socket().unwrap();
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[169, 254, 18, 1]);

        assert!(host.is_destination_of(&packet));
        assert_eq!(host.deliver(&packet), Ok(()));
        let mut received = [0; 64];
        assert_eq!(socket.recv(&mut received).unwrap(), 28);

        socket.send(&received[..28]).unwrap();
        let mut buffer = FrameBuffer::new();
        assert!(matches!(host.read(&mut buffer).unwrap(), Read::Packet(_, 28)));
        assert_eq!(buffer.packet_mut()[..28], packet);
        assert!(!host.is_destination_of(&[0x45; 28]));
    }

    #[test]
    fn a_process_that_does_not_read_loses_packets() {
        let host = Host::new([169, 254, 18, 1].into()).unwrap();

        let delivered = (0..10_000).take_while(|_| host.deliver(&[0; 1000]).is_ok()).count();

        assert!((1..10_000).contains(&delivered), "{delivered}");
    }
}
