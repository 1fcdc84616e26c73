//! Packets to an address of the gateway that no kernel has, and the answers to them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use etherparse::{
    IcmpEchoHeader, Icmpv4Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};

/// The most bytes of a packet.
pub(super) const PACKET_BYTES_MAX: usize = 65_535;

/// The hop limit of packets from here, as Linux has it.
const HOP_LIMIT: u8 = 64;

/// The request in a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// A datagram to the port that is served.
    Datagram { source: SocketAddr, destination: Ipv4Addr, payload: Vec<u8> },
    /// Send this packet in answer.
    Echo(Vec<u8>),
    /// Nothing that is served.
    Other,
}

/// The request in `packet`, which is for an address of the gateway, whose UDP port `port` is served. Only whole packets with
/// right checksums count.
pub(super) fn parse(packet: &[u8], port: u16) -> Packet {
    let Ok(SlicedPacket { net: Some(NetSlice::Ipv4(ip)), transport: Some(transport), .. }) =
        SlicedPacket::from_ip(packet)
    else {
        return Packet::Other;
    };
    let header = ip.header();
    let (source, destination) = (header.source_addr(), header.destination_addr());
    if let TransportSlice::Udp(udp) = &transport
        && udp.destination_port() == port
    {
        let (from, to) = (source.octets(), destination.octets());
        let expected = udp.to_header().calc_checksum_ipv4_raw(from, to, udp.payload());
        if udp.checksum() == 0 || expected == Ok(udp.checksum()) {
            let source = SocketAddr::from((source, udp.source_port()));
            return Packet::Datagram { source, destination, payload: udp.payload().to_vec() };
        }
    }
    if let TransportSlice::Icmpv4(icmp) = &transport
        && let request @ Icmpv4Type::EchoRequest(IcmpEchoHeader { id, seq }) = icmp.icmp_type()
        && request.calc_checksum(icmp.payload()) == icmp.checksum()
    {
        let mut answer = Vec::new();
        let built = PacketBuilder::ipv4(destination.octets(), source.octets(), HOP_LIMIT)
            .icmpv4_echo_reply(id, seq)
            .write(&mut answer, icmp.payload());
        if built.is_ok() {
            return Packet::Echo(answer);
        }
    }

    Packet::Other
}

/// An IP packet with `payload`.
///
/// # Errors
///
/// If the payload is too long.
pub(super) fn udp(
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

    #[test]
    fn a_datagram_has_both_addresses() {
        let packet = udp((PEER.octets(), OWN.octets()), (9, PORT), b"question").unwrap();

        let datagram = Packet::Datagram {
            source: (PEER, 9).into(),
            destination: OWN,
            payload: b"question".to_vec(),
        };
        assert_eq!(parse(&packet, PORT), datagram);
        assert_eq!(parse(&packet, PORT + 1), Packet::Other);
    }

    #[test]
    fn an_echo_request_is_answered() {
        let mut request = Vec::new();
        PacketBuilder::ipv4(PEER.octets(), OWN.octets(), 9)
            .icmpv4_echo_request(7, 1)
            .write(&mut request, b"data")
            .unwrap();

        let Packet::Echo(answer) = parse(&request, PORT) else { panic!("no answer") };

        let mut expected = Vec::new();
        PacketBuilder::ipv4(OWN.octets(), PEER.octets(), HOP_LIMIT)
            .icmpv4_echo_reply(7, 1)
            .write(&mut expected, b"data")
            .unwrap();
        assert_eq!(answer, expected);
        request[24] ^= 1;
        assert_eq!(parse(&request, PORT), Packet::Other, "a wrong checksum");
    }

    proptest! {
        #[test]
        fn changed_packets_are_no_datagrams(at in 20_usize..40, flip in 1..=u8::MAX) {
            let mut packet = udp((PEER.octets(), OWN.octets()), (PORT, PORT), b"question ").unwrap();
            let at = at.min(packet.len() - 1);
            packet[at] ^= flip;

            // Zero is no checksum (RFC 768).
            if packet[26..28] != [0, 0] {
                prop_assert_eq!(parse(&packet, PORT), Packet::Other);
            }
        }

        #[test]
        fn any_bytes_are_parsed(packet in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&packet, PORT);
        }
    }
}
