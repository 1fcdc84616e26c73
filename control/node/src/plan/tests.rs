//! Three nodes, two remote clusters, and the problems that they can have.

use std::collections::BTreeSet;

use kube::core::DeserializeGuard;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::labels::OVERLAY_EDGE;

use super::*;

mod several;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn node(number: u8) -> Arc<Node> {
    Arc::new(object(json!({
        "metadata": {"name": format!("node-{number}")},
        "spec": {"podCIDRs": [format!("10.244.{number}.0/24"), format!("fd00:244:0:{number}::/64")]},
        "status": {"addresses": [
            {"type": "Hostname", "address": format!("node-{number}")},
            {"type": "InternalIP", "address": format!("172.18.0.{number}")},
            {"type": "InternalIP", "address": format!("fd00:18::{number}")},
            {"type": "ExternalIP", "address": format!("198.51.100.{number}")},
        ]},
    })))
}

fn configuration(cluster: &str, pods: &[&str]) -> Listed<Configuration> {
    configuration_here(cluster, pods, &["10.244.0.0/16"])
}

/// A `Configuration` with `local` as the pod prefixes of this cluster.
fn configuration_here(cluster: &str, pods: &[&str], local: &[&str]) -> Listed<Configuration> {
    of_value(json!({
        "metadata": {
            "name": cluster, "namespace": format!("liqo-tenant-{cluster}"),
            "labels": {"liqo.io/remote-cluster-id": cluster},
        },
        "spec": {
            "local": {"cidr": {"pod": local}}, "remote": {"cidr": {"pod": pods}},
        },
        "status": {"remote": {"cidr": {"pod": pods}}},
    }))
}

fn of_value(value: Value) -> Listed<Configuration> {
    Arc::new(serde_json::from_value::<DeserializeGuard<Configuration>>(value).unwrap())
}

/// The active pod of the gateway to `cluster`.
fn pod(cluster: &str, on: u8, host: u8) -> Pod {
    object(json!({
        "metadata": {
            "name": format!("gw-{cluster}-{host}"), "namespace": format!("liqo-tenant-{cluster}"),
            "labels": {
                "networking.liqo.io/component": "gateway", "networking.liqo.io/active": "true",
            },
        },
        "spec": {"nodeName": format!("node-{on}"), "containers": []},
        "status": {"phase": "Running", "podIP": format!("10.244.{on}.{host}"), "podIPs": [
            {"ip": format!("10.244.{on}.{host}")}, {"ip": format!("fd00:244:0:{on}::{host}")},
        ]},
    }))
}

