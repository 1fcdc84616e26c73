//! `RouteConfiguration`s.

use super::*;

#[test]
fn routes_that_do_not_forward_are_refused() {
    let rule = |rule: Value| json!({"table": {"name": "t", "rules": [rule]}});
    let to_node = json!([{"dst": "10.9.0.0/16", "gw": "10.80.0.1"}]);
    let to_tunnel = json!([{"dst": "10.9.0.0/16", "gw": "169.254.18.1"}]);
    let out = json!([{"dst": "10.9.0.0/16", "gw": "192.0.2.1"}]);

    for (spec, expected) in [
        (json!({"iif": "liqo-tunnel", "routes": to_tunnel}), "rules[0]: the route to 10.9.0.0/16"),
        (json!({"iif": "liqo.one", "routes": to_node}), "rules[0]: the route to 10.9.0.0/16"),
        (json!({"iif": "liqo-tunnel", "routes": out}), "rules[0]: the route to 10.9.0.0/16"),
        (json!({"routes": to_node}), "rules[0]: the route to 10.9.0.0/16"),
        (
            json!({"iif": "liqo.*", "src": "10.0.0.0/8", "routes": to_tunnel}),
            "rules[0]: src is set",
        ),
        (json!({"iif": "liqo*", "routes": to_node}), "rules[0]: iif is set"),
        (json!({"priority": 5, "routes": to_node}), "rules[0]: priority is set"),
        (json!({"dst": "pods", "routes": to_node}), "rules[0]: dst is \"pods\""),
    ] {
        let lowered = rome(&[], &[rule(spec)]);

        let problem = problem(&lowered);
        assert!(problem.starts_with(expected), "{problem}");
        assert_eq!(lowered.node_routes.node(ip("10.9.0.1"), 0), None);
    }
    let beside = json!({"dst": "10.9.0.1/32", "routes": [{"dst": "10.9.0.1/32", "dev": "eth0"}]});
    assert!(problem(&rome(&[], &[rule(beside)])).starts_with("rules[0]: the route to 10.9.0.1/32"));
    let from_nowhere = rome(&[], &[rule(json!({"iif": "eth0", "routes": to_node}))]);
    assert_eq!(problem(&from_nowhere), "");
    assert_eq!(from_nowhere.node_routes.node(ip("10.9.0.1"), 0), None);
}

/// All routes of an object are in one table, which each of its rules leads to.
#[test]
fn rules_of_an_object_share_its_routes() {
    let spec = json!({"table": {"name": "t", "rules": [
        {"iif": "liqo-tunnel", "dst": "10.9.1.0/24", "routes": [{"dst": "10.0.0.0/8", "gw": "10.80.0.1"}]},
        {"iif": "liqo-tunnel", "dst": "10.9.2.0/24", "routes": [{"dst": "10.9.0.0/16", "gw": "10.80.0.2"}]},
    ]}});

    let lowered = rome(&[], &[spec]);

    let node = |address: &str| lowered.node_routes.node(ip(address), 0);
    assert_eq!(node("10.9.1.1"), Some(NodeId(1)), "the longer route of the other rule");
    assert_eq!(node("10.9.2.1"), Some(NodeId(1)));
    assert_eq!(node("10.9.3.1"), None);
}
