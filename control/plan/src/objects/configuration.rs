//! Validates a `Configuration`, once for all readers: gateways, the operator, the agents of nodes and the commands. Pure.

use std::collections::{BTreeMap, BTreeSet};

use remap::{Prefix, Rule, special};
use strait_api::Configuration;
use strait_api::configuration::Cluster;

use super::refusal::Problem;

/// The lists of prefixes, as fields and labels name them, in the order of allocation: the one that a peering cannot do
/// without first.
pub const LISTS: [&str; 2] = ["pod", "external"];

/// The content of one `Configuration` and its problems, regardless of others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedConfiguration {
    /// The prefixes of the remote cluster, by [`LISTS`] and place; `None` where there is none, or it is refused.
    pub remote: [Vec<Option<Prefix>>; 2],
    /// Each of them once, if it has a local prefix or may yet have one.
    pub(crate) pairs: Vec<Pair>,
    /// All local prefixes that can be read, also those of prefixes that are refused.
    pub names: BTreeSet<Prefix>,
    /// The prefixes of this cluster, by [`LISTS`], as far as they can be read.
    pub own: [Vec<Prefix>; 2],
    /// What is refused.
    pub problems: Vec<Problem>,
}

/// A prefix of the remote cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// One of [`LISTS`].
    pub(crate) field: &'static str,
    /// The place in that list, from 0.
    pub(crate) place: usize,
    pub(crate) remote: Prefix,
    pub(crate) name: Name,
}

/// The local prefix for a prefix of the remote cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// None has been chosen yet: the prefix is withheld.
    None,
    /// The prefix itself.
    Same,
    /// Another prefix of its length.
    Remapped(Rule),
}

/// What was read so far.
#[derive(Debug, Default)]
struct Seen {
    /// Field and place of each prefix of the remote cluster.
    remotes: BTreeMap<Prefix, (&'static str, usize)>,
    /// Each of them with its local prefix.
    pairs: BTreeSet<(Prefix, Option<Prefix>)>,
}

/// Validates `object`.
pub fn parse(object: &Configuration) -> ParsedConfiguration {
    let (own, of_own) = own(object);
    let mut parsed = ParsedConfiguration { own, ..ParsedConfiguration::default() };
    let status = object.status.as_ref().and_then(|status| status.remote.as_ref());
    let remotes = lists(object.spec.remote.as_ref());
    let mut places: [Vec<_>; 2] = Default::default();
    let mut seen = Seen::default();
    let all = LISTS.into_iter().zip(remotes).zip(lists(status)).zip(&mut places);
    for (((field, remotes), locals), places) in all {
        for (place, remote) in remotes.iter().enumerate() {
            let local = locals.get(place).map(String::as_str).unwrap_or_default();
            let remote = parsed.remote_prefix(field, place, remote, &mut seen);
            places.push(remote);
            parsed.name(field, place, remote, local, &mut seen);
        }
    }
    parsed.remote = places;
    if remotes.into_iter().flatten().all(String::is_empty) {
        parsed.problems.push(Problem::NoRemote);
    }
    parsed.problems.extend(of_own);

    parsed
}

impl ParsedConfiguration {
    /// The prefix of the remote cluster at one place, unless it is refused.
    fn remote_prefix(
        &mut self,
        field: &'static str,
        place: usize,
        text: &str,
        seen: &mut Seen,
    ) -> Option<Prefix> {
        if text.is_empty() {
            return None;
        }
        let prefix: Prefix = match text.parse() {
            Ok(prefix) => prefix,
            Err(cause) => {
                self.problems.push(Problem::Remote { field, place, cause });
                return None;
            }
        };
        if prefix.len_bits() == 0 {
            self.problems.push(Problem::Everything { field, place, prefix });
            return None;
        }
        if let Some(block) = special::block(prefix.to_net(), true) {
            self.problems.push(Problem::NeverRouted { field, place, prefix, block });
            return None;
        }
        // A prefix that is in one list twice has one local prefix.
        let (first, at) = *seen.remotes.entry(prefix).or_insert((field, place));
        if first != field {
            self.problems.push(Problem::Twice { field, place, prefix, first, at });
            return None;
        }

        Some(prefix)
    }

    /// The local prefix at one place of the status, for the prefix at that place of the spec.
    fn name(
        &mut self,
        field: &'static str,
        place: usize,
        remote: Option<Prefix>,
        local: &str,
        seen: &mut Seen,
    ) {
        let name = if local.is_empty() {
            Ok((None, Name::None))
        } else {
            local.parse().map_err(|cause| Problem::Local { field, place, cause }).and_then(
                |local| Ok((Some(local), self.readable_name(field, place, remote, local)?)),
            )
        };
        match (remote, name) {
            (Some(remote), Ok((local, name))) => {
                if seen.pairs.insert((remote, local)) {
                    self.pairs.push(Pair { field, place, remote, name });
                }
            }
            (None, Ok(_)) => {}
            (_, Err(problem)) => self.problems.push(problem),
        }
    }

    fn readable_name(
        &mut self,
        field: &'static str,
        place: usize,
        remote: Option<Prefix>,
        name: Prefix,
    ) -> Result<Name, Problem> {
        self.names.insert(name);
        if let Some(block) = special::block(name.to_net(), true) {
            return Err(Problem::NameNeverRouted { field, place, name, block });
        }
        if let Some(own) = self.own.iter().flatten().find(|own| own.overlaps(name)) {
            return Err(Problem::NameIsOwn { field, place, name, own: *own });
        }

        match remote.filter(|remote| *remote != name) {
            None => Ok(Name::Same),
            Some(remote) => Rule::new(remote, name)
                .map(Name::Remapped)
                .map_err(|cause| Problem::Rule { field, place, cause }),
        }
    }
}

/// The prefixes of this cluster, and the problems of reading them.
fn own(object: &Configuration) -> ([Vec<Prefix>; 2], Vec<Problem>) {
    let mut own: [Vec<Prefix>; 2] = Default::default();
    let mut problems = Vec::new();
    let lists = LISTS.into_iter().zip(lists(object.spec.local.as_ref()));
    for ((field, texts), own) in lists.zip(&mut own) {
        for (place, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            match text.parse() {
                Ok(prefix) => own.push(prefix),
                Err(cause) => problems.push(Problem::Own { field, place, cause }),
            }
        }
    }

    (own, problems)
}

/// The lists of a cluster, in the order of [`LISTS`].
pub fn lists(cluster: Option<&Cluster>) -> [&[String]; 2] {
    let cidr = cluster.and_then(|cluster| cluster.cidr.as_ref());

    cidr.map(|cidr| [&cidr.pod[..], &cidr.external]).unwrap_or_default()
}
