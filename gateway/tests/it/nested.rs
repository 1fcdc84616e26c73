//! Tunnels in tunnels, in network namespaces: one peer behind another, and gateways that are each behind the other.
//!
//! Needs root and `/dev/net/tun`; what needs more says so.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use strait_lab::LabError;
use strait_lab::Namespace;
use strait_lab::PeerSection;
use strait_lab::Scratch;
use strait_lab::gateway::{GatewayConfig, GatewayProcess};
use strait_lab::netlink::connect;
use strait_lab::traffic::{Amount, Ping, tcp};
use strait_lab::wait_until;
use strait_wg::PrivateKey;

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;

const PORT: u16 = 51840;

/// Of the devices of the three gateways.
const ADDRESSES: [&str; 3] = ["10.70.0.1/32", "10.70.0.2/32", "10.70.0.3/32"];

/// ```text
/// left ═ hub ─ right
///   ╚═════════════╝
/// ```
///
/// The tunnel from left to right goes through the one from left to the hub, and has another address there.
#[test]
fn a_tunnel_passes_through_another_peers_tunnel() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let mut left = Gateway::new("left", &[ADDRESSES[0], "10.70.0.9/32"]);
    let mut hub = Gateway::new("hub", &[ADDRESSES[1]]);
    let mut right = Gateway::new("right", &[ADDRESSES[2]]);
    join((&left, "10.0.1.1/24"), (&hub, "10.0.1.2/24"));
    join((&hub, "10.0.2.1/24"), (&right, "10.0.2.2/24"));
    left.add_peer(&hub, Some("10.0.1.2"), &["10.0.2.0/24"]);
    left.add_peer(&right, Some("10.0.2.2"), &[ADDRESSES[2]]);
    hub.add_peer(&left, None, &["10.70.0.9/32"]);
    right.add_peer(&left, None, &[ADDRESSES[0]]);
    right.ip("route add 10.70.0.9/32 via 10.0.2.1");
    let scratch = Scratch::new().unwrap();
    for gateway in [&mut right, &mut hub, &mut left] {
        gateway.start(&scratch);
    }
    left.ip("route add 10.0.2.2/32 dev strait0 src 10.70.0.9");

    let target = "10.70.0.3".parse().unwrap();
    let ping = Ping { interval: Duration::from_millis(20), ..Ping::new(target, 50) };
    // Two handshakes come first. An initiation is lost while the gateway has not heard of the route yet.
    let is_reached = || Ok(Ping::new(target, 1).run(&left.namespace)?.is_perfect());
    wait_until("both tunnels carry packets", Duration::from_secs(20), is_reached).unwrap();
    let report = ping.run(&left.namespace).unwrap();
    let bulk = tcp(&left.namespace, &right.namespace, target, Amount::Bytes(5_000_000)).unwrap();

    assert!(report.is_perfect(), "{report:?}\n{}", left.log());
    assert!(bulk.is_intact, "{bulk:?}");
    assert_eq!(left.sum("strait_drops_total", &[("reason", "routing_loop")]), 0);
    for gateway in [left, hub, right] {
        gateway.stop();
    }
}

