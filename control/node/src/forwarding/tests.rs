//! Node 1 and a gateway on it, on a neighbour (2), or behind a router (3).

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;

const POD_DEVICE: u32 = 7;
const UPLINK: u32 = 2;
const VXLAN_DEVICE: u32 = 9;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

type Hops = BTreeSet<Hop>;

fn to_pod(address: &str) -> Hops {
    [Hop::Pod(ip(address))].into()
}

fn to_node(number: u8) -> Hops {
    let (name, address) = (format!("node-{number}"), IpAddr::from([172, 18, number, 1]));

    [Hop::Node { name, address }].into()
}

fn to_overlay_pod() -> Hops {
    let addresses = vec![ip("10.244.3.9"), ip("fd00:244::9")];

    [Hop::Overlay { pod: "gw".to_owned(), addresses }].into()
}

/// No hop: the former ones.
fn former() -> Hops {
    Hops::new()
}

fn plan(hops: &[(&str, Hops)]) -> Plan {
    let addresses = |number: u8| vec![IpAddr::from([172, 18, number, 1])];
    let places = Places {
        addresses: [2, 3]
            .iter()
            .flat_map(|number| addresses(*number))
            .chain([ip("10.244.1.9"), ip("10.244.3.9")])
            .collect(),
        is_incomplete: false,
    };

    Plan {
        places: hops.iter().map(|(text, _)| (prefix(text), places.clone())).collect(),
        other_places: places,
        hops: hops.iter().map(|(text, hop)| (prefix(text), hop.clone())).collect(),
        own: addresses(1),
        others: [2, 3].map(|number| (format!("node-{number}"), addresses(number))).into(),
        is_complete: true,
        ..Plan::default()
    }
}

fn view() -> NetworkView {
    NetworkView {
        reach: BTreeMap::from([
            (ip("10.244.1.9"), Reach::Neighbour { device: POD_DEVICE }),
            (ip("172.18.2.1"), Reach::Neighbour { device: UPLINK }),
            (ip("172.18.3.1"), Reach::Routed),
        ]),
        own: vec![OwnAddress { address: ip("172.18.1.1"), mtu_bytes: 1500 }],
        has_far_nodes: Some(true),
    }
}

fn settings() -> OverlaySettings {
    OverlaySettings { device: "strait-vxlan".to_owned(), vni: 83, port: 8483, mtu_bytes: None }
}

/// Both steps; the device is created if it is needed.
fn forwarded(
    plan: &Plan,
    view: &NetworkView,
    vxlan: Vxlan,
    found: &State,
) -> (Option<Overlay>, Desired) {
    let is_on_device = |target: &Target| target.hops().any(|hop| hop.device == VXLAN_DEVICE);
    let before = found.routes.values().any(is_on_device).then_some(found);
    let overlay = overlay(plan, view, vxlan, &settings(), before).unwrap();
    let device = overlay
        .as_ref()
        .map(|overlay| VxlanDevice { index: VXLAN_DEVICE, local: Some(overlay.local) });
    let found = if device.is_some() { found } else { &found.without_device(VXLAN_DEVICE) };
    let wanted = desired(plan, view, vxlan, device, found);

    (overlay, wanted)
}

fn only(path: Path) -> BTreeSet<Path> {
    [path].into()
}

fn via(gateway: &str, device: u32) -> Target {
    Target::via(ip(gateway), device, Some(ip("172.18.1.1")))
}

