//! A remote cluster with several gateways.

use super::*;

/// The address of the state page of [`gateway`].
fn endpoint(on: u8, host: u8) -> Endpoint {
    Endpoint {
        pod: format!("liqo-tenant-rome/gw-rome-{host}"),
        address: format!("10.244.{on}.{host}:8085").parse().unwrap(),
    }
}

/// The pod of a gateway to Rome, one of several.
fn gateway(name: &str, on: u8, host: u8) -> Pod {
    let mut pod = pod("rome", on, host);
    label(&mut pod, "networking.liqo.io/gateway-name", name);
    pod.spec.as_mut().unwrap().containers = vec![object(json!({
        "name": "strait", "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8085}},
    }))];

    pod
}

fn overlay_gateway(name: &str, on: u8, host: u8) -> Pod {
    let mut pod = gateway(name, on, host);
    label(&mut pod, OVERLAY_EDGE.0, OVERLAY_EDGE.1);

    pod
}

fn says(forwards: bool, own_destinations: &[&str]) -> GatewayState {
    let own_destinations = own_destinations.iter().map(|&text| text.to_owned()).collect();

    GatewayState { forwards, own_destinations }
}

/// Rome with these gateways, and what each says.
fn rome(gateways: &[(Pod, Option<GatewayState>)]) -> Objects {
    let pods = gateways.iter().map(|(pod, _)| pod.clone()).collect();
    let configuration = configuration("rome", &["10.71.0.0/16", "10.81.0.0/16"]);
    let states =
        gateways.iter().filter_map(|(pod, state)| Some((Endpoint::of(pod)?, state.clone()?)));

    Objects { forwarding: states.collect(), ..objects(vec![configuration], pods) }
}

/// Where each of three nodes sends packets for the first prefix.
fn hops(objects: &Objects) -> [BTreeSet<Hop>; 3] {
    ["node-1", "node-2", "node-3"].map(|own| {
        let plan = plan(own, objects);
        assert_eq!(plan.problems, []);
        plan.hops[&prefix("10.71.0.0/16")].clone()
    })
}

fn node_2() -> BTreeSet<Hop> {
    to_node(2, "172.18.0.2")
}

fn node_3() -> BTreeSet<Hop> {
    to_node(3, "172.18.0.3")
}

/// Gateways on node 2 and 3.
fn two(states: [Option<GatewayState>; 2]) -> Objects {
    let [first, second] = states;

    rome(&[(gateway("milan", 2, 7), first), (gateway("milan-1", 3, 8), second)])
}

#[test]
fn nodes_use_their_own_gateway_or_all() {
    let up = || Some(says(true, &[]));
    let down = || Some(says(false, &[]));
    let [pod_2, pod_3] = [to_pod([10, 244, 2, 7]), to_pod([10, 244, 3, 8])];
    let both = &node_2() | &node_3();

    assert_eq!(hops(&two([up(), up()])), [both.clone(), pod_2.clone(), pod_3.clone()]);
    assert_eq!(hops(&two([down(), up()])), [node_3(), node_3(), pod_3.clone()]);
    assert_eq!(hops(&two([up(), down()])), [node_2(), pod_2.clone(), node_2()]);
    // One has not answered yet.
    assert_eq!(hops(&two([None, up()])), [node_3(), node_3(), pod_3.clone()]);
    // If none forwards, all are used.
    assert_eq!(hops(&two([down(), down()])), [both.clone(), pod_2.clone(), pod_3.clone()]);
    assert_eq!(hops(&two([None, down()])), [both, pod_2, pod_3]);
}

#[test]
fn former_routes_stay_until_one_gateway_answers() {
    let objects = two([None, None]);
    let plan = plan("node-1", &objects);

    assert_eq!(plan.hops[&prefix("10.71.0.0/16")], former());
    assert!(plan.without_gateway.is_empty(), "they are there");
    let addresses = ["172.18.0.2", "172.18.0.3", "fd00:18::2", "fd00:18::3"].map(ip);
    assert_eq!(plan.places[&prefix("10.71.0.0/16")].addresses, addresses.into());
}