fn objects(configurations: Vec<Listed<Configuration>>, pods: Vec<Pod>) -> Objects {
    let pods = pods.into_iter().map(Arc::new).collect();

    let nodes = (1..=3).map(node).collect();

    Objects { configurations, pods, nodes, ..Objects::default() }
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn to_node(number: u8, address: &str) -> BTreeSet<Hop> {
    [Hop::Node { name: format!("node-{number}"), address: address.parse().unwrap() }].into()
}

fn to_pod(address: impl Into<IpAddr>) -> BTreeSet<Hop> {
    [Hop::Pod(address.into())].into()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// No hop: the former ones.
fn former() -> BTreeSet<Hop> {
    BTreeSet::new()
}

fn problems(plan: &Plan) -> String {
    plan.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn nodes_send_to_the_pod_or_its_node() {
    let configurations = vec![configuration("rome", &["10.71.0.0/16", "fd00:71::/56"])];
    let objects = objects(configurations, vec![pod("rome", 2, 7)]);

    for (own, v4, v6) in [
        (1, to_node(2, "172.18.0.2"), to_node(2, "fd00:18::2")),
        (2, to_pod(ip("10.244.2.7")), to_pod(ip("fd00:244:0:2::7"))),
        (3, to_node(2, "172.18.0.2"), to_node(2, "fd00:18::2")),
    ] {
        let plan = plan(&format!("node-{own}"), &objects);

        let hops = [(prefix("10.71.0.0/16"), v4), (prefix("fd00:71::/56"), v6)];
        assert_eq!(plan.hops, BTreeMap::from(hops));
        assert_eq!(plan.problems, []);
        assert!(plan.is_complete);
        let own_addresses = [format!("172.18.0.{own}"), format!("fd00:18::{own}")];
        assert_eq!(plan.own.iter().map(ToString::to_string).collect::<Vec<_>>(), own_addresses);
        assert_eq!(plan.others.len(), 2);
    }
}

#[test]
fn all_nodes_send_to_an_overlay_pod() {
    let configurations = vec![configuration("rome", &["10.71.0.0/16", "fd00:71::/56"])];
    let mut gateway = pod("rome", 2, 7);
    let (label, value) = OVERLAY_EDGE;
    gateway.metadata.labels.as_mut().unwrap().insert(label.to_owned(), value.to_owned());
    let objects = objects(configurations, vec![gateway.clone()]);

    for own in ["node-1", "node-2", "node-3"] {
        let plan = plan(own, &objects);

        let addresses = ["10.244.2.7", "fd00:244:0:2::7"].map(|ip| ip.parse().unwrap());
        let hop = [Hop::Overlay { pod: gateway.name_any(), addresses: addresses.into() }].into();
        assert!(plan.hops.values().all(|found| *found == hop), "{:?}", plan.hops);
        assert_eq!(plan.hops.len(), 2);
        assert_eq!(plan.problems, []);
        assert_eq!(plan.places[&prefix("10.71.0.0/16")].addresses, addresses.into());
    }
}

#[test]
fn without_a_gateway_the_former_hop_is_kept() {
    type Change = fn(&mut Pod);
    // Whether the pod may be there, for its own node and for another one.
    let changes: [(&str, bool, bool, Change); 8] = [
        ("standby", true, true, |pod| label(pod, "networking.liqo.io/active", "false")),
        ("going", true, true, |pod| {
            pod.metadata.deletion_timestamp = Some(object(json!("2026-01-01T00:00:00Z")));
        }),
        ("other namespace", false, false, |pod| {
            pod.metadata.namespace = Some("liqo-tenant-oslo".to_owned());
        }),
        ("for another", false, false, |pod| label(pod, "liqo.io/remote-cluster-id", "oslo")),
        ("pending", true, true, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Pending".to_owned());
        }),
        ("ended", false, false, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        }),
        ("without address", false, true, |pod| {
            let status = pod.status.as_mut().unwrap();
            (status.pod_ip, status.pod_ips) = (None, None);
        }),
        ("without node", false, false, |pod| pod.spec.as_mut().unwrap().node_name = None),
    ];
    let name = prefix("10.71.0.0/16");
    for (what, is_here, is_there, change) in changes {
        let mut pod = pod("rome", 2, 7);
        change(&mut pod);
        let objects = objects(vec![configuration("rome", &["10.71.0.0/16"])], vec![pod]);

        for (own, is_there, addresses) in [
            ("node-2", is_here, ["10.244.2.7", "fd00:244:0:2::7"]),
            ("node-1", is_there, ["172.18.0.2", "fd00:18::2"]),
        ] {
            let plan = plan(own, &objects);

            assert_eq!(plan.hops[&name], former(), "{what}");
            assert_eq!(plan.problems, [], "{what}");
            assert_eq!(plan.without_gateway.len(), 1, "{what}");
            let addresses = addresses.into_iter().filter(|_| is_there);
            let addresses = addresses.map(|text| text.parse().unwrap()).collect();
            let places = Places { addresses, is_incomplete: false };
            assert_eq!(plan.places[&name], places, "{what} {own}");
        }
    }
}

#[test]
fn only_existing_nodes_may_be_anywhere() {
    let rome = configuration("rome", &["10.71.0.0/16"]);
    let mut objects = objects(vec![rome], vec![pod("rome", 2, 7)]);
    let places = |objects: &Objects| {
        let plan = plan("node-1", objects);
        assert_eq!(plan.hops[&prefix("10.71.0.0/16")], former());
        assert_eq!(plan.places[&prefix("10.71.0.0/16")], plan.other_places);
        plan.other_places
    };

    Arc::make_mut(&mut objects.nodes[1]).status = None;
    let unknown = Places { is_incomplete: true, ..Places::default() };
    assert_eq!(places(&objects), unknown);

    objects.nodes.remove(1);
    assert_eq!(places(&objects), Places::default());
}

fn label(pod: &mut Pod, label: &str, value: &str) {
    pod.labels_mut().insert(label.to_owned(), value.to_owned());
}

#[test]
fn packets_go_to_the_pod_with_the_session() {
    let mut former = pod("rome", 2, 7);
    label(&mut former, "networking.liqo.io/active", "false");
    former.metadata.deletion_timestamp = Some(object(json!("2026-01-01T00:00:00Z")));
    let mut pods = [former, pod("rome", 2, 8)];
    let used = |pods: &[Pod]| {
        let configurations = vec![configuration("rome", &["10.71.0.0/16"])];
        plan("node-2", &objects(configurations, pods.to_vec())).hops[&prefix("10.71.0.0/16")]
            .clone()
    };
    let [former, active] = [7, 8].map(|host| to_pod([10, 244, 2, host]));
    let has_session = |pod: &mut Pod, value: &str| {
        pod.annotations_mut().insert("strait.io/has-session".to_owned(), value.to_owned());
    };

    assert_eq!(used(&pods), active);
    has_session(&mut pods[0], "true");
    assert_eq!(used(&pods), former);
    has_session(&mut pods[0], "false");
    has_session(&mut pods[1], "true");
    assert_eq!(used(&pods), active);
    has_session(&mut pods[0], "true");
    pods[0].status.as_mut().unwrap().phase = Some("Failed".to_owned());
    assert_eq!(used(&pods), active);
}

#[test]
fn the_youngest_ready_pod_is_used() {
    let with = |host: u8, age: &str, is_ready: bool| {
        let mut pod = pod("rome", 2, host);
        let ready = if is_ready { "True" } else { "False" };
        pod.metadata.creation_timestamp = Some(object(json!(format!("2026-01-01T00:00:{age}Z"))));
        pod.status.as_mut().unwrap().conditions =
            Some(vec![object(json!({"type": "Ready", "status": ready}))]);
        pod
    };
    let used = |pods: Vec<Pod>| {
        let objects = objects(vec![configuration("rome", &["10.71.0.0/16"])], pods);
        plan("node-2", &objects).hops[&prefix("10.71.0.0/16")].clone()
    };
    let to = |host: u8| to_pod([10, 244, 2, host]);

    assert_eq!(used(vec![with(7, "01", true), with(8, "02", false)]), to(7));
    assert_eq!(used(vec![with(7, "01", true), with(8, "02", true)]), to(8));
    assert_eq!(used(vec![with(8, "02", true), with(7, "01", true)]), to(8));
}

#[test]
fn prefixes_that_cut_nodes_off_are_refused() {
    for (name, problem) in [
        ("0.0.0.0/0", "would take everything else with it"),
        ("172.18.0.0/16", "overlaps 172.18.0.1/32 of node node-1"),
        ("198.51.100.0/24", "overlaps 198.51.100.1/32 of node node-1"),
        ("10.244.3.128/25", "overlaps 10.244.3.0/24 of node node-3"),
        ("10.244.128.0/17", "overlaps 10.244.0.0/16 of spec.local.cidr"),
        ("fd00:18::/64", "overlaps fd00:18::1/128 of node node-1"),
    ] {
        let objects = objects(vec![configuration("rome", &[name])], vec![pod("rome", 2, 7)]);

        let plan = plan("node-1", &objects);

        assert_eq!(plan.hops, BTreeMap::new(), "{name}");
        let problems = problems(&plan);
        assert!(problems.contains(name) && problems.contains(problem), "{problems}");
        assert!(problems.contains("Configuration liqo-tenant-rome/rome"), "{problems}");
    }
}

#[test]
fn pods_of_one_configuration_bind_all_names() {
    let oslo = configuration_here("oslo", &["10.96.0.0/16"], &[]);
    let rome = configuration_here("rome", &["10.71.0.0/16"], &["10.96.0.0/14"]);
    let objects = objects(vec![oslo, rome], Vec::new());

    let plan = plan("node-1", &objects);

    assert_eq!(plan.hops.keys().collect::<Vec<_>>(), [&prefix("10.71.0.0/16")]);
    assert_eq!(
        problems(&plan),
        "Configuration liqo-tenant-oslo/oslo: 10.96.0.0/16 overlaps 10.96.0.0/14, the pods of this \
         cluster (spec.local of Configuration liqo-tenant-rome/rome): give it another name"
    );
}

#[test]
fn a_name_over_own_pods_is_reported_once() {
    let rome = of_value(json!({
        "metadata": {
            "name": "rome", "namespace": "liqo-tenant-rome",
            "labels": {"liqo.io/remote-cluster-id": "rome"},
        },
        "spec": {
            "local": {"cidr": {"pod": ["10.96.0.0/16"], "external": ["10.97.0.0/16"]}},
            "remote": {"cidr": {"pod": ["10.9.0.0/24", "10.9.1.0/24"]}},
        },
        "status": {"remote": {"cidr": {"pod": ["10.96.1.0/24", "10.97.1.0/24"]}}},
    }));

    let plan = plan("node-1", &objects(vec![rome], Vec::new()));

    let [of_pods, of_external] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
    assert!(of_pods.to_string().contains("10.96.1.0/24 overlaps 10.96.0.0/16"), "{of_pods}");
    assert!(of_external.to_string().contains("10.97.1.0/24"), "{of_external}");
    assert_eq!(plan.hops.keys().collect::<Vec<_>>(), [&prefix("10.97.1.0/24")]);
}

/// Milan is a hub: it lists the prefixes of Rome for Naples, and those of Naples for Rome, as its own.
#[test]
fn a_hub_keeps_routes_to_both_sides() {
    const PODS: &str = "10.244.0.0/16";
    let naples = configuration_here("naples", &["10.69.0.0/16"], &[PODS, "10.68.0.0/16"]);
    let rome = configuration_here("rome", &["10.68.0.0/16"], &[PODS, "10.69.0.0/16"]);
    let objects = objects(vec![naples, rome], Vec::new());

    let plan = plan("node-1", &objects);

    let led_to = ["10.68.0.0/16", "10.69.0.0/16"].map(prefix);
    assert_eq!(plan.hops.keys().collect::<Vec<_>>(), led_to.iter().collect::<Vec<_>>());
    assert_eq!(plan.problems, []);
}

#[test]
fn of_two_equal_prefixes_one_is_kept() {
    let [oslo, rome] = ["oslo", "rome"].map(|name| configuration(name, &["10.71.0.0/16"]));
    let pods = || vec![pod("rome", 2, 7), pod("oslo", 3, 9)];

    let one = plan("node-1", &objects(vec![oslo.clone(), rome.clone()], pods()));
    let other = plan("node-1", &objects(vec![rome, oslo], pods()));

    assert_eq!(one, other);
    assert_eq!(one.hops[&prefix("10.71.0.0/16")], to_node(3, "172.18.0.3"));
    let problems = problems(&one);
    assert!(problems.contains("liqo-tenant-rome/rome: 10.71.0.0/16 is a prefix of"), "{problems}");
}

#[test]
fn an_unreadable_object_prevents_removals() {
    let mut wrong_name =
        serde_json::to_value(configuration("rome", &["10.71.0.0/33"]).0.as_ref().unwrap()).unwrap();
    wrong_name["apiVersion"] = json!("networking.liqo.io/v1beta1");
    wrong_name["kind"] = json!("Configuration");
    let malformed =
        json!({"metadata": {"name": "rome", "namespace": "liqo-tenant-rome"}, "spec": 7});

    for value in [wrong_name, malformed] {
        let plan = plan("node-1", &objects(vec![of_value(value.clone())], Vec::new()));

        assert!(!plan.is_complete, "{value}");
        assert_eq!(plan.hops, BTreeMap::new());
        assert!(
            problems(&plan).contains("Configuration liqo-tenant-rome/rome"),
            "{}",
            problems(&plan)
        );
    }
}

#[test]
fn problems_of_gateways_and_nodes_are_reported() {
    let mut on_host = pod("rome", 2, 7);
    on_host.spec.as_mut().unwrap().host_network = Some(true);
    let rome = || vec![configuration("rome", &["10.71.0.0/16"])];

    let plan_on_host = plan("node-1", &objects(rome(), vec![on_host]));
    assert!(problems(&plan_on_host).contains("pod gw-rome-7 of the gateway uses the network"));
    assert_eq!(plan_on_host.hops[&prefix("10.71.0.0/16")], former());

    let on_unknown_node = plan("node-1", &objects(rome(), vec![pod("rome", 9, 7)]));
    assert!(problems(&on_unknown_node).contains("node node-9 has no address of the IP version"));
    assert!(
        on_unknown_node.problems[0].is_of_one_node() && !plan_on_host.problems[0].is_of_one_node()
    );

    let of_unknown_node = plan("node-9", &objects(rome(), vec![pod("rome", 2, 7)]));
    assert!(problems(&of_unknown_node).contains("node node-9 is not there, or has no InternalIP"));
    assert_eq!(of_unknown_node.hops[&prefix("10.71.0.0/16")], to_node(2, "172.18.0.2"));
}

/// A cluster in any state of setup or removal.
fn clusters() -> impl Strategy<Value = (Vec<Listed<Configuration>>, Vec<Pod>)> {
    let name = prop_oneof![
        (0..20_u8).prop_map(|number| format!("10.{}.0.0/16", 60 + number)),
        (0..4_u8).prop_map(|number| format!("fd00:{number}::/64")),
        Just("10.244.0.0/17".to_owned()),
        // Of no node.
        Just("10.244.128.0/17".to_owned()),
        Just("172.16.0.0/12".to_owned()),
        Just("nonsense".to_owned()),
        Just(String::new()),
    ];
    // Some specify no pod prefixes.
    let local =
        prop_oneof![Just(&[][..]), Just(&["10.244.0.0/16"][..]), Just(&["10.65.0.0/16"][..])];
    let clusters = (0..6_u8, proptest::collection::vec(name, 0..4), local);
    let configurations = proptest::collection::vec(clusters, 0..6).prop_map(|clusters| {
        let mut seen = BTreeSet::new();
        let clusters = clusters.into_iter().filter(|(cluster, ..)| seen.insert(*cluster));
        let listed = clusters.map(|(cluster, names, local)| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            configuration_here(&format!("cluster-{cluster}"), &names, local)
        });
        listed.collect::<Vec<_>>()
    });
    // As an API server returns them: by name, so names are unique.
    let pods = proptest::collection::btree_map((0..6_u8, 1..250_u8), 1..5_u8, 0..9);
    let pods = pods.prop_map(|pods| {
        let pods = pods.into_iter();
        pods.map(|((cluster, host), on)| pod(&format!("cluster-{cluster}"), on, host)).collect()
    });

    (configurations, pods)
}

