//! What cannot be in force together.

use std::net::IpAddr;

use crate::{HostMap, PeerId, Prefix, Rule};

/// Two things that cannot both be in force. The first one listed is; what is ours comes before what
/// is a remote's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Conflict {
    /// Two rules claim one of our names, so a packet to it would have two destinations.
    #[error(
        "local {} overlaps local {} of another rule: give each remapped prefix a local prefix of its own",
        rejected.1.local(), kept.1.local()
    )]
    Local { kept: (PeerId, Rule), rejected: (PeerId, Rule) },
    /// One peer's prefix has two of our names, so a packet from it would have two sources.
    #[error(
        "remote {} is remapped twice, to {} and to {}: keep one of the two",
        rejected.1.remote(), kept.1.local(), rejected.1.local()
    )]
    Remote { kept: (PeerId, Rule), rejected: (PeerId, Rule) },
    /// A rule claims a name that is ours, so our own hosts could not be reached any more.
    #[error(
        "local {} overlaps {own}, which is this cluster's own: choose a local prefix that nothing here uses",
        rejected.1.local()
    )]
    Own { own: Prefix, rejected: (PeerId, Rule) },
    /// Two host maps share an address.
    #[error("host map {rejected} shares an address with {kept}: keep one of the two")]
    HostMap { kept: HostMap, rejected: HostMap },
    /// What one host map yields is what another one takes.
    #[error(
        "host map {rejected} and {kept} form a chain, but no address is translated twice: use the last address of the chain"
    )]
    Chain { kept: HostMap, rejected: HostMap },
    /// An external address cannot be one host's and shared.
    #[error(
        "host map {rejected}: {address} is a masquerade address, which all unknown sources share: choose another external address"
    )]
    Shared { address: IpAddr, rejected: HostMap },
}

impl Conflict {
    /// The rule that is not in force, if it is a rule.
    #[must_use]
    pub const fn rejected_rule(&self) -> Option<(PeerId, Rule)> {
        match self {
            Self::Local { rejected, .. }
            | Self::Remote { rejected, .. }
            | Self::Own { rejected, .. } => Some(*rejected),
            Self::HostMap { .. } | Self::Chain { .. } | Self::Shared { .. } => None,
        }
    }

    /// The rule that stands in the way, if it is a rule.
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
