//! The present and the desired kernel state of ours, and the changes from one to the other. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use strait_host::netlink::METRIC_OF_LAST_RESORT;

/// The metric of routes with a next hop. Lower metrics come first.
pub(super) const METRIC: u32 = 100;

/// Everything of ours in the kernel, except for the VXLAN device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The routes in our table.
    pub(super) routes: BTreeMap<RouteKey, Target>,
    /// The IP versions with a rule for our table.
    pub(super) rules: BTreeSet<Version>,
    /// On the VXLAN device: the next hops.
    pub(super) neighbours: BTreeMap<IpAddr, Mac>,
    /// On the VXLAN device: where frames for an address are sent.
    pub(super) forwarding: BTreeMap<Mac, IpAddr>,
}

/// Identifies a route of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RouteKey {
    pub(super) prefix: IpNet,
    pub(super) metric: u32,
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// One neighbour or several: then the kernel chooses one for each flow.
    Via {
        /// Never empty.
        hops: BTreeSet<NextHop>,
        /// The source for packets of this host that have none yet.
        source: Option<IpAddr>,
    },
    /// None: senders get an ICMP error.
    Unreachable,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NextHop {
    pub(super) gateway: IpAddr,
    /// The index of the interface.
    pub(super) device: u32,
}

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    V4,
    V6,
}

/// The MAC address of an Ethernet interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Mac(pub(super) [u8; 6]);

/// One request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Also replaces another target.
    SetNeighbour(IpAddr, Mac),
    /// Also replaces another address.
    SetForwarding(Mac, IpAddr),
    /// Also replaces another target.
    SetRoute(RouteKey, Target),
    AddRule(Version),
    RemoveRule(Version),
    RemoveRoute(RouteKey),
    RemoveNeighbour(IpAddr),
    RemoveForwarding(Mac),
}

impl RouteKey {
    /// The key of the route with a next hop.
    pub(super) const fn of(prefix: IpNet) -> Self {
        Self { prefix, metric: METRIC }
    }

    /// The key of the route of last resort.
    pub(super) const fn of_last_resort(prefix: IpNet) -> Self {
        Self { prefix, metric: METRIC_OF_LAST_RESORT }
    }
}

impl Version {
    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(super) const fn of(prefix: IpNet) -> Self {
        match prefix {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }
}

impl State {
    /// The route with a next hop, if there is one.
    pub(super) fn route(&self, prefix: IpNet) -> Option<&Target> {
        self.routes.get(&RouteKey::of(prefix))
    }

    /// The parts of `prefix` that have a route of their own: with a next hop, and without a last resort.
    pub(super) fn parts(&self, prefix: IpNet) -> impl Iterator<Item = (IpNet, &Target)> {
        let is_part = move |part: IpNet| {
            let last_resort = RouteKey::of_last_resort(part);
            part != prefix && prefix.contains(&part) && !self.routes.contains_key(&last_resort)
        };
        let routes = self.routes.iter().map(|(key, target)| (key.prefix, target));

        routes.filter(move |(part, _)| is_part(*part))
    }

    /// Adds a route, or another next hop of it.
    pub(super) fn add_route(&mut self, key: RouteKey, target: Target) {
        match (self.routes.get_mut(&key), target) {
            (Some(Target::Via { hops, .. }), Target::Via { hops: others, .. }) => {
                hops.extend(others);
            }
            (_, target) => drop(self.routes.insert(key, target)),
        }
    }

    /// The state after the VXLAN device, interface `device`, is removed: the kernel removes its entries with it, and each
    /// route that has a next hop there.
    pub(super) fn without_device(&self, device: u32) -> Self {
        let mut state = self.clone();
        state.routes.retain(|_, target| target.hops().all(|hop| hop.device != device));
        state.neighbours.clear();
        state.forwarding.clear();

        state
    }

    /// The same with the interface `to` in place of the VXLAN device `from`.
    pub(super) fn with_device(&self, from: u32, to: u32) -> Self {
        let mut state = self.clone();
        for target in state.routes.values_mut() {
            if let Target::Via { hops, .. } = target {
                let moved = hops.iter().map(|hop| match hop.device {
                    device if device == from => NextHop { device: to, ..*hop },
                    _ => *hop,
                });
                *hops = moved.collect();
            }
        }

        state
    }