proptest! {
    #[test]
    fn nodes_agree_and_cut_no_node_off((configurations, pods) in clusters()) {
        let forwards = objects(configurations, pods);
        let reversed = |mut objects: Objects| {
            objects.configurations.reverse();
            objects.pods.reverse();
            objects.nodes.reverse();
            objects
        };
        let mut taken: Vec<Prefix> = (1..=3).map(|number| prefix(&format!("10.244.{number}.0/24"))).collect();
        taken.extend(["172.18.0.0/30", "fd00:18::/126"].map(prefix));
        let local = |listed: &Listed<Configuration>| -> Vec<Prefix> {
            let local = listed.0.as_ref().unwrap().spec.local.as_ref().unwrap();
            local.cidr.as_ref().unwrap().pod.iter().map(|pods| prefix(pods)).collect()
        };
        let specified: Vec<_> = forwards.configurations.iter().map(local).collect();
        let in_all =
            |pods: &&Prefix| specified.iter().all(|others| others.is_empty() || others.contains(pods));
        taken.extend(specified.iter().flatten().filter(in_all));
        let plans: Vec<_> = (1..=3)
            .map(|number| plan(&format!("node-{number}"), &forwards))
            .collect();

        for (plan_of_one, number) in plans.iter().zip(1..) {
            let name = format!("node-{number}");
            prop_assert_eq!(plan_of_one, &plan(&name, &reversed(forwards.clone())));
            prop_assert_eq!(
                plan_of_one.hops.keys().collect::<Vec<_>>(),
                plans[0].hops.keys().collect::<Vec<_>>()
            );
            for (prefix, hops) in &plan_of_one.hops {
                prop_assert!(!taken.iter().any(|taken| taken.overlaps(*prefix)), "{prefix}");
                // A packet that is sent to a node goes on to a pod there.
                for hop in hops {
                    let target = match hop {
                        Hop::Node { name, .. } => name.strip_prefix("node-").unwrap().parse().unwrap(),
                        Hop::Pod(_) => number,
                        Hop::Overlay { .. } => continue,
                    };
                    let there = &plans[target - 1].hops[prefix];
                    prop_assert!(!there.is_empty(), "{prefix}");
                    prop_assert!(there.iter().all(|hop| matches!(hop, Hop::Pod(_))), "{there:?}");
                }
            }
        }
    }
}
