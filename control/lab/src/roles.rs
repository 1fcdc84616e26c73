//! The roles of gateways in a test: the same as in a cluster.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::ObjectMeta;

const NETWORKING: &str = "networking.liqo.io";

/// An API group, resources of it, and verbs.
type Rule<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

/// The shipped role of a gateway.
pub fn shipped_role() -> ClusterRole {
    let text = include_str!("../../../deploy/rbac/gateway-clusterrole.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// The shipped role of the agent on each node.
pub fn node_role() -> ClusterRole {
    let text = include_str!("../../../deploy/rbac/node-clusterrole.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// The shipped role of the operator in its own namespace.
pub fn operator_role() -> Role {
    let text = include_str!("../../../deploy/rbac/operator-role.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// The shipped role of the operator in all namespaces.
pub fn operator_cluster_role() -> ClusterRole {
    let text = include_str!("../../../deploy/rbac/operator-clusterrole.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// Liqo's role for gateways, with the rights that are not used here too.
pub fn stock_role() -> ClusterRole {
    let watch = ["get", "list", "watch"];
    let change = ["get", "list", "patch", "update", "watch"];
    let all = ["create", "delete", "get", "list", "update", "watch"];
    let events = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let configurations = [
        "firewallconfigurations",
        "firewallconfigurations/status",
        "routeconfigurations",
        "routeconfigurations/status",
    ];
    let finalizers = ["firewallconfigurations/finalizers", "routeconfigurations/finalizers"];

    role(
        "liqo-gateway",
        &[
            ("", &["events"], &events),
            ("", &["pods"], &change),
            ("coordination.k8s.io", &["leases"], &["create", "delete", "get", "update"]),
            (NETWORKING, &["connections", "publickeies"], &all),
            (NETWORKING, &["connections/status"], &["get", "patch", "update"]),
            (NETWORKING, &configurations, &change),
            (NETWORKING, &finalizers, &["update"]),
            (NETWORKING, &["genevetunnels", "internalfabrics", "internalnodes"], &watch),
        ],
    )
}

/// A role that reads the keys and prefixes of all peers, and does nothing else.
pub fn reader() -> ClusterRole {
    let resources = ["configurations", "publickeies"];

    role("strait-reader", &[(NETWORKING, &resources, &["get", "list", "watch"])])
}

/// A role without any right.
pub fn no_rights() -> ClusterRole {
    role("no-rights", &[])
}

fn role(name: &str, rules: &[Rule<'_>]) -> ClusterRole {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let rule = |(group, resources, verbs): &Rule<'_>| PolicyRule {
        api_groups: Some(owned(&[group])),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    };

    ClusterRole {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        rules: Some(rules.iter().map(rule).collect()),
        ..ClusterRole::default()
    }
}
