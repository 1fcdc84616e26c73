//! Random rules as users write them, beside the remapping that Liqo's controllers write.

use std::cell::RefCell;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use remap::ruleset::{ChainError, Device, NodeId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::{FirewallConfiguration, RouteConfiguration};
use strait_plan::lowering::{Lowered, Problem, Scope};

use super::gateway::Gateway;
use super::genuine::objects;
use super::kernel::Kernel;
use super::probe::{ESP, ICMP, Probe, TCP, UDP};
use super::{NEEDS, PACKETS, nft};
use crate::harness::compare::with_one_zero;
use crate::harness::require::require;

/// Packets for each set of rules.
const PROBES: usize = 200;

#[test]
fn random_rules_match_the_kernel() {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };
    let cases = u32::try_from(PACKETS / PROBES).unwrap();
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Default::default()
    };
    let counts = RefCell::new(Counts::default());

    let rules = prop::collection::vec(object(), 1..4);
    let probes = prop::collection::vec(probe(), PROBES);
    TestRunner::new(config)
        .run(&(rules, probes), |(rules, probes)| {
            assert_agrees(&rules, probes, &mut counts.borrow_mut())
        })
        .unwrap();

    // Rules that drop all packets, or none, would prove little.
    let Counts { sent, changed, rejected, dropped, unrouted, refused, .. } = counts.into_inner();
    let all = sent + rejected + dropped + unrouted;
    let shares = [sent, changed, rejected, dropped].map(|count| count * 200 > all);
    assert!(shares.iter().all(|is_enough| *is_enough), "{shares:?} {all}");
    assert!(refused > 0);
}

/// Of random rules few mark a packet before it is routed.
#[test]
fn marks_of_flows_select_routes() {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };
    let chain = |name: &str, priority: i32, rule: Value| {
        json!({
            "name": name, "hook": "prerouting", "priority": priority, "policy": "accept",
            "type": "filter", "rules": {"filterRules": [rule]},
        })
    };
    let marks = json!({
        "action": "ctmark", "value": "7", "counter": false,
        "match": [{"op": "eq", "proto": {"value": "udp"}, "dev": {"position": "in", "value": "liqo-tunnel"}}],
    });
    let restores = json!({"action": "metamarkfromctmark", "counter": false, "match": []});
    let rules = json!({"table": {"name": "", "family": "IPV4", "chains": [
        chain("restores", -50, restores),
        chain("marks", -150, marks),
    ]}});
    let mut runner = TestRunner::deterministic();
    let probes = prop::collection::vec(probe(), PROBES).new_tree(&mut runner).unwrap().current();
    let mut counts = Counts::default();

    assert_agrees(&[rules], probes, &mut counts).unwrap();

    assert!(counts.marked > 0);
}

/// What became of all packets, and the objects that were refused.
#[derive(Default)]
struct Counts {
    sent: usize,
    changed: usize,
    rejected: usize,
    dropped: usize,
    unrouted: usize,
    /// They went to the node that only their mark leads to.
    marked: usize,
    refused: usize,
}

