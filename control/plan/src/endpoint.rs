//! Endpoints of peers: an address, or a DNS name that is looked up repeatedly.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Longest DNS name in text form: 255 bytes on the wire (RFC 1035 section 2.3.4).
const NAME_MAX_LEN: usize = 253;

/// Longest label of a DNS name (RFC 1035 section 2.3.4).
const LABEL_MAX_LEN: usize = 63;

/// An endpoint of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A configured address.
    Address(SocketAddr),
    /// The address where the peer was heard before this process started, or by another replica. Not configured.
    Learned(SocketAddr),
    /// A name that is resolved while the gateway runs.
    Name(HostPort),
}

/// A host name and a UDP port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// The name, as it is passed to the resolver.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

impl Endpoint {
    /// The name to resolve, if it is a name.
    #[must_use]
    pub const fn name(&self) -> Option<&HostPort> {
        match self {
            Self::Address(_) | Self::Learned(_) => None,
            Self::Name(name) => Some(name),
        }
    }

    /// The address, unless it is a name.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) | Self::Learned(address) => Some(*address),
            Self::Name(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) | Self::Learned(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Why a text is not an endpoint. The message includes the remedy; the caller adds the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// No colon.
    #[error("has no port: write host:port")]
    NoPort,
    /// Several colons without brackets.
    #[error("is an IPv6 address without brackets: write [address]:port")]
    NoBrackets,
    /// The port is not a number from 1 to 65535.
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

/// Checks that `address` is the address of one host, and returns its canonical form: an IPv4-mapped IPv6 address
/// becomes an IPv4 address.
///
/// # Errors
///
/// [`EndpointError`] for unspecified, multicast and broadcast addresses.
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

/// A name by RFC 1123 section 2.1, with the underscores of real names. A name that ends in digits is a mistyped
/// address.
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
    fn addresses_and_names_are_distinguished() {
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
    fn ipv4_mapped_addresses_become_ipv4() {
        let endpoint: Endpoint = "[::ffff:192.0.2.1]:9".parse().unwrap();

        assert_eq!(endpoint, Endpoint::Address("192.0.2.1:9".parse().unwrap()));
    }

    #[test]
    fn unusable_endpoints_are_refused() {
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
