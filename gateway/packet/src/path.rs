//! The outer path to a peer: its endpoint, and the local address and port.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The outer addresses of datagrams to a peer.
///
/// If a host has several addresses, a reply must leave from the one that the peer sent to: firewalls on the
/// path know no other. So a learned path has both addresses. A configured path has only the remote one;
/// the route then selects the local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's endpoint.
    pub remote: SocketAddr,
    /// The local address that the peer knows; `None` if the route selects one.
    pub local: Option<Local>,
    /// The local port that the peer knows.
    pub port: LocalPort,
}

/// One of the two UDP ports of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPort {
    /// The configured port, to which peers send.
    #[default]
    Listen,
    /// Another port, chosen by the kernel, for a peer that does not answer the first. A NAT or firewall on the
    /// path may keep a stale mapping for the first port as long as packets refresh it.
    Spare,
}

impl LocalPort {
    /// The other port.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Listen => Self::Spare,
            Self::Spare => Self::Listen,
        }
    }
}

impl Path {
    /// The same path, with a local address that the route selects.
    #[must_use]
    pub const fn without_local(self) -> Self {
        Self { local: None, ..self }
    }
}

impl From<SocketAddr> for Path {
    fn from(remote: SocketAddr) -> Self {
        Self { remote, local: None, port: LocalPort::Listen }
    }
}

/// A local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    address: IpAddr,
    interface: u32,
}

impl Local {
    /// The address that a datagram was sent to and the number of the interface that received it; `None`
    /// if it is not the address of one host.
    ///
    /// The interface is kept only for an IPv6 link-local address, which several interfaces may have. Other
    /// addresses belong to the host, and the route selects the interface for replies.
    #[must_use]
    pub fn new(address: IpAddr, interface: u32) -> Option<Self> {
        let address = address.to_canonical();
        let is_of_one_host = match address {
            IpAddr::V4(v4) => !(v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()),
            IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast()),
        };
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let interface = if is_link_local { interface } else { 0 };

        is_of_one_host.then_some(Self { address, interface })
    }

    /// The address; never an IPv4-mapped IPv6 address.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The number of its interface; 0 if the route selects one.
    #[must_use]
    pub const fn interface(self) -> u32 {
        self.interface
    }
}

/// Converts an IPv4-mapped address, as a dual-stack socket reports it, to IPv4.
/// The scope of a link-local address is kept.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => mapped(*v6.ip(), v6.port()).unwrap_or(address),
        SocketAddr::V4(_) => address,
    }
}

/// The network that usually belongs to one host or site: the IPv4 address, or the first 64 bits of an IPv6
/// address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
        address @ IpAddr::V4(_) => address,
    }
}

fn mapped(address: Ipv6Addr, port: u16) -> Option<SocketAddr> {
    Some(SocketAddr::new(address.to_ipv4_mapped()?.into(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_local_addresses_keep_the_interface() {
        let interface =
            |address: &str| Local::new(address.parse().unwrap(), 7).map(|local| local.interface());

        assert_eq!(interface("fe80::1"), Some(7));
        assert_eq!(interface("2001:db8::1"), Some(0));
        assert_eq!(interface("169.254.0.1"), Some(0));
        assert_eq!(interface("::ffff:192.0.2.1"), Some(0));
    }

    #[test]
    fn shared_addresses_are_not_local() {
        for address in ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1"] {
            assert_eq!(Local::new(address.parse().unwrap(), 7), None, "{address}");
        }
    }

    #[test]
    fn canonical_form_unmaps_ipv4_and_keeps_scope() {
        let of = |text: &str| canonical(text.parse().unwrap()).to_string();

        assert_eq!(of("[::ffff:192.0.2.1]:7"), "192.0.2.1:7");
        assert_eq!(of("[fe80::1%3]:7"), "[fe80::1%3]:7");
    }
}
