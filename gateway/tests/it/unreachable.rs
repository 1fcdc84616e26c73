//! What pods are told of packets that go nowhere, end to end: network namespaces, real gateways, and the
//! kernel's own idea of what an ICMP error is good for.
//!
//! Needs root and `/dev/net/tun`.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::netlink::Via;
use strait_lab::traffic::{Ping, PingReport};
use strait_wg::Engine;

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::tools::nft;
use crate::harness::world::World;

/// The device of a gateway.
const DEVICE: &str = "strait0";

/// MTU of the device, in bytes: that of the underlay, less 80.
const DEVICE_MTU: u32 = 1420;

/// Prefixes that are routed to the gateway and that no peer has.
const NOWHERE: [&str; 2] = ["10.99.0.0/16", "fd00:99::/64"];

/// A router that looks closely: what comes out of the device must come from where it would go.
const STRICT: [(&str, &str); 2] =
    [("ipv4/conf/all/rp_filter", "1"), ("ipv4/conf/default/rp_filter", "1")];

#[test]
fn pods_get_icmp_errors_without_a_route() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    for engine in Engine::ALL {
        assert_no_route_is_reported(engine);
    }
}

fn assert_no_route_is_reported(engine: Engine) {
    let world = World::start_with(&Layout::equal(), |clusters| {
        clusters.rome.gateway.set(&STRICT).unwrap();
        clusters.rome.config.set_engine(engine.name());
        clusters.milan.config.set_engine(engine.name());
    });
    let rome = world.rome();
    for prefix in NOWHERE {
        rome.gateway.add_route(prefix.parse().unwrap(), DEVICE, Via::Link).unwrap();
    }
    let targets = ["10.99.0.1", "fd00:99::1"].map(|target| target.parse::<IpAddr>().unwrap());

    for (target, own) in targets.into_iter().zip(rome.side.pod_addresses()) {
        assert_told(rome, target, own);
        // The gateway's own processes are no worse off than pods.
        assert_eq!(connect(&rome.gateway, target), ErrorKind::HostUnreachable);
    }

    // An error is counted once it is written: its receiver may be quicker.
    let metrics = rome.metrics_at_rest().unwrap();
    let drops = [("direction", "outbound"), ("reason", "no_route")];
    let told = metrics.sum("strait_icmp_errors_total", &[]);
    assert!(told >= 10 && told <= metrics.sum("strait_drops_total", &drops), "{told}");
    // Who can be reached is, as before.
    world.assert_traffic();
    world.finish();
}

#[test]
fn pods_get_icmp_errors_without_an_endpoint() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    for engine in Engine::ALL {
        assert_told_that_there_is_no_endpoint(engine);
    }
}

fn assert_told_that_there_is_no_endpoint(engine: Engine) {
    let mut world = World::prepare(&Layout::different());
    world.rome().gateway.set(&STRICT).unwrap();
    let clusters = &mut world.clusters;
    clusters.rome.config.set_engine(engine.name());
    for peer in &mut clusters.rome.config.peers {
        peer.endpoint = None;
    }
    clusters.rome.start(Path::new(STRAIT), &clusters.scratch).unwrap();
    let (rome, milan) = (world.rome(), world.milan());

    for (target, own) in rome.side.sees(&milan.side).zip(rome.side.pod_addresses()) {
        assert_told(rome, target, own);
    }

    let metrics = rome.metrics_at_rest().unwrap();
    let drops = [("direction", "outbound"), ("reason", "no_endpoint")];
    assert!(metrics.sum("strait_drops_total", &drops) >= 8);
    world.clusters.stop().unwrap();
}

