//! The UDP socket of the connection check: of the kernel, which has the tunnel's address on a device; or, with an overlay,
//! in this process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram as StdUnixDatagram;

use etherparse::{
    IcmpEchoHeader, Icmpv4Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use tokio::net::{UdpSocket, UnixDatagram};
use tracing::debug;

/// The hop limit of packets from here, as Linux has it.
const HOP_LIMIT: u8 = 64;

/// The most bytes of a packet.
const PACKET_BYTES_MAX: usize = 65_535;

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

/// The request in a packet to the gateway's own address.
#[derive(Debug, PartialEq, Eq)]
enum Packet {
    /// A datagram to our port.
    Datagram { source: SocketAddr, payload: Vec<u8> },
    /// Send this packet in answer.
    Echo(Vec<u8>),
    /// Nothing that this socket serves.
    Other,
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
            match parse(packet, self.address, self.port) {
                Packet::Datagram { source, payload } => {
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

/// The request in `packet`, for a socket on `port` of `address`. Only whole packets with right checksums count.
fn parse(packet: &[u8], address: Ipv4Addr, port: u16) -> Packet {
    let Ok(SlicedPacket { net: Some(NetSlice::Ipv4(ip)), transport: Some(transport), .. }) =
        SlicedPacket::from_ip(packet)
    else {
        return Packet::Other;
    };
    let header = ip.header();
    if header.destination_addr() != address {
        return Packet::Other;
    }
    let source = header.source_addr();
    if let TransportSlice::Udp(udp) = &transport
        && udp.destination_port() == port
    {
        let (from, to) = (source.octets(), address.octets());
        let expected = udp.to_header().calc_checksum_ipv4_raw(from, to, udp.payload());
        if udp.checksum() == 0 || expected == Ok(udp.checksum()) {
            let source = SocketAddr::from((source, udp.source_port()));
            return Packet::Datagram { source, payload: udp.payload().to_vec() };
        }
    }
    if let TransportSlice::Icmpv4(icmp) = &transport
        && let request @ Icmpv4Type::EchoRequest(IcmpEchoHeader { id, seq }) = icmp.icmp_type()
        && request.calc_checksum(icmp.payload()) == icmp.checksum()
    {
        let mut answer = Vec::new();
        let built = PacketBuilder::ipv4(address.octets(), source.octets(), HOP_LIMIT)
            .icmpv4_echo_reply(id, seq)
            .write(&mut answer, icmp.payload());
        if built.is_ok() {
            return Packet::Echo(answer);
        }
    }

    Packet::Other
}

/// An IP packet with `payload`.
fn udp(
    (source, destination): ([u8; 4], [u8; 4]),
    (from, to): (u16, u16),
    payload: &[u8],
) -> io::Result<Vec<u8>> {
    let builder = PacketBuilder::ipv4(source, destination, HOP_LIMIT).udp(from, to);
    let mut packet = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut packet, payload).map_err(io::Error::other)?;

    Ok(packet)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    #[test]
    fn an_echo_request_is_answered() {
        let mut request = Vec::new();
        PacketBuilder::ipv4(PEER.octets(), OWN.octets(), 9)
            .icmpv4_echo_request(7, 1)
            .write(&mut request, b"data")
            .unwrap();

        let Packet::Echo(answer) = parse(&request, OWN, PORT) else { panic!("no answer") };

        let mut expected = Vec::new();
        PacketBuilder::ipv4(OWN.octets(), PEER.octets(), HOP_LIMIT)
            .icmpv4_echo_reply(7, 1)
            .write(&mut expected, b"data")
            .unwrap();
        assert_eq!(answer, expected);
        request[24] ^= 1;
        assert_eq!(parse(&request, OWN, PORT), Packet::Other, "a wrong checksum");
    }

    proptest! {
        #[test]
        fn changed_packets_are_no_datagrams(at in 20_usize..40, flip in 1..=u8::MAX) {
            let mut packet = udp((PEER.octets(), OWN.octets()), (PORT, PORT), b"question ").unwrap();
            let at = at.min(packet.len() - 1);
            packet[at] ^= flip;

            // Zero is no checksum (RFC 768).
            if packet[26..28] != [0, 0] {
                prop_assert_eq!(parse(&packet, OWN, PORT), Packet::Other);
            }
        }

        #[test]
        fn any_bytes_are_parsed(packet in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&packet, OWN, PORT);
        }
    }
}
