//! Computes the routes to the device. Pure: [`strait_host::netlink`] installs them.
//!
//! A peer has routes for its remapped prefixes, and for its allowed IPs that no remap rule covers. A prefix that
//! would route a tunnel's datagrams into itself, or this host's own network into a tunnel, is skipped, as far as the
//! configuration and this host show. A tunnel may run inside the tunnel to another peer. Resolved and learned
//! endpoints are under the control of others, who must not be able to remove a route: its packets would leave in
//! clear.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::config::{Config, Endpoint, Peer};

/// The routes of one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Routes {
    /// Prefixes with the name of the peer behind each.
    pub(crate) wanted: BTreeMap<IpNet, String>,
    /// Prefixes without a route, in the order of the configuration.
    pub(crate) skipped: Vec<Skipped>,
    /// Routes that may lead a tunnel into itself.
    pub(crate) covering: Vec<Covering>,
}

/// A prefix with a route that covers the endpoint of a peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Covering {
    pub(crate) prefix: IpNet,
    pub(crate) peer: String,
    /// The endpoint, resolved or learned.
    pub(crate) endpoint: IpAddr,
}

/// A prefix without a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skipped {
    pub(crate) prefix: IpNet,
    pub(crate) peer: String,
    pub(crate) reason: SkipReason,
}

/// Why a prefix has no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SkipReason {
    /// A default route, which only the administrator should install.
    Default,
    /// The tunnel would be routed into itself.
    CoversEndpoint(IpAddr),
    /// This host's own network would be routed into the tunnel.
    CoversOwnAddress(IpAddr),
    /// A remap rule of the peer covers a part of it.
    PartlyRemapped(IpNet),
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no route for {} of peer {:?}: ", self.prefix, self.peer)?;
        match self.reason {
            SkipReason::Default => f.write_str("install a default route yourself"),
            SkipReason::CoversEndpoint(address) => {
                write!(
                    f,
                    "it covers the endpoint {address}, so the tunnel would be routed into itself"
                )
            }
            SkipReason::CoversOwnAddress(address) => {
                write!(f, "it covers {address}, an address of this host")
            }
            SkipReason::PartlyRemapped(remote) => {
                write!(f, "{remote} in it is remapped; list the other parts in allowed_ips")
            }
        }
    }
}

impl fmt::Display for Covering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, peer, endpoint } = self;

        write!(
            f,
            "the route for {prefix} of peer {peer:?} covers {endpoint}, the current endpoint of a peer: what \
             is sent there is dropped unless that address has a route of its own"
        )
    }
}

impl Routes {
    /// The routes for `config`, which avoid its endpoints and the host's `own_addresses`. Routes that cover endpoints
    /// that were `found` later are only reported.
    pub(crate) fn new(config: &Config, found: &[IpAddr], own_addresses: &[IpAddr]) -> Self {
        let mut routes = Self::default();
        if !config.routes || config.overlay.is_some() {
            return routes;
        }

        let mut candidates = Vec::new();
        for (place, peer) in config.peers.iter().enumerate() {
            let locals = peer.remaps.iter().map(|rule| rule.local().to_net());
            let direct = peer.allowed_ips.iter().map(|prefix| prefix.to_net());
            let direct = direct.filter(|prefix| routes.is_direct(peer, *prefix));
            candidates
                .extend(locals.chain(direct.collect::<Vec<_>>()).map(|prefix| (place, prefix)));
        }
        let nesting = Nesting::new(config, &candidates);
        let own = Addresses::new(own_addresses.iter().copied());
        for (place, prefix) in candidates {
            let Some(peer) = config.peers.get(place) else { continue };
            if prefix.prefix_len() == 0 {
                routes.skip(peer, prefix, SkipReason::Default);
            } else if let Some(endpoint) = nesting.carries_itself(place, prefix) {
                routes.skip(peer, prefix, SkipReason::CoversEndpoint(endpoint));
            } else if let Some(address) = own.first_in(prefix) {
                routes.skip(peer, prefix, SkipReason::CoversOwnAddress(address));
            } else {
                routes.wanted.entry(prefix).or_insert_with(|| peer.name.clone());
            }
        }
        let found = Addresses::new(found.iter().copied());
        for (prefix, peer) in &routes.wanted {
            if let Some(endpoint) = found.first_in(*prefix) {
                routes.covering.push(Covering { prefix: *prefix, peer: peer.clone(), endpoint });
            }
        }

        routes
    }

    /// The prefixes without names.
    pub(crate) fn prefixes(&self) -> BTreeSet<IpNet> {
        self.wanted.keys().copied().collect()
    }