#[test]
fn a_reserve_names_every_gateway_all_the_time() {
    let reserve = |states, own: &str| plan(own, &two(states)).reserve;
    let up = || Some(says(true, &[]));
    let down = || Some(says(false, &[]));
    let prefixes = ["10.71.0.0/16", "10.81.0.0/16"].map(prefix);

    for (own, all) in [
        ("node-1", &node_2() | &node_3()),
        ("node-2", &to_pod([10, 244, 2, 7]) | &node_3()),
        ("node-3", &node_2() | &to_pod([10, 244, 3, 8])),
    ] {
        let all: BTreeMap<_, _> = prefixes.map(|prefix| (prefix, all.clone())).into();
        assert_eq!(reserve([up(), up()], own), all);
        assert_eq!(reserve([down(), up()], own), all);
        assert_eq!(reserve([None, None], own), all);
    }
}

#[test]
fn one_gateway_is_used_in_any_state() {
    let down = || Some(says(false, &["10.81.0.0/32"]));
    let one = [(gateway("milan", 2, 7), down())];
    // A replica, which waits.
    let mut replica = gateway("milan", 3, 8);
    label(&mut replica, "networking.liqo.io/active", "false");
    let replicas = [one[0].clone(), (replica, Some(says(true, &[])))];
    // Without the label all pods are replicas of one gateway.
    let unlabelled = [pod("rome", 2, 7), pod("rome", 3, 6)].map(|pod| (pod, None));

    for gateways in [&one[..], &replicas, &unlabelled] {
        let objects = rome(gateways);
        let used = hops(&objects);
        assert_eq!(used, [node_2(), to_pod([10, 244, 2, 7]), node_2()]);
        assert_eq!(endpoints(&objects), BTreeSet::new(), "it is not asked");
        assert!(plan("node-1", &objects).hops_of_parts.is_empty());
    }
}

#[test]
fn every_replica_of_several_gateways_is_asked() {
    let mut replica = gateway("milan", 1, 9);
    label(&mut replica, "networking.liqo.io/active", "false");
    let objects =
        rome(&[(gateway("milan", 2, 7), None), (gateway("milan-1", 3, 8), None), (replica, None)]);

    let asked = [endpoint(2, 7), endpoint(3, 8), endpoint(1, 9)];
    assert_eq!(endpoints(&objects), asked.into());
}

#[test]
fn a_gateway_without_state_page_does_not_forward() {
    let mut silent = gateway("milan", 2, 7);
    silent.spec.as_mut().unwrap().containers.clear();
    let other = |state| (gateway("milan-1", 3, 8), state);

    let with_other = rome(&[(silent.clone(), None), other(Some(says(true, &[])))]);
    assert_eq!(hops(&with_other)[0], node_3());
    let unknown = rome(&[(silent, None), other(None)]);
    assert_eq!(hops(&unknown)[0], &node_2() | &node_3());
}

#[test]
fn overlay_gateways_are_spread_over_from_each_node() {
    let up = || Some(says(true, &[]));
    let pods = [overlay_gateway("milan", 2, 7), overlay_gateway("milan-1", 3, 8)];
    let hop = |pod: &Pod, on: u8, host: u8| Hop::Overlay {
        pod: pod.name_any(),
        addresses: vec![[10, 244, on, host].into(), ip(&format!("fd00:244:0:{on}::{host}"))],
    };
    let [first, second] = [hop(&pods[0], 2, 7), hop(&pods[1], 3, 8)];

    let both = rome(&[(pods[0].clone(), up()), (pods[1].clone(), up())]);
    assert_eq!(hops(&both), [(); 3].map(|()| [first.clone(), second.clone()].into()));
    let one = rome(&[(pods[0].clone(), up()), (pods[1].clone(), Some(says(false, &[])))]);
    assert_eq!(hops(&one), [(); 3].map(|()| [first.clone()].into()));
}