#[test]
fn each_kind_of_hop_has_its_way() {
    let pod = to_pod("10.244.1.9");
    for (hop, vxlan, path, target, has_device) in [
        (pod.clone(), Vxlan::Auto, Path::Pod, via("10.244.1.9", POD_DEVICE), true),
        (pod.clone(), Vxlan::Never, Path::Pod, via("10.244.1.9", POD_DEVICE), false),
        (pod, Vxlan::Always, Path::Pod, via("10.244.1.9", POD_DEVICE), true),
        (to_node(2), Vxlan::Auto, Path::Direct, via("172.18.2.1", UPLINK), false),
        (to_node(2), Vxlan::Never, Path::Direct, via("172.18.2.1", UPLINK), false),
        (to_node(2), Vxlan::Always, Path::Vxlan, via("172.18.2.1", VXLAN_DEVICE), true),
        (to_node(3), Vxlan::Auto, Path::Vxlan, via("172.18.3.1", VXLAN_DEVICE), true),
        (to_overlay_pod(), Vxlan::Auto, Path::Vxlan, via("10.244.3.9", VXLAN_DEVICE), true),
        (to_overlay_pod(), Vxlan::Always, Path::Vxlan, via("10.244.3.9", VXLAN_DEVICE), true),
    ] {
        let plan = plan(&[("10.71.0.0/16", hop.clone())]);

        let (overlay, wanted) = forwarded(&plan, &view(), vxlan, &State::default());

        let name = net("10.71.0.0/16");
        assert_eq!(wanted.paths, BTreeMap::from([(prefix("10.71.0.0/16"), only(path))]), "{hop:?}");
        assert_eq!(wanted.state.route(name), Some(&target), "{hop:?} {vxlan:?}");
        assert_eq!(wanted.state.routes[&RouteKey::of_last_resort(name)], Target::Unreachable);
        assert_eq!(wanted.state.rules, [Version::V4].into());
        assert_eq!(overlay.is_some(), has_device, "{hop:?} {vxlan:?}");
        assert_eq!(wanted.problems, []);
    }
}

#[test]
fn several_hops_make_one_route() {
    let name = "10.71.0.0/16";
    let all = &(&to_node(2) | &to_node(3)) | &to_overlay_pod();
    let plan = plan(&[(name, all)]);

    let (_, wanted) = forwarded(&plan, &view(), Vxlan::Auto, &State::default());

    assert_eq!(wanted.paths[&prefix(name)], [Path::Direct, Path::Vxlan].into());
    let hop = |gateway, device| NextHop { gateway: ip(gateway), device };
    let hops = [
        hop("172.18.2.1", UPLINK),
        hop("172.18.3.1", VXLAN_DEVICE),
        hop("10.244.3.9", VXLAN_DEVICE),
    ];
    let target = Target::Via { hops: hops.into(), source: Some(ip("172.18.1.1")) };
    assert_eq!(wanted.state.route(net(name)), Some(&target));
    assert_eq!(wanted.state.neighbours.len(), 2);
    // One that is not reached leaves the others.
    let (_, wanted) = forwarded(&plan, &view(), Vxlan::Never, &State::default());
    assert_eq!(wanted.state.route(net(name)), Some(&via("172.18.2.1", UPLINK)));
    assert_eq!(wanted.problems.len(), 2, "{:?}", wanted.problems);
}

#[test]
fn an_unreached_pod_is_replaced_by_the_reserve() {
    let name = "10.71.0.0/16";
    let (unreached, others) = (to_pod("10.244.1.10"), &to_node(2) | &to_node(3));
    let reserve = [(prefix(name), &unreached | &others)].into();
    let plan = Plan { reserve, ..plan(&[(name, unreached)]) };

    let (_, wanted) = forwarded(&plan, &view(), Vxlan::Auto, &State::default());

    assert_eq!(wanted.paths[&prefix(name)], [Path::Direct, Path::Vxlan].into());
    let hops = wanted.state.route(net(name)).unwrap().hops().map(|hop| hop.gateway);
    assert_eq!(hops.collect::<Vec<_>>(), ["172.18.2.1", "172.18.3.1"].map(ip));
    assert!(wanted.problems[0].to_string().contains("no route leads to 10.244.1.10"));
}

