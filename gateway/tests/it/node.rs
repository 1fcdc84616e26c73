//! `strait node` on three nodes: two on one network, the third behind a router.
//!
//! Needs root, and what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

mod kernel;
mod several;
mod split_horizon;
mod world;

use std::net::IpAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use strait_lab::traffic::{Datagrams, Ping, udp};
use strait_lab::wait_until;

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool};
use kernel::{Ours, foreign, ours};
use world::{PATIENCE, REMOTE, REMOTE_IPV6, TENANT, World};

/// A packet for the remote that is lost for longer was not led after the gateway.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn every_node_reaches_the_gateway_on_any_node() {
    let Some(world) = World::running(&["10.71.0.0/16", "fd00:71::/56"]) else {
        return;
    };

    for (gateway, ways) in [
        (1, ["pod", "direct", "vxlan"]),
        (2, ["direct", "pod", "vxlan"]),
        (3, ["vxlan", "vxlan", "pod"]),
    ] {
        world.put_gateway(gateway);
        for (node, way) in (1..).zip(ways) {
            world.wait_for_way(node, way);
            world.wait_for_ping(node, REMOTE);
            let from_pod = Ping::new(REMOTE, 3).run(&world.pods[node - 1]).unwrap();
            assert!(from_pod.is_perfect(), "from node {node} to gateway {gateway}: {from_pod:?}");
            let from_host = Ping::new(REMOTE, 3).run(&world.nodes[node - 1]).unwrap();
            assert!(from_host.is_perfect(), "from node {node} itself: {from_host:?}");
            world.wait_for_ping(node, REMOTE_IPV6);
            let over_ipv6 = Ping::new(REMOTE_IPV6, 3).run(&world.nodes[node - 1]).unwrap();
            assert!(over_ipv6.is_perfect(), "from node {node} over IPv6: {over_ipv6:?}");
            // Larger than VXLAN carries in one frame: an ICMP error makes the sender use smaller packets.
            let large = Ping { payload_bytes: 1472, ..Ping::new(REMOTE, 2) };
            let report = large.run(&world.pods[node - 1]).unwrap();
            let mtus: Vec<_> = report.errors.iter().map(|error| error.mtu_bytes).collect();
            let expected = if way == "vxlan" { 1450 } else { 1500 };
            assert!(mtus.iter().all(|mtu| *mtu == expected), "{way}: {report:?}");
            let large = large.run(&world.pods[node - 1]).unwrap();
            assert!(large.is_perfect(), "large ones from node {node}: {large:?}");
        }
        // Only the node that was asked answers.
        for other in 1..=3 {
            let answer = Ping::new(world::only_behind(other), 1).run(&world.pods[0]).unwrap();
            assert_eq!(answer.received, u64::from(other == gateway), "{answer:?}");
        }
    }
    world.wait_for_condition("True", &["no node reports a problem"]);
    for node in 1..=3 {
        assert_eq!(world.get(node, "/readyz"), (200, "ready\n".to_owned()));
        assert_eq!(world.get(node, "/healthz").0, 200);
    }

    world.finish();
}

#[test]
fn a_moved_gateway_is_followed_within_a_second() {
    let Some(world) = World::running(&["10.71.0.0/16"]) else {
        return;
    };
    world.put_gateway(1);
    world.stand_by(2);
    world.stand_by(3);
    for node in 1..=3 {
        world.wait_for_ping(node, REMOTE);
    }
    let interval = Duration::from_millis(10);
    let ping = Ping { interval, ..Ping::new(REMOTE, 600) };

    let reports = thread::scope(|scope| {
        let pods = world.pods.iter();
        let pings: Vec<_> = pods.map(|pod| scope.spawn(|| ping.run(pod).unwrap())).collect();
        for (gateway, former) in [(2, 1), (3, 2)] {
            thread::sleep(Duration::from_secs(1));
            // Dead at once; its object says nothing of it yet.
            world.cut_gateway(former);
            world.take_over(gateway);
            for node in 1..=3 {
                world.wait_for_way_to(node, gateway);
            }
        }
        pings.into_iter().map(|ping| ping.join().unwrap()).collect::<Vec<_>>()
    });

    for (report, node) in reports.iter().zip(1..) {
        let gap = longest_run(&report.unanswered);
        let gap = interval * u32::try_from(gap).unwrap();
        eprintln!(
            "node {node}: lost {} of {}, at most {gap:?} at once",
            report.lost(),
            report.sent
        );
        assert!(gap < FOLLOWED_WITHIN, "node {node}: {gap:?}");
    }

    world.finish();
}

