//! What the way between two gateways does to datagrams, end to end: network namespaces, real gateways.
//!
//! Needs root and `/dev/net/tun`.

use std::thread;
use std::time::Duration;

use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::Underlay;
use strait_lab::topology::UNDERLAY_LINK;
use strait_lab::traffic::{Amount, Datagrams, Ping, tcp, udp};
use strait_lab::wait_until;
use strait_wg::Engine;

use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::world::World;
use crate::kube::black_hole::filter_errors_and_fragments;

/// Less than the MTU of the device, so that no full packet fits into one datagram. Senders get an ICMP error, and nothing
/// is lost until they know.
const NARROW_MTU: u32 = 1300;

/// The longest packet for [`NARROW_MTU`] over IPv4, in bytes: a multiple of 16, and 60 less.
const NARROW_PATH_MTU: &str = "1232";

/// The router may cut datagrams: we do not forbid it. From Rome, that is; those from Milan begin on the
/// narrow link.
#[test]
fn large_datagrams_are_fragmented_by_a_router() {
    assert_fragments_arrive(false, |world| {
        let router = world.clusters.router.as_ref().unwrap();
        router.set_mtu(world.milan().name, NARROW_MTU).unwrap();
        world.milan().gateway.set_mtu(UNDERLAY_LINK, NARROW_MTU).unwrap();
    });
}

/// Only who sends it may cut a datagram of IPv6.
#[test]
fn large_datagrams_are_fragmented_by_the_sender() {
    for is_ipv6 in [false, true] {
        assert_fragments_arrive(is_ipv6, |world| {
            for cluster in [world.rome(), world.milan()] {
                cluster.gateway.set_mtu(UNDERLAY_LINK, NARROW_MTU).unwrap();
            }
        });
    }
}

/// No gateway has a connection check. Packets flow, so the path is probed.
#[test]
fn a_black_hole_between_two_files_heals() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: true, mtu_bytes: 1500 };
    let world = World::start(&Layout::equal().without_ipv6().with_underlay(underlay));
    let ways = [(world.rome(), world.milan()), (world.milan(), world.rome())]
        .map(|(from, to)| (from, to, from.side.sees(&to.side).next().unwrap()));
    for (from, to, _) in ways {
        wait_for_path_mtu(from, to, "device", "1420");
    }

    filter_errors_and_fragments(&world.clusters);
    for cluster in [world.rome(), world.milan()] {
        world.clusters.router.as_ref().unwrap().set_mtu(cluster.name, NARROW_MTU).unwrap();
    }
    thread::scope(|scope| {
        for (from, _, target) in ways {
            let interval = Duration::from_millis(100);
            let pings = Ping { payload_bytes: 64, interval, ..Ping::new(target, 50) };
            scope.spawn(move || assert!(pings.run(&from.pod).unwrap().is_perfect()));
        }
        for (from, to, _) in ways {
            wait_for_path_mtu(from, to, "probe", NARROW_PATH_MTU);
        }
    });
    for (from, to, target) in ways {
        let bulk = tcp(&from.pod, &to.pod, target, Amount::Bytes(5_000_000)).unwrap();
        assert!(bulk.is_intact, "{bulk:?}");
    }
    world.finish();
}

fn wait_for_path_mtu(from: &Cluster, to: &Cluster, source: &str, bytes: &str) {
    let labels = [("peer", to.name), ("source", source)];
    wait_until(format!("the path carries {bytes} bytes"), Duration::from_secs(10), || {
        Ok(from.metrics()?.value("strait_peer_path_mtu_bytes", &labels) == Some(bytes))
    })
    .unwrap();
}

fn assert_fragments_arrive(is_ipv6: bool, narrow: impl Fn(&World)) {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let underlay = Underlay { is_ipv6, is_routed: true, mtu_bytes: 1500 };
    let layout = Layout::equal().with_underlay(underlay);

    for engine in Engine::ALL {
        let world = World::start_with(&layout, |clusters| {
            clusters.rome.config.set_engine(engine.name());
            clusters.milan.config.set_engine(engine.name());
        });
        narrow(&world);
        assert_full_packets_arrive(&world);
        world.finish();
    }
}

fn assert_full_packets_arrive(world: &World) {
    let datagrams = Datagrams { count: 200, payload_bytes: 1340, per_second: 1000 };

    for (from, to) in [(world.rome(), world.milan()), (world.milan(), world.rome())] {
        for target in from.side.sees(&to.side) {
            let ping = Ping { payload_bytes: 1340, ..Ping::new(target, 3) };
            let report = ping.run(&from.pod).unwrap();
            let train = udp(&from.pod, &to.pod, target, datagrams).unwrap();
            let bulk = tcp(&from.pod, &to.pod, target, Amount::Bytes(2_000_000)).unwrap();

            assert!(report.is_perfect(), "{target}: {report:?}");
            assert!(train.is_perfect(), "{target}: {train:?}");
            assert!(bulk.is_intact, "{target}: {bulk:?}");
        }
    }
}
