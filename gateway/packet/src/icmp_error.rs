//! Writes the ICMP errors that the gateway originates for undeliverable packets.
//!
//! The source of the error is the destination of the packet: the kernel routes that address to the device,
//! so the error passes `rp_filter` with any routes, and the sender has a flow with it. An address of the
//! gateway itself would be a martian there.
//!
//! The packet is quoted as it was read from the device, before translation. If its sender left the
//! transport checksum to the hardware, the quoted checksum may be that of the pseudo-header alone, and the
//! length that of an offload frame; receivers of errors evaluate addresses and ports (RFC 5508
//! section 4.1, REQ-3c). The kernel quotes the same for its own devices.
//!
//! # Sources
//!
//! RFC 1812 section 4.3 and RFC 5508 for IPv4, RFC 4443 for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use remap::checksum::{add, complete, pseudo_header, sum};

use super::{Header, Transport, field, icmp, ipv4, ipv6};

/// The longest error, in bytes: an ICMPv6 error must fit the minimum MTU (RFC 4443 section 2.4 (c)).
pub const MAX_ERROR_BYTES: usize = 1280;

/// The longest error of IPv4, in bytes, which every host must accept (RFC 1812 section 4.3.2.3).
const MAX_ERROR_V4_BYTES: usize = 576;

/// The offset of the checksum in an ICMP message.
const CHECKSUM_AT: usize = 2;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The usual initial value (RFC 1700).
const HOP_LIMIT: u8 = 64;

/// Network control, as DSCP CS6, without ECN: an error has precedence 6 or 7 (RFC 1812 section 4.3.2.5).
const TRAFFIC_CLASS: u8 = 0xc0;

/// The cause of the error. Sent as "destination unreachable" with a code, except "packet too big" of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The address has no peer, or the peer cannot be reached. "Host unreachable" in IPv4, "address
    /// unreachable" in IPv6, as in the kernel's WireGuard.
    Unreachable,
    /// The packet cannot be translated (RFC 5508
    /// section 6, REQ-8). "Communication administratively prohibited" in both.
    Prohibited,
    /// A rule rejects the packet. "Net unreachable" in IPv4, "no route to destination" in IPv6, as the kernel's nftables
    /// sends for `reject`.
    Rejected,
    /// The path carries packets of up to this many bytes. "Fragmentation needed" in IPv4 (RFC 1191), "packet too
    /// big" in IPv6.
    TooBig(u16),
}

impl Cause {
    /// The header of the error, without its checksum: type and code of RFC 1812 section 5.2.7.1, or of RFC 4443
    /// section 3.
    const fn header(self, is_ipv6: bool) -> [u8; icmp::ERROR_HEADER_LEN] {
        let unreachable = if is_ipv6 { icmp::UNREACHABLE_V6 } else { icmp::UNREACHABLE_V4 };
        let (kind, code, [high, low]) = match (self, is_ipv6) {
            (Self::Unreachable, false) => (unreachable, 1, [0, 0]),
            (Self::Unreachable, true) => (unreachable, 3, [0, 0]),
            (Self::Prohibited, false) => (unreachable, 13, [0, 0]),
            (Self::Prohibited, true) => (unreachable, 1, [0, 0]),
            (Self::Rejected, _) => (unreachable, 0, [0, 0]),
            (Self::TooBig(mtu), false) => (unreachable, 4, mtu.to_be_bytes()),
            (Self::TooBig(mtu), true) => (icmp::TOO_BIG_V6, 0, mtu.to_be_bytes()),
        };

        // The MTU is the second half of the second word, or all of it.
        [kind, code, 0, 0, 0, 0, high, low]
    }
}