fn longest_run(numbers: &[usize]) -> usize {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);

    runs.map(<[usize]>::len).max().unwrap_or(0)
}

#[test]
fn without_a_gateway_routes_stay_or_blackhole() {
    let Some(mut world) = World::new(&[Root]) else {
        return;
    };
    // What follows the default route is answered by the fabric, not by the remote.
    world.set_trap();
    let answers = |world: &World, node: usize, target| {
        Ping::new(target, 2).run(&world.pods[node - 1]).map_or(0, |report| report.received)
    };
    // Both answer to this one, and to the other one only the gateway does.
    let (remote, gateway) = (REMOTE, world::only_behind(1));
    assert_eq!(answers(&world, 1, remote), 2, "the trap works");
    world.start_all(&[]);
    world.put_configuration(&["10.71.0.0/16"]);
    for node in 1..=3 {
        world.wait_for_way(node, "unreachable");
        assert_eq!(answers(&world, node, remote), 0, "node {node}");
    }

    let route_by_one_that_stepped_down = |world: &World| {
        world.put_gateway(1);
        for node in 1..=3 {
            world.wait_for_way_to(node, 1);
        }
        world.step_down(1);
        for node in 1..=3 {
            world.wait_for_way(node, "as_before");
            assert_eq!(answers(world, node, gateway), 2, "node {node}");
        }
    };
    route_by_one_that_stepped_down(&world);
    // An agent that restarts finds the routes of its predecessor.
    world.stop(3);
    assert_eq!(answers(&world, 3, gateway), 2, "routes stay");
    world.start(3, &[]);
    world.wait_for_way(3, "as_before");
    assert_eq!(answers(&world, 3, gateway), 2);

    // Another pod may have the address by now: it must not get the packets.
    world.remove_gateway();
    for node in 1..=3 {
        world.wait_for_way(node, "unreachable");
        assert_eq!(answers(&world, node, gateway), 0, "node {node}");
    }

    route_by_one_that_stepped_down(&world);
    // The kernel removes the routes of an interface with it, also while no agent runs.
    world.stop(1);
    world.cut_gateway(1);
    for node in 1..=3 {
        assert_eq!(answers(&world, node, remote), 0, "node {node}");
    }
    world.start(1, &[]);
    world.wait_for_way(1, "unreachable");

    // With the Configuration its routes go, at once.
    world.remove_configuration();
    for node in 1..=3 {
        let is_gone = || Ok(answers(&world, node, remote) == 2);
        wait_until("the prefix is no concern of ours", Duration::from_secs(2), is_gone).unwrap();
        assert_eq!(ours(&world.nodes[node - 1]), Ours::default());
        assert!(!world.nodes[node - 1].has_link("strait-vxlan").unwrap());
    }

    world.finish();
}

#[test]
fn cleaning_up_removes_only_our_own_objects() {
    let Some(mut world) = World::new(&[Root]) else {
        return;
    };
    let before: Vec<_> = world.nodes.iter().map(|node| foreign(node)).collect();
    world.start_all(&[]);
    world.put_gateway(3);
    world.put_configuration(&["10.71.0.0/16", "10.72.0.0/16"]);
    for node in 1..=3 {
        world.wait_for_way_to(node, 3);
    }
    assert_eq!(ours(&world.nodes[0]), Ours { routes: 4, rules: 1 });
    assert!(world.nodes[0].has_link("strait-vxlan").unwrap());
    assert!(
        world.nodes[2].has_link("strait-vxlan").unwrap(),
        "the node of the gateway needs it too"
    );
    // Another table: what was in the other one goes.
    world.stop(2);
    world.start(2, &["--table=7", "--rule-priority=77"]);
    wait_until("the routes are in the other table", PATIENCE, || {
        Ok(world.log(2).contains("add the IPv4 rule") && world.get(2, "/readyz").0 == 200)
    })
    .unwrap();
    world.wait_for_way_to(2, 3);
    assert_eq!(ours(&world.nodes[1]), Ours { routes: 4, rules: 1 });
    world.wait_for_ping(2, REMOTE);

    for node in 1..=3 {
        world.stop(node);
        assert!(Ping::new(REMOTE, 2).run(&world.pods[node - 1]).unwrap().is_perfect());
    }
    // With other flags than it was started with: what is ours is known by its protocol number.
    for (node, said) in [
        (
            1,
            "removed 4 routes, 1 rules, interface strait-vxlan, nftables table strait-node (table 8483)\n",
        ),
        (
            2,
            "removed 0 routes, 0 rules, 5 outdated, interface strait-vxlan, nftables table strait-node (table 8483)\n",
        ),
        (
            3,
            "removed 4 routes, 1 rules, interface strait-vxlan, nftables table strait-node (table 8483)\n",
        ),
    ] {
        assert_eq!(world.clean_up(node), said);
        assert_eq!(world.clean_up(node), "nothing of strait node is on this host (table 8483)\n");
    }
    for (node, before) in world.nodes.iter().zip(before) {
        assert_eq!(ours(node), Ours::default());
        assert!(!node.has_link("strait-vxlan").unwrap());
        assert_eq!(foreign(node), before);
    }
}

