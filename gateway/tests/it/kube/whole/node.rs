//! A node of a cluster with Liqo: the end of a Geneve tunnel, made of packets on a UDP socket.
//!
//! This kernel may have no Geneve, so what that would accept and answer is written down here, with an independent packet
//! library: the outer source and the identifier, address resolution, and frames to its own station alone.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, Ethernet2Header, Icmpv4Header, Icmpv4Type,
    Ipv4Header, PacketBuilder, UdpHeader,
};
use strait_lab::{LabError, Namespace, now};

use crate::kube::fed::PATIENCE;

/// The port of Liqo's nodes.
const PORT: u16 = 6091;

/// Bytes of the header of Geneve without options (RFC 8926 section 3.4), and of Ethernet.
const GENEVE_LEN: usize = 8;
const ETHERNET_LEN: usize = 14;

/// "Transparent Ethernet bridging".
const ETHERNET: [u8; 2] = [0x65, 0x58];

/// How long a packet that is not expected is waited for.
const SILENCE: Duration = Duration::from_millis(300);

pub(super) struct Node {
    socket: UdpSocket,
    gateway: SocketAddr,
    vni: u32,
    station: [u8; 6],
    inner: Ipv4Addr,
    /// The station of the gateway, once it is known.
    next_hop: Option<[u8; 6]>,
}

/// A UDP datagram or an ICMP error of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) source: (Ipv4Addr, u16),
    pub(super) destination: (Ipv4Addr, u16),
    pub(super) payload: Vec<u8>,
}

impl Node {
    /// The node with this outer address in `namespace`.
    pub(super) fn new(
        namespace: &Namespace,
        [address, gateway]: [Ipv4Addr; 2],
        vni: u32,
        inner: Ipv4Addr,
    ) -> Self {
        let bind = move || UdpSocket::bind((address, PORT)).map_err(LabError::io("bind"));
        let socket = namespace.run(bind).unwrap();
        let [.., last] = inner.octets();

        Self {
            socket,
            gateway: (gateway, PORT).into(),
            vni,
            station: [0x0a, 0, 0, 0, 0, last],
            inner,
            next_hop: None,
        }
    }

    /// Asks for the station of the gateway, as for any next hop. The gateway may ask at the same time.
    pub(super) fn resolve(&mut self, next_hop: Ipv4Addr) {
        let question = ArpEthIpv4Packet {
            operation: ArpOperation::REQUEST,
            sender_mac: self.station,
            sender_ipv4: self.inner.octets(),
            target_mac: [0; 6],
            target_ipv4: next_hop.octets(),
        };
        let start = now();
        while self.next_hop.is_none() {
            assert!(start.elapsed() < PATIENCE, "the gateway does not answer for {next_hop}");
            self.send_frame([0xff; 6], EtherType::ARP, &question.to_bytes());
            let _ = self.receive_packet(SILENCE);
        }
    }

    /// Sends a datagram of a pod.
    pub(super) fn send(&self, datagram: &Datagram) {
        self.send_packet(&datagram.to_packet());
    }

    /// Sends a packet of a pod.
    pub(super) fn send_packet(&self, packet: &[u8]) {
        self.send_frame(self.next_hop.expect("a station"), EtherType::IPV4, packet);
    }

    /// The next datagram for a pod; all of its checksums are right.
    pub(super) fn receive(&mut self) -> Datagram {
        let packet = self.receive_packet(PATIENCE).expect("a packet");

        Datagram::of_packet(&packet)
    }

    /// Waits for a packet that should not come.
    pub(super) fn assert_silent(&mut self) {
        assert_eq!(self.receive_packet(SILENCE), None);
    }

