//! Bounds on memory, and timeouts.

/// Bounds on memory, which no traffic can exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most live mappings, all peers together.
    pub max_mappings: u32,
    /// Most live mappings of one internal address toward one peer, so that one source cannot use up the
    /// table.
    pub max_per_source: u32,
    /// Most internal addresses that have a mapping, counted once for each peer, and external
    /// addresses in use, counted once for each peer and protocol.
    pub max_sources: u32,
    /// Most live pins.
    pub max_pins: u32,
    /// Most live pins of one remote address of one peer.
    pub max_pins_per_source: u32,
    /// Most datagrams, in each direction, whose first fragment is stored.
    pub max_fragments: u32,
}

impl Limits {
    /// For a gateway of some hundred nodes: 25 MiB when full, 6 MiB from the first flow on, nothing before.
    pub const DEFAULT: Self = Self {
        max_mappings: 1 << 18,
        max_per_source: 1 << 15,
        max_sources: 1 << 13,
        max_pins: 1 << 14,
        max_pins_per_source: 1 << 13,
        max_fragments: 1 << 10,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Idle seconds after which a mapping expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, after both sides have sent. At least 7,440 (RFC 5382 section 5, REQ-5).
    pub tcp_established: u32,
    /// TCP, before the other side has sent. At least 240 (the same requirement; RFC 7857
    /// section 2.1 requires a setting separate from the next).
    pub tcp_opening: u32,
    /// TCP, after a FIN from both sides or a RST. At least 240 (the same, and RFC 7857 section 2.2).
    /// Twice the maximum segment lifetime of RFC 9293: a host in TIME-WAIT can still answer.
    pub tcp_closing: u32,
    /// All protocols but TCP and echo. At least 120, recommended 300 (RFC 4787
    /// section 4.3, REQ-5).
    pub udp: u32,
    /// UDP to port 53 only: one query, one answer. RFC 4787 section 4.3,
    /// REQ-5a allows less for well-known ports; without it, resolvers would fill the table.
    pub dns: u32,
    /// Echo. At least 60 (RFC 5508 section 3, REQ-2).
    pub echo: u32,
}

impl Timeouts {
    /// The minimum of the RFCs for TCP and echo, and their recommendation for UDP.
    pub const DEFAULT: Self = Self {
        tcp_established: 7_440,
        tcp_opening: 240,
        tcp_closing: 240,
        udp: 300,
        dns: 30,
        echo: 60,
    };

    /// The minimum of the RFCs. A resolver repeats a query within seconds (RFC 1035 section 4.2.1).
    const LEAST: Self = Self { udp: 120, dns: 10, ..Self::DEFAULT };
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A bound or timeout that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum LimitsError {
    /// A bound of 0 would refuse everything.
    #[error("{name} is 0: at least 1 is needed")]
    Zero { name: &'static str },
    /// Mappings are numbered with 24 bits.
    #[error("{name} is {value}: at most {most} are possible")]
    TooMany { name: &'static str, value: u32, most: u32 },
    /// Less than the RFC requires.
    #[error("timeout {name} is {value} s: at least {least} s are required")]
    TooShort { name: &'static str, value: u32, least: u32 },
}

/// The capacity of the index, including records of sources.
const MOST: u32 = 8_000_000;

pub(super) fn check(limits: &Limits, timeouts: &Timeouts) -> Result<(), LimitsError> {
    for (name, value) in [
        ("max_mappings", limits.max_mappings),
        ("max_per_source", limits.max_per_source),
        ("max_sources", limits.max_sources),
        ("max_pins", limits.max_pins),
        ("max_pins_per_source", limits.max_pins_per_source),
        ("max_fragments", limits.max_fragments),
    ] {
        if value == 0 {
            return Err(LimitsError::Zero { name });
        }
        if value > MOST {
            return Err(LimitsError::TooMany { name, value, most: MOST });
        }
    }
    let least = Timeouts::LEAST;
    for (name, value, least) in [
        ("tcp_established", timeouts.tcp_established, least.tcp_established),
        ("tcp_opening", timeouts.tcp_opening, least.tcp_opening),
        ("tcp_closing", timeouts.tcp_closing, least.tcp_closing),
        ("udp", timeouts.udp, least.udp),
        ("dns", timeouts.dns, least.dns),
        ("echo", timeouts.echo, least.echo),
    ] {
        if value < least {
            return Err(LimitsError::TooShort { name, value, least });
        }
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(check(&Limits::DEFAULT, &Timeouts::DEFAULT), Ok(()));
    }

    #[test]
    fn errors_name_the_invalid_value() {
        let limits = Limits { max_pins: 0, ..Limits::DEFAULT };
        assert_eq!(
            check(&limits, &Timeouts::DEFAULT).unwrap_err().to_string(),
            "max_pins is 0: at least 1 is needed"
        );

        let limits = Limits { max_mappings: u32::MAX, ..Limits::DEFAULT };
        assert!(check(&limits, &Timeouts::DEFAULT).unwrap_err().to_string().contains("at most"));

        let timeouts = Timeouts { tcp_opening: 239, ..Timeouts::DEFAULT };
        assert_eq!(
            check(&Limits::DEFAULT, &timeouts).unwrap_err().to_string(),
            "timeout tcp_opening is 239 s: at least 240 s are required"
        );
    }
}
