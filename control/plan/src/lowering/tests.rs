//! Objects that Liqo's controllers wrote, and objects that they do not write.

mod genuine;
mod routes;
mod rules;
mod without_flows;

use std::sync::Arc;

use kube::core::DeserializeGuard;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

/// What a gateway to Milan gets from objects with these specifications, and with two nodes.
fn rome(firewalls: &[Value], routes: &[Value]) -> Lowered {
    rome_with(&scope(), firewalls, routes)
}

fn rome_with(scope: &Scope, firewalls: &[Value], routes: &[Value]) -> Lowered {
    let nodes = json!({"table": {"name": "nodes", "rules": [
        {"dst": "10.80.0.1/32", "routes": [{"dst": "10.80.0.1/32", "dev": "liqo.one", "scope": "link"}]},
        {"dst": "10.80.0.2/32", "routes": [{"dst": "10.80.0.2/32", "dev": "liqo.two", "scope": "link"}]},
    ]}});
    let routes = routes
        .iter()
        .cloned()
        .chain([nodes])
        .enumerate()
        .map(|(number, spec)| listed(object("RouteConfiguration", "route", number, spec)));
    let firewalls =
        firewalls.iter().cloned().enumerate().map(|(number, spec)| {
            listed(object("FirewallConfiguration", "firewall", number, spec))
        });
    let objects = Objects {
        firewall_configurations: firewalls.collect(),
        route_configurations: routes.collect(),
    };

    Lowered::new(scope, &objects)
}

fn scope() -> Scope {
    Scope {
        remote_cluster_id: "milan".to_owned(),
        node_name: Some("one".to_owned()),
        peer_address: ip("169.254.18.1"),
        tracks_flows: true,
    }
}

fn object<K: DeserializeOwned>(kind: &str, label: &str, number: usize, spec: Value) -> K {
    let labels = json!({
        format!("networking.liqo.io/{label}-category"): "gateway",
        format!("networking.liqo.io/{label}-unique"): "milan",
    });
    let object = json!({
        "apiVersion": "networking.liqo.io/v1beta1", "kind": kind, "spec": spec,
        "metadata": {"name": number.to_string(), "namespace": "n", "labels": labels, "generation": 7},
    });

    serde_json::from_value(object).expect("an object")
}

/// A chain of one rule.
fn chain(type_: &str, hook: &str, priority: i32, rule: Value) -> Value {
    let kind = if type_ == "nat" { "natRules" } else { "filterRules" };

    json!({
        "name": "c", "hook": hook, "policy": "accept", "priority": priority, "type": type_,
        "rules": {kind: [rule]},
    })
}

fn table(chains: &[Value]) -> Value {
    json!({"table": {"name": "t", "family": "IPV4", "chains": chains}})
}

fn ip_is(position: &str, value: &str) -> Value {
    json!({"op": "eq", "ip": {"position": position, "value": value}})
}

fn device(op: &str, position: &str, name: &str) -> Value {
    json!({"op": op, "dev": {"position": position, "value": name}})
}

fn act(action: &str, value: &str, matches: &[Value]) -> Value {
    json!({"action": action, "value": value, "counter": true, "match": matches})
}

fn translate(type_: &str, to: &str, matches: &[Value]) -> Value {
    json!({"natType": type_, "to": to, "match": matches})
}

/// Both directions of a remapping, as Liqo writes it.
fn remap(remote: &str, local: &str) -> Value {
    let outgoing =
        [ip_is("dst", local), device("neq", "in", "eth0"), device("neq", "in", "liqo-tunnel")];
    let incoming =
        [device("neq", "out", "eth0"), ip_is("src", remote), device("eq", "in", "liqo-tunnel")];

    table(&[
        chain("nat", "prerouting", -100, translate("dnat", remote, &outgoing)),
        chain("nat", "postrouting", 100, translate("snat", local, &incoming)),
    ])
}

fn problem(lowered: &Lowered) -> String {
    let problems = lowered.outcomes.iter().filter_map(|outcome| outcome.problem.as_ref());

    problems.map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn listed<K>(object: K) -> Listed<K> {
    Arc::new(DeserializeGuard(Ok(object)))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
