//! Changing a port, or the identifier of an echo.

#[cfg(test)]
mod tests;

use remap::checksum::{Delta, adjust};

use super::{Changes, Checksum, Mismatch, Side, adjust_transport};
use crate::Header;
use crate::field;
use crate::icmp::Embedded;
use crate::ports::{self, Ports};

/// Writes `to` as the port on `side` and adjusts the transport checksum. Of an echo, which has one
/// identifier for both sides, that one changes.
///
/// # Errors
///
/// [`Mismatch`] if the packet has no ports: see [`Ports::read`].
#[inline]
pub fn port(
    packet: &mut [u8],
    header: &Header,
    side: Side,
    to: u16,
    checksum: Checksum,
) -> Result<(), Mismatch> {
    replace(packet, header, side, to, checksum).map(|_| ())
}

/// Writes `to` as the port on `side` of the packet that an ICMP error quotes, and adjusts the
/// checksum in there, if it was quoted, and the one of the error itself.
///
/// # Errors
///
/// [`Mismatch`] if the quoted packet has no ports, or `packet` is too short for `header`.
pub fn embedded_port(
    packet: &mut [u8],
    header: &Header,
    embedded: &Embedded,
    side: Side,
    to: u16,
) -> Result<(), Mismatch> {
    let packet = packet.get_mut(..header.packet_len()).ok_or(Mismatch)?;
    let checksum_at = header.transport().checksum_offset().ok_or(Mismatch)?;
    let (outer, inner) = packet.split_at_mut_checked(embedded.offset).ok_or(Mismatch)?;
    let outer_checksum =
        field::bytes_mut::<2>(outer, header.transport_offset() + checksum_at).ok_or(Mismatch)?;

    let changes = replace(inner, &embedded.header, side, to, Checksum::Complete)?;

    let mut sum = u16::from_be_bytes(*outer_checksum);
    for delta in [changes.field, changes.transport_checksum] {
        sum = delta.map_or(sum, |delta| adjust(sum, delta));
    }
    *outer_checksum = sum.to_be_bytes();

    Ok(())
}

#[inline]
fn replace(
    packet: &mut [u8],
    header: &Header,
    side: Side,
    to: u16,
    checksum: Checksum,
) -> Result<Changes, Mismatch> {
    let packet = packet.get_mut(..header.packet_len()).ok_or(Mismatch)?;
    let ports = Ports::read(packet, header).ok_or(Mismatch)?;
    let from = match side {
        Side::Source => ports.source,
        Side::Destination => ports.destination,
    };
    let offset = ports::offset(packet, header, side).ok_or(Mismatch)?;
    let field =
        field::bytes_mut::<2>(packet, header.transport_offset() + offset).ok_or(Mismatch)?;
    *field = to.to_be_bytes();

    let delta = Delta::between_words(from, to);
    let transport_checksum = match checksum {
        Checksum::Complete => adjust_transport(packet, header, delta, checksum),
        // The sum of the pseudo-header alone: it does not cover the port yet.
        Checksum::Partial => None,
    };

    Ok(Changes { field: Some(delta), ip_checksum: None, transport_checksum })
}
