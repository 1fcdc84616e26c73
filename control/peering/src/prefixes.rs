//! A cluster's own prefixes.

use kube::ResourceExt as _;
use remap::{Prefix, PrefixError};
use strait_api::Network;
use strait_api::labels::{EXTERNAL_CIDR, NETWORK_TYPE, POD_CIDR, SHARED, TRUE};

/// The prefixes that another cluster has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    /// The pod prefixes; at least one.
    pub pod: Vec<Prefix>,
    /// For hosts without an address of the cluster; at least one.
    pub external: Vec<Prefix>,
}

/// Why the prefixes of a cluster are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the documentation of a variant names its fields")]
pub enum PrefixesError {
    /// No `Network` in `namespace` has the type `wanted`.
    #[error(
        "no Network with the label {NETWORK_TYPE}={wanted} in namespace {namespace}: name the namespace of the installation with --liqo-namespace or --remote-liqo-namespace, or add the Network"
    )]
    Missing { wanted: &'static str, namespace: String },
    /// `cidr` in the Network `name` is invalid.
    #[error("Network {name:?} has the prefix {cidr:?}: {cause}")]
    Invalid { name: String, cidr: String, cause: PrefixError },
}

/// The prefixes of a cluster, from `networks`, all of `namespace`.
pub(super) fn of_cluster(networks: &[Network], namespace: &str) -> Result<Prefixes, PrefixesError> {
    let of_type = |wanted: &'static str| {
        let prefixes = of_type(networks, wanted)?;
        if prefixes.is_empty() {
            let namespace = namespace.to_owned();
            return Err(PrefixesError::Missing { wanted, namespace });
        }
        Ok(prefixes)
    };

    Ok(Prefixes { pod: of_type(POD_CIDR)?, external: of_type(EXTERNAL_CIDR)? })
}

/// The prefixes of one type, in the order of their names: `pod-cidr-2` is before `pod-cidr-10`.
pub(super) fn of_type(networks: &[Network], wanted: &str) -> Result<Vec<Prefix>, PrefixesError> {
    let mut networks: Vec<_> = networks
        .iter()
        .filter(|network| network.labels().get(NETWORK_TYPE).is_some_and(|found| found == wanted))
        .collect();
    networks.sort_by_key(|network| (network.name_any().len(), network.name_any()));

    networks
        .into_iter()
        .map(|network| {
            let chosen = network.status.as_ref().and_then(|status| status.cidr.as_deref());
            let cidr = chosen.filter(|cidr| !cidr.is_empty()).unwrap_or(&network.spec.cidr);
            cidr.parse().map_err(|cause| {
                let (name, cidr) = (network.name_any(), cidr.to_owned());
                PrefixesError::Invalid { name, cidr, cause }
            })
        })
        .collect()
}

/// The prefix of `network`, once it is allocated, and whether it may be shared.
pub(super) fn allocated(network: &Network) -> Option<(Prefix, bool)> {
    let prefix = network.status.as_ref()?.cidr.as_deref()?.parse().ok()?;
    let is_shared = network.labels().get(SHARED).is_some_and(|value| value == TRUE);

    Some((prefix, is_shared))
}
