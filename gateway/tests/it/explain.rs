//! A running gateway says what becomes of a packet; then the packet is sent, and that is what arrives.
//!
//! Needs root and `/dev/net/tun`.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;
use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::traffic::{Amount, Datagrams, tcp, udp};

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::harness::world::World;

#[test]
fn what_arrives_is_what_was_explained() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::different());

    for (from, to) in [(world.rome(), world.milan()), (world.milan(), world.rome())] {
        for (source, target) in from.side.pod_addresses().zip(from.side.sees(&to.side)) {
            assert_explained(from, to, source, target);
        }
    }
    world.assert_traffic();
    world.finish();
}

#[test]
fn explain_names_the_drop_of_a_running_gateway() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let mut world = World::start(&Layout::equal());
    let socket = world.rome().config.admin_socket().to_owned();
    let mode = socket.metadata().unwrap().permissions().mode() & 0o777;

    let dropped = explain(world.rome(), &["10.244.1.5", "10.244.2.7"]);
    let too_big = explain(world.rome(), &["10.244.1.5", "10.71.2.7", "--size", "1421"]);
    let wrong = explain(world.rome(), &["10.244.2.7", "10.244.1.5", "--inbound", "--peer", "oslo"]);
    world.clusters.stop().unwrap();
    let stopped = explain(world.rome(), &["10.244.1.5", "10.71.2.7"]);

    let statuses = [&dropped, &too_big, &wrong, &stopped].map(|output| output.status.code());
    assert_eq!(statuses, [Some(1), Some(1), Some(64), Some(69)]);
    assert_eq!(json(&dropped)["reason"], "no_route");
    assert_eq!(json(&too_big)["verdict"], "too_big");
    assert_eq!(mode, 0o600);
    assert!(!socket.exists());
}

/// Asks both gateways about the way of a packet, then sends some.
#[track_caller]
fn assert_explained(from: &Cluster, to: &Cluster, source: IpAddr, target: IpAddr) {
    let [source, destination] = [source, target].map(|address| address.to_string());
    let outbound = explain(from, &[&source, &destination, "--proto", "udp"]);
    let on_the_wire = json(&outbound);
    let [source, destination] =
        ["source", "destination"].map(|key| on_the_wire["after"][key].as_str().unwrap());
    let inbound = explain(to, &[source, destination, "--proto", "udp", "--inbound"]);
    let arrived = json(&inbound);
    let address = |key: &str| arrived["after"][key].as_str().unwrap().parse::<IpAddr>().unwrap();

    let datagrams = Datagrams { count: 20, payload_bytes: 100, per_second: 1000 };
    let train = udp(&from.pod, &to.pod, target, datagrams).unwrap();
    let bulk = tcp(&from.pod, &to.pod, target, Amount::Bytes(100_000)).unwrap();

    assert_eq!(
        (&on_the_wire["verdict"], &arrived["verdict"]),
        (&"sent".into(), &"delivered".into())
    );
    assert_eq!(on_the_wire["peer"]["has_session"], true);
    assert_eq!(on_the_wire["mtu"], 1420);
    assert!(train.is_perfect() && bulk.is_intact, "{train:?} {bulk:?}");
    assert_eq!(train.client_seen_as.map(|client| client.ip()), Some(address("source")));
    assert_eq!(bulk.client_seen_as.ip(), address("source"));
    assert!(to.side.pod_addresses().any(|own| own == address("destination")));
}

fn explain(cluster: &Cluster, words: &[&str]) -> Output {
    let mut command = Command::new(STRAIT);
    command.arg("explain").args(words).arg("--json");
    command.arg("--socket").arg(cluster.config.admin_socket());

    command.output().unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);

    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON: {error}"))
}
