//! Gateways whose cluster side is an overlay that ends in the process: nodes with VXLAN devices of this kernel, and gateways
//! without any capability.
//!
//! The node is a namespace of its own: beside the gateway, as on one host, or behind a router.

mod fabric;
mod forged;
mod geneve;
mod world;

use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use strait_lab::topology::POD_LINK;
use strait_lab::traffic::{Amount, Datagrams, Ping, tcp, udp};
use strait_lab::{Direction, LabError, Layout, wait_until};

use crate::harness::require::Need::{Root, Tool};
use crate::harness::require::{Need, require};
use crate::harness::tools::ip;
use crate::harness::world::assert_fragments;
use world::{Fabric, OverlayWorld};

/// What every test of an overlay needs. Not `/dev/net/tun`.
const NEEDS: [Need; 3] = [Root, Tool("ip"), Tool("setpriv")];

/// More than the tunnel's MTU, 1420 bytes, and less than that of the VXLAN device, 1450.
const LONG_PACKET_BYTES: usize = 1440;

#[test]
fn pods_of_the_same_host_talk() {
    let Some(_turn) = require(&NEEDS) else { return };
    for layout in [Layout::equal(), Layout::different()] {
        let world = OverlayWorld::start(&layout, Fabric::SameHost);

        world.assert_without_capabilities();
        world.assert_traffic();
        world.finish();
    }
}

#[test]
fn pods_of_another_node_talk() {
    let Some(_turn) = require(&NEEDS) else { return };
    for layout in [Layout::equal(), Layout::partly_overlapping()] {
        let world = OverlayWorld::start(&layout, Fabric::Routed);

        world.assert_without_capabilities();
        world.assert_traffic();
        world.finish();
    }
}

/// The one gateway has a device and the other one an overlay.
#[test]
fn an_overlay_talks_to_a_device() {
    let Some(_turn) = require(&[Root, Need::Tun, Tool("ip"), Tool("setpriv")]) else { return };
    let world = OverlayWorld::start_with(&Layout::equal(), Fabric::SameHost, |_, milan| {
        milan.keeps_device = true;
    });

    world.assert_traffic();
    world.finish();
}

#[test]
fn senders_learn_the_tunnels_mtu() {
    let Some(_turn) = require(&NEEDS) else { return };
    for fabric in [Fabric::SameHost, Fabric::Routed] {
        let world = OverlayWorld::start(&Layout::equal(), fabric);
        let (rome, milan) = (world.rome(), world.milan());

        for (target, own) in rome.side.sees(&milan.side).zip(rome.side.pod_addresses()) {
            let headers = if target.is_ipv4() { 28 } else { 48 };
            let ping = Ping { payload_bytes: LONG_PACKET_BYTES - headers, ..Ping::new(target, 1) };
            let too_big = ping.run(&rome.pod).unwrap();
            let bulk = tcp(&rome.pod, &milan.pod, target, Amount::Bytes(5_000_000)).unwrap();

            let [error] = too_big.errors[..] else { panic!("one error for {target}: {too_big:?}") };
            assert_eq!((error.embedded_source, error.embedded_destination), (own, target));
            assert_eq!(error.mtu_bytes, 1420, "{target}");
            assert!(bulk.is_intact, "{target}: {bulk:?}");
        }
        world.finish();
    }
}

/// As through a network card that does not segment VXLAN. The gateway merges what arrives at once.
#[test]
fn segments_in_datagrams_of_their_own_arrive() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal(), Fabric::Routed);
    let (rome, milan) = (world.rome(), world.milan());
    ip(&world.node().namespace, "link set fabric gso_max_segs 1");

    for target in rome.side.sees(&milan.side) {
        let bulk = tcp(&rome.pod, &milan.pod, target, Amount::Bytes(20_000_000)).unwrap();

        assert!(bulk.is_intact, "{target}: {bulk:?}");
    }
    world.finish();
}

/// A frame of a pod on the same host is cut into segments that the remote pod accepts, whose link is smaller than the tunnel.
#[test]
fn frames_are_cut_for_a_small_receiver_mtu() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal(), Fabric::SameHost);
    let (rome, milan) = (world.rome(), world.milan());
    milan.pod.set_mtu(POD_LINK, 1300).unwrap();

    for target in rome.side.sees(&milan.side) {
        let before = milan.metrics_at_rest().unwrap();
        let bulk = tcp(&rome.pod, &milan.pod, target, Amount::Bytes(5_000_000)).unwrap();

        assert!(bulk.is_intact, "{target}: {bulk:?}");
        let after = milan.metrics_at_rest().unwrap();
        let inbound = [before, after].map(|metrics| metrics.account(Direction::Inbound).forwarded);
        // 1,260 or 1,240 bytes of payload each, less an option.
        assert!(inbound[1] - inbound[0] >= 5_000_000 / 1_260, "{target}: {inbound:?}");
    }
    world.finish();
}

