//! The IPv6 header and its extension headers (RFC 8200).

use std::net::Ipv6Addr;

use super::Extent;
use super::Fragment;
use super::Header;
use super::Malformed;
use super::Transport;

/// Length of the header without extension headers, in bytes.
pub(super) const FIXED_LEN: usize = 40;

/// Extension headers that are walked before a packet counts as malformed. RFC 8200 section 4.1
/// recommends an order with at most five of the kinds walked here; the bound keeps a hostile packet cheap.
pub(super) const MAX_EXTENSIONS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;

/// Deprecated by RFC 5095.
const ROUTING_TYPE_0: u8 = 0;
const DESTINATION: u8 = 60;

/// Reads the header and walks the extension headers. The version is known to be 6.
#[inline]
pub(super) fn parse(packet: &[u8], extent: Extent) -> Result<Header, Malformed> {
    let available = packet.len();
    let Some((fixed, _)) = packet.split_first_chunk::<FIXED_LEN>() else {
        return Err(Malformed::Truncated { needed: FIXED_LEN, available });
    };

    let stated = FIXED_LEN + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if stated > available && extent == Extent::Whole {
        return Err(Malformed::Truncated { needed: stated, available });
    }
    let packet_len = stated.min(available);

    let mut header = Header {
        source: address(fixed, 8).into(),
        destination: address(fixed, 24).into(),
        packet_len,
        transport_offset: FIXED_LEN,
        transport: Transport::None,
        protocol: fixed[6],
        traffic_class: (fixed[0] << 4) | (fixed[1] >> 4),
        fragment: Fragment::None,
        dont_fragment: true,
        routed: false,
        source_routed: false,
    };
    if is_extension(header.protocol) {
        match walk(packet.get(..packet_len).unwrap_or_default(), &mut header) {
            Ok(()) => {}
            Err(reason) if extent == Extent::Whole => return Err(reason),
            Err(_) => return Ok(header),
        }
    }
    if header.fragment != Fragment::Later {
        let rest = packet_len.saturating_sub(header.transport_offset);
        header.transport = Transport::of(header.protocol, true, rest);
    }

    Ok(header)
}

#[inline]
fn address(fixed: &[u8; FIXED_LEN], at: usize) -> Ipv6Addr {
    let octets = fixed.get(at..).and_then(|bytes| bytes.first_chunk::<16>());

    octets.map_or(Ipv6Addr::UNSPECIFIED, |octets| Ipv6Addr::from(*octets))
}

#[inline]
const fn is_extension(next_header: u8) -> bool {
    matches!(next_header, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}

/// Moves `header` to the upper-layer header, or as far as the chain can be followed.
fn walk(packet: &[u8], header: &mut Header) -> Result<(), Malformed> {
    for _ in 0..MAX_EXTENSIONS {
        let offset = header.transport_offset;
        let available = packet.len();
        let Some(start) = packet.get(offset..).and_then(|bytes| bytes.first_chunk::<8>()) else {
            return Err(Malformed::Truncated { needed: offset + 8, available });
        };

        // Byte 1 counts units of 8 bytes beyond the first, except in a fragment header, which has
        // no length: there it is reserved.
        let len = match header.protocol {
            FRAGMENT => 8,
            _ => 8 + 8 * usize::from(start[1]),
        };
        if offset + len > available {
            return Err(Malformed::Truncated { needed: offset + len, available });
        }

        match header.protocol {
            FRAGMENT => header.fragment = fragment(u16::from_be_bytes([start[2], start[3]])),
            ROUTING => {
                header.routed |= start[3] != 0;
                header.source_routed |= start[2] == ROUTING_TYPE_0;
            }
            _ => {}
        }
        header.protocol = start[0];
        header.transport_offset = offset + len;
        if header.fragment == Fragment::Later || !is_extension(header.protocol) {
            return Ok(());
        }
    }

    Err(Malformed::ExtensionChain)
}

/// The identification in the fragment header, if there is one.
pub(super) fn identification(packet: &[u8]) -> Option<u32> {
    let mut next_header = *packet.get(6)?;
    let mut offset = FIXED_LEN;
    for _ in 0..MAX_EXTENSIONS {
        let start = packet.get(offset..)?.first_chunk::<8>()?;
        match next_header {
            FRAGMENT => return Some(u32::from_be_bytes([start[4], start[5], start[6], start[7]])),
            HOP_BY_HOP | ROUTING | DESTINATION => offset += 8 + 8 * usize::from(start[1]),
            _ => return None,
        }
        next_header = start[0];
    }

    None
}

const fn fragment(field: u16) -> Fragment {
    const OFFSET: u16 = 0xfff8;
    const MORE: u16 = 0x0001;

    if field & OFFSET != 0 {
        Fragment::Later
    } else if field & MORE != 0 {
        Fragment::First
    } else {
        Fragment::None
    }
}
