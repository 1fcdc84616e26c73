//! Frames as a TUN device hands them over.

use remap::checksum;
use strait_gateway::packet::virtio::{Gso, VirtioHeader};

/// TCP payload bytes of one segment: an MTU of 1340 less 40 of headers.
pub const SEGMENT_BYTES: u16 = 1300;

const SOURCE: [u8; 4] = [10, 244, 1, 5];
const DESTINATION: [u8; 4] = [10, 71, 2, 7];
const TCP: u8 = 6;

/// A TCP frame of `segments` segments from 10.244.1.5 to 10.71.2.7. Its checksum holds the sum of
/// the pseudo-header only, as the kernel leaves it.
#[must_use]
pub fn tcp(segments: u16) -> (VirtioHeader, Vec<u8>) {
    let payload_len = segments.saturating_mul(SEGMENT_BYTES);
    let total_len = payload_len.saturating_add(40);

    let mut ip = vec![0x45, 0];
    ip.extend(total_len.to_be_bytes());
    ip.extend([0, 1, 0x40, 0, 64, TCP]);
    let without_checksum = [&ip[..], &[0, 0], &SOURCE, &DESTINATION].concat();
    let header_checksum = checksum::complete(checksum::sum(&without_checksum));
    let pseudo = checksum::pseudo_header(
        SOURCE.into(),
        DESTINATION.into(),
        TCP,
        u32::from(total_len.saturating_sub(20)),
    );

    let mut frame = ip;
    frame.extend(header_checksum.to_be_bytes());
    frame.extend(SOURCE);
    frame.extend(DESTINATION);
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
    };

    (virtio, frame)
}