#[test]
fn vxlan_is_chosen_and_conflicts_are_reported() {
    let Some(mut world) = World::new(&[Root]) else {
        return;
    };
    world.put_gateway(1);
    world.put_configuration(&["10.71.0.0/16", "172.18.0.0/16"]);
    // Strict unless the device itself is not.
    for node in &world.nodes {
        node.set(&[("ipv4/conf/all/rp_filter", "1"), ("ipv4/conf/uplink/rp_filter", "2")]).unwrap();
    }
    let small = ["--vxlan=always", "--vxlan-mtu=1300", "--vxlan-port=8484", "--vxlan-vni=84"];
    for node in 1..=2 {
        world.start(node, &small);
    }
    world.start(3, &["--vxlan=never"]);
    world.wait_for_way(2, "vxlan");
    world.wait_for_ping(2, REMOTE);
    world.wait_for_way(3, "unreachable");
    let log = world.log(3);
    assert!(log.contains("node node-1 with the gateway is behind a router"), "{log}");
    assert!(log.contains("172.18.0.0/16 overlaps 172.18.0.1/32 of node node-1"), "{log}");
    let metrics = world.metrics(3);
    assert_eq!(metrics.value("strait_node_problems", &[]), Some("2"));
    assert_eq!(world.get(3, "/readyz").0, 200, "another pod would not help");
    let of_first = "node-1: Configuration liqo-tenant-rome/rome: 172.18.0.0/16 overlaps";
    world.wait_for_condition("False", &[of_first, "node-3: 10.71.0.0/16: node node-1 with"]);

    // Another program has an interface of that name.
    world.stop(3);
    world.expect_refusals(3);
    world.make_link(3, "strait-vxlan");
    world.start(3, &small);
    wait_until("it is said", PATIENCE, || {
        let (status, said) = world.get(3, "/readyz");
        Ok(status == 503 && said.contains("an interface of that name belongs to another program"))
    })
    .unwrap();
    assert!(world.metrics(3).sum("strait_node_changes_total", &[("result", "error")]) > 0);
    world.nodes[2].remove_link("strait-vxlan").unwrap();
    world.wait_for_way(3, "vxlan");
    world.wait_for_ping(3, REMOTE);
    assert_eq!(world.get(3, "/readyz").0, 200);

    world.finish();
}

#[test]
fn a_node_without_address_keeps_its_routes() {
    let Some(mut world) = World::running(&["10.71.0.0/16"]) else {
        return;
    };
    world.put_gateway(1);
    world.wait_for_way(3, "vxlan");
    world.wait_for_ping(3, REMOTE);

    world.set_addresses(3, &[]);
    world.wait_for_way(3, "as_before");
    world.wait_for_condition("False", &["node-3: node node-3 is not there, or has no InternalIP"]);
    // By its own device, and into that of the gateway's node.
    let ping = Ping::new(REMOTE, 3).run(&world.pods[2]).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");

    world.set_addresses(3, &[world::node_address(3)]);
    world.wait_for_way(3, "vxlan");
    world.wait_for_condition("True", &["no node reports a problem"]);
    assert_eq!(world.log(3).matches("made the VXLAN device").count(), 1);

    // A changed flag: what was made under the former one is replaced, not joined.
    world.stop(3);
    world.start(3, &["--vxlan-device=another"]);
    world.wait_for_way(3, "vxlan");
    world.wait_for_ping(3, REMOTE);
    assert!(!world.nodes[2].has_link("strait-vxlan").unwrap());

    world.finish();
}

