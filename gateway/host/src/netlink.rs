//! rtnetlink: links, addresses and routes.

mod changes;
mod device;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod routes;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use tokio::time::timeout;

pub use changes::{Changed, Changes};
pub use device::{AddressError, Link, MTU_MIN_IPV6, NoIpv6};
pub use routes::{DeviceRoutes, METRIC_OF_LAST_RESORT, RouteError};

/// Routing protocol number of our routes: `ip route` shows "proto 83", the letter S. Lower numbers are the kernel's
/// own, higher ones those of routing daemons.
pub const ROUTE_PROTOCOL: u8 = 83;

/// Timeout of a request. The kernel answers within milliseconds, but an answer that does not fit into the receive
/// buffer is lost.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Addresses for documentation (RFC 5737, RFC 3849): only a default route matches them.
pub const DOCUMENTATION_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// A netlink connection. Use it within the runtime that created it.
#[derive(Clone, Debug)]
pub struct Netlink {
    handle: Handle,
    /// Firewall mark (`SO_MARK`) for route lookups; 0 is none.
    mark: u32,
}

impl Netlink {
    /// Opens the connection.
    ///
    /// # Errors
    ///
    /// If the netlink socket cannot be opened.
    pub fn connect() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);

        Ok(Self { handle, mark: 0 })
    }

    /// The same connection, with route lookups for datagrams with `mark`; 0 is none. `wg-quick` routes everything
    /// without its mark into the device.
    pub fn with_mark(&self, mark: u32) -> Self {
        Self { handle: self.handle.clone(), mark }
    }

    /// The interface that carries datagrams to `peer`, or else the interface of the default route.
    pub async fn underlay(&self, peer: Option<IpAddr>) -> Option<Underlay> {
        for address in peer.into_iter().chain(DOCUMENTATION_ADDRESSES) {
            if let Some((_, underlay)) = self.interface_towards(address).await {
                return Some(underlay);
            }
        }

        None
    }

    /// The addresses of this host, without those on the interface `except`.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub async fn addresses(&self, except: Option<u32>) -> io::Result<Vec<IpAddr>> {
        let messages: Vec<_> = answer(self.handle.address().get().execute().try_collect()).await?;
        let own = messages
            .iter()
            .filter(|message| Some(message.header.index) != except)
            .filter_map(|message| address_of(&message.attributes));

        Ok(own.collect())
    }

    /// The index of the interface `name`.
    ///
    /// # Errors
    ///
    /// `NotFound`, or another error of the kernel.
    pub async fn interface_index(&self, name: &str) -> io::Result<u32> {
        let mut links = Box::pin(self.handle.link().get().match_name(name.to_owned()).execute());
        let link = answer(links.try_next()).await?;

        link.map(|link| link.header.index).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether an interface with this index exists.
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub async fn has_link(&self, index: u32) -> io::Result<bool> {
        Ok(self.link(index).await?.is_some())
    }

    /// The interface with this index, if it exists.
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub async fn link(&self, index: u32) -> io::Result<Option<Link>> {
        let mut links = Box::pin(self.handle.link().get().match_index(index).execute());
        let link = match answer(links.try_next()).await {
            Ok(link) => link,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => None,
            Err(error) => return Err(error),
        };
        let Some(link) = link else { return Ok(None) };
        let mut name = None;
        let mut mtu_bytes = None;
        for attribute in link.attributes {
            if let LinkAttribute::IfName(text) = attribute {
                name = Some(text);
            } else if let LinkAttribute::Mtu(bytes) = attribute {
                mtu_bytes = Some(bytes);
            }
        }
        let is_up = link.header.flags.contains(LinkFlags::Up);

        Ok(name.zip(mtu_bytes).map(|(name, mtu_bytes)| Link { name, mtu_bytes, is_up }))
    }

    /// The index and the underlay of the interface that carries datagrams to `address`; `None` without a route.
    pub async fn interface_towards(&self, address: IpAddr) -> Option<(u32, Underlay)> {
        let mut question = route_message(IpNet::from(address), None);
        if self.mark != 0 {
            question.attributes.push(RouteAttribute::Mark(self.mark));
        }
        let mut answers = Box::pin(self.handle.route().get(question).execute());
        let route = answer(answers.try_next()).await.ok()??;
        let output = output_interface(&route)?;
        let Link { name: interface, mut mtu_bytes, .. } = self.link(output).await.ok()??;
        for attribute in &route.attributes {
            if let RouteAttribute::Metrics(metrics) = attribute {
                let limits = metrics.iter().filter_map(mtu_limit);
                mtu_bytes = limits.fold(mtu_bytes, u32::min);
            }
        }

        Some((output, Underlay { interface, mtu_bytes }))
    }
}

