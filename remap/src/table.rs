//! The immutable table: all rules of all peers, in both directions.
//!
//! Outbound, a destination names its peer: `local` prefixes are unique in a gateway. Inbound, the
//! peer is known before the address is looked at, and each peer is an address realm of its own:
//! `remote` prefixes of different peers may be equal.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::lpm::Lpm;
use crate::{Prefix, Rule};

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
    /// Builds a table. A rule that contradicts one listed before it is rejected alone; the rest is
    /// used.
    ///
    /// Rules contradict each other if they share a `local` prefix, if `local` prefixes of different
    /// peers overlap, or if one peer has the same `remote` prefix twice. Within a peer prefixes may
    /// nest: the longest one that covers an address translates it.
    #[must_use]
    pub fn build(
        generation: u64,
        rules: impl IntoIterator<Item = (PeerId, Rule)>,
    ) -> (Self, Vec<Conflict>) {
        let mut accepted = Accepted::default();
        let mut conflicts = Vec::new();
        for (peer, rule) in rules {
            match accepted.conflict(peer, rule) {
                Some(conflict) => conflicts.push(conflict),
                None => accepted.insert(peer, rule),
            }
        }

        (accepted.into_table(generation), conflicts)
    }

    /// Which publication this table is.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Outbound: the peer and the real address behind one of our names. `None` if no rule covers it.
    #[must_use]
    #[inline]
    pub fn outbound(&self, destination: IpAddr) -> Option<Outbound> {
        let (peer, rule) = self.outbound.get(destination)?;

        Some(Outbound { peer: *peer, destination: rule.to_remote(destination)? })
    }

    /// Inbound: our name for a real address of `peer`. `None` if no rule of the peer covers it.
    #[must_use]
    #[inline]
    pub fn inbound(&self, peer: PeerId, source: IpAddr) -> Option<IpAddr> {
        self.realm(peer)?.get(source)?.to_local(source)
    }

    /// Whether `peer` is a realm of its own.
    #[must_use]
    pub fn has_rules(&self, peer: PeerId) -> bool {
        self.realm(peer).is_some_and(|realm| !realm.is_empty())
    }

    /// The rules of `peer`, in ascending order of their `remote` prefixes.
    pub fn rules(&self, peer: PeerId) -> impl Iterator<Item = Rule> {
        self.realm(peer).into_iter().flat_map(Lpm::iter).map(|(_, rule)| *rule)
    }

    /// Our names for the prefixes of `peer`: what has to be routed to the gateway.
    pub fn local_prefixes(&self, peer: PeerId) -> impl Iterator<Item = Prefix> {
        self.rules(peer).map(|rule| rule.local())
    }

    fn realm(&self, peer: PeerId) -> Option<&Lpm<Rule>> {
        self.realms.get(usize::try_from(peer.0).ok()?)
    }
}

/// Two rules that cannot both be in force. The first one listed is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Conflict {
    /// Both claim one of our names, so a packet to it would have two destinations.
    #[error(
        "local {} overlaps local {} of another rule: give each remapped prefix a local prefix of its own",
        rejected.1.local(), kept.1.local()
    )]
    Local { kept: (PeerId, Rule), rejected: (PeerId, Rule) },
    /// One peer's prefix has two of our names, so a packet from it would have two sources.
    #[error(
        "remote {} is remapped twice, to {} and to {}: keep one of the two",
        rejected.1.remote(), kept.1.local(), rejected.1.local()
    )]
    Remote { kept: (PeerId, Rule), rejected: (PeerId, Rule) },
}

impl Conflict {
    /// The peer and the rule that are not in force.
    #[must_use]
    pub const fn rejected(&self) -> (PeerId, Rule) {
        match self {
            Self::Local { rejected, .. } | Self::Remote { rejected, .. } => *rejected,
        }
    }

    /// The peer and the rule that stand in the way.
    #[must_use]
    pub const fn kept(&self) -> (PeerId, Rule) {
        match self {
            Self::Local { kept, .. } | Self::Remote { kept, .. } => *kept,
        }
    }
}

/// The rules accepted so far, ordered so that a conflict is found without a scan.
#[derive(Default)]
struct Accepted {
    by_local: BTreeMap<Prefix, (PeerId, Rule)>,
    by_remote: BTreeMap<(PeerId, Prefix), Rule>,
}

impl Accepted {
    fn insert(&mut self, peer: PeerId, rule: Rule) {
        self.by_local.insert(rule.local(), (peer, rule));
        self.by_remote.insert((peer, rule.remote()), rule);
    }

    fn conflict(&self, peer: PeerId, rule: Rule) -> Option<Conflict> {
        let rejected = (peer, rule);
        if let Some(other) = self.by_remote.get(&(peer, rule.remote())) {
            return Some(Conflict::Remote { kept: (peer, *other), rejected });
        }

        self.overlapping(rule.local())
            .find(|(other, kept)| *other != peer || kept.local() == rule.local())
            .map(|kept| Conflict::Local { kept, rejected })
    }

    /// Accepted rules whose local prefix contains `prefix` or lies inside it.
    fn overlapping(&self, prefix: Prefix) -> impl Iterator<Item = (PeerId, Rule)> {
        let outer = (0..=prefix.len_bits())
            .filter_map(move |len| Some(*self.by_local.get(&prefix.shortened(len)?)?));
        let inner = self
            .by_local
            .range(prefix..)
            .take_while(move |(other, _)| prefix.covers(**other))
            .map(|(_, rule)| *rule);

        outer.chain(inner)
    }

