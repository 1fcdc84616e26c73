//! Changes of links, addresses, routes and rules, as rtnetlink reports them.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use futures_util::StreamExt as _;
use ipnet::IpNet;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::RouteMessage;
use tokio::sync::mpsc;

use super::{ROUTE_PROTOCOL, destination};

/// The multicast groups to subscribe to.
const GROUPS: [MulticastGroup; 8] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    // Also reports when IPv6 is switched on or off on an interface.
    MulticastGroup::Ipv6Ifinfo,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// The changes of one batch of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The interfaces that changed, or whose addresses did.
    interfaces: BTreeSet<u32>,
    /// The destinations of added and removed routes.
    destinations: BTreeSet<IpNet>,
    /// One of our routes was removed, or may have been replaced.
    is_route_lost: bool,
    /// Anything may have changed: a rule did, or events were lost.
    is_anything: bool,
}

impl Changed {
    /// Whether the interface `index`, its addresses, or its routes to `wanted` prefixes may have changed.
    pub fn is_about(&self, index: u32, wanted: impl Fn(&IpNet) -> bool) -> bool {
        self.is_anything || self.interfaces.contains(&index) || self.destinations.iter().any(wanted)
    }

    /// Whether an interface, a rule or one of our routes may have changed.
    pub fn is_about_ours(&self) -> bool {
        self.is_anything || self.is_route_lost || !self.interfaces.is_empty()
    }

    /// Whether packets to `address` over `interface` may now take another route, or have another path MTU.
    pub fn may_reroute(&self, address: IpAddr, interface: u32) -> bool {
        self.is_anything
            || self.interfaces.contains(&interface)
            || self.destinations.iter().any(|destination| destination.contains(&address))
    }

    fn note(&mut self, event: &NetlinkMessage<RouteNetlinkMessage>) {
        use RouteNetlinkMessage::{DelAddress, DelLink, DelRoute, NewAddress, NewLink, NewRoute};

        let NetlinkPayload::InnerMessage(message) = &event.payload else {
            self.is_anything = true;
            return;
        };
        if let NewLink(link) | DelLink(link) = message {
            self.interfaces.insert(link.header.index);
        } else if let NewAddress(address) | DelAddress(address) = message {
            self.interfaces.insert(address.header.index);
        } else if let NewRoute(route) | DelRoute(route) = message {
            self.note_route(route);
            let is_ours = u8::from(route.header.protocol) == ROUTE_PROTOCOL;
            // Then the kernel does not report the replaced route, which may have been ours.
            let is_replaced =
                matches!(message, NewRoute(_)) && event.header.flags & NLM_F_REPLACE != 0;
            self.is_route_lost |= is_replaced || (is_ours && matches!(message, DelRoute(_)));
        } else {
            self.is_anything = true;
        }
    }

    fn note_route(&mut self, route: &RouteMessage) {
        match destination(route) {
            Some(destination) => {
                self.destinations.insert(destination);
            }
            // A default route has no destination.
            None => self.is_anything = true,
        }
    }
}

/// A subscription to changes. Use it within the runtime that created it.
#[derive(Debug)]
pub struct Changes(mpsc::UnboundedReceiver<NetlinkMessage<RouteNetlinkMessage>>);

impl Changes {
    /// Subscribes. Call it within a runtime.
    ///
    /// # Errors
    ///
    /// If the netlink socket cannot be opened.
    pub fn listen() -> io::Result<Self> {
        // A socket of its own: many events fill the buffer, and the kernel drops answers that do not fit. Lost events
        // are reported as an overrun.
        let (connection, _, mut events) = rtnetlink::new_multicast_connection(&GROUPS)?;
        tokio::spawn(connection);
        let (sender, changes) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some((event, _)) = events.next().await {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });

        Ok(Self(changes))
    }

    /// Waits for a change and returns all changes up to now. Cancel safe.
    pub async fn next(&mut self) -> Changed {
        let mut changed = Changed::default();
        match self.0.recv().await {
            Some(event) => changed.note(&event),
            // The socket is closed: the owner polls instead, see `is_closed`.
            None => std::future::pending().await,
        }
        while let Ok(event) = self.0.try_recv() {
            changed.note(&event);
        }

        changed
    }

    /// Whether the socket is closed, so that no more changes are reported.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
