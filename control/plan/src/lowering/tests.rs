//! Lowers every object that Liqo's controllers wrote (`control/api/tests/genuine`), and objects that it does not write.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use kube::core::DeserializeGuard;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::Configuration;

use super::*;
use remap::ruleset::{Device, Flow, Hook, Packet, Verdict};

/// The objects of one cluster.
struct World {
    name: String,
    items: Vec<Value>,
}

fn genuine() -> Vec<World> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/genuine");
    let worlds = fs::read_dir(folder).unwrap().map(|file| {
        let path = file.unwrap().path();
        let list: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        World {
            name: path.display().to_string(),
            items: list["items"].as_array().cloned().expect("a list"),
        }
    });

    worlds.collect()
}

impl World {
    fn of_kind<K: DeserializeOwned>(&self, kind: &str) -> Vec<K> {
        let of_kind = self.items.iter().filter(|item| item["kind"] == kind);

        of_kind.map(|item| serde_json::from_value(item.clone()).expect("an object")).collect()
    }

    fn objects(&self) -> Objects {
        Objects {
            firewall_configurations: self
                .of_kind("FirewallConfiguration")
                .into_iter()
                .map(listed)
                .collect(),
            route_configurations: self
                .of_kind("RouteConfiguration")
                .into_iter()
                .map(listed)
                .collect(),
        }
    }

    fn configuration(&self) -> Configuration {
        self.of_kind("Configuration").remove(0)
    }

    fn scope(&self) -> Scope {
        let id = self.configuration().metadata.labels.expect("labels")["liqo.io/remote-cluster-id"]
            .clone();
        let is_server = id == "rome";

        Scope {
            node_name: Some(format!("{}-n1", if is_server { "milan" } else { "rome" })),
            remote_cluster_id: id,
            peer_address: ip(if is_server { "169.254.18.2" } else { "169.254.18.1" }),
        }
    }
}

