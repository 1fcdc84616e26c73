//! What a `Configuration` asks for: the prefixes of a remote cluster and their names here.

use remap::{Prefix, Rule};

use super::refusal::{BadPrefix, Problem, Refusal};
use crate::api::Configuration;
use crate::api::configuration::ClusterCidr;
use crate::plan::WantedPeer;

/// A prefix of the remote cluster and its name here, which is empty while nobody has chosen one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    /// `pod` or `external`.
    pub(crate) field: &'static str,
    /// In the list of that field, from 0.
    pub(crate) place: usize,
    pub(crate) remote: &'a str,
    pub(crate) local: &'a str,
}

/// Adds what a `Configuration` allows and remaps.
pub(super) fn read(object: &Configuration, wanted: &mut WantedPeer, refused: &mut Vec<Refusal>) {
    if remote(object).is_none() {
        refused.push(Refusal::of(object, Problem::NoRemote));
    }
    for pair in pairs(object) {
        if let Err(cause) = read_pair(pair, wanted) {
            refused.push(Refusal::of(object, cause.at(pair.field, pair.place)));
        }
    }
}

/// What is withheld because it has no name here yet.
pub(crate) fn unnamed(object: &Configuration) -> impl Iterator<Item = Pair<'_>> {
    pairs(object).filter(|pair| pair.local.is_empty())
}

/// Adds one prefix of the remote cluster under its name here; withholds it if it has none.
fn read_pair(pair: Pair<'_>, wanted: &mut WantedPeer) -> Result<(), BadPrefix> {
    let remote: Prefix = pair.remote.parse().map_err(BadPrefix::Remote)?;
    if pair.local.is_empty() {
        return Ok(());
    }
    let local: Prefix = pair.local.parse().map_err(BadPrefix::Local)?;
    if remote != local {
        wanted.remaps.push(Rule::new(remote, local).map_err(BadPrefix::Rule)?);
    }
    wanted.allowed_ips.push(remote);

    Ok(())
}

/// Place by place what is written in the spec.
pub(crate) fn pairs(object: &Configuration) -> impl Iterator<Item = Pair<'_>> {
    let status = object.status.as_ref().and_then(|status| status.remote.as_ref());
    let local = lists(status.and_then(|status| status.cidr.as_ref()));
    let fields = ["pod", "external"].into_iter().zip(lists(remote(object)).into_iter().zip(local));

    fields.flat_map(|(field, (remotes, locals))| {
        let pairs = remotes.iter().enumerate().map(move |(place, remote)| {
            let local = locals.get(place).map(String::as_str).unwrap_or_default();
            Pair { field, place, remote, local }
        });
        pairs.filter(|pair| !pair.remote.is_empty())
    })
}

/// By field: `pod`, then `external`.
fn lists(cidr: Option<&ClusterCidr>) -> [&[String]; 2] {
    cidr.map(|cidr| [cidr.pod.as_slice(), cidr.external.as_slice()]).unwrap_or_default()
}

fn remote(object: &Configuration) -> Option<&ClusterCidr> {
    object.spec.remote.as_ref().and_then(|remote| remote.cidr.as_ref())
}
