//! What is ours: the addresses of this cluster, and how remotes see those they could not know.
//!
//! A remote knows the pods of this cluster by their own addresses. Everything else that talks across
//! the tunnel needs an address that the remote does know, an *external* one, taken from a prefix set
//! aside for that: one to one for hosts ([`HostMap`]), shared for all others
//! ([masquerade](crate::masquerade)).

use std::fmt;
use std::net::IpAddr;

use crate::lpm::Lpm;
use crate::masquerade::Pool;
use crate::{Conflict, Prefix, PrefixMap};

/// What this cluster says about its own addresses. The default says nothing: every source leaves as
/// it is, every destination arrives as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Prefixes that remotes know by their own addresses: pod CIDRs and external CIDRs. No rule may
    /// give one of these names to a remote's prefix.
    pub prefixes: Vec<Prefix>,
    /// Hosts that remotes reach under an external address.
    pub host_maps: Vec<HostMap>,
    /// External addresses that all other sources share. Without one for an IP version, its packets
    /// leave with the source they have.
    pub masquerade: Vec<IpAddr>,
}

/// One address of ours and the external address that stands for it in every remote cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostMap {
    internal: IpAddr,
    external: IpAddr,
}

impl HostMap {
    /// Pairs two addresses.
    ///
    /// # Errors
    ///
    /// [`HostMapError`] if they are the same, or not of the same IP version.
    pub fn new(internal: IpAddr, external: IpAddr) -> Result<Self, HostMapError> {
        if internal.is_ipv4() != external.is_ipv4() {
            return Err(HostMapError::VersionMismatch { internal, external });
        }
        if internal == external {
            return Err(HostMapError::Identity { address: internal });
        }

        Ok(Self { internal, external })
    }

    /// The address as this cluster knows it.
    #[must_use]
    pub const fn internal(&self) -> IpAddr {
        self.internal
    }

    /// The address as it stands on the wire between gateways.
    #[must_use]
    pub const fn external(&self) -> IpAddr {
        self.external
    }
}

impl fmt::Display for HostMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.internal, self.external)
    }
}

/// Why two addresses form no [`HostMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum HostMapError {
    /// One is IPv4 and the other IPv6.
    #[error("internal {internal} and external {external} are not of the same IP version")]
    VersionMismatch { internal: IpAddr, external: IpAddr },
    /// Nothing would change.
    #[error("{address} is mapped to itself: leave the host map out")]
    Identity { address: IpAddr },
}

/// What a packet from one of our addresses leaves with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Its own address: the remote knows it.
    Known,
    /// Always this external address.
    Mapped(IpAddr),
    /// This external address where it answers a packet that came for it, its own one otherwise.
    Answering(IpAddr),
    /// One of the shared external addresses, if there is one of this IP version.
    Unknown,
}

/// What a packet for one of our addresses becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It arrives as it is.
    Known,
    /// It arrives as it is at a host that also answers under an external address: the answers must be
    /// told apart.
    Named,
    /// It goes to this host.
    Mapped(IpAddr),
    /// It goes to this host, which also answers under its own address: the answers must be told
    /// apart.
    Answered(IpAddr),
    /// It goes to whoever the shared address was used by.
    Shared,
}

/// [`Cluster`], ready for lookups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Home {
    sources: Lpm<Source>,
    arrivals: Lpm<Arrival>,
    shared: Pool,
}

