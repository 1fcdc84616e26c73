//! Upper-layer protocols by name and by number.

use std::fmt;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;
pub(super) const UDP_LITE: u8 = 136;

/// Default ports and identifier of the packet. The source port is one that Linux assigns to clients.
pub(super) const SOURCE_PORT: u16 = 40_000;
pub(super) const DESTINATION_PORT: u16 = 443;
pub(super) const IDENTIFIER: u16 = 1;

/// Protocols with a name; the numbers are IANA's.
const NAMED: [(&str, u8); 10] = [
    ("icmp", ICMP),
    ("ipip", 4),
    ("tcp", TCP),
    ("udp", UDP),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", ICMPV6),
    ("sctp", 132),
    ("udplite", UDP_LITE),
];

/// An upper-layer protocol on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// ICMP or ICMPv6, by the version of the addresses.
    Icmp,
    /// The protocol with this number.
    Number(u8),
}

impl Protocol {
    pub(super) const TCP: Self = Self::Number(TCP);

    /// Its number.
    pub(super) const fn number(self, is_ipv6: bool) -> u8 {
        match self {
            Self::Icmp if is_ipv6 => ICMPV6,
            Self::Icmp => ICMP,
            Self::Number(number) => number,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self.number(false)))
    }
}

/// Parses the name or number of a protocol.
///
/// # Errors
///
/// The valid names.
pub(crate) fn parse_protocol(text: &str) -> Result<Protocol, String> {
    let lower = text.to_lowercase();
    if lower == "icmp" || lower == "icmpv6" {
        return Ok(Protocol::Icmp);
    }
    if let Some((_, number)) = NAMED.iter().find(|(name, _)| *name == lower) {
        return Ok(Protocol::Number(*number));
    }

    text.parse().map(Protocol::Number).map_err(|_| {
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        format!("not a protocol: use {}, or a number from 0 to 255", names.join(", "))
    })
}

/// Its name, or its number.
pub(super) fn name(protocol: u8) -> String {
    let named = NAMED.iter().find(|(_, number)| *number == protocol);

    named.map_or_else(|| format!("protocol {protocol}"), |(name, _)| (*name).to_owned())
}