/// The way of each of two gateways to the third leads into the tunnel of the other.
#[test]
fn traffic_between_gateways_behind_each_other_dies_out() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let mut left = Gateway::new("left", &[ADDRESSES[0]]);
    let mut right = Gateway::new("right", &[ADDRESSES[1]]);
    let mut third = Gateway::new("third", &[ADDRESSES[2]]);
    join((&left, "10.0.1.1/24"), (&right, "10.0.1.2/24"));
    join((&left, "10.0.2.1/24"), (&third, "10.0.2.3/24"));
    join((&right, "10.0.3.2/24"), (&third, "10.0.3.3/24"));
    third.ip("address add 10.9.1.1/32 dev lo");
    third.ip("address add 10.9.2.1/32 dev lo");
    third.add_peer(&left, None, &[ADDRESSES[0]]);
    third.add_peer(&right, None, &[ADDRESSES[1]]);
    left.add_peer(&third, Some("10.9.1.1"), &[ADDRESSES[2], "10.9.2.0/24"]);
    right.add_peer(&third, Some("10.9.2.1"), &[ADDRESSES[2], "10.9.1.0/24"]);
    left.ip("route add 10.9.1.1/32 via 10.0.2.3");
    right.ip("route add 10.9.2.1/32 via 10.0.3.3");
    let scratch = Scratch::new().unwrap();
    for gateway in [&mut third, &mut left, &mut right] {
        gateway.start(&scratch);
    }
    let target = "10.70.0.3".parse().unwrap();
    for gateway in [&left, &right] {
        let report = Ping::new(target, 3).run(&gateway.namespace).unwrap();
        assert!(report.received > 0, "{report:?}\n{}", gateway.log());
    }
    let sent =
        || [&left, &right].map(|gateway| gateway.sum("strait_peer_transmit_bytes_total", &[]));

    left.ip("route replace 10.9.1.1/32 via 10.0.1.2");
    right.ip("route replace 10.9.2.1/32 via 10.0.1.1");
    let before = sent();
    let pings = Ping { timeout: Duration::from_millis(50), ..Ping::new(target, 20) };
    let small = pings.run(&left.namespace).unwrap();
    let large = Ping { payload_bytes: 1380, ..pings }.run(&left.namespace).unwrap();
    sleep(Duration::from_millis(500));
    let after = sent();
    sleep(Duration::from_millis(500));
    let at_last = sent();

    let bytes = after.iter().sum::<u64>() - before.iter().sum::<u64>();
    assert_eq!((small.received, large.received), (0, 0), "the routes lead there");
    // A small one becomes seven datagrams of up to 600 bytes, a large one some twenty of up to 1,480.
    assert!(bytes < 20 * (7 * 600 + 25 * 1480), "{bytes} bytes for 40 pings");
    let rest = at_last.iter().sum::<u64>() - after.iter().sum::<u64>();
    assert!(rest < 2_000, "{rest} bytes when all should be over");
    assert!(bytes > 20 * 7 * 200, "{bytes} bytes: the tunnels do not lead into each other");
    for gateway in [left, right, third] {
        gateway.stop();
    }
}

/// A gateway in a namespace of its own.
struct Gateway {
    name: &'static str,
    namespace: Arc<Namespace>,
    key: PrivateKey,
    addresses: Vec<&'static str>,
    peers: Vec<PeerSection>,
    process: Option<GatewayProcess>,
}

impl Gateway {
    fn new(name: &'static str, addresses: &[&'static str]) -> Self {
        Self {
            name,
            namespace: Arc::new(Namespace::router(name).unwrap()),
            key: PrivateKey::generate(),
            addresses: addresses.to_vec(),
            peers: Vec::new(),
            process: None,
        }
    }

    fn add_peer(&mut self, other: &Self, endpoint: Option<&str>, allowed: &[&str]) {
        let allowed = allowed.iter().map(|prefix| prefix.parse().unwrap()).collect();
        let mut peer = PeerSection::new(other.name, other.key.public_key(), allowed);
        peer.endpoint = endpoint.map(|address| format!("{address}:{PORT}"));
        self.peers.push(peer);
    }

    fn start(&mut self, scratch: &Scratch) {
        let key = scratch.write(&format!("{}.key", self.name), &self.key.to_base64()).unwrap();
        let addresses = self.addresses.iter().map(|address| address.parse().unwrap()).collect();
        let mut config = GatewayConfig::new(self.name, addresses, PORT, key);
        config.peers.clone_from(&self.peers);
        let started = GatewayProcess::start(&self.namespace, Path::new(STRAIT), &config, scratch);
        self.process = Some(started.unwrap());
    }

    fn stop(mut self) {
        self.process.take().unwrap().stop().unwrap();
    }

    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.process.as_ref().unwrap().metrics().unwrap().sum(name, labels)
    }

    fn log(&self) -> String {
        self.process.as_ref().map_or_else(String::new, |process| process.process().log())
    }

    fn ip(&self, arguments: &str) {
        let words: Vec<_> = arguments.split(' ').map(ToOwned::to_owned).collect();
        let run = move || Command::new("ip").args(words).output().map_err(LabError::io("run ip"));
        let output = self.namespace.run(run).unwrap();

        assert!(output.status.success(), "ip {arguments}: {output:?}");
    }
}

/// With a cable, each end with its address.
fn join((one, own): (&Gateway, &str), (other, others): (&Gateway, &str)) {
    let links = [other.name, one.name];
    connect((&one.namespace, links[0]), (&other.namespace, links[1]), 1500).unwrap();
    one.namespace.add_address(links[0], own.parse().unwrap()).unwrap();
    other.namespace.add_address(links[1], others.parse().unwrap()).unwrap();
}
