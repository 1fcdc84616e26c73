//! The UDP socket of the connection check: of the kernel, which has the tunnel's address on a device; or, with an overlay,
//! in this process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram as StdUnixDatagram;

use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use tokio::net::{UdpSocket, UnixDatagram};
use tracing::debug;

use super::own_packets::{PACKET_BYTES_MAX, Packet, parse, udp};

/// Sends and receives the messages of the check.
#[derive(Debug)]
pub(super) enum CheckSocket {
    Kernel(UdpSocket),
    Overlay(OverlaySocket),
}

/// A UDP socket on a port of the gateway's own address, which no kernel has. It answers ICMP echo requests.
#[derive(Debug)]
pub(super) struct OverlaySocket {
    /// Each datagram is one IP packet.
    packets: UnixDatagram,
    address: Ipv4Addr,
    port: u16,
    buffer: Vec<u8>,
}

impl CheckSocket {
    /// A socket of the kernel on `port`.
    ///
    /// # Errors
    ///
    /// If the port is taken.
    pub(super) async fn bind(port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
        // A padded PING must arrive whole, even if the route has learned a smaller MTU.
        if let Err(error) = set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE) {
            debug!(%error, "padded probes may leave in fragments");
        }

        Ok(Self::Kernel(socket))
    }

    /// A socket on `port` of the gateway's own `address`, whose `packets` are those of the overlay.
    ///
    /// # Errors
    ///
    /// That of the system.
    pub(super) fn in_overlay(
        packets: &StdUnixDatagram,
        address: Ipv4Addr,
        port: u16,
    ) -> io::Result<Self> {
        let packets = UnixDatagram::from_std(packets.try_clone()?)?;
        let buffer = vec![0; PACKET_BYTES_MAX];

        Ok(Self::Overlay(OverlaySocket { packets, address, port, buffer }))
    }

    /// Receives a datagram into `buffer`. Returns its length and its source. Cancel safe.
    pub(super) async fn receive(&mut self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        match self {
            Self::Kernel(socket) => socket.recv_from(buffer).await,
            Self::Overlay(socket) => socket.receive(buffer).await,
        }
    }

    /// Sends a datagram.
    pub(super) async fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        match self {
            Self::Kernel(socket) => socket.send_to(datagram, to).await.map(drop),
            Self::Overlay(socket) => socket.send(datagram, to).await,
        }
    }
}

impl OverlaySocket {
    async fn receive(&mut self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            let len = self.packets.recv(&mut self.buffer).await?;
            let packet = self.buffer.get(..len).unwrap_or_default();
            match parse(packet, self.port) {
                Packet::Datagram { source, payload, .. } => {
                    let len = payload.len().min(buffer.len());
                    let (room, payload) = (buffer.get_mut(..len), payload.get(..len));
                    if let (Some(room), Some(payload)) = (room, payload) {
                        room.copy_from_slice(payload);
                    }
                    return Ok((len, source));
                }
                // Without waiting, so that nothing received is lost if this is cancelled: the sender asks again.
                Packet::Echo(answer) => drop(self.packets.try_send(&answer)),
                Packet::Other => {
                    debug!("a packet to the gateway's own address is not for the check")
                }
            }
        }
    }

    async fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        let IpAddr::V4(destination) = to.ip() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let addresses = (self.address.octets(), destination.octets());
        let packet = udp(addresses, (self.port, to.port()), datagram)?;

        self.packets.send(&packet).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(169, 254, 18, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(169, 254, 18, 2);
    const PORT: u16 = 12345;

    #[tokio::test]
    async fn two_sockets_exchange_datagrams() {
        let (here, there) = StdUnixDatagram::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        there.set_nonblocking(true).unwrap();
        let own = CheckSocket::in_overlay(&here, OWN, PORT).unwrap();
        let mut peer = CheckSocket::in_overlay(&there, PEER, PORT).unwrap();

        own.send(b"PING", SocketAddr::from((PEER, PORT))).await.unwrap();

        let mut buffer = [0; 64];
        let (len, source) = peer.receive(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..len], source), (&b"PING"[..], SocketAddr::from((OWN, PORT))));
    }
}