impl Home {
    /// What can be in force of `cluster`; the rest is added to `conflicts`.
    pub(crate) fn build(cluster: &Cluster, conflicts: &mut Vec<Conflict>) -> Self {
        let accepted = accepted(cluster, conflicts);
        let known = PrefixMap::new(cluster.prefixes.iter().map(|prefix| (*prefix, ())));
        let externals: Vec<Prefix> =
            accepted.iter().map(|map| Prefix::of_host(map.external)).collect();

        // Of equal prefixes the first one counts: a host map before a prefix of its address alone.
        let mut sources: Vec<(Prefix, Source)> = Vec::new();
        let mut arrivals: Vec<(Prefix, Arrival)> = Vec::new();
        let mut named: Vec<(Prefix, Arrival)> = Vec::new();
        for map in &accepted {
            let host = Prefix::of_host(map.internal);
            let is_known = known.covering(host).next().is_some();
            let (source, arrival) = if is_known {
                named.push((host, Arrival::Named));
                (Source::Answering(map.external), Arrival::Answered(map.internal))
            } else {
                (Source::Mapped(map.external), Arrival::Mapped(map.internal))
            };
            sources.push((host, source));
            arrivals.push((Prefix::of_host(map.external), arrival));
        }
        sources.extend(cluster.prefixes.iter().map(|prefix| (*prefix, Source::Known)));
        // What already has an external address leaves with it.
        sources.extend(externals.iter().map(|external| (*external, Source::Known)));
        arrivals.extend(cluster.masquerade.iter().map(|a| (Prefix::of_host(*a), Arrival::Shared)));
        arrivals.extend(named);

        Self {
            sources: first_of_each(sources),
            arrivals: first_of_each(arrivals),
            shared: Pool::new(cluster.masquerade.iter().copied()),
        }
    }

    #[inline]
    pub(crate) fn source(&self, address: IpAddr) -> Source {
        self.sources.lookup(address).unwrap_or(Source::Unknown)
    }

    #[inline]
    pub(crate) fn arrival(&self, address: IpAddr) -> Arrival {
        self.arrivals.lookup(address).unwrap_or(Arrival::Known)
    }

    pub(crate) const fn shared(&self) -> &Pool {
        &self.shared
    }
}

impl Cluster {
    /// Every name that is ours, so that nobody else's can be it.
    pub(crate) fn names(&self) -> PrefixMap<()> {
        let hosts = self.host_maps.iter().map(HostMap::external).chain(self.masquerade.clone());
        let hosts = hosts.map(Prefix::of_host);

        PrefixMap::new(self.prefixes.iter().copied().chain(hosts).map(|prefix| (prefix, ())))
    }
}

/// The host maps that do not contradict one listed before.
fn accepted(cluster: &Cluster, conflicts: &mut Vec<Conflict>) -> Vec<HostMap> {
    use std::collections::HashMap;

    let mut by_internal: HashMap<IpAddr, HostMap> = HashMap::new();
    let mut by_external: HashMap<IpAddr, HostMap> = HashMap::new();
    let mut accepted = Vec::with_capacity(cluster.host_maps.len());
    for map in &cluster.host_maps {
        let in_the_way =
            by_internal.get(&map.internal).or_else(|| by_external.get(&map.external)).copied();
        let chained =
            by_external.get(&map.internal).or_else(|| by_internal.get(&map.external)).copied();
        let conflict = if cluster.masquerade.contains(&map.external) {
            Some(Conflict::Shared { address: map.external, rejected: *map })
        } else if let Some(kept) = in_the_way {
            Some(Conflict::HostMap { kept, rejected: *map })
        } else {
            chained.map(|kept| Conflict::Chain { kept, rejected: *map })
        };

        match conflict {
            Some(conflict) => conflicts.push(conflict),
            None => {
                by_internal.insert(map.internal, *map);
                by_external.insert(map.external, *map);
                accepted.push(*map);
            }
        }
    }

    accepted
}

