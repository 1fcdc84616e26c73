//! The offload header that a TUN device with `IFF_VNET_HDR` puts in front of every frame.
//!
//! The layout is `struct virtio_net_hdr_v1_hash_tunnel` of the Linux kernel (`include/uapi/linux/virtio_net.h`): ten bytes
//! in the byte order of the machine, unless the device is configured otherwise, ten that have no meaning on a TUN device,
//! and four for overlays, little-endian. Kernels before 6.17 know the first ten; they write zeros for the rest and ignore
//! it.

use super::Header;
use super::rewrite::Checksum;

/// Length of the header in bytes.
pub const VIRTIO_LEN: usize = 24;

/// Length of the first part in bytes, which a new device has in front of a frame.
pub const VIRTIO_LEN_MIN: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const OVERLAY_CHECKSUM: u8 = 8;

const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_UDP_FRAGMENT: u8 = 3;
const GSO_TCP_V6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Set in addition to the type when the frame has the CWR flag. Segmentation handles CWR in any case.
const GSO_ECN: u8 = 0x80;
/// Set in addition to the type when the segments are inside UDP over IPv4, or over IPv6.
const GSO_OVERLAY_V4: u8 = 0x20;
const GSO_OVERLAY_V6: u8 = 0x40;

/// The offload work that is left: by the kernel for a frame that is read, for the kernel for one that is
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioHeader {
    /// The transport checksum is partial: it has to be completed over everything from
    /// `checksum_start` on.
    pub needs_checksum: bool,
    /// How the frame has to be cut.
    pub gso: Gso,
    /// Bytes of IP and transport header. Only a hint when read: it is invalid in forwarded frames.
    pub header_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// The offset of the checksummed part, in bytes from the start of the packet.
    pub checksum_start: u16,
    /// The offset of the checksum, in bytes from `checksum_start`.
    pub checksum_offset: u16,
    /// The outer headers, if what has to be cut is inside a UDP datagram.
    pub overlay: Option<Overlay>,
}

/// The outer headers of a frame of an overlay, such as VXLAN or Geneve. They are repeated in front of each segment. Offsets
/// are in bytes from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// Whether the outer IP header is one of IPv6.
    pub is_ipv6: bool,
    /// Whether the outer UDP header has a checksum.
    pub has_checksum: bool,
    /// The offset of the outer UDP header.
    pub transport_offset: u16,
    /// The offset of the inner IP header.
    pub inner_offset: u16,
}

/// The kinds of segmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gso {
    /// The frame is one packet.
    #[default]
    None,
    /// TCP segments in IPv4.
    TcpV4,
    /// TCP segments in IPv6.
    TcpV6,
    /// UDP datagrams of equal length, in either version.
    UdpL4,
    /// One UDP datagram to be cut into IP fragments. The device must not be opened for it.
    UdpFragment,
}

/// The offload header is too short or of an unknown kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum VirtioError {
    /// Fewer than [`VIRTIO_LEN`] bytes.
    #[error("an offload header of {len} bytes, not {VIRTIO_LEN}")]
    Truncated { len: usize },
    /// A segmentation that no device supports.
    #[error("unknown segmentation type {gso_type}")]
    UnknownGso { gso_type: u8 },
}

impl VirtioHeader {
    /// Reads the header from the first [`VIRTIO_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// [`VirtioError`] if `bytes` are too few or the kind of segmentation is unknown.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, VirtioError> {
        let Some(&[flags, gso, h0, h1, g0, g1, s0, s1, o0, o1, ref rest @ ..]) =
            bytes.first_chunk::<VIRTIO_LEN>()
        else {
            return Err(VirtioError::Truncated { len: bytes.len() });
        };

        Ok(Self {
            needs_checksum: flags & NEEDS_CHECKSUM != 0,
            gso: Gso::from_wire(gso & !(GSO_ECN | GSO_OVERLAY_V4 | GSO_OVERLAY_V6))?,
            header_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            checksum_start: u16::from_ne_bytes([s0, s1]),
            checksum_offset: u16::from_ne_bytes([o0, o1]),
            overlay: Overlay::parse(flags, gso, *rest),
        })
    }

    /// The bytes of the header.
    #[must_use]
    #[inline]
    pub const fn to_bytes(&self) -> [u8; VIRTIO_LEN] {
        let [h0, h1] = self.header_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.checksum_start.to_ne_bytes();
        let [o0, o1] = self.checksum_offset.to_ne_bytes();
        let mut flags = if self.needs_checksum { NEEDS_CHECKSUM } else { 0 };
        let mut gso = self.gso.to_wire();
        let ([t0, t1], [i0, i1]) = match self.overlay {
            Some(Overlay { is_ipv6, has_checksum, transport_offset, inner_offset }) => {
                flags |= if has_checksum { OVERLAY_CHECKSUM } else { 0 };
                gso |= if is_ipv6 { GSO_OVERLAY_V6 } else { GSO_OVERLAY_V4 };
                (transport_offset.to_le_bytes(), inner_offset.to_le_bytes())
            }
            None => ([0; 2], [0; 2]),
        };

        [flags, gso, h0, h1, g0, g1, s0, s1, o0, o1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, t0, t1, i0, i1]
    }

    /// The content of the packet's transport checksum field.
    ///
    /// Partial only if the checksum to be completed is the one of `header`. The kernel may leave
    /// the checksum of a packet *inside* a tunnel packet to be completed; then the outer one is complete, and
    /// completing the inner one keeps it right.
    #[must_use]
    #[inline]
    pub fn checksum(&self, header: &Header) -> Checksum {
        let is_transport = usize::from(self.checksum_start) == header.transport_offset()
            && header.transport().checksum_offset() == Some(usize::from(self.checksum_offset));

        if self.needs_checksum && is_transport { Checksum::Partial } else { Checksum::Complete }
    }
}