    /// Whether an allowed prefix is routed unchanged. One that overlaps a remapped prefix is not an address range of
    /// this cluster's view; if it is the larger of the two, the rest of it is reachable but skipped.
    fn is_direct(&mut self, peer: &Peer, prefix: IpNet) -> bool {
        let mut remotes = peer.remaps.iter().map(|rule| rule.remote().to_net());
        if remotes.clone().any(|remote| remote.contains(&prefix)) {
            return false;
        }
        let is_default = prefix.prefix_len() == 0;
        let Some(remote) = remotes.find(|remote| !is_default && prefix.contains(remote)) else {
            return true;
        };
        self.skip(peer, prefix, SkipReason::PartlyRemapped(remote));

        false
    }

    fn skip(&mut self, peer: &Peer, prefix: IpNet, reason: SkipReason) {
        self.skipped.push(Skipped { prefix, peer: peer.name.clone(), reason });
    }
}

/// The configured addresses of `peer`.
fn configured(peer: &Peer) -> impl Iterator<Item = IpAddr> {
    peer.endpoints.iter().filter_map(|endpoint| match endpoint {
        Endpoint::Address(address) => Some(address.ip()),
        Endpoint::Learned(_) | Endpoint::Name(_) => None,
    })
}

/// Which peers are reached through other peers: the endpoint of one is in a prefix of the other.
struct Nesting {
    /// The positions of the peers with each endpoint.
    at: BTreeMap<IpAddr, Vec<usize>>,
    /// For each peer, the peers through which it is reached.
    behind: Vec<BTreeSet<usize>>,
}

impl Nesting {
    fn new(config: &Config, candidates: &[(usize, IpNet)]) -> Self {
        let mut at = BTreeMap::<_, Vec<_>>::new();
        for (place, peer) in config.peers.iter().enumerate() {
            for endpoint in configured(peer) {
                at.entry(endpoint).or_default().push(place);
            }
        }
        let mut nesting = Self { at, behind: vec![BTreeSet::new(); config.peers.len()] };
        // Default routes are not installed.
        for (owner, prefix) in candidates.iter().filter(|(_, prefix)| prefix.prefix_len() > 0) {
            let inside: Vec<_> = nesting.inside(*prefix).map(|(_, place)| place).collect();
            for place in inside {
                if let Some(behind) = nesting.behind.get_mut(place) {
                    behind.insert(*owner);
                }
            }
        }

        nesting
    }

    /// An endpoint in `prefix` that would route the tunnel of its owner `owner` into itself; `None` if there is none.
    fn carries_itself(&self, owner: usize, prefix: IpNet) -> Option<IpAddr> {
        self.inside(prefix).find(|(_, place)| self.is_behind(owner, *place)).map(|(at, _)| at)
    }

    /// The endpoints in `prefix`, with the positions of their peers.
    fn inside(&self, prefix: IpNet) -> impl Iterator<Item = (IpAddr, usize)> {
        let from_first = self.at.range(prefix.network()..);
        let inside = from_first.take_while(move |(endpoint, _)| prefix.contains(*endpoint));

        inside.flat_map(|(endpoint, places)| places.iter().map(|place| (*endpoint, *place)))
    }

    /// Whether `peer` is `other`, or is reached through it, possibly through several tunnels.
    fn is_behind(&self, peer: usize, other: usize) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = vec![peer];
        while let Some(peer) = next.pop() {
            if peer == other {
                return true;
            }
            if seen.insert(peer) {
                next.extend(self.behind.get(peer).into_iter().flatten());
            }
        }

        false
    }
}

/// Sorted addresses, for lookups of thousands of prefixes.
struct Addresses(BTreeSet<IpAddr>);

impl Addresses {
    fn new(addresses: impl Iterator<Item = IpAddr>) -> Self {
        Self(addresses.collect())
    }

