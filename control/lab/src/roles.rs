//! What gateways may do in a test: what they may in a cluster, and no more.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::ObjectMeta;

const NETWORKING: &str = "networking.liqo.io";

/// An API group, resources of it, and verbs.
type Rule<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

/// The role that a gateway is given.
pub fn shipped_role() -> ClusterRole {
    let text = include_str!("../../../deploy/rbac/gateway-clusterrole.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// The role that the agent on each node is given.
pub fn node_role() -> ClusterRole {
    let text = include_str!("../../../deploy/rbac/node-clusterrole.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// The role that the operator is given in its own namespace.
pub fn operator_role() -> Role {
    let text = include_str!("../../../deploy/rbac/operator-role.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// The role that the operator is given in all namespaces.
pub fn operator_cluster_role() -> ClusterRole {
    let text = include_str!("../../../deploy/rbac/operator-clusterrole.yaml");

    serde_saphyr::from_str(text).expect("a role")
}

/// What Liqo's role for gateways grants, whatever of it is used.
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

/// One that sees the keys and prefixes of all peers, and does nothing.
pub fn reader() -> ClusterRole {
    let resources = ["configurations", "publickeies"];

    role("strait-reader", &[(NETWORKING, &resources, &["get", "list", "watch"])])
}

/// One that may do nothing at all.
pub fn nobody() -> ClusterRole {
    role("nobody", &[])
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
