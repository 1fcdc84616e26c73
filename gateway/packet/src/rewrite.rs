//! Rewrites the addresses, the ports and the congestion mark of a packet, and every checksum that covers them.
//!
//! Checksums are adjusted by difference (RFC 1624 section 3, equation 3), so a right one stays right,
//! a wrong one stays wrong by the same difference, and the cost does not depend on the length.
//!
//! Not changed: SCTP (its CRC32c covers no address), ESP, GRE and other protocols that cover no
//! address, fragments other than the first, addresses inside IP options, and payload. A packet whose
//! transport header is too short for its checksum gets new addresses only.

use std::net::IpAddr;

use remap::checksum::{Delta, adjust, adjust_partial};

use super::ecn::Ecn;
use super::icmp::Embedded;
use super::ports::Side;
use super::{Header, field};

pub use port::{embedded_port, port};

mod port;
#[cfg(test)]
mod tests;

/// What the transport checksum field of a packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum, as on the wire.
    Complete,
    /// The sum of the pseudo-header alone, not complemented: to be completed by the device for a written
    /// frame, by the gateway for a read one (virtio `NEEDS_CSUM`).
    Partial,
}

/// The new address is of the other IP version, or the header does not describe these bytes. Nothing
/// was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address does not fit the packet")]
pub struct Mismatch;

/// Writes `to` as the address on `side`, and adjusts the IPv4 header checksum and the transport
/// checksum.
///
/// With segments left in an IPv6 routing header, the checksum covers the final destination, which is
/// in that header: a new destination then does not change the transport checksum.
///
/// # Errors
///
/// [`Mismatch`] if `to` is of the other IP version, or `packet` is too short for `header`.
#[inline]
pub fn address(
    packet: &mut [u8],
    header: &mut Header,
    side: Side,
    to: IpAddr,
    checksum: Checksum,
) -> Result<(), Mismatch> {
    replace(packet, header, side, to, checksum).map(|_| ())
}

/// Writes `to` as the address on `side` of the packet that an ICMP error quotes, and adjusts the
/// quoted checksums, as far as they were quoted, and the checksum of the error itself.
///
/// # Errors
///
/// [`Mismatch`] if `to` is of the other IP version, or `packet` is too short for `header`.
///
/// # Source
///
/// RFC 5508 section 4.1, REQ-3c: the quoted transport checksum need not be valid, and a truncated quote
/// stays truncated.
pub fn embedded_address(
    packet: &mut [u8],
    header: &Header,
    embedded: &mut Embedded,
    side: Side,
    to: IpAddr,
) -> Result<(), Mismatch> {
    let packet = packet.get_mut(..header.packet_len()).ok_or(Mismatch)?;
    let checksum_at = header.transport().checksum_offset().ok_or(Mismatch)?;
    let (outer, inner) = packet.split_at_mut_checked(embedded.offset).ok_or(Mismatch)?;
    let outer_checksum =
        field::bytes_mut::<2>(outer, header.transport_offset() + checksum_at).ok_or(Mismatch)?;

    let changes = replace(inner, &mut embedded.header, side, to, Checksum::Complete)?;

    // Every field changed above is at an even offset from the ICMP header, so the inner and the outer
    // checksum have the same words.
    let mut sum = u16::from_be_bytes(*outer_checksum);
    for delta in [changes.field, changes.ip_checksum, changes.transport_checksum] {
        sum = delta.map_or(sum, |delta| adjust(sum, delta));
    }
    *outer_checksum = sum.to_be_bytes();

    Ok(())
}

/// Writes the congestion mark and adjusts the IPv4 header checksum.
///
/// # Errors
///
/// [`Mismatch`] if `packet` is too short for `header`.
#[inline]
pub fn set_ecn(packet: &mut [u8], header: &mut Header, to: Ecn) -> Result<(), Mismatch> {
    let traffic_class = (header.traffic_class & !0b11) | to.bits();
    if header.is_ipv6() {
        let second = packet.get_mut(1).ok_or(Mismatch)?;
        *second = (*second & 0x0f) | (traffic_class << 4);
    } else {
        let fixed = packet.first_chunk_mut::<20>().ok_or(Mismatch)?;
        let old = u16::from_be_bytes([fixed[0], fixed[1]]);
        let new = u16::from_be_bytes([fixed[0], traffic_class]);
        let checksum = u16::from_be_bytes([fixed[10], fixed[11]]);

        fixed[1] = traffic_class;
        [fixed[10], fixed[11]] = adjust(checksum, Delta::between_words(old, new)).to_be_bytes();
    }
    header.traffic_class = traffic_class;

    Ok(())
}

/// The changes of the parts of a packet, for a checksum that covers the packet.
#[derive(Default)]
struct Changes {
    /// Of the address or the port.
    field: Option<Delta>,
    ip_checksum: Option<Delta>,
    transport_checksum: Option<Delta>,
}

#[inline]
fn replace(
    packet: &mut [u8],
    header: &mut Header,
    side: Side,
    to: IpAddr,
    checksum: Checksum,
) -> Result<Changes, Mismatch> {
    let packet = packet.get_mut(..header.packet_len()).ok_or(Mismatch)?;
    let from = match side {
        Side::Source => header.source,
        Side::Destination => header.destination,
    };
    if from.is_ipv4() != to.is_ipv4() {
        return Err(Mismatch);
    }
    if from == to {
        return Ok(Changes::default());
    }

    let delta = Delta::between(from, to);
    let mut changes = Changes { field: Some(delta), ..Changes::default() };
    match to {
        IpAddr::V4(to) => {
            let fixed = packet.first_chunk_mut::<20>().ok_or(Mismatch)?;
            match side {
                Side::Source => fixed[12..16].copy_from_slice(&to.octets()),
                Side::Destination => fixed[16..20].copy_from_slice(&to.octets()),
            }
            let old = u16::from_be_bytes([fixed[10], fixed[11]]);
            let new = adjust(old, delta);
            [fixed[10], fixed[11]] = new.to_be_bytes();
            changes.ip_checksum = Some(Delta::between_words(old, new));
        }
        IpAddr::V6(to) => {
            let fixed = packet.first_chunk_mut::<40>().ok_or(Mismatch)?;
            match side {
                Side::Source => fixed[8..24].copy_from_slice(&to.octets()),
                Side::Destination => fixed[24..40].copy_from_slice(&to.octets()),
            }
        }
    }
    match side {
        Side::Source => header.source = to,
        Side::Destination => header.destination = to,
    }

    let is_covered =
        header.transport.has_pseudo_header() && !(header.routed && side == Side::Destination);
    if is_covered {
        changes.transport_checksum = adjust_transport(packet, header, delta, checksum);
    }

    Ok(changes)
}

/// Adjusts the transport checksum; returns the change of the field, if any.
#[inline]
fn adjust_transport(
    packet: &mut [u8],
    header: &Header,
    delta: Delta,
    checksum: Checksum,
) -> Option<Delta> {
    let at = header.transport_offset + header.transport.checksum_offset()?;
    let field = field::bytes_mut::<2>(packet, at)?;
    let old = u16::from_be_bytes(*field);

    let new = match checksum {
        Checksum::Partial => adjust_partial(old, delta),
        Checksum::Complete if header.transport.reserves_zero() && old == 0 => return None,
        Checksum::Complete => match adjust(old, delta) {
            // A checksum of zero would mean "none". Both zeros of one's complement are equal sums.
            0 if header.transport.reserves_zero() => 0xffff,
            new => new,
        },
    };
    *field = new.to_be_bytes();

    Some(Delta::between_words(old, new))
}
