//! The immutable table: all rules of all peers, in both directions.
//!
//! Outbound, a destination names its peer: `local` prefixes are unique in a gateway. Inbound, the
//! peer is known before the address is looked at, and each peer is an address realm of its own:
//! `remote` prefixes of different peers may be equal.
//!
//! Our own addresses are the same for every peer: see [`Cluster`].

mod accept;
mod conflict;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::cluster::ClusterMaps;
use crate::lpm::Lpm;
use crate::masquerade::Pool;
use accept::Accepted;

use crate::{Cluster, Destination, Prefix, Rule, Source};

pub use conflict::Conflict;

/// A peer's place in one generation, counted from 0 without gaps: tables have room for every id
/// below the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// All rules in force, stamped with their generation.
///
/// The default is the empty table of generation 0.
#[derive(Clone, Debug, Default)]
pub struct Table {
    generation: u64,
    outbound: Lpm<(PeerId, Rule)>,
    realms: Box<[Lpm<Rule>]>,
    cluster_maps: ClusterMaps,
}

/// Where a packet to a remapped address goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// The peer whose rule covers the address.
    pub peer: PeerId,
    /// The address as that peer's cluster calls it.
    pub destination: IpAddr,
}

impl Table {
    /// Builds a table. What contradicts something listed before it is rejected alone; the rest is
    /// used.
    ///
    /// Rules contradict each other if they share a `local` prefix, if `local` prefixes of different
    /// peers overlap, or if one peer has the same `remote` prefix twice. Within a peer prefixes may
    /// nest: the longest one that covers an address translates it. A rule contradicts the cluster if
    /// its `local` prefix overlaps a name that is ours.
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

        // No prefix is there twice any more, and all of them come in order.
        let table = Self {
            generation,
            outbound: Lpm::new(outbound).unwrap_or_default(),
            realms: realms.into_iter().map(|realm| Lpm::new(realm).unwrap_or_default()).collect(),
            cluster_maps,
        };

        (table, conflicts)
    }

    /// Which publication this table is.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Outbound: the peer and the real address behind one of our names. `None` if no rule covers it,
    /// or if the address has no counterpart: [`Self::outbound_rule`] tells the two apart.
    #[must_use]
    #[inline]
    pub fn outbound(&self, destination: IpAddr) -> Option<Outbound> {
        let (peer, rule) = self.outbound_rule(destination)?;

        Some(Outbound { peer, destination: rule.to_remote(destination)? })
    }

    /// Outbound: the rule that covers one of our names, and whose it is.
    #[must_use]
    #[inline]
    pub fn outbound_rule(&self, destination: IpAddr) -> Option<(PeerId, &Rule)> {
        let (peer, rule) = self.outbound.get(destination)?;

        Some((*peer, rule))
    }

    /// Inbound: our name for a real address of `peer`. `None` if no rule of the peer covers it, or if
    /// the address has no counterpart: [`Self::inbound_rule`] tells the two apart.
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

    /// Outbound: what a packet from `source`, an address of ours, leaves with.
    #[must_use]
    #[inline]
    pub fn source(&self, source: IpAddr) -> Source {
        self.cluster_maps.source(source)
    }

    /// Inbound: what a packet for `destination`, an address under which remotes know us, becomes.
    #[must_use]
    #[inline]
    pub fn destination(&self, destination: IpAddr) -> Destination {
        self.cluster_maps.destination(destination)
    }

    /// The external addresses that sources share which have none of their own.
    #[must_use]
    pub const fn masquerade(&self) -> &Pool {
        self.cluster_maps.shared()
    }

    /// Whether `peer` is a realm of its own.
    #[must_use]
    pub fn has_rules(&self, peer: PeerId) -> bool {
        self.realm(peer).is_some_and(|realm| !realm.is_empty())
    }

    /// The rules of `peer`, in ascending order of their `remote` prefixes.
    pub fn rules(&self, peer: PeerId) -> impl Iterator<Item = Rule> {
        self.realm(peer).into_iter().flat_map(Lpm::values).copied()
    }

    /// Our names for the prefixes of `peer`: what has to be routed to the gateway.
    pub fn local_prefixes(&self, peer: PeerId) -> impl Iterator<Item = Prefix> {
        self.rules(peer).map(|rule| rule.local())
    }

    fn realm(&self, peer: PeerId) -> Option<&Lpm<Rule>> {
        self.realms.get(index(peer))
    }
}

fn index(peer: PeerId) -> usize {
    usize::try_from(peer.0).unwrap_or(usize::MAX)
}
