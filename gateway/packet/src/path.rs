//! The outer way between us and a peer: its address, and which of ours it is to see.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where datagrams to a peer go, and from which address of ours.
///
/// A peer that calls one of several addresses must be answered from that one: a firewall on the way knows
/// no other. So a path that was learned has both ends, and one that somebody configured has only the far
/// one; the route chooses our address then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's endpoint.
    pub remote: SocketAddr,
    /// The address of ours that the peer knows; `None` leaves it to the route.
    pub local: Option<Local>,
    /// The port of ours that the peer knows.
    pub port: LocalPort,
}

/// One of the two UDP ports of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPort {
    /// The one that is configured and reported, where peers call.
    #[default]
    Listen,
    /// Another one, chosen by the kernel: for a peer that does not answer the first. What is on the way may have
    /// remembered the first for a place where the peer is no more, and goes on as long as it is used.
    Spare,
}

impl LocalPort {
    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Listen => Self::Spare,
            Self::Spare => Self::Listen,
        }
    }
}

impl Path {
    /// The same, with an address of ours that the route chooses.
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

/// An address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    address: IpAddr,
    interface: u32,
}

impl Local {
    /// The address that a datagram was sent to and the number of the interface that it came in by; `None`
    /// if no one host has that address.
    ///
    /// The interface says something only of an IPv6 link-local address, which each interface may have. Any
    /// other belongs to the host, and what answers from it leaves by whatever interface the route says.
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

    /// The address; never an IPv4 address that is mapped into IPv6.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The number of its interface; 0 if the route chooses one.
    #[must_use]
    pub const fn interface(self) -> u32 {
        self.interface
    }
}

/// An address and port with an IPv4 address as such, where a dual-stack socket has it mapped into IPv6.
/// The scope of a link-local address stays.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => mapped(*v6.ip(), v6.port()).unwrap_or(address),
        SocketAddr::V4(_) => address,
    }
}

/// What one owner has: an IPv4 address, or 64 bits of an IPv6 one.
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