impl Overlay {
    /// From the flags, the type, and what follows the first ten bytes.
    #[inline]
    fn parse(flags: u8, gso: u8, rest: [u8; VIRTIO_LEN - VIRTIO_LEN_MIN]) -> Option<Self> {
        if gso & (GSO_OVERLAY_V4 | GSO_OVERLAY_V6) == 0 {
            return None;
        }
        let [.., t0, t1, i0, i1] = rest;

        Some(Self {
            is_ipv6: gso & GSO_OVERLAY_V6 != 0,
            has_checksum: flags & OVERLAY_CHECKSUM != 0,
            transport_offset: u16::from_le_bytes([t0, t1]),
            inner_offset: u16::from_le_bytes([i0, i1]),
        })
    }
}

impl Gso {
    const fn from_wire(gso_type: u8) -> Result<Self, VirtioError> {
        match gso_type {
            GSO_NONE => Ok(Self::None),
            GSO_TCP_V4 => Ok(Self::TcpV4),
            GSO_UDP_FRAGMENT => Ok(Self::UdpFragment),
            GSO_TCP_V6 => Ok(Self::TcpV6),
            GSO_UDP_L4 => Ok(Self::UdpL4),
            _ => Err(VirtioError::UnknownGso { gso_type }),
        }
    }

    const fn to_wire(self) -> u8 {
        match self {
            Self::None => GSO_NONE,
            Self::TcpV4 => GSO_TCP_V4,
            Self::TcpV6 => GSO_TCP_V6,
            Self::UdpL4 => GSO_UDP_L4,
            Self::UdpFragment => GSO_UDP_FRAGMENT,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixtures::{Packet, udp};
    use super::*;

    fn wire(flags: u8, gso_type: u8) -> [u8; VIRTIO_LEN] {
        let mut bytes = [0; VIRTIO_LEN];
        bytes[..2].copy_from_slice(&[flags, gso_type]);
        bytes
    }

    #[test]
    fn zero_bytes_are_the_default() {
        let header = VirtioHeader::parse(&[0; VIRTIO_LEN]).unwrap();

        assert_eq!(header, VirtioHeader::default());
        assert_eq!(header.to_bytes(), [0; VIRTIO_LEN]);
    }

    #[test]
    fn ecn_bit_of_gso_type_is_ignored() {
        let header = VirtioHeader::parse(&wire(1, 0x81)).unwrap();

        assert_eq!(header.gso, Gso::TcpV4);
        assert!(header.needs_checksum);
    }

    #[test]
    fn unknown_types_and_short_headers_fail() {
        assert_eq!(VirtioHeader::parse(&wire(0, 2)), Err(VirtioError::UnknownGso { gso_type: 2 }));
        assert_eq!(VirtioHeader::parse(&[0; 23]), Err(VirtioError::Truncated { len: 23 }));
    }

    #[test]
    fn only_the_transport_checksum_is_partial() {
        let packet = Packet::new([1; 4].into(), [2; 4].into(), 17, udp([1, 2], &[0; 40])).build();
        let header = Header::parse(&packet).unwrap();
        let of = |needs_checksum, checksum_start, checksum_offset| {
            let virtio = VirtioHeader {
                needs_checksum,
                checksum_start,
                checksum_offset,
                ..VirtioHeader::default()
            };
            virtio.checksum(&header)
        };

        assert_eq!(of(true, 20, 6), Checksum::Partial);
        assert_eq!(of(false, 20, 6), Checksum::Complete);
        assert_eq!(of(true, 56, 6), Checksum::Complete);
        assert_eq!(of(true, 20, 16), Checksum::Complete);
    }

    proptest! {
        #[test]
        fn parsing_restores_the_written_header(
            needs_checksum: bool,
            kind in 0_usize..5,
            words: [u16; 4],
            overlay: Option<(bool, bool, u16, u16)>,
        ) {
            let kinds = [Gso::None, Gso::TcpV4, Gso::TcpV6, Gso::UdpL4, Gso::UdpFragment];
            let header = VirtioHeader {
                needs_checksum,
                gso: kinds[kind],
                header_len: words[0],
                gso_size: words[1],
                checksum_start: words[2],
                checksum_offset: words[3],
                overlay: overlay.map(|(is_ipv6, has_checksum, transport_offset, inner_offset)| {
                    Overlay { is_ipv6, has_checksum, transport_offset, inner_offset }
                }),
            };

            prop_assert_eq!(VirtioHeader::parse(&header.to_bytes()), Ok(header));
        }
    }
}
