//! Packets that connection tracking takes for the first ones of flows, and the replies to them.

use std::net::Ipv4Addr;

use remap::ruleset::Device;

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// Without ports.
pub(crate) const ESP: u8 = 50;

/// The sequence number of a SYN; the reply acknowledges it.
const SEQUENCE: u32 = 0x0707_0707;

/// A packet, described.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    /// The identification, which tells the packets of one test apart.
    pub(crate) id: u16,
    pub(crate) input: Device,
    pub(crate) source: Ipv4Addr,
    pub(crate) destination: Ipv4Addr,
    pub(crate) protocol: u8,
    /// For an echo, the first one is the identifier; for ESP, both are the SPI.
    pub(crate) ports: [u16; 2],
    /// Of a SYN.
    pub(crate) mss: u16,
    pub(crate) is_reply: bool,
}

impl Probe {
    /// The reply to this packet as it arrived, from the device where it did.
    pub(crate) fn reply(&self, id: u16, arrived: &(Device, Vec<u8>)) -> Self {
        let (device, bytes) = arrived;
        let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap());
        let [one, other] = self.ports;

        Self {
            id,
            input: *device,
            source: address(16),
            destination: address(12),
            ports: if self.protocol == ICMP { [one, other] } else { [other, one] },
            is_reply: true,
            ..self.clone()
        }
    }

    /// The bytes, with right checksums.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut transport = self.transport();
        if let Some(at) = match self.protocol {
            ICMP => Some(2),
            TCP => Some(16),
            UDP => Some(6),
            _ => None,
        } {
            let len = u16::try_from(transport.len()).unwrap();
            let pseudo = [
                &self.source.octets()[..],
                &self.destination.octets(),
                &[0, self.protocol],
                &len.to_be_bytes(),
            ]
            .concat();
            let covered = if self.protocol == ICMP { Vec::new() } else { pseudo };
            let checksum = match !sum(&[&covered[..], &transport].concat()) {
                0 if self.protocol == UDP => 0xffff,
                checksum => checksum,
            };
            transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }

        let len = u16::try_from(20 + transport.len()).unwrap();
        let mut packet = vec![0x45, 0];
        packet.extend(len.to_be_bytes());
        packet.extend(self.id.to_be_bytes());
        packet.extend([0, 0, 64, self.protocol, 0, 0]);
        packet.extend(self.source.octets());
        packet.extend(self.destination.octets());
        let checksum = !sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(transport);

        packet
    }

    fn transport(&self) -> Vec<u8> {
        let [one, other] = self.ports.map(u16::to_be_bytes);
        let mut bytes = match self.protocol {
            ICMP => [[if self.is_reply { 0 } else { 8 }, 0], [0, 0], one, other].concat(),
            TCP => {
                let acknowledged = if self.is_reply { SEQUENCE + 1 } else { 0 };
                let mut header = [one, other].concat();
                header.extend(SEQUENCE.to_be_bytes());
                header.extend(acknowledged.to_be_bytes());
                header.extend([0x60, if self.is_reply { 0x12 } else { 0x02 }, 0xff, 0xff]);
                header.extend([0, 0, 0, 0, 2, 4]);
                header.extend(self.mss.to_be_bytes());
                header
            }
            UDP => [one, other, [0, 8], [0, 0]].concat(),
            _ => [one, other, [0, 0], [0, 1]].concat(),
        };
        if self.protocol != TCP && self.protocol != UDP {
            bytes.extend(b"Where does the strait end?");
        }

        bytes
    }
}

/// The sum in one's complement arithmetic (RFC 1071 section 1).
fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum: u16, pair| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}