/// The interface that carries the tunnel's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// The name of the interface.
    pub interface: String,
    /// The largest packet that it carries, in bytes.
    pub mtu_bytes: u32,
}

/// A route to `prefix`, over the interface `index` if there is one.
pub fn route_message(prefix: IpNet, index: Option<u32>) -> RouteMessage {
    let protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    match prefix {
        IpNet::V4(net) => {
            let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .protocol(protocol);
            if let Some(index) = index {
                route = route.output_interface(index).scope(RouteScope::Link);
            }
            route.build()
        }
        IpNet::V6(net) => {
            let mut route = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .protocol(protocol);
            if let Some(index) = index {
                route = route.output_interface(index);
            }
            route.build()
        }
    }
}

/// The address of an interface. On a point-to-point link `Address` is the remote end and `Local` is ours.
pub fn address_of(attributes: &[AddressAttribute]) -> Option<IpAddr> {
    let mut found = None;
    for attribute in attributes {
        if let AddressAttribute::Local(ip) = attribute {
            return Some(*ip);
        }
        if let AddressAttribute::Address(ip) = attribute {
            found = Some(*ip);
        }
    }

    found
}

fn mtu_limit(metric: &RouteMetric) -> Option<u32> {
    if let RouteMetric::Mtu(bytes) = metric { Some(*bytes) } else { None }
}

/// The destination prefix of a route; `None` for a default route and for families other than IP.
pub fn destination(route: &RouteMessage) -> Option<IpNet> {
    let len = route.header.destination_prefix_length;
    route.attributes.iter().find_map(|attribute| {
        let ip = if let RouteAttribute::Destination(RouteAddress::Inet(ip)) = attribute {
            IpAddr::V4(*ip)
        } else if let RouteAttribute::Destination(RouteAddress::Inet6(ip)) = attribute {
            IpAddr::V6(*ip)
        } else {
            return None;
        };

        IpNet::new(ip, len).ok()
    })
}

/// The index of the output interface, if the route names one.
pub fn output_interface(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Oif(index) = attribute { Some(*index) } else { None }
    })
}

/// Whether the kernel does not support the address family or the operation, as without IPv6.
pub fn is_not_supported(error: &io::Error) -> bool {
    [libc::EAFNOSUPPORT, libc::EOPNOTSUPP].map(Some).contains(&error.raw_os_error())
}

/// Waits for the kernel's answer, for `ANSWER_MAX` at most.
///
/// # Errors
///
/// The kernel's error, or `TimedOut`.
pub async fn answer<T>(
    request: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> io::Result<T> {
    answer_within(ANSWER_MAX, request).await
}

async fn answer_within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> io::Result<T> {
    match timeout(limit, request).await {
        Ok(answer) => answer.map_err(to_io),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer")),
    }
}

/// Converts to the kernel's error number, if it sent one.
fn to_io(error: rtnetlink::Error) -> io::Error {
    if let rtnetlink::Error::NetlinkError(message) = error {
        message.to_io()
    } else {
        io::Error::other(error.to_string())
    }
}

#[cfg(test)]
mod tests;
