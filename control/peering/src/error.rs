//! Why a verb failed.

use std::time::Duration;

use strait_api::labels::{GATEWAY_INDEX, GATEWAYS_MAX};
use strait_ipam::DryRunError;

use super::{PrefixesError, Side};

/// Each variant has the cluster, the value and the remedy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the documentation of a variant names its fields")]
pub enum CommandError {
    /// A call of the API server of `side` failed while the verb was `doing` something. It `is_forbidden` if the user
    /// lacks a right, and nothing else is wrong.
    #[error("{side}An error occurred while {doing}: {error_text}{remedy}")]
    Call { side: Side, doing: String, error_text: String, remedy: &'static str, is_forbidden: bool },
    /// A condition was not reached in time.
    #[error(transparent)]
    Timeout(Box<TimeoutError>),
    /// No object in `namespace` of `side` has the cluster id.
    #[error(
        "{side}no ConfigMap liqo-clusterid-configmap with the key CLUSTER_ID in namespace {namespace}: pass {flag}, or name the namespace of the installation"
    )]
    NoClusterId { side: Side, namespace: String, flag: &'static str },
    /// The typed id is not that of the cluster.
    #[error(
        "{side}this is cluster {found:?}, not {typed:?}: leave {flag} out, or choose another context"
    )]
    OtherCluster { side: Side, typed: String, found: String, flag: &'static str },
    /// It is not valid as part of object names.
    #[error(
        "{side}{id:?} is no cluster id: it has 1 to 51 lower case letters, digits and dashes between them"
    )]
    ClusterId { side: Side, id: String },
    /// Both contexts lead to one cluster.
    #[error(
        "both sides are cluster {id:?}: name another one with --remote-kubeconfig or --remote-context"
    )]
    SameCluster { id: String },
    /// Two clusters have one id.
    #[error(
        "two clusters have the id {id:?}: give one of them another, in CLUSTER_ID of its ConfigMap (`clusterID` of the chart)"
    )]
    SameId { id: String },
    /// The user was asked, and declined.
    #[error("action aborted: nothing was changed; answer y, or pass --yes")]
    Aborted,
    /// An object of this name exists, with `differences` from the desired one.
    #[error(
        "{side}{kind} {name:?} already exists in namespace {namespace} and differs: {differences}; pass --yes to overwrite it, or choose another name"
    )]
    Exists { side: Side, kind: String, name: String, namespace: String, differences: String },
    /// It is not valid as part of dependent objects' names.
    #[error(
        "{side}{name:?} is not a valid name of a {kind}: write 1 to {longest} lower case letters, digits and dashes between them"
    )]
    Name { side: Side, kind: &'static str, name: String, longest: usize },
    /// The `namespace` that was typed does not exist.
    #[error(
        "{side}namespace {namespace} does not exist: make it, or leave the flag out for {default}"
    )]
    NoNamespace { side: Side, namespace: String, default: String },
    /// The prefixes of a cluster are not known.
    #[error("{side}{cause}")]
    Prefixes { side: Side, cause: PrefixesError },
    /// A template does not exist.
    #[error(
        "{side}{kind} {name:?} is not in namespace {namespace}: choose one with --{flag}template-name and --{flag}template-namespace"
    )]
    NoTemplate { side: Side, kind: String, name: String, namespace: String, flag: &'static str },
    /// The server of `side` does not know that kind.
    #[error("{side}there is no resource {typed:?}: write GROUP/VERSION/PLURAL as in {example:?}")]
    NoTemplateType { side: Side, typed: String, example: &'static str },
    /// A template would drop a requested field.
    #[error(
        "{side}template {name:?} has no {field} in {place}: add `?{field}: \"{{{{ {expression} }}}}\"` there, or leave --{flag} out"
    )]
    TemplateField {
        side: Side,
        name: String,
        field: &'static str,
        place: &'static str,
        expression: &'static str,
        flag: &'static str,
    },
    /// The API server rejects the Service.
    #[error("{side}port {port} cannot be had on the nodes: {error_text}; choose another --{flag}")]
    NodePort { side: Side, port: u16, error_text: String, flag: &'static str },
    /// The port is not a node port, unless the API server was configured otherwise.
    #[error(
        "{side}port {port} is not among those of nodes, 30000 to 32767: choose another --{flag}, or {way_out} if this cluster has others"
    )]
    NodePortRange { side: Side, port: u16, flag: &'static str, way_out: &'static str },
    /// The ports on the nodes of several gateways would not all exist.
    #[error(
        "gateway {index} would have port {first} + {index} on the nodes, and the last one is 65535: choose another --gw-server-service-nodeport"
    )]
    NodePorts { first: u16, index: u8 },
    /// Several gateways cannot have one address of a load balancer.
    #[error(
        "{gateways} gateways cannot share the address {address} of a load balancer: leave --gw-server-service-loadbalancerip out, and each gets its own"
    )]
    SharedAddress { address: String, gateways: u8 },
    /// The addresses of several servers do not follow from what was typed.
    #[error(
        "{gateways} gateways need an address and a port each: pass both --gw-client-address (now {address:?}) and --gw-client-port (now {port}), the port of the first one, from which the others count up, to 65535 at most; or neither"
    )]
    ClientPorts { address: String, port: u16, gateways: u8 },
    /// The name of a further gateway follows from that of the first one.
    #[error(
        "{side}{kind} {name:?} would have a name of more than {longest} characters: connect with one gateway, or give the first one a shorter name"
    )]
    LongName { side: Side, kind: String, name: String, longest: usize },
    /// A gateway has a label of ours with a wrong value.
    #[error(
        "{side}{kind} {name:?} has the label {GATEWAY_INDEX}={found:?}: write its index among the gateways of the peering, 0 to {}, or remove the label of the first one",
        GATEWAYS_MAX - 1
    )]
    GatewayIndex { side: Side, kind: String, name: String, found: String },
    /// Which keys are meant is not defined.
    #[error(
        "{side}found multiple secrets associated to WireGuard gateway {gateway:?}: {names}; delete those that are not in use"
    )]
    SeveralSecrets { side: Side, gateway: String, names: String },
    /// A Secret without a key.
    #[error(
        "{side}Secret {secret:?} has no publicKey of 32 bytes: delete it, and its gateway gets a new one"
    )]
    NoKey { side: Side, secret: String },
    /// A gateway has no Secret yet.
    #[error(
        "{side}{kind} {name:?} in namespace {namespace} has no Secret with keys yet: is the operator running?"
    )]
    NoSecret { side: Side, kind: &'static str, name: String, namespace: String },
    /// An object does not exist.
    #[error("{side}{kind} {name:?} is not in namespace {namespace}: name another with --namespace")]
    NoObject { side: Side, kind: String, name: String, namespace: String },
    /// A `Network` of the installation does not exist.
    #[error(
        "{side}Network {name:?} is not in namespace {namespace}: see `kubectl get networks -n {namespace}`, or name the namespace of the installation with --liqo-namespace"
    )]
    NoNetwork { side: Side, name: String, namespace: String },
    /// An object is invalid.
    #[error("{what} cannot be read: {error_text}")]
    Malformed { what: String, error_text: String },
    /// The result of IPAM cannot be predicted.
    #[error("{side}{cause}")]
    DryRun { side: Side, cause: DryRunError },
    /// The operator could not start with its pools.
    #[error(
        "{side}the operator has the pools {text:?}, which are no prefixes: name others with --pools"
    )]
    Pools { side: Side, text: String },
    /// There is no peering with this cluster.
    #[error("{side}no peering with cluster {id:?}; there is {known}")]
    NoPeer { side: Side, id: String, known: String },
    /// An object cannot be serialized.
    #[error(transparent)]
    Format(#[from] super::FormatError),
}