/// The kernel says so itself, before it gives us the packet.
#[test]
fn pods_get_the_mtu_of_the_device() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::different());
    let (rome, milan) = (world.rome(), world.milan());

    for (target, own) in rome.side.sees(&milan.side).zip(rome.side.pod_addresses()) {
        let ping = Ping { payload_bytes: 1450, ..Ping::new(target, 1) };
        let report = ping.run(&rome.pod).unwrap();

        let [error] = report.errors[..] else { panic!("one error for {target}: {report:?}") };
        let too_big = if target.is_ipv4() { (3, 4) } else { (2, 0) };
        assert_eq!((error.kind, error.code, error.mtu_bytes), (too_big.0, too_big.1, DEVICE_MTU));
        assert_eq!((error.embedded_source, error.embedded_destination), (own, target));
    }
    world.finish();
}

/// The connection tracking of the host translates the error back, as it translated the packet.
#[test]
fn a_pod_behind_source_nat_is_told_too() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let rome = world.rome();
    rome.gateway.set(&STRICT).unwrap();
    for rule in [
        "add table inet nat",
        "add chain inet nat postrouting { type nat hook postrouting priority 100; }",
        "add rule inet nat postrouting oifname strait0 masquerade",
    ] {
        nft(&rome.gateway, rule);
    }
    // The pod lets in nothing but what belongs to its own connections.
    for rule in [
        "add table inet filter",
        "add chain inet filter input { type filter hook input priority 0; policy drop; }",
        "add rule inet filter input ct state established,related accept",
        "add rule inet filter input icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
    ] {
        nft(&rome.pod, rule);
    }
    for prefix in NOWHERE {
        rome.gateway.add_route(prefix.parse().unwrap(), DEVICE, Via::Link).unwrap();
    }
    let targets = ["10.99.0.1", "fd00:99::1"].map(|target| target.parse::<IpAddr>().unwrap());

    for (target, own) in targets.into_iter().zip(rome.side.pod_addresses()) {
        assert_told(rome, target, own);
    }
    world.finish();
}

#[test]
fn packets_without_a_peer_get_few_icmp_errors() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let rome = world.rome();
    rome.gateway.add_route(NOWHERE[0].parse().unwrap(), DEVICE, Via::Link).unwrap();
    let flood = Ping {
        interval: Duration::from_millis(1),
        ..Ping::new("10.99.0.1".parse().unwrap(), 1_000)
    };

    let begin = now();
    let report = flood.run(&rome.pod).unwrap();
    let seconds = begin.elapsed().as_secs_f64();

    let told = report.errors.len();
    assert_eq!(report.sent, 1_000);
    assert!(told >= 20, "{told} of {} in {seconds} s", report.sent);
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a thousand is a thousand"
    )]
    let told = told as f64;
    assert!(told <= 10.0 + 20.0 * seconds + 1.0, "{told} in {seconds} s");
    world.finish();
}

/// Ping and TCP, from the pod of `cluster`, which is `own`, to a `target` that cannot be reached.
fn assert_told(cluster: &Cluster, target: IpAddr, own: IpAddr) {
    let PingReport { sent, errors, .. } = Ping::new(target, 3).run(&cluster.pod).unwrap();
    assert_eq!((sent, errors.len()), (3, 3), "{target}");
    for error in errors {
        // Host unreachable; address unreachable.
        let expected = if target.is_ipv4() { (3, 1) } else { (1, 3) };
        assert_eq!((error.kind, error.code), expected, "{target}");
        assert_eq!((error.embedded_source, error.embedded_destination), (own, target));
    }

    let begin = now();
    assert_eq!(connect(&cluster.pod, target), ErrorKind::HostUnreachable, "{target}");
    // Without an answer, the kernel would try again after a second, and for two minutes.
    assert!(begin.elapsed() < Duration::from_millis(900), "{target}: {:?}", begin.elapsed());
}

/// Why a TCP connection cannot be made.
fn connect(from: &Namespace, target: IpAddr) -> ErrorKind {
    let attempt = move || {
        let address = SocketAddr::new(target, 443);
        Ok(TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap_err().kind())
    };

    from.run(attempt).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test measures real time")]
fn now() -> Instant {
    Instant::now()
}