/// Writes the ICMP error with `cause` to the sender of `packet`, and returns its bytes; `None` if
/// no error may be sent.
///
/// No error is sent for an ICMP error or a redirect, a fragment other than the first, a packet too short for
/// its transport header, a packet whose source or destination is not one host, or bytes that are no packet
/// (RFC 1812 section 4.3.2.7, RFC 4443 section 2.4 (e)).
#[must_use]
pub fn write<'a>(
    packet: &[u8],
    cause: Cause,
    buffer: &'a mut [u8; MAX_ERROR_BYTES],
) -> Option<&'a [u8]> {
    let header = Header::parse(packet).ok()?;
    if !permits_error(packet, &header) {
        return None;
    }
    let packet = packet.get(..header.packet_len())?;
    let error = cause.header(header.is_ipv6());

    match (header.source(), header.destination()) {
        (IpAddr::V4(to), IpAddr::V4(from)) => write_v4(packet, from, to, error, buffer),
        (IpAddr::V6(to), IpAddr::V6(from)) => write_v6(packet, from, to, error, buffer),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// Whether RFC 1812 section 4.3.2.7 and RFC 4443 section 2.4 (e) permit an error about `packet`.
fn permits_error(packet: &[u8], header: &Header) -> bool {
    let is_one_host = |address| match address {
        // This network, loopback, multicast, reserved (including the limited broadcast).
        IpAddr::V4(address) => !matches!(address.octets(), [0 | 127 | 224.., ..]),
        IpAddr::V6(address) => {
            !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
        }
    };
    let is_permitted = match header.transport() {
        // Too short for its header, or a fragment that has none.
        Transport::None => false,
        Transport::Icmp | Transport::Icmpv6 => {
            let kind = packet.get(header.transport_offset()).copied();
            kind.is_some_and(|kind| icmp::is_informational(kind, header.is_ipv6()))
        }
        Transport::Tcp
        | Transport::Udp
        | Transport::UdpLite
        | Transport::AuthenticationHeader
        | Transport::Other(_) => true,
    };

    is_permitted && is_one_host(header.source()) && is_one_host(header.destination())
}

fn write_v4<'a>(
    packet: &[u8],
    from: Ipv4Addr,
    to: Ipv4Addr,
    error: [u8; icmp::ERROR_HEADER_LEN],
    buffer: &'a mut [u8; MAX_ERROR_BYTES],
) -> Option<&'a [u8]> {
    let room = buffer.get_mut(..MAX_ERROR_V4_BYTES)?;
    let (fixed, room) = room.split_first_chunk_mut::<{ ipv4::FIXED_LEN }>()?;
    let message = put_message(packet, error, room)?;
    put_checksum(message, 0);
    let len = fixed.len() + message.len();

    *fixed = [0; ipv4::FIXED_LEN];
    fixed[0] = 0x45;
    fixed[1] = TRAFFIC_CLASS;
    [fixed[2], fixed[3]] = field::length(len).to_be_bytes();
    // DF: never fragmented, so it needs no identification (RFC 6864 section 4.1).
    fixed[6] = 0x40;
    fixed[8] = HOP_LIMIT;
    fixed[9] = ICMP;
    fixed[12..16].copy_from_slice(&from.octets());
    fixed[16..20].copy_from_slice(&to.octets());
    [fixed[10], fixed[11]] = complete(sum(fixed)).to_be_bytes();

    buffer.get(..len)
}

fn write_v6<'a>(
    packet: &[u8],
    from: Ipv6Addr,
    to: Ipv6Addr,
    error: [u8; icmp::ERROR_HEADER_LEN],
    buffer: &'a mut [u8; MAX_ERROR_BYTES],
) -> Option<&'a [u8]> {
    let (fixed, room) = buffer.split_first_chunk_mut::<{ ipv6::FIXED_LEN }>()?;
    let message = put_message(packet, error, room)?;
    let payload_len = field::length(message.len());
    put_checksum(message, pseudo_header(from.into(), to.into(), ICMPV6, payload_len.into()));
    let len = fixed.len() + message.len();

    *fixed = [0; ipv6::FIXED_LEN];
    fixed[0] = 0x60 | (TRAFFIC_CLASS >> 4);
    fixed[1] = TRAFFIC_CLASS << 4;
    [fixed[4], fixed[5]] = payload_len.to_be_bytes();
    fixed[6] = ICMPV6;
    fixed[7] = HOP_LIMIT;
    fixed[8..24].copy_from_slice(&from.octets());
    fixed[24..40].copy_from_slice(&to.octets());

    buffer.get(..len)
}

/// Writes the error to the start of `room`, with as much of `packet` as fits.
fn put_message<'a>(
    packet: &[u8],
    error: [u8; icmp::ERROR_HEADER_LEN],
    room: &'a mut [u8],
) -> Option<&'a mut [u8]> {
    let quoted_len = packet.len().min(room.len().saturating_sub(icmp::ERROR_HEADER_LEN));
    let message = room.get_mut(..icmp::ERROR_HEADER_LEN + quoted_len)?;
    let (start, quoted) = message.split_first_chunk_mut::<{ icmp::ERROR_HEADER_LEN }>()?;

    quoted.copy_from_slice(packet.get(..quoted_len)?);
    *start = error;

    Some(message)
}

/// `before` is the sum of the pseudo-header, if the checksum covers one.
fn put_checksum(message: &mut [u8], before: u16) {
    let checksum = complete(add(before, sum(message)));

    field::put_word(message, CHECKSUM_AT, checksum);
}

#[cfg(test)]
mod tests;
