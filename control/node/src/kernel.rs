//! What the kernel of a node is asked and told (rtnetlink).
//!
//! Ours are the routes of our protocol number in our table, the rules of that number and the tables they
//! lead to, and VXLAN devices with our alias. Whatever else there is stays as it is.

mod message;
mod overlay;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use control::node::{Hop, Plan};
use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use strait_host::netlink::{
    self, Changes, DOCUMENTATION_ADDRESSES, ROUTE_PROTOCOL, answer, is_not_supported,
};
use tokio::time::timeout;

use super::flags::{Place, Vxlan};
use super::forwarding::{Ground, OwnAddress, Reach};
use super::state::{Change, Mac, RouteKey, State, Version};

use message::{forwarding_message, neighbour_message, route_message, rule_message};
pub(super) use overlay::Device;

/// What the kernel does not do.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}")]
pub(super) struct KernelError {
    pub(super) operation: String,
    #[source]
    pub(super) source: io::Error,
}

impl KernelError {
    fn of(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();

        |source| Self { operation, source }
    }
}

/// What `work` comes to, unless an answer of the kernel keeps it waiting for longer than `limit`.
///
/// # Errors
///
/// [`KernelError`]
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, KernelError>>,
) -> Result<T, KernelError> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        Err(KernelError {
            operation: format!("get an answer of the kernel within {limit:?}"),
            source: io::ErrorKind::TimedOut.into(),
        })
    })
}

/// Two connections to the kernel, one for questions and one for events. Must live within the runtime that
/// made it.
pub(super) struct Kernel {
    handle: Handle,
    place: Place,
    changes: Changes,
}

/// What the kernel has of ours.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// As far as it is where it belongs.
    pub(super) state: State,
    /// The VXLAN device of ours, whatever it is called; if there is none, whatever has its name.
    pub(super) device: Option<Device>,
    /// Further ones of ours, as processes with other flags left them.
    stale_devices: Vec<Device>,
    /// Rules of ours that lead elsewhere or have another priority, as a process with other flags left them.
    stale_rules: Vec<RuleMessage>,
    /// Routes of ours in the tables that those lead to.
    stale_routes: Vec<RouteMessage>,
    /// As the kernel spells what is in [`State`]; so it is told what to remove.
    routes: BTreeMap<RouteKey, RouteMessage>,
    rules: BTreeMap<Version, RuleMessage>,
}