impl CommandError {
    /// Whether it is a usage error, rather than a state of the clusters. Then nothing was written.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::NoClusterId { .. }
            | Self::OtherCluster { .. }
            | Self::ClusterId { .. }
            | Self::SameCluster { .. }
            | Self::SameId { .. }
            | Self::Name { .. }
            | Self::NoNamespace { .. }
            | Self::NoTemplate { .. }
            | Self::NoTemplateType { .. }
            | Self::TemplateField { .. }
            | Self::NodePort { .. }
            | Self::NodePortRange { .. }
            | Self::NodePorts { .. }
            | Self::SharedAddress { .. }
            | Self::ClientPorts { .. }
            | Self::LongName { .. }
            | Self::GatewayIndex { .. }
            | Self::NoNetwork { .. }
            | Self::Malformed { .. }
            | Self::DryRun { cause: DryRunError::Unknown(_), .. }
            | Self::NoPeer { .. } => true,
            Self::Aborted
            | Self::Exists { .. }
            | Self::Call { .. }
            | Self::Timeout(_)
            | Self::Prefixes { .. }
            | Self::SeveralSecrets { .. }
            | Self::NoKey { .. }
            | Self::NoSecret { .. }
            | Self::NoObject { .. }
            | Self::DryRun { cause: DryRunError::Failed(_) | DryRunError::NoEnd, .. }
            | Self::Pools { .. }
            | Self::Format(_) => false,
        }
    }
}

/// What did wait that timed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{side}Failed waiting for {awaited}: not within {}; found {found}{}; look at `{look_at}`",
    duration_text(*timeout),
    cause.as_ref().map(|cause| format!("; {cause}")).unwrap_or_default()
)]
pub struct TimeoutError {
    /// The cluster.
    pub side: Side,
    /// What was waited for.
    pub awaited: String,
    /// The time limit of the whole verb.
    pub timeout: Duration,
    /// What was seen last.
    pub found: String,
    /// The cause from an Event, if there is one.
    pub cause: Option<String>,
    /// A command that shows more.
    pub look_at: String,
}

fn duration_text(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}
