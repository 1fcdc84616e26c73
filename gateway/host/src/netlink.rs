//! rtnetlink: links, addresses and routes.

mod changes;
mod device;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use tokio::time::timeout;
use tracing::{debug, warn};

pub use changes::{Changed, Changes};
pub use device::{AddressError, Link, MTU_MIN_IPV6, NoIpv6};

/// Routing protocol number of our routes: `ip route` shows "proto 83", the letter S. Lower numbers are the kernel's
/// own, higher ones those of routing daemons.
pub const ROUTE_PROTOCOL: u8 = 83;

/// The metric of routes of last resort. Lower metrics come first.
pub const METRIC_OF_LAST_RESORT: u32 = 1_000_000;

/// Timeout of a request. The kernel answers within milliseconds, but an answer that does not fit into the receive
/// buffer is lost.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Addresses for documentation (RFC 5737, RFC 3849): only a default route matches them.
pub const DOCUMENTATION_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Why a route could not be installed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name every field")]
pub enum RouteError {
    /// The same route exists and leads to another device.
    #[error(
        "route {prefix} already leads to {to} (protocol {protocol}): remove it, or choose another \
         prefix, or set routes = false"
    )]
    Taken { prefix: IpNet, to: String, protocol: u8 },
    /// The device has no IPv6.
    #[error("cannot add route {prefix}: {cause}")]
    NoIpv6 { prefix: IpNet, cause: NoIpv6 },
    /// The kernel rejected the new route.
    #[error("cannot add route {prefix}")]
    Add { prefix: IpNet, source: io::Error },
    /// The kernel did not remove the route.
    #[error("cannot remove route {prefix}")]
    Remove { prefix: IpNet, source: io::Error },
    /// The routes cannot be listed.
    #[error("cannot list the routes to the device")]
    List(#[source] io::Error),
}

impl RouteError {
    /// The prefix of the missing route, if a route is missing.
    pub const fn missing(&self) -> Option<IpNet> {
        match self {
            Self::Taken { prefix, .. } | Self::NoIpv6 { prefix, .. } | Self::Add { prefix, .. } => {
                Some(*prefix)
            }
            Self::Remove { .. } | Self::List(_) => None,
        }
    }
}

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

    /// The route of the main table to exactly `prefix`.
    async fn route_to(&self, prefix: IpNet) -> Option<RouteMessage> {
        let all = match prefix {
            IpNet::V4(_) => RouteMessageBuilder::<Ipv4Addr>::new().build(),
            IpNet::V6(_) => RouteMessageBuilder::<Ipv6Addr>::new().build(),
        };

        self.main_table(all).await.ok()?.into_iter().find(|route| {
            destination(route) == Some(prefix) && !RouteTarget::Unreachable.is_of(route)
        })
    }

    /// The destinations of our routes in the main table with this target.
    async fn own_routes(&self, target: RouteTarget) -> io::Result<BTreeSet<IpNet>> {
        let mut own = BTreeSet::new();
        for all in [
            RouteMessageBuilder::<Ipv4Addr>::new().build(),
            RouteMessageBuilder::<Ipv6Addr>::new().build(),
        ] {
            let routes = match self.main_table(all).await {
                // The kernel lacks this version of IP.
                Err(error) if is_not_supported(&error) => continue,
                routes => routes?,
            };
            let ours = routes.iter().filter(|route| {
                u8::from(route.header.protocol) == ROUTE_PROTOCOL && target.is_of(route)
            });
            own.extend(ours.filter_map(destination));
        }

        Ok(own)
    }

    /// The routes of the main table for the IP version of `all`.
    async fn main_table(&self, all: RouteMessage) -> io::Result<Vec<RouteMessage>> {
        let routes = self.handle.route().get(all).execute();
        let routes: Vec<_> = answer(routes.try_collect()).await?;
        let is_in_main = |route: &RouteMessage| route.header.table == RouteHeader::RT_TABLE_MAIN;

        Ok(routes.into_iter().filter(is_in_main).collect())
    }
}

/// What a route of ours does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteTarget {
    /// Sends it over the interface with this index.
    Interface(u32),
    /// Rejects it.
    Unreachable,
}

