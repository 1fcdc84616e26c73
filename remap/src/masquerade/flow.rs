//! The values that the packet path passes to the masquerade: endpoints, flows, TCP signals, time.

use std::fmt;
use std::net::IpAddr;

/// An address with a port, or with the identifier of an ICMP echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The port, the echo identifier, or 0 for [`Protocol::Raw`].
    pub port: u16,
}

impl Endpoint {
    /// Pairs an address with a port or an identifier.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16) -> Self {
        Self { address, port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}:{}", self.port),
            IpAddr::V6(address) => write!(f, "[{address}]:{}", self.port),
        }
    }
}

/// Source and destination of one packet, as in its headers before translation.
///
/// The identifier of an echo is the port of the side that is translated. The other port is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The sender.
    pub source: Endpoint,
    /// The receiver.
    pub destination: Endpoint,
}

/// The protocol of a flow, as far as it distinguishes flows between the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// UDP-Lite (RFC 3828). Its ports are at the same offsets as in UDP and are treated alike.
    UdpLite,
    /// An echo request or reply of ICMP or ICMPv6, according to the address.
    Echo,
    /// Any other protocol, by its number. It has no ports, so it can be pinned but not masqueraded.
    Raw(u8),
}

impl Protocol {
    /// A unique number for each protocol. Echo is 0 and not 1, because it is only a part of ICMP; protocol 0
    /// is the hop-by-hop header and never a transport.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::UdpLite => 136,
            Self::Echo => 0,
            Self::Raw(number) => number,
        }
    }

    pub(super) const fn from_code(code: u8) -> Self {
        match code {
            6 => Self::Tcp,
            17 => Self::Udp,
            136 => Self::UdpLite,
            0 => Self::Echo,
            number => Self::Raw(number),
        }
    }
}

/// The effect of a TCP segment on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// None: neither SYN nor FIN nor RST, and every packet that is not TCP.
    Data,
    /// SYN, with or without ACK.
    Syn,
    /// FIN.
    Fin,
    /// RST, with any other flags.
    Reset,
}

impl Signal {
    /// Reads the flags octet of a TCP header (RFC 9293 section 3.1).
    #[must_use]
    #[inline]
    pub const fn from_tcp_flags(flags: u8) -> Self {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const RST: u8 = 4;

        if flags & (FIN | SYN | RST) == 0 {
            Self::Data
        } else if flags & RST != 0 {
            Self::Reset
        } else if flags & SYN != 0 {
            Self::Syn
        } else {
            Self::Fin
        }
    }
}

/// A point in time: whole seconds since the gateway started.
///
/// Seconds are precise enough for every timeout here, and coarse enough that a busy mapping is written
/// once a second instead of once a packet. Rounding makes a mapping live up to a second longer,
/// never shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tick(u32);

impl Tick {
    /// The largest value: eight and a half years. After that nothing expires.
    pub const MAX: Self = Self((1 << 28) - 1);

    /// `seconds` after the start, or [`Self::MAX`].
    #[must_use]
    pub fn from_secs(seconds: u64) -> Self {
        u32::try_from(seconds).map_or(Self::MAX, |seconds| Self(seconds).min(Self::MAX))
    }

    /// Seconds since the start.
    #[must_use]
    pub const fn as_secs(self) -> u32 {
        self.0
    }

    /// Seconds since `earlier`; 0 if that is later, as it may be between two threads.
    pub(super) const fn since(self, earlier: Self) -> u32 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_takes_precedence() {
        assert_eq!(Signal::from_tcp_flags(0b0001_0000), Signal::Data, "ACK alone");
        assert_eq!(Signal::from_tcp_flags(0b0001_0010), Signal::Syn, "SYN, ACK");
        assert_eq!(Signal::from_tcp_flags(0b0001_0001), Signal::Fin, "FIN, ACK");
        assert_eq!(Signal::from_tcp_flags(0b0001_0111), Signal::Reset, "all at once");
    }

    #[test]
    fn protocol_codes_are_unique() {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::UdpLite, Protocol::Echo] {
            assert_eq!(Protocol::from_code(protocol.code()), protocol);
        }
        assert_eq!(Protocol::from_code(Protocol::Raw(132).code()), Protocol::Raw(132));
    }

    #[test]
    fn ticks_saturate_at_the_maximum() {
        assert_eq!(Tick::from_secs(u64::MAX), Tick::MAX);
        assert_eq!(Tick::from_secs(5).since(Tick::from_secs(9)), 0);
    }
}
