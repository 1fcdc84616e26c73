// UDP packets, each with its IP identification.

use std::net::Ipv4Addr;

use remap::checksum;

/// A UDP packet with a correct checksum whose IP identification is `id`.
pub(crate) fn udp_packet(source: &str, destination: &str, id: u16) -> Vec<u8> {
    let (source, destination): (Ipv4Addr, Ipv4Addr) =
        (source.parse().unwrap(), destination.parse().unwrap());
    let payload = b"the payload of a packet";
    let udp_len = u16::try_from(8 + payload.len()).unwrap();

    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp_len).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend([0, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let header_checksum = checksum::complete(checksum::sum(&packet));
    packet[10..12].copy_from_slice(&header_checksum.to_be_bytes());

    packet.extend(4000u16.to_be_bytes());
    packet.extend(5000u16.to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    let pseudo = checksum::pseudo_header(source.into(), destination.into(), 17, u32::from(udp_len));
    let sum = checksum::add(pseudo, checksum::sum(&packet[20..]));
    packet[26..28].copy_from_slice(&checksum::complete(sum).to_be_bytes());

    packet
}

/// Sets the ECN field and updates the header checksum.
pub(crate) fn set_ecn_bits(packet: &mut [u8], bits: u8) {
    packet[1] |= bits;
    packet[10..12].fill(0);
    let header_checksum = checksum::complete(checksum::sum(&packet[..20]));
    packet[10..12].copy_from_slice(&header_checksum.to_be_bytes());
}

pub(crate) fn packet_id(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[4], packet[5]])
}