    /// The changes, in this order, from `self` to `wanted`. At no moment between has a desired prefix no route that had
    /// one before, and nothing is changed that stays.
    pub(super) fn changes(&self, wanted: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        changes.extend(
            additions(&self.neighbours, &wanted.neighbours)
                .map(|(ip, mac)| Change::SetNeighbour(ip, mac)),
        );
        changes.extend(
            additions(&self.forwarding, &wanted.forwarding)
                .map(|(mac, ip)| Change::SetForwarding(mac, ip)),
        );
        // The last resort first: a prefix without a route must not leak for a moment.
        let mut routes: Vec<_> = additions(&self.routes, &wanted.routes).collect();
        routes.sort_by_key(|(key, _)| std::cmp::Reverse(key.metric));
        changes.extend(routes.into_iter().map(|(key, target)| Change::SetRoute(key, target)));
        changes.extend(wanted.rules.difference(&self.rules).copied().map(Change::AddRule));

        changes.extend(self.rules.difference(&wanted.rules).copied().map(Change::RemoveRule));
        // In reverse order, for the same reason: a prefix whose target is removed keeps its last resort.
        changes.extend(gone(&self.routes, &wanted.routes).map(Change::RemoveRoute));
        changes.extend(gone(&self.neighbours, &wanted.neighbours).map(Change::RemoveNeighbour));
        changes.extend(gone(&self.forwarding, &wanted.forwarding).map(Change::RemoveForwarding));

        changes
    }
}

impl Target {
    /// By one next hop.
    #[cfg(test)]
    pub(super) fn via(gateway: IpAddr, device: u32, source: Option<IpAddr>) -> Self {
        Self::Via { hops: [NextHop { gateway, device }].into(), source }
    }