#[test]
fn a_part_has_a_route_without_last_resort() {
    let (whole, part) = ("10.81.0.0/16", "10.81.0.1/32");
    let both = &to_node(2) | &to_node(3);
    let of_parts = |hops| Plan {
        hops_of_parts: [(prefix(part), hops)].into(),
        ..plan(&[(whole, both.clone())])
    };

    let (_, wanted) = forwarded(&of_parts(to_node(2)), &view(), Vxlan::Auto, &State::default());

    assert_eq!(wanted.state.route(net(part)), Some(&via("172.18.2.1", UPLINK)));
    assert_eq!(wanted.state.routes.len(), 3);
    assert_eq!(wanted.paths.len(), 1, "it is no prefix of its own");
    // While no gateway is known to forward, all stays as it is.
    let waiting = plan(&[(whole, former())]);
    let (_, waiting) = forwarded(&waiting, &view(), Vxlan::Auto, &wanted.state);
    assert_eq!(waiting.state, wanted.state);
    // It goes with its gateway, also while another object cannot be read.
    let stopped = Plan { is_complete: false, ..plan(&[(whole, both)]) };
    let (_, left) = forwarded(&stopped, &view(), Vxlan::Auto, &wanted.state);
    assert_eq!(left.state.route(net(part)), None);
    assert!(left.state.route(net(whole)).is_some());
}

#[test]
fn vxlan_neighbours_are_fixed_entries() {
    let plan = plan(&[("10.71.0.0/16", to_node(3))]);

    let (overlay, wanted) = forwarded(&plan, &view(), Vxlan::Auto, &State::default());

    let mac = Mac([0x0e, 0x53, 172, 18, 3, 1]);
    assert_eq!(wanted.state.neighbours, BTreeMap::from([(ip("172.18.3.1"), mac)]));
    assert_eq!(wanted.state.forwarding, BTreeMap::from([(mac, ip("172.18.3.1"))]));
    let overlay = overlay.unwrap();
    // As computed by the node at the other end.
    assert_eq!(overlay.mac, Mac([0x0e, 0x53, 172, 18, 1, 1]));
    assert_eq!((overlay.local, overlay.mtu_bytes), (ip("172.18.1.1"), 1450));
    let text = overlay.to_string();
    assert_eq!(
        text,
        "strait-vxlan VNI 83 port 8483 from 172.18.1.1 as 0e:53:ac:12:01:01, MTU 1450"
    );
}

#[test]
fn overlay_pods_get_vxlan_at_their_address() {
    let plan = plan(&[("10.71.0.0/16", to_overlay_pod()), ("fd00:71::/56", to_overlay_pod())]);

    let (_, wanted) = forwarded(&plan, &view(), Vxlan::Auto, &State::default());

    let mac = Mac([0x0e, 0x53, 10, 244, 3, 9]);
    let next_hops = [(ip("10.244.3.9"), mac), (ip("fe80::c53:aff:fef4:309"), mac)];
    assert_eq!(wanted.state.neighbours, BTreeMap::from(next_hops));
    assert_eq!(wanted.state.forwarding, BTreeMap::from([(mac, ip("10.244.3.9"))]));
}

#[test]
fn an_ipv6_prefix_uses_a_link_local_hop() {
    let far = ip("fd00:18:3::1");
    let hop = [Hop::Node { name: "node-3".to_owned(), address: far }].into();
    let plan = plan(&[("fd00:71::/56", hop)]);
    let mut view = view();
    view.reach.insert(far, Reach::Routed);

    let (_, wanted) = forwarded(&plan, &view, Vxlan::Auto, &State::default());

    let mac = Mac([0x0e, 0x53, 172, 18, 3, 1]);
    let next = ip("fe80::c53:acff:fe12:301");
    assert_eq!(wanted.state.neighbours, BTreeMap::from([(next, mac)]));
    let target = Target::via(next, VXLAN_DEVICE, None);
    assert_eq!(wanted.state.route(net("fd00:71::/56")), Some(&target));
}

