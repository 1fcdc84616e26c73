//! A peering with several gateways: nodes spread flows over them, and move them when one stops to forward.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use rtnetlink::packet_route::link::InfoVxlan;
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVxlan};
use strait_api::vxlan;
use strait_lab::Namespace;
use strait_lab::traffic::{Ping, PingReport};
use strait_lab::wait_until;

use super::kernel::ask;
use super::world::{PATIENCE, StatePage, World, gateway_address};

/// The prefixes of the remote: pods of both versions, and addresses for its hosts.
const PREFIXES: [&str; 3] = ["10.71.0.0/16", "fd00:71::/56", "10.81.0.0/16"];

/// The addresses that only one gateway each may carry.
const OWN: [&str; 2] = ["10.81.0.0/32", "10.81.0.1/32"];

/// Remote addresses of one version that are pinged.
const TARGETS: u8 = 24;

/// From the line of a gateway to the last packet that it gets.
const MOVED_WITHIN: Duration = Duration::from_millis(100);

/// The longest time without an answer after a gateway has vanished: 300 ms of silence, and what a busy machine adds.
const RESCUED_WITHIN: Duration = Duration::from_millis(450);

/// Pods send through a gateway on this node, or else to all nodes with one.
#[test]
fn device_gateways_share_flows_and_hand_over() {
    let Some(world) = World::running(&PREFIXES) else {
        return;
    };
    spread_and_move(world, "device", [(1, &[0]), (2, &[1]), (3, &[0, 1])]);
}

/// Pods send to all gateways, from each node.
#[test]
fn overlay_gateways_share_flows_and_hand_over() {
    let Some(world) = World::running(&PREFIXES) else {
        return;
    };
    for node in 1..=2 {
        end_vxlan(&world.gateways[node - 1], gateway_address(node));
    }
    spread_and_move(world, "overlay", [(1, &[0, 1]), (2, &[0, 1]), (3, &[0, 1])]);
}

/// `used` says by which gateways each node sends while all forward.
fn spread_and_move(world: World, edge: &str, used: [(usize, &[usize]); 3]) {
    let pages = start_gateways(&world, edge);
    for (node, expected) in used {
        world.wait_for_gateways(node, 2);
        wait_until_carried_by(&world, node, expected);
    }

    for stopped in [1, 0] {
        let other = 1 - stopped;
        pages[stopped].say(false, &[]);
        thread::sleep(MOVED_WITHIN);
        let before = echoes(&world.gateways[stopped]);
        for (node, _) in used {
            assert_eq!(carriers(&world, node), [[other], [other]], "node {node} without {stopped}");
            let answer = Ping::new(own(stopped), 1).run(&world.pods[node - 1]).unwrap();
            assert!(answer.is_perfect(), "what only {stopped} carried: {answer:?}");
        }
        assert_eq!(echoes(&world.gateways[stopped]), before, "gateway {stopped}");

        pages[stopped].say(true, &[OWN[stopped]]);
        for (node, expected) in used {
            wait_until_carried_by(&world, node, expected);
        }
    }

    // If none says that it forwards, all are used.
    for page in &pages {
        page.say(false, &[]);
    }
    for (node, expected) in used {
        wait_until(format!("node {node} knows that none forwards"), PATIENCE, || {
            let metrics = world.metrics(node);
            Ok(metrics.value("strait_node_gateways", &[("forwards", "false")]) == Some("2"))
        })
        .unwrap();
        wait_until_carried_by(&world, node, expected);
    }

    world.finish();
}