#[test]
fn two_gateways_of_a_node_are_one_hop() {
    let up = || Some(says(true, &[]));
    let objects = rome(&[
        (gateway("milan", 2, 7), up()),
        (gateway("milan-1", 2, 8), up()),
        (gateway("milan-2", 3, 9), up()),
    ]);

    let own = &to_pod([10, 244, 2, 7]) | &to_pod([10, 244, 2, 8]);
    assert_eq!(hops(&objects), [&node_2() | &node_3(), own, to_pod([10, 244, 3, 9])]);
}

#[test]
fn own_destinations_lead_to_their_gateway_alone() {
    let claim = |text| Some(says(true, &[text]));
    let states = [claim("10.81.0.0/32"), claim("10.81.0.1/32")];
    let parts = |objects: &Objects, own: &str| plan(own, objects).hops_of_parts;
    let both = two(states.clone());

    for (own, first, second) in [
        ("node-1", node_2(), node_3()),
        ("node-2", to_pod([10, 244, 2, 7]), node_3()),
        ("node-3", node_2(), to_pod([10, 244, 3, 8])),
    ] {
        let hops = [(prefix("10.81.0.0/32"), first), (prefix("10.81.0.1/32"), second)];
        assert_eq!(parts(&both, own), hops.into());
    }
    let owners = plan("node-1", &both).owners;
    assert_eq!(owners[&prefix("10.81.0.1/32")], owners[&prefix("10.81.0.0/16")]);

    let [first, second] = states;
    let stopped = second.map(|state| GatewayState { forwards: false, ..state });
    let hops = [(prefix("10.81.0.0/32"), node_2())];
    assert_eq!(parts(&two([first, stopped]), "node-1"), hops.into());
}

#[test]
fn a_whole_prefix_may_belong_to_one_gateway() {
    let up = || Some(says(true, &[]));
    let plan = plan("node-1", &two([up(), Some(says(true, &["10.81.0.0/16"]))]));

    assert_eq!(plan.hops[&prefix("10.71.0.0/16")], &node_2() | &node_3());
    assert_eq!(plan.hops[&prefix("10.81.0.0/16")], node_3());
    assert!(plan.hops_of_parts.is_empty());
}

#[test]
fn foreign_destinations_are_refused_and_reported() {
    for claim in ["10.82.0.1/32", "10.0.0.0/8", "0.0.0.0/0", "fd00::1/128", "10.244.1.5/32", "all"]
    {
        let objects = two([Some(says(true, &[claim, "10.81.0.0/32"])), Some(says(true, &[]))]);

        let plan = plan("node-1", &objects);

        let parts: Vec<_> = plan.hops_of_parts.keys().collect();
        assert_eq!(parts, [&prefix("10.81.0.0/32")], "{claim}");
        assert_eq!(
            problems(&plan),
            format!(
                "Configuration liqo-tenant-rome/rome: pod gw-rome-7 of a gateway claims {claim}, which is no part of a prefix of the remote cluster, and does not get it: restart the pod"
            )
        );
    }
}

proptest! {
    /// In any state of the gateways, a node that one of them is on sends to no other node, so no packet is relayed twice.
    #[test]
    fn no_packet_is_relayed_twice(
        gateways in proptest::collection::vec(
            (1..=3_u8, any::<bool>(), proptest::option::of(any::<bool>())), 0..6,
        ),
    ) {
        let gateways: Vec<_> = gateways
            .into_iter()
            .zip(10..)
            .map(|((on, is_overlay, forwards), host)| {
                let make = if is_overlay { overlay_gateway } else { gateway };
                (make(&format!("milan-{host}"), on, host), forwards.map(|forwards| says(forwards, &[])))
            })
            .collect();
        let hops = hops(&rome(&gateways));

        for own in &hops {
            for hop in own {
                let Hop::Node { name, .. } = hop else { continue };
                let number: usize = name.strip_prefix("node-").unwrap().parse().unwrap();
                let there = &hops[number - 1];
                prop_assert!(!there.is_empty());
                prop_assert!(there.iter().all(|hop| matches!(hop, Hop::Pod(_))), "{there:?}");
            }
        }
        // Every node sends somewhere, or all keep what they have.
        let are_former = hops.iter().filter(|hops| hops.is_empty()).count();
        prop_assert!(matches!(are_former, 0 | 3), "{hops:?}");
    }
}
