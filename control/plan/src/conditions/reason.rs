//! The reasons of conditions and Events. Scripts read them, so they do not change when a type is renamed.

use remap::Conflict;

use crate::objects::Problem;
use crate::plan::Rejection;

/// Nothing is wrong and nothing is missing.
pub(crate) const IN_FORCE: &str = "InForce";

/// The remote cluster has no key yet.
pub(super) const NO_PUBLIC_KEY: &str = "WaitingForPublicKey";

/// A prefix has no local prefix yet.
pub(super) const NO_NAME: &str = "WaitingForLocalPrefix";

/// The device of the gateway cannot have a route.
pub(super) const ROUTE: &str = "RouteRefused";

/// Whether the reason is one of waiting.
pub(super) fn is_of_waiting(reason: &str) -> bool {
    [NO_PUBLIC_KEY, NO_NAME].contains(&reason)
}

/// The reason for a problem of an object by itself.
pub const fn of_problem(problem: &Problem) -> &'static str {
    match problem {
        Problem::Malformed { .. } => "Malformed",
        Problem::NoCluster => "RemoteClusterMissing",
        Problem::Superseded { .. } | Problem::Unowned { .. } => "Superseded",
        Problem::GatewayIndex { .. } => "GatewayIndexInvalid",
        Problem::KeyLength { .. } => "KeyLengthInvalid",
        Problem::WeakKey => "KeyWeak",
        Problem::OwnKey => "KeyOwn",
        Problem::SharedKey { .. } => "KeyShared",
        Problem::NoRemote => "RemoteCIDRMissing",
        Problem::Remote { .. } | Problem::Everything { .. } | Problem::NeverRouted { .. } => {
            "RemoteCIDRInvalid"
        }
        Problem::Twice { .. } => "RemoteCIDRTwice",
        Problem::Local { .. } | Problem::NameNeverRouted { .. } => "LocalCIDRInvalid",
        Problem::Own { .. } => "OwnCIDRInvalid",
        Problem::ExternalTooSmall { .. } => "ExternalCIDRTooSmall",
        Problem::Rule { .. } => "RemapInvalid",
        Problem::NameIsOwn { .. } => "LocalCIDROwn",
    }
}

/// The reason for a contradiction with other objects.
pub(super) const fn of_rejection(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::DuplicateName { .. } => "PeerNameShared",
        Rejection::NotAllowed { .. } => "RemoteCIDRNotAllowed",
        Rejection::LocalIsReal { .. } => "LocalCIDRInUse",
        Rejection::Loop { .. } => "TunnelLoop",
        Rejection::SharedPrefix { .. } => "RemoteCIDRShared",
        Rejection::Conflict { conflict, .. }
        | Rejection::Own { conflict, .. }
        | Rejection::Cluster { conflict } => of_conflict(conflict),
    }
}

const fn of_conflict(conflict: &Conflict) -> &'static str {
    match conflict {
        Conflict::Local { .. } => "LocalCIDRConflict",
        Conflict::Remote { .. } => "RemoteCIDRRemappedTwice",
        Conflict::Own { .. } => "LocalCIDROwn",
        Conflict::HostMap { .. } | Conflict::Chain { .. } | Conflict::Shared { .. } => {
            "HostMapConflict"
        }
        // The enum is of another crate and may grow.
        _ => "Conflict",
    }
}

/// Whether the problem keeps the whole object from being read.
pub(super) const fn is_of_whole_object(problem: &Problem) -> bool {
    match problem {
        Problem::Malformed { .. }
        | Problem::NoCluster
        | Problem::Superseded { .. }
        | Problem::Unowned { .. } => true,
        Problem::KeyLength { .. }
        | Problem::WeakKey
        | Problem::OwnKey
        | Problem::SharedKey { .. }
        | Problem::NoRemote
        | Problem::Remote { .. }
        | Problem::Everything { .. }
        | Problem::NeverRouted { .. }
        | Problem::NameNeverRouted { .. }
        | Problem::Twice { .. }
        | Problem::Local { .. }
        | Problem::Own { .. }
        | Problem::ExternalTooSmall { .. }
        | Problem::GatewayIndex { .. }
        | Problem::NameIsOwn { .. }
        | Problem::Rule { .. } => false,
    }
}

/// The peer whose request was rejected, if it is that of a peer.
pub(super) fn peer(rejection: &Rejection) -> Option<&str> {
    match rejection {
        Rejection::DuplicateName { name: peer }
        | Rejection::NotAllowed { peer, .. }
        | Rejection::LocalIsReal { peer, .. }
        | Rejection::Loop { peer, .. }
        | Rejection::Conflict { peer, .. }
        | Rejection::Own { peer, .. }
        | Rejection::SharedPrefix { peer, .. } => Some(peer),
        Rejection::Cluster { .. } => None,
    }
}
