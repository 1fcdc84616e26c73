//! Why a prefix has no route, or a wrong one.

use remap::Prefix;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_plan::objects::{self, ObjectName};

/// A problem that keeps packets from being routed. The text is for an operator who sees nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Problem {
    /// A field has another type than in its schema.
    #[error("{object} cannot be read: {cause}; until it can, no route is removed")]
    Malformed { object: ObjectName, cause: String },
    /// A local prefix is invalid.
    #[error("{object}: {problem}; until that is mended, no route is removed")]
    Name { object: ObjectName, problem: objects::Problem },
    /// Another field is refused, by gateways as well.
    #[error("{object}: {problem}")]
    Refused { object: ObjectName, problem: objects::Problem },
    /// It is not known for which gateway it is.
    #[error(
        "{object}: label {REMOTE_CLUSTER_ID} is missing: set it to the id of the remote cluster"
    )]
    NoCluster { object: ObjectName },
    /// A default route, or half of one.
    #[error("{object}: {prefix} would take everything else with it: give it another name")]
    Everything { object: ObjectName, prefix: Prefix },
    /// The node, or its pods, would become unreachable.
    #[error("{object}: {prefix} overlaps {address} of node {node}: give it another name")]
    HoldsNode { object: ObjectName, prefix: Prefix, node: String, address: String },
    /// Pods would become unreachable.
    #[error(
        "{object}: {prefix} overlaps {pods}, the pods of this cluster (spec.local of {by}): give it another name"
    )]
    HoldsPods { object: ObjectName, prefix: Prefix, pods: Prefix, by: ObjectName },
    /// A prefix has only one next hop.
    #[error("{object}: {prefix} is a prefix of {by} too, which keeps it: give it another name")]
    Shared { object: ObjectName, prefix: Prefix, by: ObjectName },
    /// The pod has no address of its own.
    #[error(
        "{object}: pod {pod} of the gateway uses the network of its node: give it one of its own"
    )]
    HostNetwork { object: ObjectName, pod: String },
    /// A gateway would take packets from the others that it may not have.
    #[error(
        "{object}: pod {pod} of a gateway claims {claim}, which is no part of a prefix of the remote cluster, and does not get it: restart the pod"
    )]
    ForeignDestination { object: ObjectName, pod: String, claim: String },
    /// The node or pod has no address of that version of IP.
    #[error("{object}: {what} has no address of the IP version of {prefix}")]
    NoAddress { object: ObjectName, prefix: Prefix, what: String },
    /// Without its addresses it is not known which of the host's addresses others use.
    #[error("node {node} is not there, or has no InternalIP: is --node-name its name?")]
    OwnNode { node: String },
}

impl Problem {
    /// The object that it is about, if any.
    #[must_use]
    pub const fn object(&self) -> Option<&ObjectName> {
        match self {
            Self::Malformed { object, .. }
            | Self::Name { object, .. }
            | Self::Refused { object, .. }
            | Self::NoCluster { object }
            | Self::Everything { object, .. }
            | Self::HoldsNode { object, .. }
            | Self::HoldsPods { object, .. }
            | Self::Shared { object, .. }
            | Self::HostNetwork { object, .. }
            | Self::ForeignDestination { object, .. }
            | Self::NoAddress { object, .. } => Some(object),
            Self::OwnNode { .. } => None,
        }
    }

    /// Whether each node has to report it for itself. All nodes find the other problems alike.
    #[must_use]
    pub(crate) const fn is_of_one_node(&self) -> bool {
        matches!(self, Self::NoAddress { .. } | Self::OwnNode { .. })
    }
}
