//! What was refused, in words for who wrote the object.

use ipnet::IpNet;
use kube::{Resource, ResourceExt};
use remap::{Prefix, PrefixError, RuleError};

/// A wrong object, or something wrong in one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {namespace}/{name}: {problem}")]
pub struct Refusal {
    /// Of the object.
    pub kind: String,
    /// Of the object.
    pub namespace: String,
    /// Of the object.
    pub name: String,
    /// The one whose [`Self::problem`] was seen.
    pub generation: Option<i64>,
    /// What is wrong.
    pub problem: Problem,
}

impl Refusal {
    pub(super) fn of<K: Resource<DynamicType = ()>>(object: &K, problem: Problem) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            generation: object.meta().generation,
            problem,
        }
    }

    /// Which object it is about.
    pub(crate) fn object(&self) -> (&str, &str, &str) {
        (&self.kind, &self.namespace, &self.name)
    }
}

/// What can be wrong with an object. The text is for an operator who sees nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Problem {
    /// A field is of another type than its schema says.
    #[error("it cannot be read: {cause}")]
    Malformed { cause: String },
    /// Nobody knows whose it is.
    #[error("label liqo.io/remote-cluster-id is missing: set it to the id of the remote cluster")]
    NoCluster,
    /// A younger one is there for the same cluster.
    #[error(
        "{by} is younger and for the same remote cluster, and is used instead: delete one of them"
    )]
    Superseded { by: String },
    /// `spec.publicKey` is no WireGuard key.
    #[error(
        "spec.publicKey has {bytes} bytes, not 32: copy publicKey from the Secret of the remote's gateway"
    )]
    KeyLength { bytes: usize },
    /// `spec.publicKey` is a point of low order: no gateway has it, and it keeps no secret.
    #[error(
        "spec.publicKey is zero or another point of low order, and the key of nobody: copy publicKey from the Secret of the remote's gateway"
    )]
    WeakKey,
    /// `spec.publicKey` is that of the gateway which reads it: there is no tunnel to oneself.
    #[error(
        "spec.publicKey is our own public key: copy publicKey from the Secret of the remote's gateway"
    )]
    OwnKey,
    /// Two clusters cannot be told apart.
    #[error("spec.publicKey is that of cluster {owner:?} too: each gateway needs a key of its own")]
    SharedKey { owner: String },
    /// Nobody knows what the remote cluster calls its own.
    #[error(
        "spec.remote.cidr names no prefix: set it to the pod and external CIDRs of the remote cluster"
    )]
    NoRemote,
    /// A prefix of `spec` is none.
    #[error("spec.remote.cidr.{field}[{place}]: {cause}")]
    Remote { field: &'static str, place: usize, cause: PrefixError },
    /// A prefix of `spec` has every address in it.
    #[error(
        "spec.remote.cidr.{field}[{place}]: {prefix} is every address there is: write the prefixes of the remote cluster"
    )]
    Everything { field: &'static str, place: usize, prefix: Prefix },
    /// No packet through a tunnel can have an address in a prefix of `spec`.
    #[error(
        "spec.remote.cidr.{field}[{place}]: {prefix} lies in {block}, which is routed nowhere (RFC 6890): write the prefixes of the remote cluster"
    )]
    NeverRouted { field: &'static str, place: usize, prefix: Prefix, block: IpNet },
    /// The same of the name of one.
    #[error(
        "status.remote.cidr.{field}[{place}]: {name} lies in {block}, which is routed nowhere (RFC 6890): write a prefix of addresses of hosts"
    )]
    NameNeverRouted { field: &'static str, place: usize, name: Prefix, block: IpNet },
    /// A prefix of `spec` is in the other list as well, and would have two names.
    #[error(
        "spec.remote.cidr.{field}[{place}]: {prefix} is at {first}[{at}] too: leave one of them out"
    )]
    Twice { field: &'static str, place: usize, prefix: Prefix, first: &'static str, at: usize },
    /// A prefix of `status` is none.
    #[error("status.remote.cidr.{field}[{place}]: {cause}")]
    Local { field: &'static str, place: usize, cause: PrefixError },
    /// A prefix of this cluster is none.
    #[error("spec.local.cidr.{field}[{place}]: {cause}")]
    Own { field: &'static str, place: usize, cause: PrefixError },
    /// A name would hide what this cluster has.
    #[error(
        "status.remote.cidr.{field}[{place}]: {name} overlaps {own} of spec.local.cidr: write there what this cluster has"
    )]
    NameIsOwn { field: &'static str, place: usize, name: Prefix, own: Prefix },
    /// The two do not go together.
    #[error("cidr.{field}[{place}] of spec.remote and status.remote: {cause}")]
    Rule { field: &'static str, place: usize, cause: RuleError },
}
