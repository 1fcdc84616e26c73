//! Selects the rules that are in force.
//!
//! Of conflicting rules the first one wins, so rules have to be tried in their order, which is slow for
//! many. But only rules that overlap another peer's, or repeat a prefix, can conflict. Two sorts find
//! these; all others are accepted at once.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Conflict, PeerId};
use crate::{Cluster, Prefix, Rule};

/// The rules without conflicts.
pub(super) struct Accepted {
    /// In ascending order of their local prefixes.
    pub(super) by_local: Vec<(PeerId, Rule)>,
    /// In ascending order of their peers, then of their remote prefixes.
    pub(super) by_remote: Vec<(PeerId, Rule)>,
}

/// Checks `rules` against `cluster` and one another.
pub(super) fn accept(
    cluster: &Cluster,
    mut rules: Vec<(PeerId, Rule)>,
    conflicts: &mut Vec<Conflict>,
) -> Accepted {
    let own = cluster.all_prefixes();
    rules.retain(|(peer, rule)| match own.overlapping(rule.local()).next() {
        Some((own, ())) => {
            conflicts.push(Conflict::Own { own, rejected: (*peer, *rule) });
            false
        }
        None => true,
    });
    let by_local = sorted(&rules, |(peer, rule)| (0, rule.local(), peer.0));
    let by_remote = sorted(&rules, |(peer, rule)| (peer.0, rule.remote(), 0));

    let mut verdicts = vec![Verdict::Accepted; rules.len()];
    mark_suspects(&by_local, &by_remote, &mut verdicts);
    if verdicts.contains(&Verdict::Suspect) {
        let mut so_far = AcceptedSoFar::default();
        for ((peer, rule), verdict) in rules.iter().zip(&mut verdicts) {
            if *verdict == Verdict::Accepted {
                continue;
            }
            *verdict = match so_far.conflict(*peer, *rule) {
                Some(conflict) => {
                    conflicts.push(conflict);
                    Verdict::Rejected
                }
                None => {
                    so_far.insert(*peer, *rule);
                    Verdict::Accepted
                }
            };
        }
    }

    let in_order = |order: &[Key]| {
        let places = order.iter().map(|key| key.place);
        let accepted = places.filter(|place| verdicts.get(*place) == Some(&Verdict::Accepted));
        accepted.filter_map(|place| rules.get(place).copied()).collect()
    };
    Accepted { by_local: in_order(&by_local), by_remote: in_order(&by_remote) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    /// It may conflict with another rule.
    Suspect,
    Rejected,
}

/// The sort key of a rule. Numbers compare faster than addresses, and there are many comparisons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    realm: u32,
    is_ipv6: bool,
    network: u128,
    len: u8,
    peer: u32,
    /// In the list of rules.
    place: usize,
}

impl Key {
    /// Whether the prefix of `other` lies inside this one.
    fn covers(&self, other: &Self) -> bool {
        let width = if self.is_ipv6 { 128 } else { 32 };
        let host_bits = width - u32::from(self.len);
        let differs = (self.network ^ other.network).checked_shr(host_bits).unwrap_or(0);

        self.is_ipv6 == other.is_ipv6 && self.len <= other.len && differs == 0
    }

    fn is_same_prefix(&self, other: &Self) -> bool {
        (self.realm, self.is_ipv6, self.network, self.len)
            == (other.realm, other.is_ipv6, other.network, other.len)
    }
}

/// `parts` returns realm, prefix and peer of a rule.
fn sorted(
    rules: &[(PeerId, Rule)],
    parts: impl Fn(&(PeerId, Rule)) -> (u32, Prefix, u32),
) -> Vec<Key> {
    let mut keys: Vec<Key> = (0..)
        .zip(rules)
        .map(|(place, rule)| {
            let (realm, prefix, peer) = parts(rule);
            let network = match prefix.network() {
                IpAddr::V4(network) => u128::from(network.to_bits()),
                IpAddr::V6(network) => network.to_bits(),
            };
            let (is_ipv6, len) = (!prefix.is_ipv4(), prefix.len_bits());
            Key { realm, is_ipv6, network, len, peer, place }
        })
        .collect();
    keys.sort_unstable();

    keys
}

/// Marks every rule that may conflict with another one.
///
/// All rules that conflict with a suspect are suspects too, so only suspects have to be compared.
fn mark_suspects(by_local: &[Key], by_remote: &[Key], verdicts: &mut [Verdict]) {
    let mut mark = |group: &[Key]| {
        for key in group {
            if let Some(verdict) = verdicts.get_mut(key.place) {
                *verdict = Verdict::Suspect;
            }
        }
    };

    for group in by_remote.chunk_by(Key::is_same_prefix).filter(|group| group.len() > 1) {
        mark(group);
    }

    let mut rest = by_local;
    while let Some(root) = rest.first() {
        // An outer prefix sorts before all prefixes inside it, so nested prefixes are adjacent.
        let (nest, others) = rest.split_at(rest.iter().take_while(|key| root.covers(key)).count());
        let is_shared = nest.iter().any(|key| key.peer != root.peer);
        let mut pairs = nest.iter().zip(nest.iter().skip(1));
        if is_shared || pairs.any(|(one, other)| one.is_same_prefix(other)) {
            mark(nest);
        }
        rest = others;
    }
}

/// The rules accepted so far, ordered so that a conflict is found without a scan.
#[derive(Default)]
struct AcceptedSoFar {
    by_local: BTreeMap<Prefix, (PeerId, Rule)>,
    by_remote: BTreeMap<(PeerId, Prefix), Rule>,
}

impl AcceptedSoFar {
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
}
