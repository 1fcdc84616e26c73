//! The outer headers of an overlay: VXLAN (RFC 7348), Geneve (RFC 8926) and other protocols that carry packets in UDP
//! datagrams.
//!
//! ```text
//!   [ outer IP ][ UDP ][ VXLAN or Geneve, Ethernet ][ IP ][ TCP or UDP ][ payload ]
//!    written            as in the frame              as in the template
//! ```
//!
//! The checksum of the outer UDP header covers the payload. It is computed without reading that: the checksum of the inner
//! transport header makes the sum of its segment known (the kernel's documents call this *local checksum offload*).

use remap::checksum::{add, complete, pseudo_header, sum};

use crate::virtio::{Overlay, VirtioHeader};
use crate::{Fragment, Header, Malformed, Transport, field};

use super::ip_fields::IpFields;

/// In bytes.
pub(super) const UDP_HEADER_LEN: usize = 8;

/// The packet of a frame that has to be cut.
#[derive(Debug)]
pub(super) struct Inner {
    /// The offset of its IP header in the frame, in bytes: 0 without an overlay.
    pub(super) offset: usize,
    pub(super) header: Header,
}

impl Inner {
    /// Finds the packet in `frame`, whose first header is `header`.
    #[inline]
    pub(super) fn find(
        frame: &[u8],
        virtio: &VirtioHeader,
        header: &Header,
    ) -> Result<Self, Malformed> {
        let Some(overlay) = &virtio.overlay else {
            return Ok(Self { offset: 0, header: *header });
        };

        let offset = usize::from(overlay.inner_offset);
        let packet = frame.get(offset..).ok_or(Malformed::Offload)?;
        let inner = Header::parse(packet)?;
        // With an even distance, the sums of both packets consist of the same words.
        let distance = offset.checked_sub(header.transport_offset()).ok_or(Malformed::Offload)?;
        let is_overlay = header.transport() == Transport::Udp
            && header.fragment() == Fragment::None
            && !header.is_routed()
            && header.transport_offset() == usize::from(overlay.transport_offset)
            && header.is_ipv6() == overlay.is_ipv6
            && distance >= UDP_HEADER_LEN
            && distance.is_multiple_of(2)
            && inner.packet_len() == packet.len();

        if is_overlay { Ok(Self { offset, header: inner }) } else { Err(Malformed::Offload) }
    }
}

/// The fields that differ between segments, and the sums of the others.
#[derive(Debug)]
pub(super) struct OuterHeaders {
    transport_offset: usize,
    ip: IpFields,
    /// Of what the UDP checksum covers besides its lengths and the inner packet; `None` without a checksum.
    sum: Option<u16>,
}

impl OuterHeaders {
    /// Takes the fields out of the outer headers, `bytes`, and zeroes them. `header` is the outer IP header.
    pub(super) fn take(
        bytes: &mut [u8],
        overlay: &Overlay,
        header: &Header,
    ) -> Result<Self, Malformed> {
        let transport_offset = header.transport_offset();
        let ip = IpFields::take(bytes, header);
        let transport = bytes.get_mut(transport_offset..).ok_or(Malformed::Offload)?;
        let udp = transport.first_chunk_mut::<UDP_HEADER_LEN>().ok_or(Malformed::Offload)?;
        udp[4..].fill(0);
        let sum = overlay.has_checksum.then(|| {
            let pseudo = pseudo_header(header.source(), header.destination(), header.protocol(), 0);
            add(pseudo, sum(transport))
        });

        Ok(Self { transport_offset, ip, sum })
    }

    /// Writes the fields for segment `index`, a packet of `packet_len` bytes. `inner_sum` is the sum of the inner packet.
    #[inline]
    pub(super) fn write(&self, bytes: &mut [u8], packet_len: usize, index: usize, inner_sum: u16) {
        self.ip.write(bytes, packet_len, index);

        let len = field::length(packet_len - self.transport_offset);
        field::put_word(bytes, self.transport_offset + 4, len);
        if let Some(sum) = self.sum {
            // The length is in the pseudo-header and in the header.
            let checksum = complete(add(add(sum, inner_sum), add(len, len)));
            let checksum = if checksum == 0 { 0xffff } else { checksum };
            field::put_word(bytes, self.transport_offset + 6, checksum);
        }
    }
}
