//! The binary, end to end: two clusters in network namespaces, two gateways, real packets.
//!
//! Needs root and `/dev/net/tun`; what needs more says so. At the end of every test the
//! packet-for-packet account of both gateways must balance, and both must exit with status 0.

mod changes;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use strait_io::Offload;
use strait_lab::netlink::{Via, connect};
use strait_lab::topology::{CLUSTER_LINK, POD_LINK};
use strait_lab::traffic::{Amount, Datagrams, Ping, tcp, udp};
use strait_lab::{ClusterSection, HostMapSection, Layout, Namespace, RemapSection, Underlay};
use strait_wg::Engine;
use strait_wg::native::Lanes;

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::tools::{ip, nft};
use crate::harness::world::{CE, ECT_0, World, assert_fragments, traffic_class_on_arrival};

#[test]
fn clusters_with_equal_pod_cidrs_talk() {
    assert_clusters_talk(&Layout::equal());
}

#[test]
fn clusters_with_different_pod_cidrs_talk() {
    assert_clusters_talk(&Layout::different());
}

#[test]
fn clusters_with_partly_overlapping_pod_cidrs_talk() {
    assert_clusters_talk(&Layout::partly_overlapping());
}

#[test]
fn clusters_talk_over_an_ipv6_underlay() {
    let underlay = Underlay { is_ipv6: true, is_routed: true, mtu_bytes: 1500 };

    assert_clusters_talk(&Layout::equal().with_underlay(underlay));
}

#[test]
fn a_closed_port_is_refused_through_the_remap() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::different());

    for target in world.rome().side.sees(&world.milan().side) {
        let outcome = world.rome().pod.run(move || Ok(ask_closed_port(target))).unwrap();

        // The kernel finds the socket by the addresses embedded in the ICMP error.
        assert_eq!(outcome, Err(ErrorKind::ConnectionRefused), "{target}");
    }
    world.finish();
}

#[test]
fn a_path_mtu_is_learned_through_the_remap() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let (rome, milan) = (world.rome(), world.milan());
    // Between the MTU of the device, 1420, and the least that IPv6 allows.
    milan.gateway.set_mtu(CLUSTER_LINK, 1300).unwrap();

    for (target, own) in rome.side.sees(&milan.side).zip(rome.side.pod_addresses()) {
        let ping = Ping { payload_bytes: 1340, ..Ping::new(target, 1) };
        let too_big = ping.run(&rome.pod).unwrap();
        let bulk = tcp(&rome.pod, &milan.pod, target, Amount::Bytes(5_000_000)).unwrap();

        let [error] = too_big.errors[..] else { panic!("one error for {target}: {too_big:?}") };
        assert_eq!((error.embedded_source, error.embedded_destination), (own, target));
        assert_eq!(error.mtu_bytes, 1300);
        assert!(bulk.is_intact, "{target}: {bulk:?}");
    }
    world.finish();
}

#[test]
fn fragments_arrive_both_ways() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal());

    assert_fragments(world.rome(), world.milan());
    world.finish();
}

#[test]
fn congestion_marks_cross_the_tunnel() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: true, mtu_bytes: 1500 };
    let layout = Layout::equal().without_ipv6().with_underlay(underlay);

    for engine in Engine::ALL {
        let world = World::start_with(&layout, |clusters| {
            clusters.milan.config.set_engine(engine.name());
            clusters.rome.config.set_engine(engine.name());
        });
        assert_congestion_marks_cross(&world);
        world.finish();
    }
}

fn assert_congestion_marks_cross(world: &World) {
    let (rome, milan) = (world.rome(), world.milan());
    let unmarked = traffic_class_on_arrival(rome, milan, 0);
    let capable = traffic_class_on_arrival(rome, milan, ECT_0);
    let router = world.clusters.router.as_ref().unwrap();
    nft(router, "add table ip congestion");
    nft(router, "add chain ip congestion forward { type filter hook forward priority 0; }");
    nft(router, "add rule ip congestion forward ip ecn ect0 ip ecn set ce");
    let congested = traffic_class_on_arrival(rome, milan, ECT_0);
    let still_unmarked = traffic_class_on_arrival(rome, milan, 0);

    assert_eq!([unmarked, capable, congested, still_unmarked], [0, ECT_0, CE, 0]);
}