    /// The lowest address that `prefix` covers.
    fn first_in(&self, prefix: IpNet) -> Option<IpAddr> {
        let first = self.0.range(prefix.network()..).next().copied();

        first.filter(|address| prefix.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use remap::Rule;

    use super::super::config::example;
    use super::*;

    #[test]
    fn only_the_local_side_is_routed() {
        let config = config(&["10.244.0.0/16"], &[("10.244.0.0/16", "10.71.0.0/16")]);

        let routes = Routes::new(&config, &[], &[]);

        assert_eq!(prefixes(&routes), ["10.71.0.0/16"]);
        assert_eq!(routes.skipped, []);
    }

    #[test]
    fn allowed_ips_without_a_rule_are_routed() {
        let config = config(
            &["10.244.0.0/16", "192.168.7.0/24", "10.244.3.0/24", "fd00:7::/64"],
            &[("10.244.0.0/16", "10.71.0.0/16")],
        );

        let routes = Routes::new(&config, &[], &[]);

        assert_eq!(prefixes(&routes), ["10.71.0.0/16", "192.168.7.0/24", "fd00:7::/64"]);
    }

    #[test]
    fn partly_remapped_prefixes_are_reported() {
        let config = config(&["10.0.0.0/8"], &[("10.244.0.0/16", "172.20.0.0/16")]);

        let routes = Routes::new(&config, &[], &[]);

        assert_eq!(prefixes(&routes), ["172.20.0.0/16"]);
        let reason = SkipReason::PartlyRemapped("10.244.0.0/16".parse().unwrap());
        assert_eq!(routes.skipped[0].reason, reason);
    }

    #[test]
    fn routes_avoid_endpoints_and_own_addresses() {
        let mut config = config(&["0.0.0.0/0", "::/0", "192.0.2.0/24", "198.51.100.0/24"], &[]);
        config.peers[0].endpoints = vec!["192.0.2.9:51840".parse().unwrap()];
        let endpoint: IpAddr = "192.0.2.9".parse().unwrap();
        let own: IpAddr = "198.51.100.1".parse().unwrap();

        let routes = Routes::new(&config, &[endpoint], &[own]);

        assert_eq!(prefixes(&routes), <[String; 0]>::default());
        let reasons: Vec<_> = routes.skipped.iter().map(|skipped| skipped.reason).collect();
        let expected = [
            SkipReason::Default,
            SkipReason::Default,
            SkipReason::CoversEndpoint(endpoint),
            SkipReason::CoversOwnAddress(own),
        ];
        assert_eq!(reasons, expected);
    }

    #[test]
    fn no_tunnel_is_routed_through_itself() {
        let peers = |prefixes: [&str; 2]| {
            let mut config = config(&[prefixes[0]], &[]);
            let mut other = config.peers[0].clone();
            other.name = "oslo".to_owned();
            other.allowed_ips = [prefixes[1].parse().unwrap()].into();
            config.peers.push(other);
            config.peers[0].endpoints = vec!["192.0.2.9:51840".parse().unwrap()];
            config.peers[1].endpoints = vec!["203.0.113.9:51840".parse().unwrap()];
            config
        };

        // Oslo is reached through Rome.
        let onion = Routes::new(&peers(["203.0.113.0/24", "10.99.0.0/16"]), &[], &[]);
        // Each is reached through the other.
        let knot = Routes::new(&peers(["203.0.113.0/24", "192.0.2.0/24"]), &[], &[]);

        assert_eq!(prefixes(&onion), ["10.99.0.0/16", "203.0.113.0/24"]);
        assert_eq!(onion.skipped, []);
        assert_eq!(prefixes(&knot), <[String; 0]>::default());
        let reasons: Vec<_> = knot.skipped.iter().map(|skipped| skipped.reason).collect();
        let covered = ["203.0.113.9", "192.0.2.9"].map(|address| address.parse().unwrap());
        assert_eq!(reasons, covered.map(SkipReason::CoversEndpoint));
    }

    /// Otherwise a datagram from an address of another peer would remove the route to that peer.
    #[test]
    fn only_configured_endpoints_exclude_routes() {
        let mut config = config(&["192.0.2.0/24", "198.51.100.0/24"], &[]);
        let heard = "198.51.100.9:51840".parse().unwrap();
        config.peers[0].endpoints =
            vec![Endpoint::Learned(heard), "rome.example:51840".parse().unwrap()];
        let found = ["192.0.2.9".parse().unwrap(), heard.ip()];

        let routes = Routes::new(&config, &found, &[]);

        assert_eq!(prefixes(&routes), ["192.0.2.0/24", "198.51.100.0/24"]);
        assert_eq!(routes.skipped, []);
        let covered: Vec<_> = routes.covering.iter().map(|covering| covering.endpoint).collect();
        assert_eq!(covered, found);
        let text = routes.covering[0].to_string();
        assert!(text.contains("192.0.2.0/24 of peer") && text.contains("192.0.2.9"), "{text}");
    }

    #[test]
    fn a_skipped_prefix_names_peer_and_reason() {
        let mut config = config(&["192.0.2.0/24"], &[]);
        config.peers[0].endpoints = vec!["192.0.2.9:51840".parse().unwrap()];

        let routes = Routes::new(&config, &[], &[]);

        let text = routes.skipped[0].to_string();
        assert!(text.contains("192.0.2.0/24") && text.contains("192.0.2.9"), "{text}");
        assert!(text.contains("rome"), "{text}");
    }

    #[test]
    fn routes_off_installs_nothing() {
        let config = Config { routes: false, ..config(&["192.0.2.0/24"], &[]) };

        assert_eq!(Routes::new(&config, &[], &[]), Routes::default());
    }

    fn config(allowed_ips: &[&str], remaps: &[(&str, &str)]) -> Config {
        let mut config = example::config();
        let peer = &mut config.peers[0];
        peer.allowed_ips = allowed_ips.iter().map(|text| text.parse().unwrap()).collect();
        peer.remaps = remaps
            .iter()
            .map(|(remote, local)| {
                Rule::new(remote.parse().unwrap(), local.parse().unwrap()).unwrap()
            })
            .collect();

        config
    }

    fn prefixes(routes: &Routes) -> Vec<String> {
        routes.wanted.keys().map(ToString::to_string).collect()
    }
}