    /// The next IP packet. Answers what the gateway asks.
    pub(super) fn receive_packet(&mut self, limit: Duration) -> Option<Vec<u8>> {
        let start = now();
        let mut buffer = [0; 2048];
        loop {
            let left = limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero())?;
            self.socket.set_read_timeout(Some(left)).unwrap();
            let Ok((len, from)) = self.socket.recv_from(&mut buffer) else { continue };
            // The kernel of a node takes nothing else.
            assert_eq!(from.ip(), self.gateway.ip());
            let datagram = &buffer[..len];
            let vni = self.vni.to_be_bytes();
            assert_eq!(
                datagram[..GENEVE_LEN],
                [0, 0, ETHERNET[0], ETHERNET[1], vni[1], vni[2], vni[3], 0]
            );
            let (ethernet, content) = Ethernet2Header::from_slice(&datagram[GENEVE_LEN..]).unwrap();
            if ethernet.ether_type == EtherType::ARP {
                self.handle_arp(content);
                continue;
            }
            assert_eq!(ethernet.ether_type, EtherType::IPV4);
            // A frame for another station is not for this host: until the gateway knows this one, it guesses.
            if ethernet.destination == self.station {
                return Some(content.to_vec());
            }
        }
    }

    fn handle_arp(&mut self, content: &[u8]) {
        let word = |at: usize| u16::from_be_bytes([content[at], content[at + 1]]);
        assert_eq!((word(0), word(2), content[4], content[5]), (1, 0x0800, 6, 4));
        let mac = |at: usize| <[u8; 6]>::try_from(&content[at..at + 6]).unwrap();
        let ip = |at: usize| <[u8; 4]>::try_from(&content[at..at + 4]).unwrap();
        let (sender, sender_ip, target_ip) = (mac(8), ip(14), ip(24));
        match word(6) {
            1 if target_ip == self.inner.octets() => {
                let answer = ArpEthIpv4Packet {
                    operation: ArpOperation::REPLY,
                    sender_mac: self.station,
                    sender_ipv4: target_ip,
                    target_mac: sender,
                    target_ipv4: sender_ip,
                };
                self.send_frame(sender, EtherType::ARP, &answer.to_bytes());
            }
            2 => {
                assert_eq!(mac(18), self.station);
                self.next_hop = Some(sender);
            }
            operation => panic!("operation {operation} for {target_ip:?}"),
        }
    }

    fn send_frame(&self, destination: [u8; 6], ether_type: EtherType, content: &[u8]) {
        let [_, high, middle, low] = self.vni.to_be_bytes();
        let mut datagram = vec![0, 0, ETHERNET[0], ETHERNET[1], high, middle, low, 0];
        let header = Ethernet2Header { source: self.station, destination, ether_type };
        datagram.extend(header.to_bytes());
        assert_eq!(datagram.len(), GENEVE_LEN + ETHERNET_LEN);
        datagram.extend(content);

        self.socket.send_to(&datagram, self.gateway).unwrap();
    }
}

impl Datagram {
    pub(super) fn new(source: (&str, u16), destination: (&str, u16), payload: &[u8]) -> Self {
        let end = |(address, port): (&str, u16)| (address.parse().unwrap(), port);

        Self { source: end(source), destination: end(destination), payload: payload.to_vec() }
    }

    fn to_packet(&self) -> Vec<u8> {
        let builder = PacketBuilder::ipv4(self.source.0.octets(), self.destination.0.octets(), 64);
        let mut packet = Vec::new();
        builder.udp(self.source.1, self.destination.1).write(&mut packet, &self.payload).unwrap();

        packet
    }

    fn of_packet(packet: &[u8]) -> Self {
        let (ip, rest) = Ipv4Header::from_slice(packet).unwrap();
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        assert_eq!(ip.protocol.0, 17, "{packet:?}");
        let (udp, payload) = UdpHeader::from_slice(rest).unwrap();
        assert_eq!(udp.checksum, udp.calc_checksum_ipv4(&ip, payload).unwrap());

        Self {
            source: (ip.source.into(), udp.source_port),
            destination: (ip.destination.into(), udp.destination_port),
            payload: payload.to_vec(),
        }
    }
}

/// The code of the "destination unreachable" in `packet`, its destination, and the packet that it quotes.
pub(super) fn unreachable(packet: &[u8]) -> (u8, Ipv4Addr, Vec<u8>) {
    let (ip, rest) = Ipv4Header::from_slice(packet).unwrap();
    let (icmp, quoted) = Icmpv4Header::from_slice(rest).unwrap();
    let Icmpv4Type::DestinationUnreachable(ref header) = icmp.icmp_type else {
        panic!("{:?}", icmp.icmp_type)
    };
    assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(quoted));

    (header.code_u8(), ip.destination.into(), quoted.to_vec())
}