#[test]
fn without_far_nodes_there_is_no_device() {
    let plan = plan(&[("10.71.0.0/16", to_pod("10.244.1.9"))]);
    let near = NetworkView { has_far_nodes: Some(false), ..view() };
    let unknown = NetworkView { has_far_nodes: None, ..view() };

    for view in [&near, &unknown] {
        assert_eq!(overlay(&plan, view, Vxlan::Auto, &settings(), None), Ok(None));
    }
    assert!(overlay(&plan, &view(), Vxlan::Auto, &settings(), None).unwrap().is_some());
}

#[test]
fn over_ipv6_the_mtu_is_smaller() {
    let plan = plan(&[("10.71.0.0/16", to_node(3))]);
    let own = vec![OwnAddress { address: ip("fd00::1"), mtu_bytes: 1500 }];
    let view = NetworkView { own, ..view() };

    let made = overlay(&plan, &view, Vxlan::Auto, &settings(), None).unwrap().unwrap();

    assert_eq!(made.mtu_bytes, 1430);
    assert_eq!(made.mac.0[0] & 0b11, 0b10, "unicast, and locally administered");
    let chosen = OverlaySettings { mtu_bytes: Some(1400), ..settings() };
    let made = overlay(&plan, &view, Vxlan::Auto, &chosen, None).unwrap().unwrap();
    assert_eq!(made.mtu_bytes, 1400);
}

#[test]
fn without_a_gateway_the_former_target_is_kept() {
    let name = "10.71.0.0/16";
    let before = forwarded(&plan(&[(name, to_node(3))]), &view(), Vxlan::Auto, &State::default());
    let found = before.1.state;

    let (overlay, wanted) = forwarded(&plan(&[(name, former())]), &view(), Vxlan::Auto, &found);

    assert_eq!(wanted.state, found, "with its entries on the VXLAN device");
    assert!(overlay.is_some());
    assert_eq!(wanted.paths[&prefix(name)], only(Path::Former));

    let (_, wanted) =
        forwarded(&plan(&[(name, former())]), &view(), Vxlan::Auto, &State::default());
    assert_eq!(wanted.paths[&prefix(name)], only(Path::Unreachable));
    let last = RouteKey::of_last_resort(net(name));
    assert_eq!(wanted.state.routes, BTreeMap::from([(last, Target::Unreachable)]));
}

/// A pod that gets the former address later must not receive packets for the other cluster.
#[test]
fn without_a_gateway_pod_packets_are_unreachable() {
    let names = ["10.71.0.0/16", "10.72.0.0/16", "10.73.0.0/16"];
    let hops = [to_node(2), to_node(3), to_pod("10.244.1.9")];
    let hops: Vec<_> = names.into_iter().zip(hops).collect();
    let found = forwarded(&plan(&hops), &view(), Vxlan::Auto, &State::default()).1.state;
    let gone = |hops: &[(&str, Hops)], places: &Places| Plan {
        places: names.map(|name| (prefix(name), places.clone())).into(),
        other_places: places.clone(),
        ..plan(hops)
    };
    let as_before = names.map(|name| (name, former()));

    // Another place, and an unknown one.
    let other = Places { addresses: [ip("172.18.4.1")].into(), is_incomplete: false };
    let unknown = Places { is_incomplete: true, ..other.clone() };
    // Also when a gateway is known, but not reached.
    let unreached = names.map(|name| (name, to_node(9)));
    for (hops, places, path, has_device) in [
        (&as_before, &other, Path::Unreachable, false),
        (&unreached, &other, Path::Unreachable, true),
        (&as_before, &unknown, Path::Former, true),
    ] {
        let (overlay, wanted) = forwarded(&gone(hops, places), &view(), Vxlan::Auto, &found);

        assert_eq!(wanted.paths, names.map(|name| (prefix(name), only(path))).into());
        let goes_on = path == Path::Former;
        assert!(names.iter().all(|name| wanted.state.route(net(name)).is_some() == goes_on));
        assert_eq!(wanted.state.neighbours.is_empty(), !goes_on);
        assert_eq!(overlay.is_some(), has_device);
    }

    let unread = Plan { is_complete: false, ..gone(&[], &other) };
    let (_, wanted) = forwarded(&unread, &view(), Vxlan::Auto, &found);
    assert!(wanted.state.routes.values().all(|target| *target == Target::Unreachable));
    assert_eq!(wanted.state.routes.len(), names.len());
}

