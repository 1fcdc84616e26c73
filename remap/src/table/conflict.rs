//! Conflicts between rules, host maps and the addresses of this cluster.

use std::net::IpAddr;

use crate::{HostMap, PeerId, Prefix, Rule};

/// Two entries that cannot both be in force. The earlier one is; entries of this cluster come before
/// rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Conflict {
    /// Two rules have overlapping local prefixes, so a packet would have two destinations.
    #[error(
        "local {} overlaps local {} of another rule: give each remapped prefix a local prefix of its own",
        rejected.1.local(), kept.1.local()
    )]
    Local { kept: (PeerId, Rule), rejected: (PeerId, Rule) },
    /// A prefix of one peer has two local prefixes, so a packet from it would have two sources.
    #[error(
        "remote {} is remapped twice, to {} and to {}: keep one of the two",
        rejected.1.remote(), kept.1.local(), rejected.1.local()
    )]
    Remote { kept: (PeerId, Rule), rejected: (PeerId, Rule) },
    /// A local prefix overlaps one of this cluster, so hosts of this cluster would be unreachable.
    #[error(
        "local {} overlaps {own}, which is this cluster's own: choose a local prefix that nothing here uses",
        rejected.1.local()
    )]
    Own { own: Prefix, rejected: (PeerId, Rule) },
    /// Two host maps share an address.
    #[error("host map {rejected} shares an address with {kept}: keep one of the two")]
    HostMap { kept: HostMap, rejected: HostMap },
    /// The result of one host map is the input of another one.
    #[error(
        "host map {rejected} and {kept} form a chain, but no address is translated twice: use the last address of the chain"
    )]
    Chain { kept: HostMap, rejected: HostMap },
    /// An external address cannot belong to one host and be shared.
    #[error(
        "host map {rejected}: {address} is a masquerade address, which all unknown sources share: choose another external address"
    )]
    Shared { address: IpAddr, rejected: HostMap },
}

impl Conflict {
    /// The rule that was rejected, if it is a rule.
    #[must_use]
    pub const fn rejected_rule(&self) -> Option<(PeerId, Rule)> {
        match self {
            Self::Local { rejected, .. }
            | Self::Remote { rejected, .. }
            | Self::Own { rejected, .. } => Some(*rejected),
            Self::HostMap { .. } | Self::Chain { .. } | Self::Shared { .. } => None,
        }
    }

    /// The rule that was kept, if it is a rule.
    #[must_use]
    pub const fn kept_rule(&self) -> Option<(PeerId, Rule)> {
        match self {
            Self::Local { kept, .. } | Self::Remote { kept, .. } => Some(*kept),
            Self::Own { .. } | Self::HostMap { .. } | Self::Chain { .. } | Self::Shared { .. } => {
                None
            }
        }
    }
}