    fn into_table(self, generation: u64) -> Table {
        let mut realms: Vec<Vec<(Prefix, Rule)>> = Vec::new();
        for ((peer, remote), rule) in self.by_remote {
            // The keys come in ascending order, so the last realm is the current one or missing.
            let len = usize::try_from(peer.0).unwrap_or(usize::MAX).saturating_add(1);
            realms.resize_with(len, Vec::new);
            if let Some(realm) = realms.last_mut() {
                realm.push((remote, rule));
            }
        }

        // The maps these come from have unique keys.
        Table {
            generation,
            outbound: Lpm::new(self.by_local).unwrap_or_default(),
            realms: realms.into_iter().map(|realm| Lpm::new(realm).unwrap_or_default()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_another_meaning_in_each_direction() {
        let (table, _) = Table::build(1, [rule(0, "10.244.0.0/16", "10.71.0.0/16")]);

        let outbound = table.outbound(ip("10.71.2.7")).unwrap();
        assert_eq!(outbound, Outbound { peer: PeerId(0), destination: ip("10.244.2.7") });
        assert_eq!(table.inbound(PeerId(0), ip("10.244.1.5")), Some(ip("10.71.1.5")));
        assert_eq!(table.outbound(ip("10.244.2.7")), None);
        assert_eq!(table.inbound(PeerId(0), ip("10.71.1.5")), None);
    }

    #[test]
    fn each_peer_is_a_realm_of_its_own() {
        let (table, conflicts) = Table::build(
            1,
            [rule(0, "10.244.0.0/16", "10.71.0.0/16"), rule(1, "10.244.0.0/16", "10.72.0.0/16")],
        );

        assert_eq!(conflicts, []);
        assert_eq!(table.inbound(PeerId(0), ip("10.244.1.5")), Some(ip("10.71.1.5")));
        assert_eq!(table.inbound(PeerId(1), ip("10.244.1.5")), Some(ip("10.72.1.5")));
        assert_eq!(table.outbound(ip("10.72.1.5")).unwrap().peer, PeerId(1));
        assert_eq!(table.inbound(PeerId(2), ip("10.244.1.5")), None);
    }

    #[test]
    fn two_prefixes_may_swap_because_nothing_is_translated_twice() {
        let (table, conflicts) = Table::build(
            1,
            [rule(0, "10.1.0.0/16", "10.2.0.0/16"), rule(0, "10.2.0.0/16", "10.1.0.0/16")],
        );

        assert_eq!(conflicts, []);
        assert_eq!(table.outbound(ip("10.2.0.9")).unwrap().destination, ip("10.1.0.9"));
        assert_eq!(table.outbound(ip("10.1.0.9")).unwrap().destination, ip("10.2.0.9"));
    }

    #[test]
    fn a_host_map_inside_a_prefix_of_the_same_peer_wins() {
        let (table, conflicts) = Table::build(
            1,
            [rule(0, "10.70.0.0/16", "10.68.0.0/16"), rule(0, "192.0.2.9/32", "10.68.0.3/32")],
        );

        assert_eq!(conflicts, []);
        assert_eq!(table.outbound(ip("10.68.0.3")).unwrap().destination, ip("192.0.2.9"));
        assert_eq!(table.outbound(ip("10.68.0.4")).unwrap().destination, ip("10.70.0.4"));
    }

    #[test]
    fn a_rule_that_contradicts_an_earlier_one_is_rejected_alone() {
        let first = rule(0, "10.244.0.0/16", "10.71.0.0/16");
        let inside = rule(1, "10.9.4.0/24", "10.71.4.0/24");
        let around = rule(1, "100.0.0.0/8", "10.0.0.0/8");
        let twice = rule(0, "10.244.0.0/16", "10.73.0.0/16");
        let good = rule(1, "10.244.0.0/16", "10.72.0.0/16");

        let (table, conflicts) = Table::build(1, [first, inside, around, twice, good]);

        assert_eq!(
            conflicts,
            [
                Conflict::Local { kept: first, rejected: inside },
                Conflict::Local { kept: first, rejected: around },
                Conflict::Remote { kept: first, rejected: twice },
            ]
        );
        assert_eq!(table.outbound(ip("10.72.0.1")).unwrap().peer, PeerId(1));
    }

    #[test]
    fn the_local_prefixes_of_a_peer_are_what_must_be_routed() {
        let (table, _) = Table::build(
            7,
            [rule(1, "10.244.0.0/16", "10.71.0.0/16"), rule(1, "10.70.0.0/16", "10.68.0.0/16")],
        );

        let prefixes: Vec<_> = table.local_prefixes(PeerId(1)).map(|p| p.to_string()).collect();
        assert_eq!(prefixes, ["10.68.0.0/16", "10.71.0.0/16"]);
        assert_eq!(table.generation(), 7);
        assert!(!table.has_rules(PeerId(0)));
    }

    fn rule(peer: u32, remote: &str, local: &str) -> (PeerId, Rule) {
        let prefix = |text: &str| text.parse().unwrap();

        (PeerId(peer), Rule::new(prefix(remote), prefix(local)).unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
