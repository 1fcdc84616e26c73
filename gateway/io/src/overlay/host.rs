//! The gateway as a host: its address in the tunnel, and its address in the overlay. No kernel has them.
//!
//! Packets to them go to sockets that the process reads itself. What it writes there is sent into the tunnel, or to the
//! node that leads to the destination. Connection checks run over them: with the gateway at the other end, and with nodes.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use super::nodes::destination;
use crate::edge::{FrameBuffer, Read};
use strait_packet::DropReason;
use strait_packet::virtio::VirtioHeader;

/// The address in the tunnel, and the sockets.
#[derive(Debug)]
pub(super) struct Host {
    address: IpAddr,
    tunnel: Pair,
    nodes: Pair,
}

/// For the packets to the gateway's own addresses. Each datagram is one IP packet. The sockets do not wait.
#[derive(Debug)]
pub struct HostSockets {
    /// For its address in the tunnel.
    pub tunnel: UnixDatagram,
    /// For its address in the overlay ([`Node::gateway`](super::Node::gateway)).
    pub nodes: UnixDatagram,
}

/// Two connected sockets: one of the packet threads, one of the process.
#[derive(Debug)]
struct Pair {
    inside: UnixDatagram,
    outside: UnixDatagram,
}

impl Host {
    /// Creates the sockets. `address` is that in the tunnel.
    pub(super) fn new(address: IpAddr) -> io::Result<Self> {
        Ok(Self { address, tunnel: Pair::new()?, nodes: Pair::new()? })
    }

    /// The sockets of the process.
    pub(super) fn sockets(&self) -> io::Result<HostSockets> {
        Ok(HostSockets {
            tunnel: self.tunnel.outside.try_clone()?,
            nodes: self.nodes.outside.try_clone()?,
        })
    }

    /// What becomes readable when the process has sent a packet into the tunnel, and to a node.
    pub(super) fn inputs(&self) -> [BorrowedFd<'_>; 2] {
        [self.tunnel.inside.as_fd(), self.nodes.inside.as_fd()]
    }

    /// Whether `packet` is for the address in the tunnel.
    #[inline]
    pub(super) fn is_destination_of(&self, packet: &[u8]) -> bool {
        destination(packet) == Some(self.address)
    }

    /// Delivers `packet`, which is for the address in the tunnel.
    ///
    /// # Errors
    ///
    /// [`DropReason::WriteFailed`] if the process does not read.
    pub(super) fn deliver(&self, packet: &[u8]) -> Result<(), DropReason> {
        self.tunnel.deliver(packet)
    }

    /// Delivers `packet` of a node, which is for the address in the overlay.
    ///
    /// # Errors
    ///
    /// As for [`Self::deliver`].
    pub(super) fn deliver_of_node(&self, packet: &[u8]) -> Result<(), DropReason> {
        self.nodes.deliver(packet)
    }

    /// Reads a packet of the process for the tunnel.
    pub(super) fn read(&self, buffer: &mut FrameBuffer) -> io::Result<Read> {
        let len = self.tunnel.inside.recv(buffer.plain_packet_mut())?;

        Ok(Read::Packet(VirtioHeader::default(), len))
    }

    /// Reads a packet of the process for a node.
    pub(super) fn read_for_node<'a>(&self, buffer: &'a mut FrameBuffer) -> io::Result<&'a [u8]> {
        let room = buffer.plain_packet_mut();
        let len = self.nodes.inside.recv(room)?;

        Ok(room.get(..len).unwrap_or_default())
    }
}

impl Pair {
    fn new() -> io::Result<Self> {
        let (inside, outside) = UnixDatagram::pair()?;
        inside.set_nonblocking(true)?;
        outside.set_nonblocking(true)?;

        Ok(Self { inside, outside })
    }

    fn deliver(&self, packet: &[u8]) -> Result<(), DropReason> {
        self.inside.send(packet).map(drop).map_err(|_| DropReason::WriteFailed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_pass_in_both_directions() {
        let host = Host::new([169, 254, 18, 1].into()).unwrap();
        let sockets = host.sockets().unwrap();
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[169, 254, 18, 1]);

        assert!(host.is_destination_of(&packet));
        assert_eq!(host.deliver(&packet), Ok(()));
        let mut received = [0; 64];
        assert_eq!(sockets.tunnel.recv(&mut received).unwrap(), 28);

        sockets.tunnel.send(&received[..28]).unwrap();
        let mut buffer = FrameBuffer::new();
        assert!(matches!(host.read(&mut buffer).unwrap(), Read::Packet(_, 28)));
        assert_eq!(buffer.packet_mut()[..28], packet);
        assert!(!host.is_destination_of(&[0x45; 28]));
    }

    #[test]
    fn nodes_have_a_socket_of_their_own() {
        let host = Host::new([169, 254, 18, 1].into()).unwrap();
        let sockets = host.sockets().unwrap();
        let mut buffer = FrameBuffer::new();

        assert_eq!(host.deliver_of_node(b"question"), Ok(()));
        let mut received = [0; 64];
        assert_eq!(sockets.nodes.recv(&mut received).unwrap(), 8);
        sockets.nodes.send(b"answer").unwrap();

        assert_eq!(host.read_for_node(&mut buffer).unwrap(), b"answer");
        assert!(sockets.tunnel.recv(&mut received).is_err());
        assert!(host.read(&mut buffer).is_err());
    }

    #[test]
    fn a_process_that_does_not_read_loses_packets() {
        let host = Host::new([169, 254, 18, 1].into()).unwrap();

        let delivered = (0..10_000).take_while(|_| host.deliver(&[0; 1000]).is_ok()).count();

        assert!((1..10_000).contains(&delivered), "{delivered}");
    }
}