impl Kernel {
    /// Opens the connections. To be called within a runtime.
    ///
    /// # Errors
    ///
    /// If the kernel gives no netlink socket.
    pub(super) fn connect(place: Place) -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);

        Ok(Self { handle, place, changes: Changes::listen()? })
    }

    /// Waits until an interface, a rule or a route of ours has changed. Cancel safe.
    pub(super) async fn next_change(&mut self) {
        while !self.changes.next().await.is_about_ours() {}
    }

    /// What `plan` needs to know of the network around.
    pub(super) async fn ground(&self, plan: &Plan, vxlan: Vxlan) -> Result<Ground, KernelError> {
        let mut ground = Ground { own: self.own(&plan.own).await?, ..Ground::default() };
        let mut is_gateway_here = false;
        for hop in plan.hops.values() {
            let (address, reach) = match hop {
                Hop::AsBefore => continue,
                Hop::Pod(pod) => {
                    is_gateway_here = true;
                    (*pod, self.reach_of_pod(*pod).await)
                }
                Hop::Node { address, .. } => (*address, self.reach(*address).await),
            };
            if let Some(reach) = reach {
                ground.reach.insert(address, reach);
            }
        }
        if is_gateway_here && vxlan == Vxlan::Auto {
            ground.has_far_nodes = self.has_far_nodes(plan, &ground).await;
        }

        Ok(ground)
    }

    /// Whether another node is behind a router, as far as that can be told.
    async fn has_far_nodes(&self, plan: &Plan, ground: &Ground) -> Option<bool> {
        let own = ground.own.first().map(|own| own.address);
        // Where VXLAN begins here when this host has its address again.
        let own = own.or_else(|| plan.own.first().copied())?;
        let mut are_near = true;
        for addresses in plan.others.values() {
            let address = addresses.iter().find(|address| address.is_ipv4() == own.is_ipv4());
            let reach = match address {
                Some(address) => self.reach(*address).await,
                None => None,
            };
            match reach {
                Some(Reach::Routed) => return Some(true),
                Some(Reach::Neighbour { .. }) => {}
                None => are_near = false,
            }
        }

        are_near.then_some(false)
    }

    /// Everything that is ours; `device` is the name of the VXLAN device.
    pub(super) async fn found(&self, device: &str) -> Result<Found, KernelError> {
        let (device, stale_devices) = self.devices(device).await?;
        let mut found = Found { device, stale_devices, ..Found::default() };
        let mut tables = BTreeSet::from([self.place.table]);
        for version in Version::BOTH {
            for rule in self.rules(version).await? {
                let leads_to = message::table_of_rule(&rule);
                tables.insert(leads_to);
                if leads_to == self.place.table
                    && message::priority_of_rule(&rule) == Some(self.place.priority)
                    && !found.rules.contains_key(&version)
                {
                    found.state.rules.insert(version);
                    found.rules.insert(version, rule);
                } else {
                    found.stale_rules.push(rule);
                }
            }
        }
        for version in Version::BOTH {
            for route in self.routes(version).await? {
                let table = message::table_of_route(&route);
                if table != self.place.table {
                    if tables.contains(&table) {
                        found.stale_routes.push(route);
                    }
                    continue;
                }
                if let Some((key, target)) = message::read_route(&route) {
                    found.state.routes.insert(key, target);
                    found.routes.insert(key, route);
                }
            }
        }
        if let Some(device) = found.own_device() {
            (found.state.neighbours, found.state.forwarding) = self.next_hops(device.index).await?;
        }

        Ok(found)
    }

    /// Makes one change; `device` is the number of the VXLAN device.
    pub(super) async fn apply(
        &self,
        change: Change,
        found: &Found,
        device: Option<u32>,
    ) -> Result<(), KernelError> {
        let failed = || KernelError::of(change.to_string());
        let no_device = || KernelError {
            operation: change.to_string(),
            source: io::ErrorKind::NotFound.into(),
        };
        let outcome = match change {
            Change::SetNeighbour(address, mac) => {
                let index = device.ok_or_else(no_device)?;
                let neighbours = self.handle.neighbours().add(index, address);
                answer(neighbours.link_layer_address(&mac.0).replace().execute()).await
            }
            Change::SetForwarding(mac, address) => {
                let index = device.ok_or_else(no_device)?;
                let mut request = self.handle.neighbours().add_bridge(index, &mac.0).replace();
                *request.message_mut() = forwarding_message(index, mac, Some(address));
                answer(request.execute()).await
            }
            Change::SetRoute(key, target) => {
                let route = route_message(self.place.table, key, target);
                answer(self.handle.route().add(route).replace().execute()).await
            }
            Change::AddRule(version) => {
                let mut request = self.handle.rule().add();
                *request.message_mut() = rule_message(self.place, version);
                answer(request.execute()).await
            }
            Change::RemoveRule(version) => match found.rules.get(&version) {
                Some(rule) => answer(self.handle.rule().del(rule.clone()).execute()).await,
                None => Ok(()),
            },
            Change::RemoveRoute(key) => match found.routes.get(&key) {
                Some(route) => answer(self.handle.route().del(route.clone()).execute()).await,
                None => Ok(()),
            },
            Change::RemoveNeighbour(address) => {
                let index = device.ok_or_else(no_device)?;
                answer(self.handle.neighbours().del(neighbour_message(index, address)).execute())
                    .await
            }
            Change::RemoveForwarding(mac) => {
                let index = device.ok_or_else(no_device)?;
                answer(self.handle.neighbours().del(forwarding_message(index, mac, None)).execute())
                    .await
            }
        };

        match outcome.map_err(failed()) {
            Err(error) if is_settled(change, &error.source) => Ok(()),
            outcome => outcome,
        }
    }

    /// Removes what processes with other flags left. Routes after rules, as without one nothing leads to
    /// them.
    pub(super) async fn remove_stale(&self, found: &Found) -> Vec<KernelError> {
        let mut errors = Vec::new();
        for rule in &found.stale_rules {
            let outcome = answer(self.handle.rule().del(rule.clone()).execute()).await;
            errors.extend(outcome.map_err(KernelError::of("remove a rule of before")).err());
        }
        for route in &found.stale_routes {
            let outcome = answer(self.handle.route().del(route.clone()).execute()).await;
            errors.extend(outcome.map_err(KernelError::of("remove a route of before")).err());
        }
        for device in &found.stale_devices {
            errors.extend(self.remove_device(device).await.err());
        }
        let is_there = |error: &KernelError| !is_absent(&error.source);

        errors.into_iter().filter(is_there).collect()
    }

    /// The rules of our protocol number that lead to a table.
    async fn rules(&self, version: Version) -> Result<Vec<RuleMessage>, KernelError> {
        let version_of_ip = match version {
            Version::V4 => IpVersion::V4,
            Version::V6 => IpVersion::V6,
        };
        let rules =
            answer(self.handle.rule().get(version_of_ip).execute().try_collect::<Vec<_>>()).await;
        let rules = match rules.map_err(KernelError::of(format!("list {version} rules"))) {
            // A kernel without that version.
            Err(error) if is_not_supported(&error.source) => return Ok(Vec::new()),
            rules => rules?,
        };

        Ok(rules
            .into_iter()
            .filter(|rule| message::is_our_rule(rule) && rule.header.action == RuleAction::ToTable)
            .collect())
    }

    /// The routes of our protocol number, in all tables.
    async fn routes(&self, version: Version) -> Result<Vec<RouteMessage>, KernelError> {
        let all = match version {
            Version::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
            Version::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
        };
        let routes = answer(self.handle.route().get(all).execute().try_collect::<Vec<_>>()).await;
        let routes = match routes.map_err(KernelError::of(format!("list {version} routes"))) {
            Err(error) if is_not_supported(&error.source) => return Ok(Vec::new()),
            routes => routes?,
        };

        Ok(routes
            .into_iter()
            .filter(|route| u8::from(route.header.protocol) == ROUTE_PROTOCOL)
            .collect())
    }

    /// Of `addresses` those that are on an interface of this host.
    async fn own(&self, addresses: &[IpAddr]) -> Result<Vec<OwnAddress>, KernelError> {
        let found = answer(self.handle.address().get().execute().try_collect::<Vec<_>>()).await;
        let found = found.map_err(KernelError::of("list addresses"))?;
        let mut own = Vec::new();
        for address in addresses {
            let is_it = |ip: IpAddr| ip == *address;
            let message = found
                .iter()
                .find(|message| netlink::address_of(&message.attributes).is_some_and(is_it));
            if let Some(message) = message
                && let Some(mtu_bytes) = self.mtu(message.header.index).await
            {
                own.push(OwnAddress { address: *address, mtu_bytes });
            }
        }

        Ok(own)
    }

    /// How a pod of this node is reached; not through the interface that leads everywhere else.
    async fn reach_of_pod(&self, address: IpAddr) -> Option<Reach> {
        let route = self.lookup(address).await?;
        let elsewhere = DOCUMENTATION_ADDRESSES
            .into_iter()
            .find(|other| other.is_ipv4() == address.is_ipv4())?;
        let default = self.lookup(elsewhere).await;
        if default.is_some_and(|default| way(&default) == way(&route)) {
            return None;
        }

        netlink::output_interface(&route).map(|device| Reach::Neighbour { device })
    }

    async fn reach(&self, address: IpAddr) -> Option<Reach> {
        let route = self.lookup(address).await?;
        match gateway(&route) {
            Some(_) => Some(Reach::Routed),
            None => netlink::output_interface(&route).map(|device| Reach::Neighbour { device }),
        }
    }

    /// Which route a packet of this host to `address` takes.
    async fn lookup(&self, address: IpAddr) -> Option<RouteMessage> {
        let question = netlink::route_message(address.into(), None);
        let mut answers = Box::pin(self.handle.route().get(question).execute());
        let route = answer(answers.try_next()).await.ok()??;

        (route.header.kind == RouteType::Unicast).then_some(route)
    }

    /// The next hops on the VXLAN device, and where frames for each are sent.
    async fn next_hops(
        &self,
        index: u32,
    ) -> Result<(BTreeMap<IpAddr, Mac>, BTreeMap<Mac, IpAddr>), KernelError> {
        let (mut neighbours, mut forwarding) = (BTreeMap::new(), BTreeMap::new());
        for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Bridge] {
            let request = self.handle.neighbours().get().set_address_family(family);
            let found = answer(request.execute().try_collect::<Vec<_>>()).await;
            let found = match found.map_err(KernelError::of("list neighbours")) {
                Err(error) if is_not_supported(&error.source) => continue,
                found => found?,
            };
            for neighbour in found.iter().filter(|found| found.header.ifindex == index) {
                match message::read_neighbour(neighbour) {
                    Some((mac, address)) if family == AddressFamily::Bridge => {
                        forwarding.insert(mac, address);
                    }
                    Some((mac, address)) => drop(neighbours.insert(address, mac)),
                    None => {}
                }
            }
        }

        Ok((neighbours, forwarding))
    }
}

