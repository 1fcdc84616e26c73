//! The addresses of this cluster, and the external addresses that stand for them in remote clusters.
//!
//! A remote cluster knows the pods of this cluster by their own addresses. Every other source needs an
//! *external* address, which the remote knows: one to one for hosts ([`HostMap`]), shared for all
//! others ([masquerade](crate::masquerade)).

use std::fmt;
use std::net::IpAddr;

use crate::lpm::Lpm;
use crate::masquerade::Pool;
use crate::{Conflict, Prefix, PrefixMap};

/// The addresses of this cluster. The default is empty: no source and no destination is translated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Prefixes that remotes know by their own addresses: pod CIDRs and external CIDRs. The local
    /// prefix of a rule may not overlap them.
    pub prefixes: Vec<Prefix>,
    /// Hosts that remotes reach under an external address.
    pub host_maps: Vec<HostMap>,
    /// External addresses that all other sources share. Without one of an IP version, packets of that
    /// version keep their source.
    pub masquerade: Vec<IpAddr>,
    /// The sources that share them, if not all others do: remotes know every source that is not one of these. Empty: all
    /// others share them.
    pub sharing: Vec<IpAddr>,
}

/// An address of this cluster and the external address that stands for it in every remote cluster.
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

    /// The address inside this cluster.
    #[must_use]
    pub const fn internal(&self) -> IpAddr {
        self.internal
    }

    /// The address on the wire between gateways.
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

/// The source of an outbound packet after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Unchanged: the remote knows the address.
    Known,
    /// Always this external address.
    Mapped(IpAddr),
    /// This external address in replies to packets that were sent to it, otherwise unchanged.
    MappedReplies(IpAddr),
    /// One of the shared external addresses, if there is one of this IP version.
    Shared,
}

/// The destination of an inbound packet after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Unchanged.
    Known,
    /// Unchanged. The host also has an external address, so its replies must be kept unmapped.
    UnmappedReplies,
    /// This internal address.
    Mapped(IpAddr),
    /// This internal address. Remotes also know the host by it, so its replies must be mapped.
    MappedReplies(IpAddr),
    /// The internal address of the masquerade mapping, if there is one.
    Shared,
}

/// [`Cluster`] as maps for lookups.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterMaps {
    sources: Lpm<Source>,
    destinations: Lpm<Destination>,
    shared: Pool,
    /// Whether a source without an entry is known.
    others_are_known: bool,
}

impl ClusterMaps {
    /// Adds every host map that cannot be in force to `conflicts`.
    pub(crate) fn build(cluster: &Cluster, conflicts: &mut Vec<Conflict>) -> Self {
        let accepted = accepted(cluster, conflicts);
        let known = PrefixMap::new(cluster.prefixes.iter().map(|prefix| (*prefix, ())));
        let externals: Vec<Prefix> =
            accepted.iter().map(|map| Prefix::of_host(map.external)).collect();

        // Of equal prefixes the first one counts: a host map before a prefix of its address alone.
        let mut sources: Vec<(Prefix, Source)> = Vec::new();
        let mut destinations: Vec<(Prefix, Destination)> = Vec::new();
        let mut unmapped_replies: Vec<(Prefix, Destination)> = Vec::new();
        for map in &accepted {
            let host = Prefix::of_host(map.internal);
            let is_known = known.covering(host).next().is_some();
            let (source, destination) = if is_known {
                unmapped_replies.push((host, Destination::UnmappedReplies));
                (Source::MappedReplies(map.external), Destination::MappedReplies(map.internal))
            } else {
                (Source::Mapped(map.external), Destination::Mapped(map.internal))
            };
            sources.push((host, source));
            destinations.push((Prefix::of_host(map.external), destination));
        }
        sources.extend(cluster.prefixes.iter().map(|prefix| (*prefix, Source::Known)));
        // A source that is an external address already stays unchanged.
        sources.extend(externals.iter().map(|external| (*external, Source::Known)));
        sources.extend(cluster.sharing.iter().map(|host| (Prefix::of_host(*host), Source::Shared)));
        destinations
            .extend(cluster.masquerade.iter().map(|a| (Prefix::of_host(*a), Destination::Shared)));
        destinations.extend(unmapped_replies);

        Self {
            sources: first_of_each(sources),
            destinations: first_of_each(destinations),
            shared: Pool::new(cluster.masquerade.iter().copied()),
            others_are_known: !cluster.sharing.is_empty(),
        }
    }

