//! Where a peer listens: an address, or a name that the resolver looks up again and again.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Longest name that fits into the 255 bytes of RFC 1035 section 2.3.4, as text.
const NAME_MAX_LEN: usize = 253;

/// Longest part of a name between dots, RFC 1035 section 2.3.4.
const LABEL_MAX_LEN: usize = 63;

/// An endpoint of a peer: something a datagram can be sent to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Configured, and known without asking.
    Address(SocketAddr),
    /// Where the peer was heard before this process began, or by another replica. Nobody has configured
    /// it.
    Heard(SocketAddr),
    /// To be resolved while the gateway runs.
    Name(HostPort),
}

/// A host name and a UDP port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// As the resolver wants it.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

impl Endpoint {
    /// What has to be resolved.
    #[must_use]
    pub const fn name(&self) -> Option<&HostPort> {
        match self {
            Self::Address(_) | Self::Heard(_) => None,
            Self::Name(name) => Some(name),
        }
    }

    /// What is known without asking.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) | Self::Heard(address) => Some(*address),
            Self::Name(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) | Self::Heard(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Why a text is no endpoint. The remedy is part of the text, the value is added by whoever knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// No colon.
    #[error("has no port: write host:port")]
    NoPort,
    /// Several colons without brackets.
    #[error("is an IPv6 address without brackets: write [address]:port")]
    NoBrackets,
    /// The port is no number from 1 to 65535.
    #[error("has no valid port: use 1 to 65535, the listen_port of the peer")]
    Port,
    /// The host is neither an address nor a name.
    #[error("has no valid host: use an IP address or a DNS name")]
    Host,
    /// `0.0.0.0` or `::`.
    #[error("is the unspecified address: use an address at which the peer can be reached")]
    Unspecified,
    /// A group of hosts.
    #[error("is a multicast address: use the address of one host")]
    Multicast,
    /// All hosts.
    #[error("is the broadcast address: use the address of one host")]
    Broadcast,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let (host, port) = text.rsplit_once(':').ok_or(EndpointError::NoPort)?;
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(EndpointError::NoBrackets);
        }
        let port = match port.parse::<u16>() {
            Ok(port) if port > 0 && !port_has_sign(text) => port,
            _ => return Err(EndpointError::Port),
        };

        if host.starts_with('[') {
            let address: SocketAddr = text.parse().map_err(|_| EndpointError::Host)?;
            return address_of_one_host(address).map(Self::Address);
        }
        if let Ok(address) = host.parse::<Ipv4Addr>() {
            return address_of_one_host((address, port).into()).map(Self::Address);
        }
        if !is_name(host) {
            return Err(EndpointError::Host);
        }

        Ok(Self::Name(HostPort { host: host.to_owned(), port }))
    }
}

/// An address that a datagram for one peer can be sent to, in canonical form: an IPv4 address mapped
/// into IPv6 is an IPv4 address.
///
/// # Errors
///
/// [`EndpointError`] for addresses of no host or of many.
pub fn address_of_one_host(address: SocketAddr) -> Result<SocketAddr, EndpointError> {
    let ip = address.ip().to_canonical();
    if ip.is_unspecified() {
        return Err(EndpointError::Unspecified);
    }
    if ip.is_multicast() {
        return Err(EndpointError::Multicast);
    }
    if ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err(EndpointError::Broadcast);
    }

    // Keeps the scope of a link-local address.
    Ok(if ip == address.ip() { address } else { SocketAddr::new(ip, address.port()) })
}

/// `u16` parses "+51840".
fn port_has_sign(text: &str) -> bool {
    text.contains(":+")
}

/// RFC 1123 section 2.1, with the underscore that names in practice have. A name that ends in
/// digits is an address with a typing error.
fn is_name(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        (1..=LABEL_MAX_LEN).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let ends_in_number =
        name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));

    name.len() <= NAME_MAX_LEN && name.split('.').all(is_label) && !ends_in_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_told_apart() {
        for text in ["192.0.2.1:51840", "[2001:db8::1]:51840", "127.0.0.1:1"] {
            assert_eq!(text.parse(), Ok(Endpoint::Address(text.parse().unwrap())));
        }
        for text in ["rome.example:51840", "rome:1", "a_b.example.:65535", "3com.example:9"] {
            let (host, port) = text.split_once(':').unwrap();
            let name = HostPort { host: host.to_owned(), port: port.parse().unwrap() };
            assert_eq!(text.parse(), Ok(Endpoint::Name(name)));
        }
    }

    #[test]
    fn an_ipv4_address_mapped_into_ipv6_is_an_ipv4_address() {
        let endpoint: Endpoint = "[::ffff:192.0.2.1]:9".parse().unwrap();

        assert_eq!(endpoint, Endpoint::Address("192.0.2.1:9".parse().unwrap()));
    }

    #[test]
    fn what_no_datagram_can_be_sent_to_is_refused() {
        for (text, expected) in [
            ("", EndpointError::NoPort),
            ("rome.example", EndpointError::NoPort),
            ("2001:db8::1:51840", EndpointError::NoBrackets),
            ("rome:0", EndpointError::Port),
            ("rome:65536", EndpointError::Port),
            ("rome:+1", EndpointError::Port),
            ("rome:", EndpointError::Port),
            (":51840", EndpointError::Host),
            ("192.0.2.300:51840", EndpointError::Host),
            ("ro me:51840", EndpointError::Host),
            ("-rome:51840", EndpointError::Host),
            ("rome..example:51840", EndpointError::Host),
            ("[rome]:51840", EndpointError::Host),
            ("0.0.0.0:51840", EndpointError::Unspecified),
            ("[::]:51840", EndpointError::Unspecified),
            ("224.0.0.1:51840", EndpointError::Multicast),
            ("[ff02::1]:51840", EndpointError::Multicast),
            ("255.255.255.255:51840", EndpointError::Broadcast),
            ("[::ffff:0.0.0.0]:51840", EndpointError::Unspecified),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(expected), "{text:?}");
        }
    }
}