fn assert_agrees(
    rules: &[Value],
    probes: Vec<Probe>,
    counts: &mut Counts,
) -> Result<(), TestCaseError> {
    let kernel = Kernel::new(&["liqo.one", "liqo.two"]);
    let routes = routes().into_iter().enumerate();
    let routes: Vec<RouteConfiguration> =
        routes.map(|(number, spec)| read("RouteConfiguration", "route", number, &spec)).collect();
    for (number, object) in routes.iter().enumerate() {
        kernel.route(nft::routes(object, 1000 + number));
    }

    let specs = rules.iter().cloned().chain([remapping()]).enumerate();
    let firewalls: Vec<FirewallConfiguration> = specs
        .map(|(number, spec)| read("FirewallConfiguration", "firewall", number, &spec))
        .collect();
    let scope = Scope {
        remote_cluster_id: "milan".to_owned(),
        node_name: None,
        peer_address: [169, 254, 18, 1].into(),
        tracks_flows: true,
    };
    let lowered = Lowered::new(&scope, &objects(&firewalls, &routes));

    // The kernel refuses what we refuse, apart from rules that never have an effect.
    let mut tables = String::new();
    // An error passes postrouting too.
    let mut may_be_silent = !kernel.tells_every_source;
    for object in &firewalls {
        let name = object.metadata.name.as_deref();
        let outcome = lowered
            .outcomes
            .iter()
            .find(|it| it.object.kind == "FirewallConfiguration" && Some(&*it.object.name) == name);
        let table = nft::table(object);
        match &outcome.unwrap().problem {
            None => {
                tables += &table;
                let mut chains = object.spec.table.chains.iter();
                may_be_silent |=
                    chains.any(|chain| chain.hook == "postrouting" && chain.type_ == "filter");
            }
            Some(Problem::Chain {
                cause: ChainError::MarksEarly { .. } | ChainError::UntracksLate { .. },
                ..
            }) => counts.refused += 1,
            Some(problem) => {
                counts.refused += 1;
                prop_assert!(!kernel.install(&table), "{problem}: {table}");
            }
        }
    }
    prop_assert!(kernel.install(&tables), "{tables}");

    let mut gateway = Gateway::new(&lowered);
    let translates = tables.contains("type nat hook").then_some(UDP);
    let probes = (0..).zip(probes).map(|(number, probe): (u16, Probe)| {
        // Each is a flow of its own. Without ports that would depend on the translation.
        let protocol = match probe.protocol {
            ESP => translates.unwrap_or(ESP),
            protocol => protocol,
        };
        Probe { id: number, ports: [40_000 + number, probe.ports[1]], protocol, ..probe }
    });
    let probes: Vec<Probe> = probes.collect();
    let ours: Vec<_> = probes.iter().map(|probe| gateway.pass(probe)).collect();
    let expected = probes.iter().zip(&ours).map(|(probe, ours)| {
        let is_expected = ours
            .as_ref()
            .is_some_and(|ours| ours.sent.is_some() || (ours.is_rejected && !may_be_silent));
        (probe.clone(), is_expected)
    });
    let theirs = kernel.pass(&expected.collect::<Vec<_>>());

    for ((probe, ours), theirs) in probes.iter().zip(ours).zip(theirs) {
        let Some(ours) = ours else {
            counts.unrouted += 1;
            prop_assert_eq!(theirs.sent, None, "{:?} {}", probe, tables);
            continue;
        };
        if ours.is_rejected {
            counts.rejected += 1;
            prop_assert!(theirs.is_rejected || may_be_silent, "{probe:?} {tables}");
        } else {
            prop_assert!(!theirs.is_rejected, "{probe:?} {tables}");
        }
        match &ours.sent {
            Some((device, bytes)) => {
                counts.sent += 1;
                let by_prefix = Device::Node(NodeId(u32::from(bytes[18] >= 128)));
                counts.marked += usize::from(*device != Device::Tunnel && *device != by_prefix);
                let original = crate::harness::compare::one_hop_later(probe.to_bytes());
                counts.changed += usize::from(*bytes != original);
            }
            None => counts.dropped += usize::from(!ours.is_rejected),
        }
        let sent = |sent: Option<(Device, Vec<u8>)>| {
            sent.map(|(device, bytes)| (device, with_one_zero(bytes)))
        };
        prop_assert_eq!(sent(theirs.sent), sent(ours.sent), "{:?} {}", probe, tables);
    }

    Ok(())
}

fn read<K: DeserializeOwned>(kind: &str, label: &str, number: usize, spec: &Value) -> K {
    let labels = json!({
        format!("networking.liqo.io/{label}-category"): "gateway",
        format!("networking.liqo.io/{label}-unique"): "milan",
    });
    let mut spec = spec.clone();
    spec["table"]["name"] = json!(format!("{label}-{number}"));
    let object = json!({
        "apiVersion": "networking.liqo.io/v1beta1", "kind": kind, "spec": spec,
        "metadata": {"name": number.to_string(), "namespace": "n", "labels": labels},
    });

    serde_json::from_value(object).unwrap()
}

