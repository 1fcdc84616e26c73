//! What programs read of Nodes: the addresses and the pod CIDRs.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

/// Removes what is most of the size of a Node and not read here: images and volumes. For [`modify`] of a watch.
///
/// [`modify`]: kube::runtime::WatchStreamExt::modify
pub fn slim(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
}

/// The addresses of `node` that are no names, each with its type.
pub fn addresses(node: &Node) -> impl Iterator<Item = (&str, IpAddr)> {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();

    all.iter().filter_map(|found| Some((found.type_.as_str(), found.address.parse().ok()?)))
}

/// The `InternalIP`s of `node`.
pub fn internal_addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    addresses(node).filter(|(type_, _)| *type_ == "InternalIP").map(|(_, address)| address)
}

/// `spec.podCIDRs` of `node`, or else `spec.podCIDR`; a text that `T` does not parse is left out.
pub fn pod_cidrs<T: std::str::FromStr>(node: &Node) -> impl Iterator<Item = T> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
    // The first of `podCIDRs` repeats it.
    let single = spec.and_then(|spec| spec.pod_cidr.as_ref()).filter(|_| all.is_empty());

    all.iter().chain(single).filter_map(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_external_addresses_are_not_internal() {
        let node: Node = serde_json::from_value(json!({"status": {"addresses": [
            {"type": "Hostname", "address": "node-1"},
            {"type": "InternalIP", "address": "172.18.0.1"},
            {"type": "ExternalIP", "address": "198.51.100.1"},
            {"type": "InternalIP", "address": "fd00:18::1"},
        ]}}))
        .unwrap();

        let found: Vec<_> = internal_addresses(&node).map(|address| address.to_string()).collect();
        assert_eq!(found, ["172.18.0.1", "fd00:18::1"]);
        assert_eq!(addresses(&node).count(), 3);
    }

    #[test]
    fn pod_cidrs_precede_the_single_one() {
        let of = |spec| -> Vec<String> {
            pod_cidrs(&serde_json::from_value(json!({"spec": spec})).unwrap()).collect()
        };

        let both = json!({"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"]});
        assert_eq!(of(both), ["10.244.1.0/24", "fd00::/64"]);
        assert_eq!(of(json!({"podCIDR": "10.244.1.0/24"})), ["10.244.1.0/24"]);
        assert_eq!(of(json!({})), [""; 0]);
    }
}