#[test]
fn own_destinations_reach_their_gateway_from_all_nodes() {
    let Some(world) = World::running(&PREFIXES) else {
        return;
    };
    let pages = start_gateways(&world, "device");
    let reached = |node: usize, number: usize| {
        let before = [0, 1].map(|gateway| echoes(&world.gateways[gateway]));
        let answer = Ping::new(own(number), 1).run(&world.pods[node - 1]).unwrap();
        let after = [0, 1].map(|gateway| echoes(&world.gateways[gateway]));
        answer.is_perfect().then(|| {
            (0..2).filter(|gateway| before[*gateway] != after[*gateway]).collect::<Vec<_>>()
        })
    };
    for node in 1..=3 {
        for (number, own) in OWN.iter().enumerate() {
            let is_led = || Ok(reached(node, number) == Some(vec![number]));
            let name = format!("{own} is reached from node {node}");
            wait_until(name, PATIENCE, is_led)
                .unwrap_or_else(|error| panic!("{error}\n{}", world.log(node)));
        }
    }

    pages[1].say(true, &["10.99.0.1/32"]);
    let refused = "pod gw-rome-2 of a gateway claims 10.99.0.1/32, which is no part of a prefix";
    world.wait_for_condition("False", &[refused]);
    pages[1].say(true, &[OWN[1]]);
    world.wait_for_condition("True", &["no node reports a problem"]);

    world.finish();
}