/// Its sockets towards nodes and peers stay open.
#[test]
fn replaced_overlay_gateway_loses_no_packet() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal().without_ipv6(), Fabric::Routed);
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let gateway = rome.process().unwrap().process();
    let took_over = || gateway.log().matches("took over from the previous program").count();

    // Without a capability the receive buffers hold 200 datagrams.
    let datagrams = Datagrams { count: 1_500, payload_bytes: 1000, per_second: 500 };
    let train = thread::scope(|scope| {
        let train = scope.spawn(|| udp(&rome.pod, &milan.pod, target, datagrams).unwrap());
        for times in 1..=2 {
            thread::sleep(Duration::from_millis(200));
            gateway.signal(Signal::SIGUSR2).unwrap();
            let condition = || Ok(took_over() == times);
            wait_until("it was replaced", Duration::from_secs(20), condition).unwrap();
        }
        assert!(!train.is_finished(), "the replacements took longer than the traffic");
        train.join().unwrap()
    });

    assert_eq!((train.lost(), train.duplicated, train.corrupted), (0, 0, 0), "{train:?}");
    world.finish();
}

/// A destination that no peer has.
#[test]
fn senders_hear_of_unreachable_destinations() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world =
        OverlayWorld::start_with(&Layout::equal().without_ipv6(), Fabric::SameHost, |rome, _| {
            rome.extra_route = Some("10.99.0.0/16".parse().unwrap());
        });
    let nowhere = IpAddr::from([10, 99, 1, 1]);

    let ping = Ping::new(nowhere, 1).run(&world.rome().pod).unwrap();

    let [error] = ping.errors[..] else { panic!("one error: {ping:?}") };
    assert_eq!(error.embedded_destination, nowhere);
    world.finish();
}

#[test]
fn a_packet_to_no_nodes_pod_is_counted() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world =
        OverlayWorld::start_with(&Layout::equal().without_ipv6(), Fabric::SameHost, |_, milan| {
            // Only the half without the pod.
            milan.pods = Some(vec!["10.244.128.0/17".parse().unwrap()]);
        });
    let target = world.rome().side.sees(&world.milan().side).next().unwrap();

    let ping = Ping { timeout: Duration::from_millis(300), ..Ping::new(target, 4) };
    let lost = ping.run(&world.rome().pod).unwrap();

    assert_eq!(lost.received, 0);
    assert_eq!(world.drops(world.milan(), Direction::Inbound, "no_node"), 4);
    world.finish();
}

#[test]
fn fragments_arrive_both_ways() {
    let Some(_turn) = require(&NEEDS) else { return };
    for fabric in [Fabric::SameHost, Fabric::Routed] {
        let world = OverlayWorld::start(&Layout::equal(), fabric);

        assert_fragments(world.rome(), world.milan());
        world.finish();
    }
}

/// Pods on the host of the gateway send UDP as frames, as implementations of QUIC do.
#[test]
fn frames_of_udp_are_cut_into_their_datagrams() {
    const SEND: [usize; 3] = [1000, 1000, 500];
    const SENDS: usize = 20;
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal(), Fabric::SameHost);
    let (rome, milan) = (world.rome(), world.milan());

    for (target, own) in rome.side.sees(&milan.side).zip(milan.side.pod_addresses()) {
        let receiver = milan.pod.run(move || bind(own)).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let from = rome.side.pod_addresses().find(|pod| pod.is_ipv4() == own.is_ipv4()).unwrap();
        rome.pod
            .run(move || {
                let socket = bind(from)?;
                setsockopt(&socket, UdpGsoSegment, &1000).unwrap();
                for number in 0..SENDS {
                    let bytes = vec![u8::try_from(number).unwrap(); SEND.iter().sum()];
                    socket.send_to(&bytes, (target, port)).map_err(LabError::io("send"))?;
                    thread::sleep(Duration::from_millis(2));
                }
                Ok(())
            })
            .unwrap();

        let mut buffer = [0; 2000];
        for number in 0..SENDS {
            for expected in SEND {
                let len = receiver.recv(&mut buffer).unwrap();
                assert_eq!(len, expected, "{target}");
                let is_intact = buffer[..len].iter().all(|byte| usize::from(*byte) == number);
                assert!(is_intact, "{target}: datagram of send {number}");
            }
        }
    }
    world.finish();
}

fn bind(address: IpAddr) -> Result<UdpSocket, LabError> {
    let socket = UdpSocket::bind((address, 0)).map_err(LabError::io("bind"))?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(LabError::io("set a timeout"))?;

    Ok(socket)
}
