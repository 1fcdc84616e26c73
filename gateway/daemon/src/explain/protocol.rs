//! Upper-layer protocols by name and by number.

use std::fmt;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;
pub(super) const UDP_LITE: u8 = 136;

/// The ports and the identifier of a packet whose are not asked for. The source port is one that
/// Linux gives to clients.
pub(super) const SOURCE_PORT: u16 = 40_000;
pub(super) const DESTINATION_PORT: u16 = 443;
pub(super) const IDENTIFIER: u16 = 1;

/// Those that have a name here, as IANA assigned their numbers.
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

/// An upper-layer protocol as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// ICMP or ICMPv6, as the addresses are.
    Icmp,
    /// This one.
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

/// Reads a name or a number, for the command line.
///
/// # Errors
///
/// The names there are.
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