fn listed<K>(object: K) -> Listed<K> {
    Arc::new(DeserializeGuard(Ok(object)))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn every_genuine_object_is_lowered_to_lookups() {
    let worlds = genuine();
    assert!(worlds.len() >= 4);

    for world in worlds {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let name = &world.name;
        let problems: Vec<_> =
            lowered.outcomes.iter().filter(|outcome| outcome.problem.is_some()).collect();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        // Three of the fabric are for nodes alone: masquerade-bypass, the routes of nodes, and those of another node.
        assert!(lowered.outcomes.len() >= 11, "{name}: {}", lowered.outcomes.len());
        assert!(lowered.ruleset.is_empty(), "{name}: {:?}", lowered.ruleset);
        assert_eq!(lowered.clamp, Clamp { to_route: true, to: None }, "{name}");
        assert!(lowered.nodes.len() >= 2, "{name}: {:?}", lowered.nodes);
    }
}

#[test]
fn genuine_objects_remap_as_their_configuration() {
    for world in genuine() {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let configuration = world.configuration();
        let parsed = crate::objects::parse(&configuration);
        let mut expected: Vec<Rule> = Vec::new();
        for pair in parsed.pairs {
            if let crate::objects::Name::Remapped(rule) = pair.name {
                expected.push(rule);
            }
        }
        let sorted = |mut rules: Vec<Rule>| {
            rules.sort();
            rules
        };
        assert!(!expected.is_empty(), "{}", world.name);
        let remotes: BTreeSet<_> = expected.iter().map(Rule::remote).collect();
        assert_eq!(lowered.remotes, Vec::from_iter(remotes), "{}", world.name);
        assert_eq!(sorted(lowered.remaps), sorted(expected), "{}", world.name);
    }
}

#[test]
fn genuine_objects_route_to_the_node_of_a_pod() {
    for world in genuine() {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let mut pods = 0;
        for object in world.of_kind::<RouteConfiguration>("RouteConfiguration") {
            let name = object.metadata.name.clone().unwrap_or_default();
            for rule in routing::rules(&object).unwrap() {
                for route in rule.routes.iter().filter(|route| route.is_for_pod) {
                    let node = lowered.node_routes.node(route.destination.network(), 0).unwrap();
                    let node = &lowered.nodes[usize::try_from(node.0).unwrap()];
                    assert_eq!(Some(node.address), route.next_hop, "{name}");
                    pods += 1;
                }
            }
        }
        assert!(pods > 3, "{}: {pods}", world.name);
    }
}

#[test]
fn replies_to_an_unknown_source_go_to_its_node() {
    for world in genuine() {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let unknown = ip("10.70.0.0");
        let mut marks = BTreeSet::new();
        for (number, _) in lowered.nodes.iter().enumerate() {
            let node = NodeId(u32::try_from(number).unwrap());
            let mark = lowered.mark(unknown, node).expect("every node has a mark");
            assert_eq!(lowered.node_routes.node(unknown, mark), Some(node), "{}", world.name);
            assert_eq!(lowered.mark(ip("10.70.0.9"), node), None);
            marks.insert(mark);
        }
        assert_eq!(marks.len(), lowered.nodes.len());
        assert_eq!(lowered.node_routes.node(unknown, 0), None);
    }
}

/// The milan of Rome's objects, with two nodes.
fn rome(firewalls: &[Value], routes: &[Value]) -> Lowered {
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

    Lowered::new(&scope(), &objects)
}

fn scope() -> Scope {
    Scope {
        remote_cluster_id: "milan".to_owned(),
        node_name: Some("one".to_owned()),
        peer_address: ip("169.254.18.1"),
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

#[test]
fn deleted_objects_are_no_longer_in_force() {
    let mut object: FirewallConfiguration =
        object("FirewallConfiguration", "firewall", 0, remap("10.244.0.0/16", "10.71.0.0/16"));
    let lower = |object: &FirewallConfiguration| {
        let firewall_configurations = vec![listed(object.clone())];
        Lowered::new(&scope(), &Objects { firewall_configurations, ..Objects::default() })
    };
    assert_eq!(lower(&object).remaps.len(), 1);

    object.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-11-01T00:00:00Z")).unwrap();

    let lowered = lower(&object);
    assert_eq!(lowered.remaps, []);
    assert_eq!(lowered.outcomes, []);
}

#[test]
fn objects_of_other_gateways_are_not_lowered() {
    let mut object: FirewallConfiguration =
        object("FirewallConfiguration", "firewall", 0, remap("10.244.0.0/16", "10.71.0.0/16"));
    object.metadata.labels = Some(
        [
            ("networking.liqo.io/firewall-category", "gateway"),
            ("networking.liqo.io/firewall-unique", "oslo"),
        ]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into(),
    );
    let firewall_configurations = vec![listed(object)];

    let lowered =
        Lowered::new(&scope(), &Objects { firewall_configurations, ..Objects::default() });

    assert_eq!(lowered.outcomes, []);
    assert_eq!(lowered.remaps, []);
}

#[test]
fn half_a_shape_is_executed_as_rules() {
    let outgoing = [ip_is("dst", "10.71.0.0/16"), device("neq", "in", "liqo-tunnel")];
    let half = chain("nat", "prerouting", -100, translate("dnat", "10.244.0.0/16", &outgoing));

    let lowered = rome(&[table(&[half])], &[]);

    assert_eq!(problem(&lowered), "");
    assert_eq!(lowered.remaps, []);
    let mut packet = packet(Device::Node(NodeId(0)));
    packet.destination = ip("10.71.2.7");
    assert_eq!(lowered.ruleset.pass(Hook::Prerouting, &mut packet, None), Verdict::Accept);
    assert_eq!(packet.destination, ip("10.244.2.7"));
}

#[test]
fn devices_are_matched_by_name_and_wildcard() {
    for (op, name, dropped) in [
        ("eq", "liqo.one", [true, false, false]),
        ("eq", "liqo.*", [true, true, false]),
        ("neq", "liqo.*", [false, false, true]),
        ("eq", "liqo-tunnel*", [false, false, true]),
        ("eq", "liqo-tunnel3", [false, false, true]),
        ("eq", "eth0", [false, false, false]),
        ("neq", "eth0", [true, true, true]),
        ("eq", "*", [true, true, true]),
    ] {
        let rule = act("drop", "", &[device(op, "in", name)]);
        let lowered = rome(&[table(&[chain("filter", "forward", 0, rule)])], &[]);

        let inputs = [Device::Node(NodeId(0)), Device::Node(NodeId(1)), Device::Tunnel];
        let verdicts =
            inputs.map(|input| lowered.ruleset.pass(Hook::Forward, &mut packet(input), None));
        assert_eq!(verdicts.map(|verdict| verdict == Verdict::Drop), dropped, "{op} {name}");
    }
}

#[test]
fn what_cannot_be_executed_is_refused_by_name() {
    let all: &[Value] = &[];
    let filter = |hook: &str, priority: i32, action: &str| {
        table(&[chain("filter", hook, priority, act(action, "5", all))])
    };
    let nat = |hook: &str, priority: i32, type_: &str| {
        table(&[chain("nat", hook, priority, translate(type_, "10.0.0.9", all))])
    };
    let mut of_frames = filter("forward", 0, "drop");
    of_frames["table"]["family"] = json!("BRIDGE");

    for (spec, expected) in [
        (of_frames, "spec.table.family is \"BRIDGE\""),
        (filter("input", 0, "drop"), "chain c: hook is \"input\""),
        (filter("ingress", 0, "accept"), "chain c: hook is \"ingress\""),
        (nat("forward", 0, "snat"), "chain c: a chain of natRules has to be at hook"),
        (nat("prerouting", -300, "dnat"), "chain c: a chain of natRules at priority -300"),
        (nat("prerouting", -100, "snat"), "chain c: rule 0 translates sources"),
        (nat("postrouting", 100, "dnat"), "chain c: rule 0 translates destinations"),
        (filter("postrouting", 0, "reject"), "chain c: rule 0 rejects"),
        (filter("prerouting", -300, "ctmark"), "chain c: rule 0 uses the mark"),
        (filter("forward", 0, "notrack"), "chain c: rule 0 exempts packets"),
        (filter("forward", 0, "queue"), "chain c, rule 0: action is \"queue\""),
    ] {
        let good = table(&[chain("filter", "forward", 0, act("drop", "", all))]);
        let lowered = rome(&[good.clone(), spec.clone()], &[]);

        let problem = problem(&lowered);
        assert!(problem.starts_with(expected), "{problem}");
        assert_eq!(lowered.ruleset, rome(&[good], &[]).ruleset, "the other one is in force");
        let now = jiff::Timestamp::UNIX_EPOCH;
        let status = |outcome: &Outcome| outcome.condition("gw", None, now).status;
        assert_eq!(lowered.outcomes.iter().filter(|it| status(it) == "False").count(), 1);
        assert!(lowered.outcomes.iter().all(|outcome| outcome.generation == Some(7)));
    }
}

#[test]
fn the_later_of_two_contradicting_objects_is_refused() {
    let (one, other) =
        (remap("10.244.0.0/16", "10.71.0.0/16"), remap("10.9.0.0/16", "10.71.0.0/16"));

    let lowered = rome(&[one, other, remap("10.8.0.0/16", "10.72.0.0/16")], &[]);

    assert!(problem(&lowered).starts_with("local 10.71.0.0/16 overlaps"), "{}", problem(&lowered));
    let refused = lowered.outcomes.iter().find(|outcome| outcome.problem.is_some()).unwrap();
    assert_eq!(refused.object.name, "1");
    assert_eq!(lowered.remaps.len(), 2);
}

#[test]
fn host_maps_of_pods_apply_to_replies_only() {
    let map = |external: &str, internal: &str| {
        table(&[
            chain(
                "nat",
                "prerouting",
                -100,
                translate("dnat", internal, &[ip_is("dst", external)]),
            ),
            chain(
                "nat",
                "postrouting",
                100,
                translate("snat", internal, &[ip_is("src", external)]),
            ),
        ])
    };
    let pods = json!({"table": {"name": "p", "rules": [{"iif": "liqo-tunnel", "routes": [
        {"dst": "10.244.1.5/32", "gw": "10.80.0.1", "targetRef": {"kind": "Pod", "name": "a"}},
    ]}]}});

    let lowered = rome(&[map("10.70.0.1", "10.96.0.1"), map("10.70.0.2", "10.244.1.5")], &[pods]);

    assert_eq!(problem(&lowered), "");
    let (host, pod) = (ip("10.96.0.1"), ip("10.244.1.5"));
    assert_eq!(lowered.table.destination(ip("10.70.0.1")), remap::Destination::Mapped(host));
    assert_eq!(lowered.table.source(host), remap::Source::Mapped(ip("10.70.0.1")));
    assert_eq!(lowered.table.source(pod), remap::Source::MappedReplies(ip("10.70.0.2")));
}

#[test]
fn no_tracking_of_the_overlay_is_no_rule() {
    let udp = |position: &str| json!({"op": "eq", "proto": {"value": "udp"}, "port": {"position": position, "value": "6091"}});
    let untrack = |position: &str| act("notrack", "", &[udp(position)]);

    let lowered = rome(
        &[table(&[
            chain("filter", "prerouting", -300, untrack("dst")),
            chain("filter", "output", -300, untrack("src")),
        ])],
        &[],
    );

    assert_eq!(problem(&lowered), "");
    assert!(lowered.ruleset.is_empty());
}

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

fn packet(input: Device) -> Packet {
    Packet {
        source: ip("10.244.1.5"),
        destination: ip("10.71.2.7"),
        protocol: 17,
        ports: Some([40_000, 53]),
        input,
        output: None,
        output_address: None,
        mark: 0,
        flow: Some(Flow { is_new: true, mark: 0 }),
        is_untracked: false,
        shares_source: false,
        clamp: Clamp::default(),
    }
}