    /// The next hops, if it has any.
    pub(super) fn hops(&self) -> impl Iterator<Item = &NextHop> {
        let hops = match self {
            Self::Via { hops, .. } => Some(hops),
            Self::Unreachable => None,
        };

        hops.into_iter().flatten()
    }
}

fn additions<K: Copy + Ord, V: Clone + PartialEq>(
    found: &BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
) -> impl Iterator<Item = (K, V)> {
    let is_new = |(key, value): &(&K, &V)| found.get(*key) != Some(*value);

    wanted.iter().filter(is_new).map(|(key, value)| (*key, value.clone()))
}

fn gone<K: Copy + Ord, V>(
    found: &BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
) -> impl Iterator<Item = K> {
    found.keys().filter(|key| !wanted.contains_key(key)).copied()
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetNeighbour(ip, mac) => write!(f, "set neighbour {ip} to {mac}"),
            Self::SetForwarding(mac, ip) => write!(f, "send frames for {mac} to {ip}"),
            Self::SetRoute(RouteKey { prefix, .. }, target) => write!(f, "route {prefix} {target}"),
            Self::AddRule(version) => write!(f, "add the {version} rule"),
            Self::RemoveRule(version) => write!(f, "remove the {version} rule"),
            Self::RemoveRoute(RouteKey { prefix, metric }) => {
                write!(f, "remove route {prefix} with metric {metric}")
            }
            Self::RemoveNeighbour(ip) => write!(f, "remove neighbour {ip}"),
            Self::RemoveForwarding(mac) => write!(f, "send no frames for {mac}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Via { hops, .. } => {
                for (number, NextHop { gateway, device }) in hops.iter().enumerate() {
                    let and = if number == 0 { "" } else { " and " };
                    write!(f, "{and}via {gateway} on interface {device}")?;
                }
                Ok(())
            }
            Self::Unreachable => f.write_str("nowhere"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;

        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, btree_set};
    use proptest::prelude::*;

    use super::*;

    fn prefix(number: u8) -> IpNet {
        format!("10.{number}.0.0/16").parse().unwrap()
    }

    fn states() -> impl Strategy<Value = State> {
        let ip = (1..5_u8).prop_map(|host| IpAddr::from([172, 18, 0, host]));
        let mac = (1..5_u8).prop_map(|host| Mac([0x0e, 0x53, 172, 18, 0, host]));
        let key = (0..6_u8, any::<bool>()).prop_map(|(number, is_last)| {
            let prefix = prefix(number);
            if is_last { RouteKey::of_last_resort(prefix) } else { RouteKey::of(prefix) }
        });
        let hop = (ip.clone(), 1..3_u32).prop_map(|(gateway, device)| NextHop { gateway, device });
        // From one next hop to several, back, and to others.
        let via = btree_set(hop, 1..4).prop_map(|hops| Target::Via { hops, source: None });
        let target = prop_oneof![Just(Target::Unreachable), via];
        let rule = prop_oneof![Just(Version::V4), Just(Version::V6)];

        (
            btree_map(key, target, 0..9),
            btree_set(rule, 0..3),
            btree_map(ip.clone(), mac.clone(), 0..5),
            btree_map(mac, ip, 0..5),
        )
            .prop_map(|(routes, rules, neighbours, forwarding)| State {
                routes,
                rules,
                neighbours,
                forwarding,
            })
    }

    fn apply(state: &mut State, change: Change) {
        match change {
            Change::SetNeighbour(ip, mac) => drop(state.neighbours.insert(ip, mac)),
            Change::SetForwarding(mac, ip) => drop(state.forwarding.insert(mac, ip)),
            Change::SetRoute(key, target) => drop(state.routes.insert(key, target)),
            Change::AddRule(version) => drop(state.rules.insert(version)),
            Change::RemoveRule(version) => drop(state.rules.remove(&version)),
            Change::RemoveRoute(key) => drop(state.routes.remove(&key)),
            Change::RemoveNeighbour(ip) => drop(state.neighbours.remove(&ip)),
            Change::RemoveForwarding(mac) => drop(state.forwarding.remove(&mac)),
        }
    }

    fn routed(state: &State) -> BTreeSet<IpNet> {
        state.routes.keys().map(|key| key.prefix).collect()
    }

    proptest! {
        #[test]
        fn changes_reach_the_desired_state_and_keep_routes(
            found in states(), wanted in states(),
        ) {
            let changes = found.changes(&wanted);

            let mut state = found.clone();
            for change in &changes {
                if let Change::SetRoute(key, target) = change {
                    prop_assert_ne!(found.routes.get(key), Some(target));
                }
                apply(&mut state, change.clone());
                // A prefix that is routed before and after is routed all the time.
                let staying = &routed(&found) & &routed(&wanted);
                prop_assert!(staying.is_subset(&routed(&state)), "{change:?}");
            }
            prop_assert_eq!(&state, &wanted);
            prop_assert_eq!(wanted.changes(&wanted), vec![]);
        }
    }

    #[test]
    fn removing_a_device_removes_its_entries() {
        let via = |devices: &[u32]| Target::Via {
            hops: devices
                .iter()
                .map(|&device| NextHop { gateway: [172, 18, 0, 2].into(), device })
                .collect(),
            source: None,
        };
        let mac = Mac([0x0e, 0x53, 172, 18, 0, 2]);
        let state = |device| State {
            routes: BTreeMap::from([
                (RouteKey::of(prefix(71)), via(&[device])),
                (RouteKey::of(prefix(72)), via(&[2])),
                (RouteKey::of(prefix(73)), via(&[2, device])),
                (RouteKey::of_last_resort(prefix(71)), Target::Unreachable),
            ]),
            rules: BTreeSet::from([Version::V4]),
            neighbours: BTreeMap::from([([172, 18, 0, 2].into(), mac)]),
            forwarding: BTreeMap::from([(mac, [172, 18, 0, 2].into())]),
        };

        let left = state(7).without_device(7);

        assert_eq!(left.route(prefix(71)), None);
        assert_eq!(left.route(prefix(72)), Some(&via(&[2])));
        assert_eq!(left.route(prefix(73)), None, "the kernel removes it with one of its hops");
        assert_eq!((left.routes.len(), left.rules.len()), (2, 1));
        assert!(left.neighbours.is_empty() && left.forwarding.is_empty());
        assert_eq!(state(7).with_device(7, 9), state(9));
    }

    #[test]
    fn a_new_route_follows_its_last_resort() {
        let hop = |host| NextHop { gateway: [172, 18, 0, host].into(), device: 7 };
        let via = Target::Via { hops: [hop(2), hop(3)].into(), source: None };
        let mac = Mac([0x0e, 0x53, 172, 18, 0, 2]);
        let wanted = State {
            routes: BTreeMap::from([
                (RouteKey::of(prefix(71)), via),
                (RouteKey::of_last_resort(prefix(71)), Target::Unreachable),
            ]),
            rules: BTreeSet::from([Version::V4]),
            neighbours: BTreeMap::from([([172, 18, 0, 2].into(), mac)]),
            forwarding: BTreeMap::from([(mac, [172, 18, 0, 2].into())]),
        };

        let texts: Vec<_> =
            State::default().changes(&wanted).iter().map(ToString::to_string).collect();

        assert_eq!(
            texts,
            [
                "set neighbour 172.18.0.2 to 0e:53:ac:12:00:02",
                "send frames for 0e:53:ac:12:00:02 to 172.18.0.2",
                "route 10.71.0.0/16 nowhere",
                "route 10.71.0.0/16 via 172.18.0.2 on interface 7 and via 172.18.0.3 on interface 7",
                "add the IPv4 rule",
            ]
        );
    }
}
