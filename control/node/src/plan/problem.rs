//! Why a prefix has no route, or not the one that it should have.

use remap::Prefix;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_plan::objects::{self, ObjectName};

/// Something that keeps packets from their way. The text is for an operator who sees nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Problem {
    /// A field is of another type than its schema says.
    #[error("{object} cannot be read: {cause}; until it can, no route is removed")]
    Malformed { object: ObjectName, cause: String },
    /// A name of a prefix is none.
    #[error("{object}: {problem}; until that is mended, no route is removed")]
    Name { object: ObjectName, problem: objects::Problem },
    /// Something else in it is refused, by gateways as well.
    #[error("{object}: {problem}")]
    Refused { object: ObjectName, problem: objects::Problem },
    /// Nobody knows which gateway it is for.
    #[error(
        "{object}: label {REMOTE_CLUSTER_ID} is missing: set it to the id of the remote cluster"
    )]
    NoCluster { object: ObjectName },
    /// The default route, or the like.
    #[error("{object}: {prefix} would take everything else with it: give it another name")]
    Everything { object: ObjectName, prefix: Prefix },
    /// The node, or its pods, could not be reached any more.
    #[error("{object}: {prefix} overlaps {address} of node {node}: give it another name")]
    HoldsNode { object: ObjectName, prefix: Prefix, node: String, address: String },
    /// Pods could not be reached any more.
    #[error(
        "{object}: {prefix} overlaps {pods}, the pods of this cluster (spec.local of {by}): give it another name"
    )]
    HoldsPods { object: ObjectName, prefix: Prefix, pods: Prefix, by: ObjectName },
    /// Packets can go one way only.
    #[error("{object}: {prefix} is a prefix of {by} too, which keeps it: give it another name")]
    Shared { object: ObjectName, prefix: Prefix, by: ObjectName },
    /// There is no pod to send packets to, apart from the node.
    #[error(
        "{object}: pod {pod} of the gateway uses the network of its node: give it one of its own"
    )]
    HostNetwork { object: ObjectName, pod: String },
    /// Nothing of that version of IP can be sent there.
    #[error("{object}: {what} has no address of the IP version of {prefix}")]
    NoAddress { object: ObjectName, prefix: Prefix, what: String },
    /// Without it nobody knows which of the addresses of this host others use.
    #[error("node {node} is not there, or has no InternalIP: is --node-name its name?")]
    OwnNode { node: String },
}

impl Problem {
    /// Which object it is about, if it is one.
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
            | Self::NoAddress { object, .. } => Some(object),
            Self::OwnNode { .. } => None,
        }
    }

    /// Whether each node has to say it for itself, as others may not have it. All nodes see the rest alike.
    #[must_use]
    pub(crate) const fn is_of_one_node(&self) -> bool {
        matches!(self, Self::NoAddress { .. } | Self::OwnNode { .. })
    }
}
