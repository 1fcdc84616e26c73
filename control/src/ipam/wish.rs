//! Which prefixes a `Configuration` asks names for. Pure.

use remap::{Prefix, PrefixError};

use crate::api::Configuration;
use crate::api::configuration::{Cluster, ClusterCidr};

/// As the labels of `Network`s and the fields of a `Configuration` call the lists, in the order in which
/// names are given: those that a peering cannot do without first.
pub(super) const LISTS: [&str; 2] = ["pod", "external"];

/// All that one `Configuration` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wishes {
    /// List by list as in [`LISTS`], place by place as in the spec.
    pub(super) lists: [Vec<Wish>; 2],
}

/// What stands at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing.
    Nothing,
    /// A prefix.
    Prefix(Prefix),
    /// Something else.
    Wrong(PrefixError),
}

impl Wishes {
    /// Every prefix once, with its list, in the order in which names are given.
    pub(super) fn prefixes(&self) -> Vec<(&'static str, Prefix)> {
        let mut prefixes = Vec::new();
        for (list, wishes) in LISTS.into_iter().zip(&self.lists) {
            for wish in wishes {
                if let Wish::Prefix(prefix) = wish
                    && !prefixes.contains(&(list, *prefix))
                {
                    prefixes.push((list, *prefix));
                }
            }
        }

        prefixes
    }

    /// When it is the turn of `prefix`; `None` if nobody asks for it.
    pub(super) fn turn(&self, list: &str, prefix: Prefix) -> Option<usize> {
        self.prefixes().into_iter().position(|wish| wish == (list, prefix))
    }
}

/// What `object` asks for.
pub(super) fn wishes(object: &Configuration) -> Wishes {
    let wish = |text: &String| match text.parse() {
        _ if text.is_empty() => Wish::Nothing,
        Ok(prefix) => Wish::Prefix(prefix),
        Err(error) => Wish::Wrong(error),
    };
    let lists = lists(object.spec.remote.as_ref());

    Wishes { lists: lists.map(|list| list.iter().map(wish).collect()) }
}

/// The lists of a cluster, in the order of [`LISTS`].
pub(super) fn lists(cluster: Option<&Cluster>) -> [&[String]; 2] {
    let cidr = cluster.and_then(|cluster| cluster.cidr.as_ref());

    cidr.map(|ClusterCidr { pod, external }| [&pod[..], external]).unwrap_or_default()
}
