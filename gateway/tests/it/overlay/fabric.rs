//! What lies between nodes and gateways: several nodes, IPv6, marks, and what no gateway forwards.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use strait_lab::layout::host;
use strait_lab::traffic::{Amount, Datagrams, Ping, tcp, udp};
use strait_lab::{Direction, LabError, Layout};

use super::NEEDS;
use super::world::{Fabric, OverlayWorld};
use crate::harness::require::Need::Tool;
use crate::harness::require::require;
use crate::harness::tools::{ip, nft};
use crate::harness::world::{CE, ECT_0, traffic_class_on_arrival};

/// Assured forwarding class 4 (RFC 2597), which a sender of video may choose.
const AF41: u8 = 34 << 2;

#[test]
fn pods_of_three_nodes_talk() {
    let Some(_turn) = require(&NEEDS) else { return };
    let layout = Layout::equal().without_ipv6();
    let world = OverlayWorld::start_with(&layout, Fabric::SameHost, |rome, _| {
        rome.further_nodes = 2;
    });
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let datagrams = Datagrams { count: 500, payload_bytes: 1200, per_second: 5_000 };
    let amount = Amount::Bytes(5_000_000);

    world.assert_traffic();
    for (pod, subnet) in world.further_pods.iter().zip([101_u32, 102]) {
        let seen_as = host(milan.side.realms[0].remapped, subnet << 8 | 5);
        let ping = Ping::new(target, 5).run(&pod.namespace).unwrap();
        let there = tcp(&pod.namespace, &milan.pod, target, amount).unwrap();
        let back = tcp(&milan.pod, &pod.namespace, seen_as, amount).unwrap();
        let train = udp(&milan.pod, &pod.namespace, seen_as, datagrams).unwrap();

        assert!(ping.is_perfect(), "{}: {ping:?}", pod.address);
        assert!(there.is_intact && back.is_intact, "{}: {there:?} {back:?}", pod.address);
        assert_eq!(there.client_seen_as.ip(), seen_as);
        assert!(train.is_perfect(), "{}: {train:?}", pod.address);
    }
    world.finish();
}

#[test]
fn nodes_with_ipv6_addresses_are_served() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal(), Fabric::RoutedIpv6);

    assert!(world.node().address.is_ipv6());
    world.assert_without_capabilities();
    world.assert_traffic();
    world.finish();
}

/// A router between node and gateway marks outer headers: the one that this process decapsulates, then the one that it wrote.
#[test]
fn congestion_on_the_fabric_reaches_the_pod() {
    let Some(_turn) = require(&[NEEDS[0], NEEDS[1], NEEDS[2], Tool("nft")]) else { return };
    let world = OverlayWorld::start(&Layout::equal().without_ipv6(), Fabric::Routed);
    let (rome, milan) = (world.rome(), world.milan());
    // Of the sender's node, and of the receiver's.
    for node in [world.node(), world.node_of_milan()] {
        let router = node.router.as_ref().unwrap();
        nft(router, "add table ip congestion");
        nft(router, "add chain ip congestion forward { type filter hook forward priority 0; }");
        let clear = traffic_class_on_arrival(rome, milan, ECT_0);
        nft(router, "add rule ip congestion forward udp dport != 0 ip ecn ect0 ip ecn set ce");
        let congested = traffic_class_on_arrival(rome, milan, ECT_0);
        let unmarked = traffic_class_on_arrival(rome, milan, 0);
        nft(router, "delete table ip congestion");

        assert_eq!([clear, congested, unmarked], [ECT_0, CE, 0], "{}", node.address);
    }
    world.finish();
}

#[test]
fn the_dscp_of_pods_arrives() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal().without_ipv6(), Fabric::SameHost);
    let (rome, milan) = (world.rome(), world.milan());

    for (from, to) in [(rome, milan), (milan, rome)] {
        assert_eq!(traffic_class_on_arrival(from, to, AF41), AF41, "from {}", from.name);
    }
    world.finish();
}

/// No peer has a multicast group, and its sender gets no ICMP error (RFC 1122 section 3.2.2).
#[test]
fn multicast_of_pods_is_counted() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal(), Fabric::SameHost);
    let rome = world.rome();
    for (route, link) in [("239.1.1.1", "vx"), ("ff0e::1", "vx")] {
        ip(&world.node().namespace, &format!("route add multicast {route} dev {link} table local"));
    }
    let groups: [IpAddr; 2] = ["239.1.1.1".parse().unwrap(), "ff0e::1".parse().unwrap()];
    let node = &world.node().namespace;
    let before = world.drops(rome, Direction::Outbound, "no_route");

    for group in groups {
        // From the node: a kernel forwards multicast for a routing daemon only.
        node.run(move || send(group)).unwrap();
    }

    assert_eq!(world.drops(rome, Direction::Outbound, "no_route") - before, 20);
    world.assert_traffic();
    world.finish();
}

/// Ten datagrams to `group`.
fn send(group: IpAddr) -> Result<(), LabError> {
    let any: SocketAddr = if group.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).map_err(LabError::io("bind"))?;
    socket.set_multicast_ttl_v4(8).map_err(LabError::io("set the hop limit"))?;
    for _ in 0..10 {
        socket.send_to(b"to a group", (group, 5353)).map_err(LabError::io("send"))?;
    }

    Ok(())
}
