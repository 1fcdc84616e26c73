//! Refusals, worded for the author of the object.

use ipnet::IpNet;
use kube::{Resource, ResourceExt};
use remap::{Prefix, PrefixError, RuleError};
use strait_api::labels::{GATEWAY_INDEX, GATEWAYS_MAX};

/// A wrong object, or a problem in one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {namespace}/{name}: {problem}")]
pub struct Refusal {
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The generation that has [`Self::problem`].
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

    /// The kind, namespace and name of the object.
    pub(crate) fn object(&self) -> (&str, &str, &str) {
        (&self.kind, &self.namespace, &self.name)
    }
}

/// The problems of an object. The text is for an operator who sees nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Problem {
    /// A field has another type than in its schema.
    #[error("it cannot be read: {cause}")]
    Malformed { cause: String },
    /// The remote cluster is not known.
    #[error("label liqo.io/remote-cluster-id is missing: set it to the id of the remote cluster")]
    NoCluster,
    /// There is a younger one for the same cluster.
    #[error(
        "{by} is younger and for the same remote cluster, and is used instead: delete one of them"
    )]
    Superseded { by: String },
    /// There is one for the same cluster that this gateway owns.
    #[error(
        "{by} is for the same remote cluster and belongs to this gateway, and is used instead: delete one of them"
    )]
    Unowned { by: String },
    /// The label that numbers the gateways of a peering has another value.
    #[error(
        "label {GATEWAY_INDEX}={found}: write the number of the gateway that the key is for, from 0 to {}, or remove it", GATEWAYS_MAX - 1
    )]
    GatewayIndex { found: String },
    /// `spec.publicKey` is no WireGuard key.
    #[error(
        "spec.publicKey has {bytes} bytes, not 32: copy publicKey from the Secret of the remote's gateway"
    )]
    KeyLength { bytes: usize },
    /// `spec.publicKey` is a point of low order: no gateway has it, and it keeps no secret.
    #[error(
        "spec.publicKey is zero or another point of low order, and no valid key: copy publicKey from the Secret of the remote's gateway"
    )]
    WeakKey,
    /// `spec.publicKey` is that of the gateway which reads it: a gateway is not its own peer.
    #[error(
        "spec.publicKey is our own public key: copy publicKey from the Secret of the remote's gateway"
    )]
    OwnKey,
    /// Two clusters have one key.
    #[error("spec.publicKey is that of cluster {owner:?} too: each gateway needs a key of its own")]
    SharedKey { owner: String },
    /// The prefixes of the remote cluster are not known.
    #[error(
        "spec.remote.cidr names no prefix: set it to the pod and external CIDRs of the remote cluster"
    )]
    NoRemote,
    /// A prefix of `spec` is invalid.
    #[error("spec.remote.cidr.{field}[{place}]: {cause}")]
    Remote { field: &'static str, place: usize, cause: PrefixError },
    /// A prefix of `spec` covers every address.
    #[error(
        "spec.remote.cidr.{field}[{place}]: {prefix} is every address there is: write the prefixes of the remote cluster"
    )]
    Everything { field: &'static str, place: usize, prefix: Prefix },
    /// No packet through a tunnel can have an address in a prefix of `spec`.
    #[error(
        "spec.remote.cidr.{field}[{place}]: {prefix} lies in {block}, which is routed nowhere (RFC 6890): write the prefixes of the remote cluster"
    )]
    NeverRouted { field: &'static str, place: usize, prefix: Prefix, block: IpNet },
    /// The same for a local prefix.
    #[error(
        "status.remote.cidr.{field}[{place}]: {name} lies in {block}, which is routed nowhere (RFC 6890): write a prefix of addresses of hosts"
    )]
    NameNeverRouted { field: &'static str, place: usize, name: Prefix, block: IpNet },
    /// A prefix of `spec` is in the other list as well, and would have two local prefixes.
    #[error(
        "spec.remote.cidr.{field}[{place}]: {prefix} is at {first}[{at}] too: leave one of them out"
    )]
    Twice { field: &'static str, place: usize, prefix: Prefix, first: &'static str, at: usize },
    /// A prefix of `status` is invalid.
    #[error("status.remote.cidr.{field}[{place}]: {cause}")]
    Local { field: &'static str, place: usize, cause: PrefixError },
    /// A prefix of this cluster is invalid.
    #[error("spec.local.cidr.{field}[{place}]: {cause}")]
    Own { field: &'static str, place: usize, cause: PrefixError },
    /// The external prefix has no address for this gateway to masquerade with.
    #[error(
        "spec.local.cidr.external: {prefix} has no address number {index}, with which gateway {index} masquerades nodes: give this cluster a larger external CIDR, or the peering fewer gateways"
    )]
    ExternalTooSmall { prefix: Prefix, index: u8 },
    /// A local prefix overlaps one of this cluster.
    #[error(
        "status.remote.cidr.{field}[{place}]: {name} overlaps {own} of spec.local.cidr: write there what this cluster has"
    )]
    NameIsOwn { field: &'static str, place: usize, name: Prefix, own: Prefix },
    /// The two prefixes make no valid rule.
    #[error("cidr.{field}[{place}] of spec.remote and status.remote: {cause}")]
    Rule { field: &'static str, place: usize, cause: RuleError },
}
