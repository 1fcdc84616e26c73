//! A peer with several addresses, in network namespaces: one dies, another is used.
//!
//! ```text
//!            ┌── router ──┐
//!   rome ────┤            ├──── milan      two ways, and an address of Milan on each
//!            └── second ──┘
//! ```
//!
//! A router that does not forward says nothing: what is sent that way is gone. Needs root and
//! `/dev/net/tun`.

use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;
use strait_lab::netlink::{Via, connect};
use strait_lab::topology::LISTEN_PORT;
use strait_lab::traffic::Ping;
use strait_lab::{Cluster, Layout, Namespace, TwoClusters, Underlay, wait_until};

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::world::World;

/// The link of either gateway to the second router.
const SECOND_LINK: &str = "second";

/// Milan's address there.
const SECOND_ADDRESS: &str = "192.0.2.130";

/// How long a handshake over an address that works may take, with a dead one before it in the list.
const SOON: Duration = Duration::from_secs(2);

/// A young name is looked up every 5 s.
const NEXT_LOOKUP: Duration = Duration::from_secs(15);

/// After this WireGuard finds silence odd.
const SILENCE: Duration = Duration::from_secs(15);

/// By then another address is in use; a ping waits for its answer meanwhile.
const TAKEOVER: Duration = Duration::from_secs(30);

#[test]
fn another_endpoint_takes_over_when_one_fails() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: true, mtu_bytes: 1500 };
    let mut world = World::prepare(&Layout::equal().without_ipv6().with_underlay(underlay));
    let second = second_way(&world.clusters);
    let TwoClusters { milan, rome, router, scratch } = &mut world.clusters;
    let router = router.as_ref().unwrap();
    let milan_at = |address: &str| format!("{address}:{LISTEN_PORT}");
    rome.config.peers[0].endpoint = None;
    rome.config.peers[0].endpoints = vec![
        milan_at(&milan.underlay.to_string()),
        milan_at("milan.invalid"),
        milan_at(SECOND_ADDRESS),
    ];
    set_forwarding(router, "0");
    milan.start(Path::new(STRAIT), scratch).unwrap();

    rome.start(Path::new(STRAIT), scratch).unwrap();
    wait_until("the second address worked", SOON, || {
        Ok(rome.metrics()?.sum("strait_peer_has_session", &[]) > 0)
    })
    .unwrap();
    world.assert_traffic();

    set_forwarding(world.clusters.router.as_ref().unwrap(), "1");
    set_forwarding(&second, "0");
    let rome = world.rome();
    let target = rome.side.sees(&world.milan().side).next().unwrap();
    wait_until("the first address took over", TAKEOVER, || {
        Ok(Ping::new(target, 1).run(&rome.pod).is_ok_and(|ping| ping.is_perfect()))
    })
    .unwrap();
    world.assert_traffic();
    world.finish();
}

/// The hosts of a mount namespace of its own say where Milan is: the system's resolver is asked.
#[test]
fn a_session_follows_its_name_to_another_address() {
    let Some(_turn) = require(&[Root, Tun, Tool("unshare"), Tool("mount")]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: true, mtu_bytes: 1500 };
    let mut world = World::prepare(&Layout::equal().without_ipv6().with_underlay(underlay));
    let _second = second_way(&world.clusters);
    let TwoClusters { milan, rome, router, scratch } = &mut world.clusters;
    rome.config.peers[0].endpoint = Some(format!("milan.test:{LISTEN_PORT}"));
    let says = |address: &str| format!("127.0.0.1 localhost\n{address} milan.test\n");
    let hosts = scratch.write("hosts", &says(&milan.underlay.to_string())).unwrap();
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /etc/hosts && exec {STRAIT} \"$@\"' sh \"$@\"\n",
        hosts.display()
    );
    let script = scratch.write("strait", &script).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o700)).unwrap();
    milan.start(Path::new(STRAIT), scratch).unwrap();
    rome.start(&script, scratch).unwrap();
    rome.process().unwrap().wait_for_session().unwrap();

    scratch.write("hosts", &says(SECOND_ADDRESS)).unwrap();
    wait_until("the name was looked up again", NEXT_LOOKUP, || {
        Ok(rome.process()?.process().log().contains(SECOND_ADDRESS))
    })
    .unwrap();
    let target = rome.side.sees(&milan.side).next().unwrap();
    wait_until("the second address was used", SOON, || Ok(uses_second_address(rome, target)))
        .unwrap();
    let before = Ping::new(target, 5).run(&rome.pod).unwrap();
    set_forwarding(router.as_ref().unwrap(), "0");
    let after = Ping::new(target, 5).run(&rome.pod).unwrap();

    assert!(before.is_perfect(), "{before:?}");
    assert!(after.is_perfect(), "the first address is still in use: {after:?}");
    world.assert_traffic();
    world.finish();
}