/// Over IPv6 the next hop on the VXLAN device is link-local.
#[test]
fn a_link_local_hop_belongs_to_its_node() {
    let next = IpAddr::V6(Mac::of_node(ip("172.18.3.1")).link_local());
    let places = plan(&[]).other_places;

    assert!(leads_to(next, &places));
    assert!(!leads_to(ip("fe80::1"), &places));
}

#[test]
fn a_possibly_needed_device_stays() {
    let name = "10.71.0.0/16";
    let far = plan(&[(name, to_node(3))]);
    let here = plan(&[(name, to_pod("10.244.1.9"))]);
    let unread = Plan { is_complete: false, ..plan(&[]) };
    let found = forwarded(&far, &view(), Vxlan::Auto, &State::default()).1.state;
    let without_routes = NetworkView { reach: BTreeMap::new(), has_far_nodes: None, ..view() };
    let near = NetworkView {
        reach: [(ip("172.18.3.1"), Reach::Neighbour { device: UPLINK })].into(),
        has_far_nodes: Some(false),
        ..view()
    };

    for (plan, view, stays) in [
        (&far, &without_routes, true),
        (&here, &without_routes, true),
        (&unread, &near, true),
        (&far, &near, false),
        (&here, &near, false),
    ] {
        let overlay = |before| overlay(plan, view, Vxlan::Auto, &settings(), before);
        assert_eq!(overlay(Some(&found)).unwrap().is_some(), stays, "{plan:?} {view:?}");
        assert_eq!(overlay(None), Ok(None));
        let never = super::overlay(plan, view, Vxlan::Never, &settings(), Some(&found)).unwrap();
        assert_eq!(never.is_some(), !plan.is_complete);
    }
}

#[test]
fn without_an_own_address_the_device_carries_on() {
    let far = plan(&[("10.71.0.0/16", to_node(3)), ("10.72.0.0/16", to_node(2))]);
    let found = forwarded(&far, &view(), Vxlan::Auto, &State::default()).1.state;
    let without_address = NetworkView { own: Vec::new(), ..view() };
    let device = VxlanDevice { index: VXLAN_DEVICE, local: None };

    let error =
        overlay(&far, &without_address, Vxlan::Auto, &settings(), Some(&found)).unwrap_err();
    let wanted = desired(&far, &without_address, Vxlan::Auto, Some(device), &found);

    assert_eq!(error, PathProblem::NoOwnAddress);
    let paths = [("10.71.0.0/16", Path::Former), ("10.72.0.0/16", Path::Direct)];
    assert_eq!(wanted.paths, paths.map(|(text, path)| (prefix(text), only(path))).into());
    let name = net("10.71.0.0/16");
    assert_eq!(wanted.state.route(name), Some(&via("172.18.3.1", VXLAN_DEVICE)));
    assert_eq!(wanted.state.neighbours, found.neighbours);
    assert_eq!(wanted.state.forwarding, found.forwarding);
}

