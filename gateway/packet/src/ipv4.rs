//! The IPv4 header (RFC 791).

use std::net::Ipv4Addr;

use super::Extent;
use super::Fragment;
use super::Header;
use super::Malformed;
use super::Transport;

/// Length of a header without options, in bytes.
pub(super) const FIXED_LEN: usize = 20;

/// Where the identification stands.
pub(super) const IDENTIFICATION_AT: usize = 4;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Reads the header. The version is known to be 4.
#[inline]
pub(super) fn parse(packet: &[u8], extent: Extent) -> Result<Header, Malformed> {
    let available = packet.len();
    let Some(fixed) = packet.first_chunk::<FIXED_LEN>() else {
        return Err(Malformed::Truncated { needed: FIXED_LEN, available });
    };

    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    let stated = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if header_len < FIXED_LEN {
        return Err(Malformed::Length { stated: header_len, least: FIXED_LEN });
    }
    let packet_len = packet_len(stated, header_len, available, extent)?;

    let fragment_field = u16::from_be_bytes([fixed[6], fixed[7]]);
    let fragment = fragment(fragment_field);
    let protocol = fixed[9];
    let transport = match fragment {
        Fragment::Later => Transport::None,
        Fragment::None | Fragment::First => {
            Transport::of(protocol, false, packet_len.saturating_sub(header_len))
        }
    };

    Ok(Header {
        source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
        destination: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
        packet_len,
        transport_offset: header_len,
        transport,
        protocol,
        traffic_class: fixed[1],
        fragment,
        dont_fragment: fragment_field & DONT_FRAGMENT != 0,
        routed: false,
        source_routed: false,
    })
}

#[inline]
fn packet_len(
    stated: usize,
    header_len: usize,
    available: usize,
    extent: Extent,
) -> Result<usize, Malformed> {
    match extent {
        Extent::Quoted if stated < header_len => Ok(available),
        Extent::Quoted => Ok(stated.min(available)),
        Extent::Whole if stated < header_len => {
            Err(Malformed::Length { stated, least: header_len })
        }
        Extent::Whole if stated > available => {
            Err(Malformed::Truncated { needed: stated, available })
        }
        Extent::Whole => Ok(stated),
    }
}

#[inline]
const fn fragment(field: u16) -> Fragment {
    if field & FRAGMENT_OFFSET != 0 {
        Fragment::Later
    } else if field & MORE_FRAGMENTS != 0 {
        Fragment::First
    } else {
        Fragment::None
    }
}
