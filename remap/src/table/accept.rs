//! Which rules can be in force together?
//!
//! The first one listed wins, so rules have to be tried in their order. That is slow for many; but
//! only rules that overlap another peer's, or repeat something, can lose at all. Two sorts find
//! those, and everybody else is accepted at once.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Conflict, PeerId};
use crate::{Cluster, Prefix, Rule};

/// The rules without those that contradict something.
pub(super) struct Accepted {
    /// In ascending order of their local prefixes.
    pub(super) by_local: Vec<(PeerId, Rule)>,
    /// In ascending order of their peers, then of their remote prefixes.
    pub(super) by_remote: Vec<(PeerId, Rule)>,
}

/// Judges `rules` against `cluster` and one another.
pub(super) fn accept(
    cluster: &Cluster,
    mut rules: Vec<(PeerId, Rule)>,
    conflicts: &mut Vec<Conflict>,
) -> Accepted {
    let own = cluster.names();
    rules.retain(|(peer, rule)| match own.overlapping(rule.local()).next() {
        Some((own, ())) => {
            conflicts.push(Conflict::Own { own, rejected: (*peer, *rule) });
            false
        }
        None => true,
    });
    let by_local = sorted(&rules, |(_, rule)| (0, rule.local()));
    let by_remote = sorted(&rules, |(peer, rule)| (peer.0, rule.remote()));

    let mut verdicts = vec![Verdict::Accepted; rules.len()];
    doubt(&rules, &by_local, &by_remote, &mut verdicts);
    if verdicts.contains(&Verdict::Doubtful) {
        let mut tried = Tried::default();
        for ((peer, rule), verdict) in rules.iter().zip(&mut verdicts) {
            if *verdict == Verdict::Accepted {
                continue;
            }
            *verdict = match tried.conflict(*peer, *rule) {
                Some(conflict) => {
                    conflicts.push(conflict);
                    Verdict::Rejected
                }
                None => {
                    tried.insert(*peer, *rule);
                    Verdict::Accepted
                }
            };
        }
    }

    let in_order = |order: &[u32]| {
        let accepted = order
            .iter()
            .map(|n| index(*n))
            .filter(|n| verdicts.get(*n) == Some(&Verdict::Accepted));
        accepted.filter_map(|n| rules.get(n).copied()).collect()
    };
    Accepted { by_local: in_order(&by_local), by_remote: in_order(&by_remote) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    /// It may contradict another one.
    Doubtful,
    Rejected,
}

/// The places of the rules in ascending order of `key`, and of the list where keys are equal.
fn sorted(rules: &[(PeerId, Rule)], key: impl Fn(&(PeerId, Rule)) -> (u32, Prefix)) -> Vec<u32> {
    // Numbers compare faster than addresses, and there are many comparisons.
    let mut keys: Vec<((u32, bool, u128, u8), u32)> = (0..)
        .zip(rules)
        .map(|(n, rule)| {
            let (first, prefix) = key(rule);
            let bits = match prefix.network() {
                IpAddr::V4(network) => u128::from(network.to_bits()),
                IpAddr::V6(network) => network.to_bits(),
            };
            ((first, !prefix.is_ipv4(), bits, prefix.len_bits()), n)
        })
        .collect();
    keys.sort_unstable();

    keys.into_iter().map(|(_, n)| n).collect()
}

/// Marks every rule that may contradict another one.
///
/// Whatever contradicts a doubtful rule is doubtful too, so those can be judged among themselves.
fn doubt(rules: &[(PeerId, Rule)], by_local: &[u32], by_remote: &[u32], verdicts: &mut [Verdict]) {
    let rule = |n: &u32| rules.get(index(*n));
    let mut mark = |group: &[u32]| {
        for n in group {
            if let Some(verdict) = verdicts.get_mut(index(*n)) {
                *verdict = Verdict::Doubtful;
            }
        }
    };

    let remote = |n: &u32| rule(n).map(|(peer, rule)| (*peer, rule.remote()));
    for group in by_remote.chunk_by(|a, b| remote(a) == remote(b)).filter(|g| g.len() > 1) {
        mark(group);
    }

    let local = |n: &u32| rule(n).map(|(_, rule)| rule.local());
    let peer = |n: &u32| rule(n).map(|(peer, _)| *peer);
    let mut rest = by_local;
    while let Some((root, first)) = rest.first().and_then(|n| Some((local(n)?, peer(n)))) {
        // An outer prefix sorts before all that lies inside it, so a nest stands together.
        let is_inside = |n: &&u32| local(n).is_some_and(|prefix| root.covers(prefix));
        let (nest, others) = rest.split_at(rest.iter().take_while(is_inside).count());
        let is_shared = nest.iter().any(|n| peer(n) != first);
        let has_repeat = nest.iter().zip(nest.iter().skip(1)).any(|(a, b)| local(a) == local(b));
        if is_shared || has_repeat {
            mark(nest);
        }
        rest = others;
    }
}

fn index(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The rules accepted so far, ordered so that a conflict is found without a scan.
#[derive(Default)]
struct Tried {
    by_local: BTreeMap<Prefix, (PeerId, Rule)>,
    by_remote: BTreeMap<(PeerId, Prefix), Rule>,
}

impl Tried {
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