impl RouteTarget {
    fn is_of(self, route: &RouteMessage) -> bool {
        let is_unreachable = route.header.kind == RouteType::Unreachable;

        match self {
            Self::Interface(index) => !is_unreachable && output_interface(route) == Some(index),
            Self::Unreachable => is_unreachable,
        }
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

/// Our routes to the device. Routes of others are never touched.
///
/// The kernel holds the only list of them: it removes them when the device goes down, and other programs may remove
/// them too. Routes of last resort, of type "unreachable", remain then.
#[derive(Debug)]
pub struct DeviceRoutes {
    netlink: Netlink,
    index: u32,
    has_last_resort: bool,
}

impl DeviceRoutes {
    /// Manages the routes to the interface `index`.
    pub const fn new(netlink: Netlink, index: u32) -> Self {
        Self { netlink, index, has_last_resort: false }
    }

    /// The same routes, and for each prefix one of last resort, which outlives the process: a pod's network outlives its
    /// container, and without the device a packet would go back to its node, which sends it to the pod again.
    #[must_use]
    pub fn with_last_resort(self) -> Self {
        Self { has_last_resort: true, ..self }
    }

    /// Makes the installed routes equal to `wanted` and returns the errors. A device that is down has no routes: then
    /// only those of last resort are installed.
    pub async fn sync(&self, wanted: &BTreeSet<IpNet>) -> Vec<RouteError> {
        if self.has_last_resort {
            self.sync_last_resort(wanted).await;
        }

        self.sync_device(wanted).await
    }

    /// A route of last resort changes nothing while the device has its route, so errors are only logged.
    async fn sync_last_resort(&self, wanted: &BTreeSet<IpNet>) {
        let installed = match self.netlink.own_routes(RouteTarget::Unreachable).await {
            Ok(installed) => installed,
            Err(error) => return warn!(%error, "cannot list unreachable routes"),
        };
        for change in route_changes(&installed, wanted) {
            let routes = self.netlink.handle.route();
            let (prefix, outcome) = match change {
                Change::Add(prefix) => {
                    (prefix, answer(routes.add(unreachable_message(prefix)).execute()).await)
                }
                Change::Remove(prefix) => {
                    (prefix, answer(routes.del(unreachable_message(prefix)).execute()).await)
                }
            };
            if let Err(error) = outcome {
                debug!(%error, %prefix, "cannot change the unreachable route");
            }
        }
    }

    async fn sync_device(&self, wanted: &BTreeSet<IpNet>) -> Vec<RouteError> {
        if let Ok(link) = self.netlink.link(self.index).await
            && !link.is_some_and(|link| link.is_up)
        {
            return Vec::new();
        }
        let installed = match self.netlink.own_routes(RouteTarget::Interface(self.index)).await {
            Ok(installed) => installed,
            Err(error) => return vec![RouteError::List(error)],
        };

        let mut errors = Vec::new();
        for change in route_changes(&installed, wanted) {
            let outcome = match change {
                Change::Add(prefix) => self.add(prefix).await,
                Change::Remove(prefix) => self.remove(prefix).await,
            };
            errors.extend(outcome.err());
        }

        errors
    }

    /// Removes all our routes to the device.
    pub async fn clear(&self) {
        for error in self.sync_device(&BTreeSet::new()).await {
            warn!(%error, "a route was not removed");
        }
    }

    async fn add(&self, prefix: IpNet) -> Result<(), RouteError> {
        let route = route_message(prefix, Some(self.index));
        match answer(self.netlink.handle.route().add(route).execute()).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.adopt(prefix, error).await
            }
            Err(source) => match self.netlink.no_ipv6(self.index, prefix).await {
                Some(cause) => Err(RouteError::NoIpv6 { prefix, cause }),
                None => Err(RouteError::Add { prefix, source }),
            },
        }
    }

    /// Accepts an existing route if it leads to our device, as the network of an address of the device does; it stays
    /// with its owner.
    async fn adopt(&self, prefix: IpNet, error: io::Error) -> Result<(), RouteError> {
        let Some(route) = self.netlink.route_to(prefix).await else {
            return Err(RouteError::Add { prefix, source: error });
        };
        let protocol = u8::from(route.header.protocol);
        let to = match output_interface(&route) {
            Some(index) if index == self.index => return Ok(()),
            Some(index) => self.netlink.link(index).await.ok().flatten().map(|link| link.name),
            None => None,
        };

        let to = to.unwrap_or_else(|| "another destination".to_owned());
        Err(RouteError::Taken { prefix, to, protocol })
    }

    async fn remove(&self, prefix: IpNet) -> Result<(), RouteError> {
        let route = route_message(prefix, Some(self.index));
        match answer(self.netlink.handle.route().del(route).execute()).await {
            Ok(()) => Ok(()),
            // Removed before, with the device or by another program.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            Err(source) => Err(RouteError::Remove { prefix, source }),
        }
    }
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

/// A route that rejects packets to `prefix` where no other route to it is left.
fn unreachable_message(prefix: IpNet) -> RouteMessage {
    let mut route = route_message(prefix, None);
    route.header.kind = RouteType::Unreachable;
    route.attributes.push(RouteAttribute::Priority(METRIC_OF_LAST_RESORT));

    route
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

/// A change of one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add(IpNet),
    Remove(IpNet),
}

/// The changes, in this order, from `installed` to `wanted`. Routes are added before others are removed: an address
/// that is routed before and after always has a route, else its packets would leave in clear.
fn route_changes(installed: &BTreeSet<IpNet>, wanted: &BTreeSet<IpNet>) -> Vec<Change> {
    let add = wanted.difference(installed).copied().map(Change::Add);
    let remove = installed.difference(wanted).copied().map(Change::Remove);

    add.chain(remove).collect()
}

#[cfg(test)]
mod tests;