impl Found {
    /// The VXLAN device, if it is ours.
    pub(super) fn own_device(&self) -> Option<&Device> {
        self.device.as_ref().filter(|device| device.is_ours)
    }

    /// Whether there is anything at all.
    pub(super) fn is_empty(&self) -> bool {
        self.state == State::default()
            && self.stale_rules.is_empty()
            && self.stale_routes.is_empty()
            && self.stale_devices.is_empty()
            && self.own_device().is_none()
    }

    /// Rules, routes and devices that no longer lead to where they belong.
    pub(super) fn stale(&self) -> usize {
        self.stale_rules.len() + self.stale_routes.len() + self.stale_devices.len()
    }
}

/// Through which interface, and which next hop.
fn way(route: &RouteMessage) -> (Option<u32>, Option<&RouteAttribute>) {
    (netlink::output_interface(route), gateway(route))
}

fn gateway(route: &RouteMessage) -> Option<&RouteAttribute> {
    route
        .attributes
        .iter()
        .find(|attribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)))
}

/// Whether it is as it should be, by somebody else's hand.
fn is_settled(change: Change, error: &io::Error) -> bool {
    match change {
        Change::RemoveRule(_)
        | Change::RemoveRoute(_)
        | Change::RemoveNeighbour(_)
        | Change::RemoveForwarding(_) => is_absent(error),
        Change::AddRule(_) => error.kind() == io::ErrorKind::AlreadyExists,
        Change::SetNeighbour(..) | Change::SetForwarding(..) | Change::SetRoute(..) => false,
    }
}

fn is_absent(error: &io::Error) -> bool {
    [libc::ESRCH, libc::ENOENT, libc::ENODEV].map(Some).contains(&error.raw_os_error())
}