/// Rome keeps the address on its first link, which carries nothing any more.
#[test]
fn the_source_address_follows_the_route() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: true, mtu_bytes: 1500 };
    let mut world = World::prepare(&Layout::equal().without_ipv6().with_underlay(underlay));
    let second = second_way(&world.clusters);
    let milan_net = IpNet::new_assert(world.milan().underlay, 24).trunc();
    let milan_there = Via::Router(SECOND_ADDRESS.parse().unwrap());
    second.add_route(milan_net, world.milan().name, milan_there).unwrap();
    world.clusters.start(Path::new(STRAIT)).unwrap();
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let before = Ping::new(target, 30).run(&rome.pod).unwrap();

    set_forwarding(world.clusters.router.as_ref().unwrap(), "0");
    let mut ip = Command::new(strait_lab::process::find("ip").unwrap());
    ip.args(format!("route replace {milan_net} via 192.0.2.1 dev {SECOND_LINK} onlink").split(' '));
    assert!(rome.gateway.start(ip).unwrap().wait().unwrap().success());
    wait_until("the other link was used", SILENCE / 3, || {
        Ok(Ping::new(target, 1).run(&rome.pod).is_ok_and(|ping| ping.is_perfect()))
    })
    .unwrap();

    assert!(before.is_perfect(), "{before:?}");
    world.assert_traffic();
    world.finish();
}

/// Joins both gateways by another router.
fn second_way(clusters: &TwoClusters) -> Namespace {
    let router = Namespace::router("second").unwrap();
    let ways = [(&clusters.rome, "192.0.2.2/25"), (&clusters.milan, "192.0.2.130/25")];
    let nets = ways.map(|(_, address)| address.parse::<IpNet>().unwrap());
    let routers = ["192.0.2.1", "192.0.2.129"].map(|address| address.parse::<IpAddr>().unwrap());

    for (place, (cluster, _)) in ways.iter().enumerate() {
        let (own, near, far) = (nets[place], routers[place], nets[1 - place].trunc());
        connect((&cluster.gateway, SECOND_LINK), (&router, cluster.name), 1500).unwrap();
        cluster.gateway.add_address(SECOND_LINK, own).unwrap();
        router.add_address(cluster.name, IpNet::new_assert(near, own.prefix_len())).unwrap();
        cluster.gateway.add_route(far, SECOND_LINK, Via::Router(near)).unwrap();
    }

    router
}

/// Whether the gateway of `cluster` sends to [`SECOND_ADDRESS`] what is for `target`.
fn uses_second_address(cluster: &Cluster, target: IpAddr) -> bool {
    let source = cluster.side.pod_addresses().next().unwrap();
    let mut explain = Command::new(STRAIT);
    explain.arg("explain").args([source, target].map(|address| address.to_string()));
    explain.arg("--json").arg("--socket").arg(cluster.config.admin_socket());
    let output = explain.output().unwrap().stdout;
    let explanation: Value = serde_json::from_slice(&output).unwrap();

    explanation["peer"]["endpoint"].as_str().unwrap().starts_with(SECOND_ADDRESS)
}

fn set_forwarding(router: &Namespace, value: &'static str) {
    router.set(&[("ipv4/ip_forward", value)]).unwrap();
}
