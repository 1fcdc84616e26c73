//! Which rules can be in force together?
//!
//! The first one listed wins, so rules have to be tried in their order. That is slow for many; but
//! only rules that overlap another peer's, or repeat something, can lose at all. Two sorts find
//! those, and everybody else is accepted at once.

use std::collections::BTreeMap;

use super::{Conflict, PeerId};
use crate::{Cluster, Prefix, Rule};

/// The rules without those that contradict `cluster` or one another.
pub(super) fn accept(
    cluster: &Cluster,
    mut rules: Vec<(PeerId, Rule)>,
    conflicts: &mut Vec<Conflict>,
) -> Vec<(PeerId, Rule)> {
    let own = cluster.names();
    rules.retain(|(peer, rule)| match own.overlapping(rule.local()).next() {
        Some((own, ())) => {
            conflicts.push(Conflict::Own { own, rejected: (*peer, *rule) });
            false
        }
        None => true,
    });

    let doubtful = doubtful(&rules);
    if !doubtful.iter().any(|is_doubtful| *is_doubtful) {
        return rules;
    }
    let mut tried = Tried::default();
    let mut is_doubtful = doubtful.iter();
    rules.retain(|(peer, rule)| {
        if !is_doubtful.next().copied().unwrap_or(false) {
            return true;
        }
        let conflict = tried.conflict(*peer, *rule);
        match conflict {
            Some(conflict) => conflicts.push(conflict),
            None => tried.insert(*peer, *rule),
        }
        conflict.is_none()
    });

    rules
}

/// For each rule, whether it may contradict another one.
///
/// Whatever contradicts a doubtful rule is doubtful too, so those can be judged among themselves.
fn doubtful(rules: &[(PeerId, Rule)]) -> Vec<bool> {
    let mut doubtful = vec![false; rules.len()];
    let mut mark = |index: usize| {
        if let Some(mark) = doubtful.get_mut(index) {
            *mark = true;
        }
    };

    let mut by_remote: Vec<(PeerId, Prefix, usize)> =
        rules.iter().zip(0..).map(|((peer, rule), n)| (*peer, rule.remote(), n)).collect();
    by_remote.sort_unstable();
    for group in by_remote.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).filter(|g| g.len() > 1) {
        group.iter().for_each(|(_, _, n)| mark(*n));
    }

    let mut by_local: Vec<(Prefix, PeerId, usize)> =
        rules.iter().zip(0..).map(|((peer, rule), n)| (rule.local(), *peer, n)).collect();
    by_local.sort_unstable();
    let mut rest = by_local.as_slice();
    while let Some((root, peer, _)) = rest.first() {
        // An outer prefix sorts before all that lies inside it, so a nest stands together.
        let len = rest.iter().take_while(|(prefix, ..)| root.covers(*prefix)).count();
        let (nest, others) = rest.split_at(len);
        let is_shared = nest.iter().any(|(_, other, _)| other != peer);
        let has_repeat = nest.iter().zip(nest.iter().skip(1)).any(|(a, b)| a.0 == b.0);
        if is_shared || has_repeat {
            nest.iter().for_each(|(_, _, n)| mark(*n));
        }
        rest = others;
    }

    doubtful
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
