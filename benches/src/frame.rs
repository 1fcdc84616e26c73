//! Frames as read from a TUN device.

use remap::checksum;
use strait_packet::virtio::{Gso, VirtioHeader};

/// TCP payload bytes of one segment: an MTU of 1340 minus 40 bytes of headers.
pub const SEGMENT_BYTES: u16 = 1300;

const SOURCE: [u8; 4] = [10, 244, 1, 5];
const DESTINATION: [u8; 4] = [10, 71, 2, 7];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A TCP frame of `segments` segments from 10.244.1.5 to 10.71.2.7. Its checksum holds the sum of
/// the pseudo-header only, as the kernel leaves it.
#[must_use]
pub fn tcp(segments: u16) -> (VirtioHeader, Vec<u8>) {
    let payload_len = segments.saturating_mul(SEGMENT_BYTES);
    let (mut frame, pseudo) = ip(TCP, payload_len.saturating_add(20));
    frame.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
    frame.extend(pseudo.to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(frame.len().saturating_add(payload_len.into()), 0x5a);

    let virtio = VirtioHeader {
        needs_checksum: true,
        gso: if segments > 1 { Gso::TcpV4 } else { Gso::None },
        header_len: 40,
        gso_size: if segments > 1 { SEGMENT_BYTES } else { 0 },
        checksum_start: 20,
        checksum_offset: 16,
        overlay: None,
    };

    (virtio, frame)
}

/// One UDP datagram between the same addresses, with a partial checksum as in [`tcp`].
#[must_use]
pub fn udp(payload_len: u16) -> (VirtioHeader, Vec<u8>) {
    let datagram_len = payload_len.saturating_add(8);
    let (mut frame, pseudo) = ip(UDP, datagram_len);
    frame.extend([0x9c, 0x40, 0x14, 0x51]);
    frame.extend(datagram_len.to_be_bytes());
    frame.extend(pseudo.to_be_bytes());
    frame.resize(frame.len().saturating_add(payload_len.into()), 0x5a);

    let virtio = VirtioHeader {
        needs_checksum: true,
        gso: Gso::None,
        header_len: 28,
        gso_size: 0,
        checksum_start: 20,
        checksum_offset: 6,
        overlay: None,
    };

    (virtio, frame)
}

/// An IP header, and the sum of the pseudo-header.
fn ip(protocol: u8, transport_len: u16) -> (Vec<u8>, u16) {
    let mut header = vec![0x45, 0];
    header.extend(transport_len.saturating_add(20).to_be_bytes());
    header.extend([0, 1, 0x40, 0, 64, protocol]);
    let without_checksum = [&header[..], &[0, 0], &SOURCE, &DESTINATION].concat();
    header.extend(checksum::complete(checksum::sum(&without_checksum)).to_be_bytes());
    header.extend(SOURCE);
    header.extend(DESTINATION);
    let pseudo = checksum::pseudo_header(
        SOURCE.into(),
        DESTINATION.into(),
        protocol,
        u32::from(transport_len),
    );

    (header, pseudo)
}