#[test]
fn problems_are_reported_and_nothing_leaks() {
    let unknown = |hop| (plan(&[("10.71.0.0/16", hop)]), view());
    let mut other_version = unknown(to_node(3));
    other_version.1.own = vec![OwnAddress { address: ip("fd00::1"), mtu_bytes: 1500 }];
    for ((plan, view), vxlan, problem) in [
        (unknown(to_pod("10.244.1.10")), Vxlan::Auto, "no route leads to 10.244.1.10"),
        (unknown(to_node(9)), Vxlan::Auto, "no route leads to 172.18.9.1, node node-9"),
        (unknown(to_node(3)), Vxlan::Never, "node node-3 with the gateway is behind a router"),
        (other_version, Vxlan::Auto, "node node-3 has no address of the version of fd00::1"),
        (unknown(to_overlay_pod()), Vxlan::Never, "takes packets in VXLAN only"),
    ] {
        let (_, wanted) = forwarded(&plan, &view, vxlan, &State::default());

        let text = wanted.problems[0].to_string();
        assert!(text.contains("10.71.0.0/16") && text.contains(problem), "{text}");
        assert_eq!(wanted.paths[&prefix("10.71.0.0/16")], only(Path::Unreachable));
        assert_eq!(wanted.state.routes.len(), 1);
    }

    let without_address = NetworkView { own: Vec::new(), ..view() };
    let plan = plan(&[("10.71.0.0/16", to_node(3))]);
    let error = overlay(&plan, &without_address, Vxlan::Auto, &settings(), None).unwrap_err();
    assert!(error.to_string().contains("is --node-name the name of this host's Node"));
}

#[test]
fn an_unreadable_object_prevents_removals() {
    let both = [("10.71.0.0/16", to_node(2)), ("10.72.0.0/16", to_node(3))];
    let (_, before) = forwarded(&plan(&both), &view(), Vxlan::Auto, &State::default());
    let mut one = plan(&both[..1]);

    one.is_complete = false;
    let (_, unsure) = forwarded(&one, &view(), Vxlan::Auto, &before.state);
    assert_eq!(unsure.state, before.state);

    one.is_complete = true;
    let (_, sure) = forwarded(&one, &view(), Vxlan::Auto, &before.state);
    assert_eq!(sure.state.route(net("10.72.0.0/16")), None);
    assert_eq!(sure.state.neighbours, BTreeMap::new());
}

proptest! {
    /// From any round to the next, every prefix of the plan has a last resort, each next hop on the VXLAN device has
    /// its entry there, and a second round changes nothing.
    #[test]
    fn rounds_settle_and_nothing_leaks(
        rounds in proptest::collection::vec(
            (
                proptest::collection::btree_map(
                    60..66_u8, proptest::collection::vec(0..6_u8, 1..4), 0..5,
                ),
                0..3_usize,
            ),
            1..6,
        ),
    ) {
        let vxlan = [Vxlan::Auto, Vxlan::Always, Vxlan::Never];
        let mut found = State::default();
        for (hops, mode) in rounds {
            let hops: Vec<(_, Hops)> = hops
                .into_iter()
                .map(|(number, hops)| {
                    let hops = hops.into_iter().flat_map(|hop| match hop {
                        0 => former(),
                        1 => to_pod("10.244.1.9"),
                        4 => to_pod("10.244.1.10"),
                        5 => to_overlay_pod(),
                        number => to_node(number),
                    });
                    (format!("10.{number}.0.0/16"), hops.collect())
                })
                .collect();
            let hops: Vec<_> = hops.iter().map(|(text, hop)| (text.as_str(), hop.clone())).collect();
            let plan = plan(&hops);

            let (overlay, wanted) = forwarded(&plan, &view(), vxlan[mode], &found);

            for prefix in plan.hops.keys() {
                let key = RouteKey::of_last_resort(prefix.to_net());
                prop_assert_eq!(wanted.state.routes.get(&key), Some(&Target::Unreachable));
            }
            prop_assert!(wanted.state.routes.keys().all(
                |key| plan.hops.keys().any(|prefix| prefix.to_net() == key.prefix)
            ));
            for target in wanted.state.routes.values() {
                for hop in target.hops().filter(|hop| hop.device == VXLAN_DEVICE) {
                    prop_assert!(overlay.is_some());
                    let mac = wanted.state.neighbours[&hop.gateway];
                    prop_assert!(wanted.state.forwarding.contains_key(&mac));
                }
            }
            let (_, again) = forwarded(&plan, &view(), vxlan[mode], &wanted.state);
            prop_assert_eq!(&again.state, &wanted.state);
            found = wanted.state;
        }
    }
}