/// Node 1 is there and ready, and runs none.
#[test]
fn a_node_without_agent_delays_no_other_node() {
    let Some(mut world) = World::new(&[Root]) else {
        return;
    };
    world.put_gateway(1);
    world.put_configuration(&["10.71.0.0/16"]);
    world.say("node-9: it was removed long ago");
    // A tenant may call its pods what it likes.
    world.put_agent_in(TENANT, 1, true);
    for node in 2..=3 {
        world.put_agent(node, true);
        world.start(node, &[]);
    }
    world.wait_for_condition("True", &["no node reports a problem"]);

    world.put_configuration(&["172.18.0.0/16"]);
    world.wait_for_condition("False", &["node-2: Configuration ", "overlaps"]);
    let (_, message) = world.condition().unwrap();
    assert!(!message.contains("node-3: "), "one is enough: {message}");

    // What it has said for all is for the next one to say.
    world.put_agent(2, false);
    let is_said_by_the_other = || {
        let (status, message) = world.condition().unwrap();
        Ok(status == "False" && message.starts_with("node-3: ") && !message.contains("node-2: "))
    };
    wait_until("node 3 speaks for all", PATIENCE, is_said_by_the_other).unwrap();

    world.finish();
}

#[test]
fn a_node_that_masquerades_its_pods_says_so() {
    let Some(mut world) = World::new(&[Root, Tool("nft")]) else {
        return;
    };
    world.masquerade(2);
    world.start_all(&["--masquerade-bypass=false"]);
    world.put_gateway(1);
    world.put_configuration(&["10.71.0.0/16"]);
    for node in 1..=2 {
        world.wait_for_way_to(node, 1);
        world.wait_for_ping(node, REMOTE);
    }

    let said = ["node-2: ", "10.244.2.5 to 10.71.2.7 with 172.18.0.2: exempt the prefix"];
    world.wait_for_condition("False", &said);

    let (_, message) = world.condition().unwrap();
    assert!(!message.contains("node-1"), "{message}");
    assert!(world.metrics(2).sum("strait_node_masqueraded_flows", &[]) > 0);
    assert_eq!(world.metrics(1).value("strait_node_masqueraded_flows", &[]), Some("0"));
    world.finish();
}

#[test]
fn a_cni_masquerades_no_pod_to_remotes() {
    let Some(mut world) = World::new(&[Root, Tool("nft")]) else {
        return;
    };
    world.masquerade(2);
    world.start_all(&[]);
    world.put_gateway(1);
    world.put_configuration(&["10.71.0.0/16", "fd00:71::/56"]);
    world.wait_for_way_to(2, 1);
    world.wait_for_ping(2, REMOTE);
    let source_of_pod = || {
        let datagrams = Datagrams { count: 3, payload_bytes: 100, per_second: 100 };
        let report = udp(&world.pods[1], &world.gateways[0], REMOTE, datagrams).unwrap();
        report.client_seen_as.unwrap().ip()
    };
    let pod = IpAddr::from([10, 244, 2, 5]);

    assert_eq!(source_of_pod(), pod);
    // A firewall that is loaded again removes all tables; the agent compares every thirty seconds.
    world.nft(2, "flush ruleset");
    world.masquerade(2);
    wait_until("the table is back", PATIENCE * 2, || Ok(source_of_pod() == pod)).unwrap();
    world.finish();
}

#[test]
fn errors_are_reported_before_any_change() {
    for (words, problem) in [
        (&["--node-name=a", "--table=254"][..], "--table 254 is the kernel's own"),
        (&["--node-name=a", "--vxlan=perhaps"], "perhaps"),
        (&["--node-name=a", "--vxlan-vni=0"], "--vxlan-vni"),
        (&["--node-name=a", "--vxlan-mtu=1000"], "--vxlan-mtu"),
        (&["--node-name=a", "--rule-priority=32766"], "--rule-priority"),
        (&["--clean-up", "--table=0"], "--table 0 is the kernel's own"),
        (&[], "--node-name is missing"),
        (&["--node-name=a"], "nothing says where the API server is"),
    ] {
        let output = Command::new(STRAIT)
            .arg("node")
            .args(words)
            .env_remove("KUBECONFIG")
            .env("HOME", "/nowhere")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {said}");
        assert!(said.contains(problem), "{words:?}: {said}");
    }
}
