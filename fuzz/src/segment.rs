//! Segmentation of offload frames.

use strait_packet::segment::Segments;
use strait_packet::virtio::{Gso, VIRTIO_LEN, VirtioHeader};
use strait_packet::{Header, Transport};

use crate::oracle::{checksums, word};

/// With any offload header, number and size of the segments are as announced; segments of a frame are
/// packets of the same flow with correct checksums, and their payload is that of the frame.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn segment(bytes: &[u8]) {
    let Ok(virtio) = VirtioHeader::parse(bytes) else {
        return;
    };
    let original = bytes.get(VIRTIO_LEN..).unwrap_or_default();
    let mut frame = original.to_vec();
    let Ok(header) = Header::parse(&frame) else {
        return;
    };
    let Ok(mut segments) = Segments::new(&mut frame, &virtio, &header) else {
        return;
    };

    let (announced, total) = (segments.count(), segments.total_bytes());
    let (mut count, mut sum) = (0, 0);
    let mut payload: Vec<u8> = Vec::new();
    while let Some(len) = segments.next_len() {
        assert_eq!(segments.remaining(), announced - count);
        let segment = segments.next_segment().unwrap_or_default();
        assert_eq!(segment.len(), len);
        if virtio.gso != Gso::None {
            assert_segment(
                segment,
                &header,
                virtio.overlay.is_none_or(|overlay| overlay.has_checksum),
            );
            if let Some(overlay) = virtio.overlay {
                let at = usize::from(overlay.inner_offset);
                let inner = |packet: &[u8]| packet.get(at..).unwrap_or_default().to_vec();
                let Ok(inner_header) = Header::parse(&inner(original)) else {
                    panic!("the inner packet was cut, and is malformed")
                };
                assert_segment(&inner(segment), &inner_header, true);
            }
            payload.extend(payload_of(segment, &virtio));
        }
        count += 1;
        sum += len;
    }

    assert_eq!((count, sum), (announced, total));
    assert_eq!(segments.next_segment(), None);
    if virtio.gso != Gso::None {
        let whole = original.get(..header.packet_len()).unwrap_or_default();
        assert_eq!(payload, payload_of(whole, &virtio));
    }
}

fn assert_segment(segment: &[u8], frame: &Header, has_checksum: bool) {
    let header = Header::parse(segment);
    let Ok(header) = header else { panic!("{header:?}") };
    assert_eq!(header.packet_len(), segment.len());
    assert_eq!(
        (header.source(), header.destination(), header.transport(), header.transport_offset()),
        (frame.source(), frame.destination(), frame.transport(), frame.transport_offset())
    );

    // With a routing header, the checksum covers an address that only the sender knows.
    let known = checksums(segment).into_iter().filter(|_| !header.is_routed());
    for checksum in known {
        let is_absent = checksum.reserves_zero() && !has_checksum;
        assert_eq!(checksum.is_absent(segment), is_absent, "{checksum:?}");
        assert!(is_absent || checksum.residue(segment) == 0, "{checksum:?}");
    }
}

/// The payload of a packet, or of the one inside an overlay.
fn payload_of<'a>(packet: &'a [u8], virtio: &VirtioHeader) -> &'a [u8] {
    let at = virtio.overlay.map_or(0, |overlay| usize::from(overlay.inner_offset));
    let inner = packet.get(at..).unwrap_or_default();
    let Ok(header) = Header::parse(inner) else { panic!("the packet was cut, and is malformed") };
    let offset = header.transport_offset();
    let data_offset = word(inner, offset + 12).unwrap_or_default() >> 12;
    let is_tcp = header.transport() == Transport::Tcp;

    inner.get(offset + if is_tcp { usize::from(data_offset) * 4 } else { 8 }..).unwrap_or_default()
}
