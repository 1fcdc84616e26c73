//! Addresses around a cluster that IPAM does not know: those of its nodes. Pure.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use remap::Prefix;
use strait_api::Network;

use super::super::prefixes;
use super::described;

/// A node whose address has another meaning in its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct NodeConflict {
    /// The name of the node.
    pub(in super::super) node: String,
    /// Its address.
    pub(in super::super) address: IpAddr,
    /// The prefix that contains it.
    pub(in super::super) prefix: Prefix,
    /// The meaning of the prefix.
    pub(in super::super) meaning: String,
}

impl NodeConflict {
    /// The reason, the same in every release.
    pub(in super::super) const REASON: &str = "NodeInPrefix";

    /// The remedy.
    pub(in super::super) const REMEDY: &str = "make a Network for the prefix of the nodes in the namespace of the installation, with the labels ipam.liqo.io/network-type=reserved, ipam.liqo.io/network-not-remapped=true and ipam.liqo.io/network-shared=true, then create this one again";
}

impl fmt::Display for NodeConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, prefix, meaning, .. } = self;

        write!(f, "its address {address} lies in {prefix}, {meaning}, and could not be reached")
    }
}

/// Every node whose address lies in an allocated prefix of another purpose. Shared prefixes, such as those of pods and
/// reserved ones, do not count: they may overlap others.
pub(in super::super) fn node_conflicts(networks: &[Network], nodes: &[Node]) -> Vec<NodeConflict> {
    let allocated = networks.iter().filter_map(|network| match prefixes::allocated(network)? {
        (prefix, false) => Some((network, prefix)),
        (_, true) => None,
    });
    let allocated: Vec<_> = allocated.collect();
    let mut conflicts = Vec::new();
    for node in nodes {
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let addresses = addresses.filter_map(|address| address.address.parse::<IpAddr>().ok());
        for address in addresses {
            let around = allocated.iter().filter(|(_, prefix)| prefix.contains(address));
            conflicts.extend(around.map(|(network, prefix)| NodeConflict {
                node: node.name_any(),
                address,
                prefix: *prefix,
                meaning: described(network),
            }));
        }
    }

    conflicts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_in_its_prefix_is_no_conflict() {
        let network = |name: &str, cidr: &str, labels| -> Network {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "liqo", "labels": labels},
                "spec": {"cidr": "10.244.0.0/16"}, "status": {"cidr": cidr},
            }))
            .unwrap()
        };
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "one"},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "10.71.0.5"},
                {"type": "Hostname", "address": "one"},
            ]},
        }))
        .unwrap();
        let networks = [
            network("reserved", "10.71.0.0/16", json!({"ipam.liqo.io/network-shared": "true"})),
            network("other", "10.68.0.0/16", json!({"liqo.io/remote-cluster-id": "milan"})),
        ];

        assert_eq!(node_conflicts(&networks, std::slice::from_ref(&node)), []);
        let milan = network("milan", "10.71.0.0/16", json!({"liqo.io/remote-cluster-id": "milan"}));
        let found = node_conflicts(&[milan], &[node]);
        assert_eq!(
            found[0].to_string(),
            "its address 10.71.0.5 lies in 10.71.0.0/16, the name of 10.244.0.0/16 of milan, and could not be reached"
        );
    }
}
