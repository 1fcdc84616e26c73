//! rtnetlink: reads and changes the routes, rules, neighbours and the VXLAN device of a node.
//!
//! Ours are the routes of our protocol number in our table, the rules of that number and the tables they lead to, and
//! VXLAN devices with our alias. Everything else stays as it is.

mod message;
mod overlay;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::NeighbourMessage;
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::packet_route::rule::{RuleAction, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use strait_host::netlink::{Changes, ROUTE_PROTOCOL, answer, is_not_supported};
use tokio::time::timeout;

use super::flags::Place;
use super::split_horizon::Neighbours;
use super::state::{Change, Mac, RouteKey, State, Version};
use message::{
    forwarding_message, neighbour_message, resolution_message, route_message, rule_message,
};
pub(super) use overlay::Device;

/// A request that the kernel refuses, or does not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}")]
pub(super) struct KernelError {
    pub(super) operation: String,
    #[source]
    pub(super) source: io::Error,
}

impl KernelError {
    /// The error of this operation.
    pub(super) fn of(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();

        |source| Self { operation, source }
    }
}

/// The result of `work`, unless an answer of the kernel takes longer than `limit`.
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

/// Two netlink sockets, one for requests and one for events. Must live within the runtime that created it.
pub(super) struct Kernel {
    handle: Handle,
    place: Place,
    changes: Changes,
}

/// The present kernel state of ours.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The part of it in its proper place.
    pub(super) state: State,
    /// Our VXLAN device, under any name; if there is none, the interface that has its name.
    pub(super) device: Option<Device>,
    /// Further devices of ours, left by processes with other flags.
    stale_devices: Vec<Device>,
    /// Rules of ours with another table or priority, left by a process with other flags.
    stale_rules: Vec<RuleMessage>,
    /// Routes of ours in the tables of those rules.
    stale_routes: Vec<RouteMessage>,
    /// The messages of the routes in [`State`]; a removal repeats them. A kernel may list each next hop by itself.
    routes: BTreeMap<RouteKey, Vec<RouteMessage>>,
    rules: BTreeMap<Version, RuleMessage>,
}