/// Everything from the nodes goes into the tunnel. From there to two nodes, by prefix and by mark.
fn routes() -> [Value; 2] {
    let to = |dst: &str, gw: &str| json!({"dst": dst, "gw": gw});

    let unmarked = json!({"table": {"name": "", "rules": [
        {"dst": "10.80.0.1/32", "routes": [{"dst": "10.80.0.1/32", "dev": "liqo.one", "scope": "link"}]},
        {"dst": "10.80.0.2/32", "routes": [{"dst": "10.80.0.2/32", "dev": "liqo.two", "scope": "link"}]},
        {"iif": "liqo.one", "dst": "10.9.0.0/16", "routes": [to("10.9.0.0/16", "169.254.18.1")]},
        {"iif": "liqo.two", "dst": "10.9.0.0/16", "routes": []},
        {"iif": "liqo-tunnel", "dst": "10.244.0.0/17", "routes": [to("10.244.0.0/17", "10.80.0.1")]},
        {"iif": "liqo-tunnel", "dst": "10.244.128.0/17", "routes": [to("10.244.128.0/17", "10.80.0.2")]},
    ]}});
    let marked = json!({"table": {"name": "", "rules": [
        {"iif": "liqo-tunnel", "fwmark": 7, "dst": "10.244.0.0/17", "routes": [to("10.244.0.0/17", "10.80.0.2")]},
    ]}});

    [unmarked, marked]
}

/// Of the pods of the remote cluster.
fn remapping() -> Value {
    let chain = |name: &str, hook: &str, priority: i32, rule: Value| {
        json!({
            "name": name, "hook": hook, "priority": priority, "type": "nat", "policy": "accept",
            "rules": {"natRules": [rule]},
        })
    };
    let device =
        |op: &str, value: &str| json!({"op": op, "dev": {"position": "in", "value": value}});
    let address = |position: &str, value: &str| json!({"op": "eq", "ip": {"position": position, "value": value}});

    json!({"table": {"name": "", "family": "IPV4", "chains": [
        chain("outgoing", "prerouting", -100, json!({
            "natType": "dnat", "to": "10.9.0.0/16",
            "match": [address("dst", "10.71.0.0/16"), device("neq", "eth0"), device("neq", "liqo-tunnel")],
        })),
        chain("incoming", "postrouting", 100, json!({
            "natType": "snat", "to": "10.71.0.0/16",
            "match": [address("src", "10.9.0.0/16"), device("eq", "liqo-tunnel")],
        })),
    ]}})
}

fn object() -> impl Strategy<Value = Value> {
    (prop::collection::vec(chain(), 1..4), any::<bool>()).prop_map(|(mut chains, is_of_both)| {
        // In a table of both IP versions the kernel has other statements for translation.
        let translates = chains.iter().any(|chain| chain["type"] == "nat");
        let family = if is_of_both && !translates { "INET" } else { "IPV4" };
        for (number, chain) in chains.iter_mut().enumerate() {
            chain["name"] = json!(format!("c{number}"));
        }
        json!({"table": {"name": "", "family": family, "chains": chains}})
    })
}

/// Mostly chains that the kernel accepts; no priority is that of the remapping, where the order would be open.
fn chain() -> impl Strategy<Value = Value> {
    let select = |values: &[i32]| prop::sample::select(values.to_vec());
    let place = prop_oneof![
        4 => (Just("prerouting"), select(&[-350, -150, -50, 0, 10]), Just(false)),
        4 => (Just("forward"), select(&[-10, 0, 10]), Just(false)),
        3 => (Just("postrouting"), select(&[0, 99, 101]), Just(false)),
        4 => (Just("prerouting"), select(&[-150, -99, 50]), Just(true)),
        4 => (Just("postrouting"), select(&[50, 99, 101, 150]), Just(true)),
        1 => (Just("forward"), select(&[-100, 0]), Just(true)),
        1 => (Just("prerouting"), select(&[-300, -200]), Just(true)),
    ];

    place.prop_flat_map(|(hook, priority, is_nat)| {
        let rule = if is_nat { nat_rule(hook).boxed() } else { filter_rule().boxed() };
        let policy = prop_oneof![6 => Just("accept"), 1 => Just("drop")];
        (prop::collection::vec(rule, 0..5), policy).prop_map(move |(rules, policy)| {
            let mut chain = json!({
                "name": "", "hook": hook, "priority": priority, "policy": policy,
                "type": if is_nat { "nat" } else { "filter" }, "rules": {},
            });
            chain["rules"][if is_nat { "natRules" } else { "filterRules" }] = json!(rules);
            chain
        })
    })
}

