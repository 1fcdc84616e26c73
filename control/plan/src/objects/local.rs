//! The prefixes of this cluster in a `Configuration`: those that the remote knows, and the address that masquerades all
//! other sources.

use std::net::IpAddr;

use remap::{Cluster, Prefix};

use super::configuration::ParsedConfiguration;
use super::refusal::Problem;

/// Adds the prefixes of a `Configuration` to `cluster`.
///
/// The first address of the external prefix masquerades sources that the remote does not know, as in Liqo, whose
/// allocator and ours reserve it. Without the pod prefixes, or if one cannot be read, known sources cannot be told from
/// others: then no source is masqueraded.
pub(super) fn add(parsed: &ParsedConfiguration, cluster: &mut Cluster) {
    let [pods, external] = &parsed.own;
    let is_refused = |problem: &Problem| matches!(problem, Problem::Own { .. });
    if pods.is_empty() || parsed.problems.iter().any(is_refused) {
        return;
    }

    for is_ipv4 in [true, false] {
        let is_of_version = |prefix: &&Prefix| prefix.is_ipv4() == is_ipv4;
        // Without pod prefixes of that version its pods would be masqueraded.
        let has_pods = pods.iter().any(|prefix| is_of_version(&prefix));
        let shared = external.iter().find(is_of_version).map(Prefix::network);
        let is_given = cluster.masquerade.iter().any(|given: &IpAddr| given.is_ipv4() == is_ipv4);
        cluster.masquerade.extend(shared.filter(|_| has_pods && !is_given));
    }
    for prefix in pods.iter().chain(external) {
        if !cluster.prefixes.contains(prefix) {
            cluster.prefixes.push(*prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::configuration::parse;
    use super::*;

    fn cluster_of(pod: &[&str], external: &[&str]) -> (Cluster, Vec<String>) {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "rome", "namespace": "tenant"},
            "spec": {
                "local": {"cidr": {"pod": pod, "external": external}},
                "remote": {"cidr": {"pod": "10.9.0.0/16"}},
            },
        }));
        let parsed = parse(&object.unwrap());
        let mut cluster = Cluster::default();
        add(&parsed, &mut cluster);

        (cluster, parsed.problems.iter().map(ToString::to_string).collect())
    }

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_external_address_is_for_masquerade() {
        let pods = ["10.244.0.0/16", "fd00:244::/56"];
        let (cluster, refused) =
            cluster_of(&pods, &["10.70.0.0/16", "10.69.0.0/16", "fd00:70::/112"]);

        let shared: [IpAddr; 2] = ["10.70.0.0".parse().unwrap(), "fd00:70::".parse().unwrap()];
        assert_eq!(cluster.masquerade, shared);
        let all = [pods[0], pods[1], "10.70.0.0/16", "10.69.0.0/16", "fd00:70::/112"];
        assert_eq!(cluster.prefixes, prefixes(&all));
        assert_eq!(refused, <[String; 0]>::default());
    }

    #[test]
    fn without_pod_prefixes_nothing_is_masqueraded() {
        for (pods, external) in [
            (&[][..], &["10.70.0.0/16"][..]),
            (&["fd00:244::/56"], &["10.70.0.0/16"]),
            (&["10.244.0.0/16", "10.245.0.1/16"], &["10.70.0.0/16"]),
            (&["10.244.0.0/16"], &[]),
            (&[""], &["10.70.0.0/16"]),
        ] {
            let (cluster, _) = cluster_of(pods, external);

            assert_eq!(cluster.masquerade, <[IpAddr; 0]>::default(), "{pods:?} {external:?}");
        }
    }

    #[test]
    fn invalid_prefixes_are_reported() {
        let (cluster, refused) = cluster_of(&["10.244.0.0/16"], &["10.70.0.1/16"]);

        assert_eq!(cluster, Cluster::default());
        assert!(refused[0].contains("spec.local.cidr.external[0]: "), "{refused:?}");
        assert!(refused[0].contains("10.70.0.0/16"), "{refused:?}");
    }
}