/// A router drops handshakes that are not urgent, and everything else that is.
#[test]
fn only_handshakes_are_marked_as_urgent() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: true, mtu_bytes: 1500 };
    let layout = Layout::equal().without_ipv6().with_underlay(underlay);
    for engine in Engine::ALL {
        let world = World::start_with(&layout, |clusters| {
            let router = clusters.router.as_ref().unwrap();
            nft(router, "add table ip marks");
            nft(router, "add chain ip marks forward { type filter hook forward priority 0; }");
            // The first byte of a message tells its type.
            nft(
                router,
                "add rule ip marks forward udp dport != 0 @th,64,8 < 3 ip dscp != af41 drop",
            );
            nft(
                router,
                "add rule ip marks forward udp dport != 0 @th,64,8 > 2 ip dscp != cs0 drop",
            );
            clusters.milan.config.set_engine(engine.name());
            clusters.rome.config.set_engine(engine.name());
        });

        world.assert_traffic();
        world.finish();
    }
}

#[test]
fn traffic_flows_with_any_offload_switched_off() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let (on, off) = (Offload::ON, Offload::OFF);
    let cases = [
        ("tun_tso", Offload { tun_tso: false, ..on }),
        ("tun_uso", Offload { tun_uso: false, ..on }),
        ("tun_udp_tunnel", Offload { tun_udp_tunnel: false, ..on }),
        ("udp_gso", Offload { udp_gso: false, ..on }),
        ("udp_gro", Offload { udp_gro: false, ..on }),
        ("udp_steering", Offload { udp_steering: false, ..on }),
        ("vector_aead", Offload { vector_aead: false, ..on }),
        ("tun_tso", off),
    ];

    for (name, offload) in cases {
        let world = World::start_with(&Layout::equal(), |clusters| {
            clusters.milan.config.set_offload(offload);
            clusters.rome.config.set_offload(offload);
        });

        world.assert_traffic();

        let state = world.rome().metrics().unwrap();
        assert_eq!(state.sum("strait_offload_enabled", &[("offload", name)]), 0, "{name}");
        world.finish();
    }
}

/// Merged UDP frames were once lost where a gateway forwards them into another tunnel, as Liqo does
/// with Geneve (wireguard-go d0bc03c). VXLAN is the tunnel that more kernels have.
#[test]
fn merged_udp_frames_survive_being_forwarded_into_vxlan() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let (rome, milan) = (world.rome(), world.milan());
    let pod = "local 10.244.2.7 remote 169.254.1.1 dev gateway";
    let gateway = "local 169.254.1.1 remote 10.244.2.7 dev pod";
    add_vxlan(&milan.pod, pod, "10.244.9.9/24");
    add_vxlan(&milan.gateway, gateway, "10.244.9.1/24");

    let behind_vxlan = IpAddr::from([10, 71, 9, 9]);
    let datagrams = Datagrams { count: 20_000, payload_bytes: 1200, per_second: 20_000 };
    let train = udp(&rome.pod, &milan.pod, behind_vxlan, datagrams).unwrap();
    let bulk = tcp(&rome.pod, &milan.pod, behind_vxlan, Amount::Bytes(20_000_000)).unwrap();

    assert!(train.is_perfect(), "{train:?}");
    assert!(bulk.is_intact, "{bulk:?}");
    world.finish();
}

/// Frames of an overlay between the pods, which the kernel may pass unsegmented (Linux 6.17).
#[test]
fn vxlan_between_pods_passes_the_tunnel() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let (rome, milan) = (world.rome(), world.milan());
    let cases = rome.side.sees(&milan.side).zip(milan.side.sees(&rome.side));
    let cases = cases.zip(rome.side.pod_addresses().zip(milan.side.pod_addresses()));
    let mut count = 0;

    for ((seen_milan, seen_rome), (of_rome, of_milan)) in cases {
        for checksum in ["udpcsum", "noudpcsum udp6zerocsumtx udp6zerocsumrx"] {
            let link = |local, remote| format!("local {local} remote {remote} {checksum}");
            add_vxlan(&rome.pod, &link(of_rome, seen_milan), "172.30.0.1/24");
            add_vxlan(&milan.pod, &link(of_milan, seen_rome), "172.30.0.2/24");

            let inner = IpAddr::from([172, 30, 0, 2]);
            let bulk = tcp(&rome.pod, &milan.pod, inner, Amount::Bytes(20_000_000)).unwrap();
            let datagrams = Datagrams { count: 2_000, payload_bytes: 1000, per_second: 5_000 };
            let train = udp(&rome.pod, &milan.pod, inner, datagrams).unwrap();

            assert!(bulk.is_intact, "{checksum}: {bulk:?}");
            assert!(train.is_perfect(), "{checksum}: {train:?}");
            for pod in [&rome.pod, &milan.pod] {
                ip(pod, "link delete vx");
            }
            count += 1;
        }
    }

    assert_eq!(count, 4, "IPv4 and IPv6 outside, with and without checksum");
    world.finish();
}