impl Kernel {
    /// Opens the sockets. To be called within a runtime.
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
                    found.state.add_route(key, target);
                    found.routes.entry(key).or_default().push(route);
                }
            }
        }
        if let Some(device) = found.own_device() {
            (found.state.neighbours, found.state.forwarding) = self.next_hops(device.index).await?;
        }

        Ok(found)
    }

    /// Makes one change, and adds it to `found`; `device` is the index of the VXLAN device.
    pub(super) async fn apply(
        &self,
        change: &Change,
        found: &mut Found,
        device: Option<u32>,
    ) -> Result<(), KernelError> {
        let failed = || KernelError::of(change.to_string());
        let no_device = || KernelError {
            operation: change.to_string(),
            source: io::ErrorKind::NotFound.into(),
        };
        let outcome = match *change {
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
            Change::SetRoute(key, ref target) => {
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
            Change::RemoveRoute(key) => {
                let mut outcome = Ok(());
                for route in found.routes.get(&key).into_iter().flatten() {
                    let removed = answer(self.handle.route().del(route.clone()).execute()).await;
                    outcome = outcome.and(removed);
                }
                outcome
            }
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
            Err(error) if !is_settled(change, &error.source) => Err(error),
            _ => {
                found.note(self.place, change);
                Ok(())
            }
        }
    }

    /// Removes the objects of processes with other flags. Routes after rules, as a table without a rule is not used.
    pub(super) async fn remove_stale(&self, found: &Found) -> Vec<KernelError> {
        let mut errors = Vec::new();
        for rule in &found.stale_rules {
            let outcome = answer(self.handle.rule().del(rule.clone()).execute()).await;
            errors.extend(outcome.map_err(KernelError::of("remove an outdated rule")).err());
        }
        for route in &found.stale_routes {
            let outcome = answer(self.handle.route().del(route.clone()).execute()).await;
            errors.extend(outcome.map_err(KernelError::of("remove an outdated route")).err());
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
            // The kernel does not support that version.
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

    /// The next hops on the VXLAN device, and where frames for each are sent.
    async fn next_hops(
        &self,
        index: u32,
    ) -> Result<(BTreeMap<IpAddr, Mac>, BTreeMap<Mac, IpAddr>), KernelError> {
        let (mut neighbours, mut forwarding) = (BTreeMap::new(), BTreeMap::new());
        for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Bridge] {
            let found = self.neighbours(family).await?;
            for neighbour in found.iter().filter(|found| found.header.ifindex == index) {
                match message::read_permanent_neighbour(neighbour) {
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

    /// All neighbours on the interfaces of `hops` whose MAC addresses are known. Those of `hops` that are not known are
    /// being resolved.
    pub(super) async fn resolved(
        &self,
        hops: &BTreeSet<(u32, IpAddr)>,
    ) -> Result<Neighbours, KernelError> {
        let mut neighbours = Neighbours::new();
        if hops.is_empty() {
            return Ok(neighbours);
        }
        let is_of_hop = |index| hops.iter().any(|(device, _)| *device == index);
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            for neighbour in self.neighbours(family).await? {
                let index = neighbour.header.ifindex;
                if is_of_hop(index)
                    && let Some((mac, address)) = message::read_neighbour(&neighbour)
                {
                    neighbours.insert((index, address), mac);
                }
            }
        }
        for (index, address) in hops.iter().filter(|hop| !neighbours.contains_key(hop)) {
            let mut request = self.handle.neighbours().add(*index, *address).replace();
            *request.message_mut() = resolution_message(*index, *address);
            // A node that is not there, or an interface that is gone.
            drop(answer(request.execute()).await);
        }

        Ok(neighbours)
    }

    /// All neighbours of a version, or forwarding entries.
    async fn neighbours(
        &self,
        family: AddressFamily,
    ) -> Result<Vec<NeighbourMessage>, KernelError> {
        let request = self.handle.neighbours().get().set_address_family(family);
        let found = answer(request.execute().try_collect::<Vec<_>>()).await;
        match found.map_err(KernelError::of("list neighbours")) {
            Err(error) if is_not_supported(&error.source) => Ok(Vec::new()),
            found => found,
        }
    }
}

impl Found {
    /// Adds a change that was made since; `place` is where routes and rules are.
    fn note(&mut self, place: Place, change: &Change) {
        match change {
            Change::SetNeighbour(ip, mac) => drop(self.state.neighbours.insert(*ip, *mac)),
            Change::SetForwarding(mac, ip) => drop(self.state.forwarding.insert(*mac, *ip)),
            Change::SetRoute(key, target) => {
                self.state.routes.insert(*key, target.clone());
                self.routes.insert(*key, vec![route_message(place.table, *key, target)]);
            }
            Change::AddRule(version) => {
                self.state.rules.insert(*version);
                self.rules.insert(*version, rule_message(place, *version));
            }
            Change::RemoveRule(version) => {
                self.state.rules.remove(version);
                self.rules.remove(version);
            }
            Change::RemoveRoute(key) => {
                self.state.routes.remove(key);
                self.routes.remove(key);
            }
            Change::RemoveNeighbour(ip) => drop(self.state.neighbours.remove(ip)),
            Change::RemoveForwarding(mac) => drop(self.state.forwarding.remove(mac)),
        }
    }

    /// The VXLAN device, if it is ours.
    pub(super) fn own_device(&self) -> Option<&Device> {
        self.device.as_ref().filter(|device| device.is_ours)
    }

    /// Whether there is nothing of ours.
    pub(super) fn is_empty(&self) -> bool {
        self.state == State::default()
            && self.stale_rules.is_empty()
            && self.stale_routes.is_empty()
            && self.stale_devices.is_empty()
            && self.own_device().is_none()
    }

    /// The number of outdated rules, routes and devices.
    pub(super) fn stale(&self) -> usize {
        self.stale_rules.len() + self.stale_routes.len() + self.stale_devices.len()
    }
}

/// Whether the change was already made by another program.
fn is_settled(change: &Change, error: &io::Error) -> bool {
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
