//! The ports of a packet, or the identifier of an echo.

use super::{Fragment, Header, field};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const UDP_LITE: u8 = 136;

/// The offset of the identifier of an ICMP echo, in bytes from the start of the ICMP header.
const IDENTIFIER_OFFSET: usize = 4;

/// Which address, or which port, of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// The ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The source port; for an echo, its identifier.
    pub source: u16,
    /// The destination port; for an echo, its identifier too.
    pub destination: u16,
}

impl Ports {
    /// Reads the ports of `packet`; `None` if it has none: a fragment other than the first, a
    /// protocol without ports, an ICMP message that is no echo.
    ///
    /// A packet that an ICMP error quotes may end directly after its ports.
    #[must_use]
    #[inline]
    pub fn read(packet: &[u8], header: &Header) -> Option<Self> {
        if header.fragment() == Fragment::Later {
            return None;
        }
        let packet = packet.get(..header.packet_len())?;
        let at = header.transport_offset();
        let source = field::word(packet, at + offset(packet, header, Side::Source)?)?;
        let destination = field::word(packet, at + offset(packet, header, Side::Destination)?)?;

        Some(Self { source, destination })
    }
}

/// The offset of the port on `side`, in bytes from the start of the transport header.
#[inline]
pub(super) fn offset(packet: &[u8], header: &Header, side: Side) -> Option<usize> {
    match header.protocol() {
        TCP | UDP | UDP_LITE => Some(match side {
            Side::Source => 0,
            Side::Destination => 2,
        }),
        ICMP | ICMPV6 => is_echo(packet, header).then_some(IDENTIFIER_OFFSET),
        _ => None,
    }
}

/// Echo request or reply: RFC 792, and RFC 4443 section 4.
fn is_echo(packet: &[u8], header: &Header) -> bool {
    let kind = packet.get(header.transport_offset());

    match (header.protocol(), header.is_ipv6()) {
        (ICMP, false) => matches!(kind, Some(0 | 8)),
        (ICMPV6, true) => matches!(kind, Some(128 | 129)),
        _ => false,
    }
}