fn first_of_each<T>(mut entries: Vec<(Prefix, T)>) -> Lpm<T> {
    // The sort is stable, and of equal neighbours the first one stays.
    entries.sort_by_key(|(prefix, _)| *prefix);
    entries.dedup_by_key(|(prefix, _)| *prefix);

    Lpm::new(entries).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_outside_the_pods_always_has_its_external_address() {
        let home = home(&cluster(&[("192.0.2.9", "10.70.0.5")]));

        assert_eq!(home.source(ip("192.0.2.9")), Source::Mapped(ip("10.70.0.5")));
        assert_eq!(home.arrival(ip("10.70.0.5")), Arrival::Mapped(ip("192.0.2.9")));
    }

    #[test]
    fn a_pod_has_its_external_address_only_where_it_answers() {
        let home = home(&cluster(&[("10.244.1.5", "10.70.0.5")]));

        assert_eq!(home.source(ip("10.244.1.5")), Source::Answering(ip("10.70.0.5")));
        assert_eq!(home.arrival(ip("10.70.0.5")), Arrival::Answered(ip("10.244.1.5")));
        assert_eq!(home.arrival(ip("10.244.1.5")), Arrival::Named);
        assert_eq!(home.arrival(ip("10.244.1.6")), Arrival::Known, "its neighbours have one name");
    }

    #[test]
    fn a_pod_that_is_a_prefix_of_its_own_has_both_names_too() {
        let mut cluster = cluster(&[("10.245.0.5", "10.70.0.5")]);
        cluster.prefixes.push("10.245.0.5/32".parse().unwrap());

        let home = home(&cluster);

        assert_eq!(home.source(ip("10.245.0.5")), Source::Answering(ip("10.70.0.5")));
        assert_eq!(home.arrival(ip("10.70.0.5")), Arrival::Answered(ip("10.245.0.5")));
        assert_eq!(home.arrival(ip("10.245.0.5")), Arrival::Named);
    }

    #[test]
    fn whoever_the_remote_cannot_know_shares_an_address() {
        let home = home(&cluster(&[]));

        assert_eq!(home.source(ip("172.18.0.3")), Source::Unknown);
        assert_eq!(home.source(ip("10.244.1.5")), Source::Known);
        assert_eq!(home.source(ip("10.70.0.9")), Source::Known);
        assert_eq!(home.arrival(ip("10.70.0.0")), Arrival::Shared);
        assert_eq!(home.arrival(ip("10.244.1.5")), Arrival::Known);
    }

    #[test]
    fn a_host_map_that_contradicts_another_is_rejected_alone_and_names_both() {
        let maps = [
            ("192.0.2.9", "10.70.0.5"),
            ("192.0.2.9", "10.70.0.6"),
            ("192.0.2.8", "10.70.0.5"),
            ("10.70.0.5", "10.70.0.7"),
            ("192.0.2.1", "10.70.0.0"),
            ("192.0.2.2", "10.70.0.2"),
        ];
        let mut conflicts = Vec::new();

        let home = Home::build(&cluster(&maps), &mut conflicts);

        let texts: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert!(texts[0].contains("192.0.2.9 as 10.70.0.6"), "{}", texts[0]);
        assert!(texts[1].contains("192.0.2.8 as 10.70.0.5"), "{}", texts[1]);
        assert!(texts[2].contains("translated twice"), "{}", texts[2]);
        assert!(texts[3].contains("masquerade"), "{}", texts[3]);
        assert!(texts.iter().take(3).all(|text| text.contains("192.0.2.9 as 10.70.0.5")));
        assert_eq!(home.source(ip("192.0.2.2")), Source::Mapped(ip("10.70.0.2")));
    }

    #[test]
    fn a_host_map_needs_two_addresses_of_one_version() {
        let error = |internal: &str, external: &str| {
            HostMap::new(ip(internal), ip(external)).unwrap_err().to_string()
        };

        assert!(error("192.0.2.9", "fd00::1").contains("not of the same IP version"));
        assert!(error("192.0.2.9", "192.0.2.9").contains("mapped to itself"));
    }

    fn home(cluster: &Cluster) -> Home {
        let mut conflicts = Vec::new();
        let home = Home::build(cluster, &mut conflicts);
        assert_eq!(conflicts, []);

        home
    }

    fn cluster(host_maps: &[(&str, &str)]) -> Cluster {
        Cluster {
            prefixes: ["10.244.0.0/16", "10.70.0.0/16"].map(|p| p.parse().unwrap()).into(),
            host_maps: host_maps
                .iter()
                .map(|(internal, external)| HostMap::new(ip(internal), ip(external)).unwrap())
                .collect(),
            masquerade: vec![ip("10.70.0.0")],
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