/// The link of its pod is gone, so it cannot even close its connections.
#[test]
fn flows_leave_a_gateway_that_vanishes() {
    let Some(world) = World::running(&PREFIXES) else {
        return;
    };
    let _pages = start_gateways(&world, "device");
    for node in 1..=3 {
        world.wait_for_gateways(node, 2);
    }
    wait_until_carried_by(&world, 3, &[0, 1]);
    let interval = Duration::from_millis(10);
    let targets: Vec<_> = targets().collect();

    let reports = thread::scope(|scope| {
        let pings: Vec<_> = [2, 3]
            .iter()
            .flat_map(|node| targets.iter().step_by(5).map(move |target| (*node, *target)))
            .map(|(node, target)| {
                let pod = &world.pods[node - 1];
                let ping = Ping { interval, ..Ping::new(target, 250) };
                (node, target, scope.spawn(move || ping.run(pod).unwrap()))
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        world.cut_gateway(2);
        let joined = |(node, target, ping): (_, _, thread::ScopedJoinHandle<'_, PingReport>)| {
            (node, target, ping.join().unwrap())
        };
        pings.into_iter().map(joined).collect::<Vec<(usize, IpAddr, PingReport)>>()
    });

    for (node, target, report) in reports {
        let gap = interval * u32::try_from(super::longest_run(&report.unanswered)).unwrap();
        eprintln!(
            "node {node} to {target}: lost {} of {}, {gap:?} at once",
            report.lost(),
            report.sent
        );
        assert!(gap < RESCUED_WITHIN, "node {node} to {target}: {gap:?}\n{}", world.log(node));
    }
    for node in 1..=3 {
        assert_eq!(carriers(&world, node), [[0], [0]], "node {node}");
    }
    world.finish();
}

/// An agent that restarts keeps the routes until gateways have answered it.
#[test]
fn a_restarted_agent_uses_no_stopped_gateway() {
    let Some(mut world) = World::running(&PREFIXES) else {
        return;
    };
    let pages = start_gateways(&world, "device");
    pages[1].say(false, &[]);
    world.wait_for_gateways(3, 1);
    let before = echoes(&world.gateways[1]);
    let ping =
        Ping { interval: Duration::from_millis(5), ..Ping::new(targets().next().unwrap(), 800) };
    let pings = world.pods[2].spawn(move || ping.run_here().unwrap()).unwrap();

    world.stop(3);
    world.start(3, &[]);
    world.wait_for_gateways(3, 1);

    let report = pings.join().unwrap();
    assert!(report.is_perfect(), "{report:?}");
    assert_eq!(carriers(&world, 3), [[0], [0]]);
    assert_eq!(echoes(&world.gateways[1]), before);
    world.finish();
}

/// Gateways on node 1 and 2, which answer for the remote.
fn start_gateways(world: &World, edge: &str) -> [StatePage; 2] {
    let pages = [0, 1].map(|number| {
        let gateway = &world.gateways[number];
        // All addresses of a prefix of "lo" are those of the host; of IPv6, only the given ones.
        for prefix in ["10.71.2.1/24", "10.81.0.1/24"] {
            gateway.add_address("lo", prefix.parse().unwrap()).unwrap();
        }
        for target in targets().filter(IpAddr::is_ipv6) {
            gateway.add_address("lo", IpNet::from(target)).unwrap();
        }
        StatePage::serve(gateway, &[OWN[number]])
    });
    for node in 1..=2 {
        world.add_gateway(node, edge);
    }

    pages
}

/// Pods of the remote, of both versions.
fn targets() -> impl Iterator<Item = IpAddr> {
    (1..=TARGETS).flat_map(|host| {
        let v6 = Ipv6Addr::new(0xfd00, 0x71, 0, 0, 0, 0, 1, u16::from(host));
        [IpAddr::from([10, 71, 2, 100 + host]), v6.into()]
    })
}

fn own(number: usize) -> IpAddr {
    OWN[number].parse::<IpNet>().unwrap().addr()
}

/// The gateways that carry packets of the pod of a node to all targets, of IPv4 and IPv6. Each packet is answered.
fn carriers(world: &World, node: usize) -> [Vec<usize>; 2] {
    let before = [0, 1].map(|gateway| echoes(&world.gateways[gateway]));
    for target in targets() {
        let answer = Ping::new(target, 1).run(&world.pods[node - 1]).unwrap();
        assert!(answer.is_perfect(), "{target}: {answer:?}\n{}", world.log(node));
    }
    let after = [0, 1].map(|gateway| echoes(&world.gateways[gateway]));

    [0, 1].map(|version| {
        (0..2).filter(|gateway| before[*gateway][version] != after[*gateway][version]).collect()
    })
}

fn wait_until_carried_by(world: &World, node: usize, expected: &[usize]) {
    wait_until(format!("node-{node} sends by {expected:?}"), PATIENCE, || {
        Ok(carriers(world, node).iter().all(|carriers| carriers == expected))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", world.log(node)));
}

/// The echo requests that a gateway has got, of IPv4 and IPv6.
fn echoes(gateway: &Namespace) -> [u64; 2] {
    gateway
        .run(|| {
            let read =
                |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
            let v4 = read("snmp");
            let mut icmp = v4.lines().filter_map(|line| line.strip_prefix("Icmp: "));
            let (names, values) = (icmp.next().unwrap(), icmp.next().unwrap());
            let mut columns = names.split(' ').zip(values.split(' '));
            let (_, v4) = columns.find(|(name, _)| *name == "InEchos").unwrap();
            let v6 = read("snmp6");
            let v6 = v6.lines().find_map(|line| line.strip_prefix("Icmp6InEchos")).unwrap();
            Ok([v4, v6.trim()].map(|number| number.parse().unwrap()))
        })
        .unwrap()
}

/// Ends VXLAN in a gateway pod, as a gateway with an overlay edge does.
fn end_vxlan(gateway: &Namespace, address: IpAddr) {
    ask(gateway, async move |handle| {
        let IpAddr::V4(local) = address else { panic!("{address} is of IPv4") };
        let device = LinkMessageBuilder::<LinkVxlan>::new("overlay")
            .append_info_data(InfoVxlan::Id(83))
            .append_info_data(InfoVxlan::Port(8483))
            .append_info_data(InfoVxlan::Local(local))
            .append_info_data(InfoVxlan::Learning(false))
            .address(vxlan::station(address).to_vec())
            .mtu(1450)
            .build();
        handle.link().add(device).execute().await.unwrap();
        let mut links =
            std::pin::pin!(handle.link().get().match_name("overlay".to_owned()).execute());
        let link = futures_util::TryStreamExt::try_next(&mut links).await.unwrap().unwrap();
        let index = link.header.index;
        handle
            .link()
            .change(LinkUnspec::new_with_index(index).up().build())
            .execute()
            .await
            .unwrap();
        handle.address().add(index, [169, 254, 83, 83].into(), 32).execute().await.unwrap();
    });
}