fn filter_rule() -> impl Strategy<Value = Value> {
    let action = prop_oneof![
        3 => Just(("accept", "")),
        3 => Just(("drop", "")),
        3 => Just(("reject", "")),
        2 => prop::sample::select(vec!["1", "7"]).prop_map(|mark| ("ctmark", mark)),
        2 => Just(("metamarkfromctmark", "")),
        3 => prop::sample::select(vec!["0", "536", "1200", "1400"]).prop_map(|mss| ("tcpmssclamp", mss)),
        1 => Just(("notrack", "")),
    ];

    (action, matches(), any::<bool>()).prop_map(|((action, value), matches, counter)| {
        json!({"action": action, "value": value, "counter": counter, "match": matches})
    })
}

fn nat_rule(hook: &'static str) -> impl Strategy<Value = Value> {
    let usual = if hook == "prerouting" { "dnat" } else { "snat" };
    let kind = prop_oneof![
        12 => Just(usual),
        1 => prop::sample::select(vec!["snat", "dnat", "masquerade"]),
    ];
    let address = if hook == "prerouting" {
        vec!["10.9.7.7", "10.9.64.0/18", "10.244.7.7", "10.244.128.0/17"]
    } else {
        vec!["10.244.7.7", "10.71.0.0/16", "10.6.5.0/24", ""]
    };

    (kind, prop::sample::select(address), matches())
        .prop_map(|(kind, to, matches)| json!({"natType": kind, "to": to, "match": matches}))
}

fn matches() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(one_match(), 0..3)
}

/// Every field may be there, and be negated.
fn one_match() -> impl Strategy<Value = Value> {
    let address = prop::sample::select(vec![
        "10.244.0.0/17",
        "10.244.64.0/18",
        "10.9.0.0/16",
        "10.71.0.0/17",
        "10.71.5.5",
        "10.244.7.7",
        "10.244.0.10-10.244.90.0",
        "10.9.3.0-10.9.200.9",
    ]);
    let port = prop::sample::select(vec!["53", "443", "40000-40090", "0-300", "40007"]);
    let device =
        prop::sample::select(vec!["liqo-tunnel", "liqo.one", "liqo.two", "liqo.*", "eth0"]);
    let end = || prop::sample::select(vec!["src", "dst"]);
    let side = prop::sample::select(vec!["in", "out"]);
    let protocol = prop::sample::select(vec!["tcp", "udp"]);
    let op = prop_oneof![3 => Just("eq"), 2 => Just("neq")];

    let fields = (
        prop::option::weighted(0.5, (end(), address)),
        prop::option::weighted(0.3, (end(), port)),
        prop::option::weighted(0.3, (side, device)),
        prop::option::weighted(0.3, protocol),
    );
    (op, fields).prop_map(|(op, (ip, port, device, protocol))| {
        let mut one = json!({"op": op});
        let fields = [("ip", ip), ("port", port), ("dev", device)];
        for (field, (position, value)) in
            fields.into_iter().filter_map(|(field, value)| Some((field, value?)))
        {
            one[field] = json!({"position": position, "value": value});
        }
        if let Some(protocol) = protocol {
            one["proto"] = json!({"value": protocol});
        }
        one
    })
}

/// From a node to the remote cluster, or from there to a pod, or to an address without a route.
fn probe() -> impl Strategy<Value = Probe> {
    let within =
        |second: u8| any::<[u8; 2]>().prop_map(move |[c, d]| Ipv4Addr::new(10, second, c, d));
    let node = (0_u32..2).prop_map(|node| Device::Node(NodeId(node)));
    let outbound = (node, within(244), prop_oneof![6 => within(71), 3 => within(9)]);
    let inbound = (Just(Device::Tunnel), within(9), prop_oneof![8 => within(244), 1 => within(99)]);
    let ends = prop_oneof![outbound, inbound];
    let protocol = prop::sample::select(vec![TCP, UDP, ICMP, ESP]);
    let port = prop_oneof![Just(53_u16), Just(443), 1_u16..1024];

    (ends, protocol, port, 500_u16..1500).prop_map(
        |((input, source, destination), protocol, port, mss)| Probe {
            id: 0,
            input,
            source,
            destination,
            protocol,
            ports: [0, port],
            mss,
            is_reply: false,
        },
    )
}
