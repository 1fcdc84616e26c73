//! Our routes in the main table: to the device, and those of last resort.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use tracing::{debug, warn};

use super::{
    Netlink, NoIpv6, ROUTE_PROTOCOL, answer, destination, is_not_supported, output_interface,
    route_message,
};

/// The metric of routes of last resort. Lower metrics come first.
pub const METRIC_OF_LAST_RESORT: u32 = 1_000_000;

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

    /// A route of last resort changes nothing while the device has its route, so errors are only logged. Without any
    /// wanted prefix the installed ones stay: a gateway that has just started does not know its prefixes yet, and one
    /// that no longer leads must not send packets back either.
    async fn sync_last_resort(&self, wanted: &BTreeSet<IpNet>) {
        if wanted.is_empty() {
            return;
        }
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
    pub(super) async fn adopt(&self, prefix: IpNet, error: io::Error) -> Result<(), RouteError> {
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

/// What a route of ours does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteTarget {
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

impl Netlink {
    /// The route of the main table to exactly `prefix`.
    pub(super) async fn route_to(&self, prefix: IpNet) -> Option<RouteMessage> {
        let all = match prefix {
            IpNet::V4(_) => RouteMessageBuilder::<Ipv4Addr>::new().build(),
            IpNet::V6(_) => RouteMessageBuilder::<Ipv6Addr>::new().build(),
        };

        self.main_table(all).await.ok()?.into_iter().find(|route| {
            destination(route) == Some(prefix) && !RouteTarget::Unreachable.is_of(route)
        })
    }

    /// The destinations of our routes in the main table with this target.
    pub(super) async fn own_routes(&self, target: RouteTarget) -> io::Result<BTreeSet<IpNet>> {
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

/// A route that rejects packets to `prefix` where no other route to it is left.
fn unreachable_message(prefix: IpNet) -> RouteMessage {
    let mut route = route_message(prefix, None);
    route.header.kind = RouteType::Unreachable;
    route.attributes.push(RouteAttribute::Priority(METRIC_OF_LAST_RESORT));

    route
}

/// A change of one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add(IpNet),
    Remove(IpNet),
}

/// The changes, in this order, from `installed` to `wanted`. Routes are added before others are removed: an address
/// that is routed before and after always has a route, else its packets would leave in clear.
pub(super) fn route_changes(installed: &BTreeSet<IpNet>, wanted: &BTreeSet<IpNet>) -> Vec<Change> {
    let add = wanted.difference(installed).copied().map(Change::Add);
    let remove = installed.difference(wanted).copied().map(Change::Remove);

    add.chain(remove).collect()
}
