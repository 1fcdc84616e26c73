//! The immutable table: all rules of all peers, in both directions.
//!
//! Outbound, the destination determines the peer: `local` prefixes are unique in a gateway. Inbound, the
//! peer is known before the lookup, and each peer is an address realm:
//! `remote` prefixes of different peers may be equal.
//!
//! The addresses of this cluster are the same for every peer: see [`Cluster`].

mod accept;
mod conflict;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::ClusterMaps;
use crate::lpm::Lpm;
use crate::masquerade::Pool;
use accept::Accepted;

use crate::policy::Policy;
use crate::{Cluster, Destination, Prefix, Rule, Source};

pub use conflict::Conflict;

/// The index of a peer in one generation, from 0 without gaps: tables reserve room for every id up to the
/// highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// All rules in force, with their generation. A clone shares the rules.
///
/// The default is the empty table of generation 0.
#[derive(Clone, Debug, Default)]
pub struct Table {
    generation: u64,
    maps: Arc<Maps>,
    policy: Option<Arc<Policy>>,
}

#[derive(Debug, Default)]
struct Maps {
    outbound: Lpm<(PeerId, Rule)>,
    realms: Box<[Lpm<Rule>]>,
    cluster_maps: ClusterMaps,
}

/// The peer and the real destination of a packet to a remapped address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// The peer whose rule covers the address.
    pub peer: PeerId,
    /// The real address in that peer's cluster.
    pub destination: IpAddr,
}

impl Table {
    /// Builds a table. A rule or host map that conflicts with an earlier one is rejected; the others are
    /// used.
    ///
    /// Rules conflict if they have the same `local` prefix, if `local` prefixes of different
    /// peers overlap, or if one peer has the same `remote` prefix twice. Within a peer prefixes may
    /// nest: the longest one that covers an address translates it. A rule also conflicts if
    /// its `local` prefix overlaps a prefix or external address of this cluster.
    #[must_use]
    pub fn build(
        generation: u64,
        cluster: &Cluster,
        rules: impl IntoIterator<Item = (PeerId, Rule)>,
    ) -> (Self, Vec<Conflict>) {
        let mut conflicts = Vec::new();
        let cluster_maps = ClusterMaps::build(cluster, &mut conflicts);
        let Accepted { by_local, by_remote } =
            accept::accept(cluster, rules.into_iter().collect(), &mut conflicts);

        let outbound = by_local.into_iter().map(|(peer, rule)| (rule.local(), (peer, rule)));
        let peers = by_remote.last().map_or(0, |(peer, _)| index(*peer).saturating_add(1));
        let mut realms: Vec<Vec<(Prefix, Rule)>> = vec![Vec::new(); peers];
        for (peer, rule) in by_remote {
            if let Some(realm) = realms.get_mut(index(peer)) {
                realm.push((rule.remote(), rule));
            }
        }

        // Prefixes are unique now, and in order.
        let maps = Maps {
            outbound: Lpm::new(outbound).unwrap_or_default(),
            realms: realms.into_iter().map(|realm| Lpm::new(realm).unwrap_or_default()).collect(),
            cluster_maps,
        };

        (Self { generation, maps: Arc::new(maps), policy: None }, conflicts)
    }

    /// The same rules as the table of `generation`.
    #[must_use]
    pub fn with_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// The same rules with what packets must meet besides; `None`: nothing.
    #[must_use]
    pub fn with_policy(self, policy: Option<Arc<Policy>>) -> Self {
        Self { policy, ..self }
    }

    /// What packets must meet to be forwarded, besides having a peer; `None`: nothing.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_deref()
    }

    /// The number of this table's publication.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Outbound: the peer and the real address of a remapped address. `None` if no rule covers it,
    /// or if the address has no counterpart: [`Self::outbound_rule`] distinguishes the two.
    #[must_use]
    #[inline]
    pub fn outbound(&self, destination: IpAddr) -> Option<Outbound> {
        let (peer, rule) = self.outbound_rule(destination)?;

        Some(Outbound { peer, destination: rule.to_remote(destination)? })
    }

    /// Outbound: the rule that covers a remapped address, and its peer.
    #[must_use]
    #[inline]
    pub fn outbound_rule(&self, destination: IpAddr) -> Option<(PeerId, &Rule)> {
        let (peer, rule) = self.maps.outbound.get(destination)?;

        Some((*peer, rule))
    }

    /// Inbound: the remapped address of a real address of `peer`. `None` if no rule of the peer covers it, or
    /// if the address has no counterpart: [`Self::inbound_rule`] distinguishes the two.
    #[must_use]
    #[inline]
    pub fn inbound(&self, peer: PeerId, source: IpAddr) -> Option<IpAddr> {
        self.inbound_rule(peer, source)?.to_local(source)
    }

    /// Inbound: the rule of `peer` that covers a real address of its cluster.
    #[must_use]
    #[inline]
    pub fn inbound_rule(&self, peer: PeerId, source: IpAddr) -> Option<&Rule> {
        self.realm(peer)?.get(source)
    }

    /// Outbound: the translation of `source`, an address of this cluster.
    #[must_use]
    #[inline]
    pub fn source(&self, source: IpAddr) -> Source {
        self.maps.cluster_maps.source(source)
    }

    /// Inbound: the translation of `destination`, an internal or external address of this cluster.
    #[must_use]
    #[inline]
    pub fn destination(&self, destination: IpAddr) -> Destination {
        self.maps.cluster_maps.destination(destination)
    }

    /// The external addresses that sources without one of their own share.
    #[must_use]
    pub fn masquerade(&self) -> &Pool {
        self.maps.cluster_maps.shared()
    }

    /// Whether `peer` has rules and so is an address realm.
    #[must_use]
    pub fn has_rules(&self, peer: PeerId) -> bool {
        self.realm(peer).is_some_and(|realm| !realm.is_empty())
    }

    /// The rules of `peer`, in ascending order of their `remote` prefixes.
    pub fn rules(&self, peer: PeerId) -> impl Iterator<Item = Rule> {
        self.realm(peer).into_iter().flat_map(Lpm::values).copied()
    }

    /// The remapped prefixes of `peer`, which have to be routed to the gateway.
    pub fn local_prefixes(&self, peer: PeerId) -> impl Iterator<Item = Prefix> {
        self.rules(peer).map(|rule| rule.local())
    }

    fn realm(&self, peer: PeerId) -> Option<&Lpm<Rule>> {
        self.maps.realms.get(index(peer))
    }
}

fn index(peer: PeerId) -> usize {
    usize::try_from(peer.0).unwrap_or(usize::MAX)
}