    #[inline]
    pub(crate) fn source(&self, address: IpAddr) -> Source {
        let other = if self.others_are_known { Source::Known } else { Source::Shared };

        self.sources.lookup(address).unwrap_or(other)
    }

    #[inline]
    pub(crate) fn destination(&self, address: IpAddr) -> Destination {
        self.destinations.lookup(address).unwrap_or(Destination::Known)
    }

    pub(crate) const fn shared(&self) -> &Pool {
        &self.shared
    }
}

impl Cluster {
    /// All prefixes and external addresses of this cluster. No local prefix of a rule may overlap one.
    pub(crate) fn all_prefixes(&self) -> PrefixMap<()> {
        let hosts = self.host_maps.iter().map(HostMap::external).chain(self.masquerade.clone());
        let hosts = hosts.map(Prefix::of_host);

        PrefixMap::new(self.prefixes.iter().copied().chain(hosts).map(|prefix| (prefix, ())))
    }
}

/// The host maps that do not conflict with an earlier one.
fn accepted(cluster: &Cluster, conflicts: &mut Vec<Conflict>) -> Vec<HostMap> {
    use std::collections::HashMap;

    let mut by_internal: HashMap<IpAddr, HostMap> = HashMap::new();
    let mut by_external: HashMap<IpAddr, HostMap> = HashMap::new();
    let mut accepted = Vec::with_capacity(cluster.host_maps.len());
    for map in &cluster.host_maps {
        let duplicate =
            by_internal.get(&map.internal).or_else(|| by_external.get(&map.external)).copied();
        let chained =
            by_external.get(&map.internal).or_else(|| by_internal.get(&map.external)).copied();
        let conflict = if cluster.masquerade.contains(&map.external) {
            Some(Conflict::Shared { address: map.external, rejected: *map })
        } else if let Some(kept) = duplicate {
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
    // The sort is stable, and `dedup` keeps the first of equal neighbours.
    entries.sort_by_key(|(prefix, _)| *prefix);
    entries.dedup_by_key(|(prefix, _)| *prefix);

    Lpm::new(entries).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_outside_pod_cidrs_are_always_mapped() {
        let maps = maps(&cluster(&[("192.0.2.9", "10.70.0.5")]));

        assert_eq!(maps.source(ip("192.0.2.9")), Source::Mapped(ip("10.70.0.5")));
        assert_eq!(maps.destination(ip("10.70.0.5")), Destination::Mapped(ip("192.0.2.9")));
    }

    #[test]
    fn mapped_pods_use_the_external_address_in_replies() {
        let maps = maps(&cluster(&[("10.244.1.5", "10.70.0.5")]));

        assert_eq!(maps.source(ip("10.244.1.5")), Source::MappedReplies(ip("10.70.0.5")));
        assert_eq!(maps.destination(ip("10.70.0.5")), Destination::MappedReplies(ip("10.244.1.5")));
        assert_eq!(maps.destination(ip("10.244.1.5")), Destination::UnmappedReplies);
        assert_eq!(
            maps.destination(ip("10.244.1.6")),
            Destination::Known,
            "its neighbour has no host map"
        );
    }

    #[test]
    fn host_prefixes_do_not_hide_host_maps() {
        let mut cluster = cluster(&[("10.245.0.5", "10.70.0.5")]);
        cluster.prefixes.push("10.245.0.5/32".parse().unwrap());

        let maps = maps(&cluster);

        assert_eq!(maps.source(ip("10.245.0.5")), Source::MappedReplies(ip("10.70.0.5")));
        assert_eq!(maps.destination(ip("10.70.0.5")), Destination::MappedReplies(ip("10.245.0.5")));
        assert_eq!(maps.destination(ip("10.245.0.5")), Destination::UnmappedReplies);
    }

    #[test]
    fn unknown_sources_share_an_address() {
        let maps = maps(&cluster(&[]));

        assert_eq!(maps.source(ip("172.18.0.3")), Source::Shared);
        assert_eq!(maps.source(ip("10.244.1.5")), Source::Known);
        assert_eq!(maps.source(ip("10.70.0.9")), Source::Known);
        assert_eq!(maps.destination(ip("10.70.0.0")), Destination::Shared);
        assert_eq!(maps.destination(ip("10.244.1.5")), Destination::Known);
    }

    #[test]
    fn listed_sources_alone_share_an_address() {
        let sharing = vec![ip("10.80.0.1")];

        let maps = maps(&Cluster { sharing, ..cluster(&[("192.0.2.9", "10.70.0.5")]) });

        assert_eq!(maps.source(ip("10.80.0.1")), Source::Shared);
        assert_eq!(maps.source(ip("172.18.0.3")), Source::Known);
        assert_eq!(maps.source(ip("192.0.2.9")), Source::Mapped(ip("10.70.0.5")));
        assert_eq!(maps.destination(ip("10.70.0.0")), Destination::Shared);
    }

    #[test]
    fn conflicting_host_maps_are_rejected_one_by_one() {
        let maps = [
            ("192.0.2.9", "10.70.0.5"),
            ("192.0.2.9", "10.70.0.6"),
            ("192.0.2.8", "10.70.0.5"),
            ("10.70.0.5", "10.70.0.7"),
            ("192.0.2.1", "10.70.0.0"),
            ("192.0.2.2", "10.70.0.2"),
        ];
        let mut conflicts = Vec::new();

        let maps = ClusterMaps::build(&cluster(&maps), &mut conflicts);

        let texts: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert!(texts[0].contains("192.0.2.9 as 10.70.0.6"), "{}", texts[0]);
        assert!(texts[1].contains("192.0.2.8 as 10.70.0.5"), "{}", texts[1]);
        assert!(texts[2].contains("translated twice"), "{}", texts[2]);
        assert!(texts[3].contains("masquerade"), "{}", texts[3]);
        assert!(texts.iter().take(3).all(|text| text.contains("192.0.2.9 as 10.70.0.5")));
        assert_eq!(maps.source(ip("192.0.2.2")), Source::Mapped(ip("10.70.0.2")));
    }

    #[test]
    fn host_maps_need_two_addresses_of_one_version() {
        let error = |internal: &str, external: &str| {
            HostMap::new(ip(internal), ip(external)).unwrap_err().to_string()
        };

        assert!(error("192.0.2.9", "fd00::1").contains("not of the same IP version"));
        assert!(error("192.0.2.9", "192.0.2.9").contains("mapped to itself"));
    }

    fn maps(cluster: &Cluster) -> ClusterMaps {
        let mut conflicts = Vec::new();
        let maps = ClusterMaps::build(cluster, &mut conflicts);
        assert_eq!(conflicts, []);

        maps
    }

    fn cluster(host_maps: &[(&str, &str)]) -> Cluster {
        Cluster {
            prefixes: ["10.244.0.0/16", "10.70.0.0/16"].map(|p| p.parse().unwrap()).into(),
            host_maps: host_maps
                .iter()
                .map(|(internal, external)| HostMap::new(ip(internal), ip(external)).unwrap())
                .collect(),
            masquerade: vec![ip("10.70.0.0")],
            sharing: Vec::new(),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