#[test]
fn offloads_of_one_gateway_do_not_matter() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start_with(&Layout::partly_overlapping(), |clusters| {
        clusters.milan.config.set_offload(Offload::OFF);
    });

    world.assert_traffic();

    for (cluster, lanes) in [(world.rome(), Lanes::detect()), (world.milan(), Lanes::none())] {
        let found = cluster.metrics().unwrap();
        let is_on = found.sum("strait_offload_enabled", &[("offload", "vector_aead")]);
        assert_eq!(is_on, u64::from(lanes.is_some()), "{}", cluster.name);
    }
    world.finish();
}

/// Rome has two hosts that are no pods. One has an external address, the other shares one.
#[test]
fn hosts_outside_the_pods_talk_through_external_addresses() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let [mapped, unknown]: [IpAddr; 2] = ["172.18.0.9", "172.18.1.7"].map(|a| a.parse().unwrap());
    let world = World::start_with(&Layout::equal().without_ipv6(), |clusters| {
        clusters.rome.config.cluster = Some(ClusterSection {
            pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            external_cidrs: vec!["10.70.0.0/16".parse().unwrap()],
            masquerade: vec!["10.70.0.1".parse().unwrap()],
            host_maps: vec![HostMapSection {
                internal: mapped,
                external: "10.70.0.9".parse().unwrap(),
            }],
        });
        let rome = &mut clusters.milan.config.peers[0];
        let external = "10.70.0.0/16".parse().unwrap();
        rome.allowed_ips.push(external);
        let local = "10.68.0.0/16".parse().unwrap();
        rome.remaps.push(RemapSection { remote: external, local });
    });
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let amount = Amount::Bytes(5_000_000);
    let hosts = [(mapped, "10.68.0.9"), (unknown, "10.68.0.1")].map(|(address, seen_as)| {
        let link = if address == mapped { "mapped" } else { "unknown" };
        (join(&rome.gateway, link, address), seen_as.parse::<IpAddr>().unwrap())
    });

    for (host, seen_as) in &hosts {
        let ping = Ping::new(target, 3).run(host).unwrap();
        let there = tcp(host, &milan.pod, target, amount).unwrap();

        assert!(ping.is_perfect(), "{ping:?}");
        assert!(there.is_intact, "{there:?}");
        assert_eq!(there.client_seen_as.ip(), *seen_as);
    }
    let [(host, seen_as), _] = &hosts;
    let back = tcp(&milan.pod, host, *seen_as, amount).unwrap();
    assert!(back.is_intact, "{back:?}");
    assert_eq!(back.client_seen_as.ip(), target);

    let metrics = rome.metrics().unwrap();
    assert_eq!(metrics.value("strait_masquerade_mappings", &[]), Some("2"), "echo and TCP");
    world.finish();
}

#[test]
fn the_demo_reports_success_in_json() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };

    let output = Command::new(STRAIT).args(["demo", "--duration", "1", "--json"]).output().unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["ok"], true, "{report:#}");
}

fn assert_clusters_talk(layout: &Layout) {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(layout);

    world.assert_traffic();

    world.finish();
}

/// The error of a connected UDP socket after it sent to a closed port.
fn ask_closed_port(target: IpAddr) -> Result<usize, ErrorKind> {
    let local = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local).unwrap();
    socket.connect(SocketAddr::new(target, 9)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    socket.send(b"hello").unwrap();

    socket.recv(&mut [0; 16]).map_err(|error| error.kind())
}

/// Pings from Rome with `traffic_class` and tells the one that the request has in Milan.
/// A host behind a gateway, with everything routed to it.
fn join(gateway: &Namespace, link: &'static str, address: IpAddr) -> Namespace {
    const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));

    let host = Namespace::new(link).unwrap();
    connect((gateway, link), (&host, POD_LINK), 1500).unwrap();
    host.add_address(POD_LINK, address.into()).unwrap();
    gateway.add_route(address.into(), link, Via::Link).unwrap();
    host.add_route("0.0.0.0/0".parse().unwrap(), POD_LINK, Via::Router(ROUTER)).unwrap();

    host
}

/// Adds a VXLAN device, `vx`, that fits into the tunnel.
fn add_vxlan(namespace: &Namespace, link: &str, address: &str) {
    ip(namespace, &format!("link add vx type vxlan id 7 dstport 4789 {link}"));
    ip(namespace, &format!("address add {address} dev vx"));
    ip(namespace, "link set vx mtu 1250 up");
}
