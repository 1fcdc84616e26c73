//! What others do to the network of a gateway while it runs, in network namespaces: routes, addresses, MTU and
//! name of the device, routes and links of the underlay.
//!
//! With `STRAIT_FIGURES` set, in the release build on a quiet machine, the throughput that is promised is demanded.
//! Needs root and `/dev/net/tun`; what needs more says so.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use socket2::SockRef;
use strait_lab::Cluster;
use strait_lab::LabError;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::Underlay;
use strait_lab::gateway::METRICS_ADDRESS;
use strait_lab::netlink::connect;
use strait_lab::scrape;
use strait_lab::topology::UNDERLAY_LINK;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::world::{World, assert_traffic};

/// The device of a gateway.
const DEVICE: &str = "strait0";

/// Longer than a busy machine delays anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// By polling it would be a second.
const AT_ONCE: Duration = Duration::from_millis(300);

#[test]
fn removed_routes_and_addresses_come_back_at_once() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let rome = world.rome();
    let routes =
        |version| ip(&rome.gateway, &format!("{version} route show dev {DEVICE} proto 83"));
    let addresses = || ip(&rome.gateway, &format!("-4 address show dev {DEVICE}"));
    let before = [routes("-4"), routes("-6"), addresses()];

    let took = [(); 3].map(|()| {
        for version in ["-4", "-6"] {
            ip(&rome.gateway, &format!("{version} route flush dev {DEVICE} proto 83"));
        }
        ip(&rome.gateway, &format!("address flush dev {DEVICE}"));
        let removed = now();
        let are_back = || Ok([routes("-4"), routes("-6"), addresses()] == before);
        wait_until("routes and addresses were back", PATIENCE, are_back).unwrap();
        removed.elapsed()
    });

    assert!(took.iter().any(|took| *took < AT_ONCE), "{took:?}");
    assert!(before.iter().all(|text| !text.is_empty()), "{before:?}");
    world.assert_traffic();
    world.finish();
}

#[test]
fn a_taken_route_is_named_until_restored() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    assert_eq!(readiness(rome), (200, "ready\n".to_owned()));

    ip(&rome.gateway, "route replace 10.71.0.0/16 dev lo proto static");
    let taken = "route 10.71.0.0/16 already leads to lo (protocol 4)";
    wait_until("it was named", PATIENCE, || Ok(readiness(rome).1.contains(taken))).unwrap();
    let explained = explain(rome, target);
    ip(&rome.gateway, "route del 10.71.0.0/16 dev lo");
    wait_until("it was back", PATIENCE, || Ok(readiness(rome).1 == "ready\n")).unwrap();
    // Of routes that go with their device the kernel says nothing.
    connect((&rome.gateway, "foreign"), (&milan.gateway, "foreign"), 1500).unwrap();
    ip(&rome.gateway, "route replace 10.71.0.0/16 dev foreign proto static");
    let taken_again = "route 10.71.0.0/16 already leads to foreign";
    wait_until("it was named", PATIENCE, || Ok(readiness(rome).1.contains(taken_again))).unwrap();
    ip(&rome.gateway, "link del foreign");
    wait_until("it was back", PATIENCE, || Ok(readiness(rome).1 == "ready\n")).unwrap();

    let text = String::from_utf8_lossy(&explained.stdout);
    assert!(text.contains("blocked by the host") && text.contains(taken), "{text}");
    assert_eq!(explained.status.code(), Some(1));
    assert!(explain(rome, target).status.success());
    world.assert_traffic();
    world.finish();
}

#[test]
fn a_device_that_is_down_is_explained() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();

    ip(&rome.gateway, &format!("link set {DEVICE} down"));
    wait_until("it was seen", PATIENCE, || Ok(readiness(rome).0 == 503)).unwrap();
    let down = explain(rome, target);
    ip(&rome.gateway, &format!("link set {DEVICE} up"));
    wait_until("it was seen", PATIENCE, || Ok(readiness(rome).0 == 200)).unwrap();

    let text = String::from_utf8_lossy(&down.stdout);
    assert!(text.contains("strait0 is down"), "{text}");
    world.assert_traffic();
    world.finish();
}

#[test]
fn mtu_and_name_of_the_device_are_followed() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let shows = |text: &str| String::from_utf8_lossy(&explain(rome, target).stdout).contains(text);
    assert!(shows("1420 (device): MSS is clamped to 1380"));

    rome.gateway.set_mtu(DEVICE, 1300).unwrap();
    wait_until("the clamp followed", PATIENCE, || {
        Ok(shows("1300 (device): MSS is clamped to 1260"))
    })
    .unwrap();
    if !rename(&rome.gateway, DEVICE, "renamed0") {
        world.finish();
        return;
    }
    let config = || page(rome, "/config").1;
    let is_renamed = || Ok(config().contains("\"renamed0\""));
    wait_until("the name followed", PATIENCE, is_renamed).unwrap();
    ip(&rome.gateway, "route flush dev renamed0 proto 83");
    let has_route = || Ok(!ip(&rome.gateway, "route show dev renamed0 proto 83").is_empty());
    wait_until("the routes were back", PATIENCE, has_route).unwrap();

    assert_eq!(tcp_mss(rome, milan, target), 1260 - TIMESTAMPS);
    world.assert_traffic();
    world.finish();
}

#[test]
fn without_ipv6_the_ipv4_part_works() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start_with(&Layout::equal(), |clusters| {
        let off = [("ipv6/conf/default/disable_ipv6", "1")];
        clusters.rome.gateway.set(&off).unwrap();
    });
    let (rome, milan) = (world.rome(), world.milan());
    let (target, seen_as) =
        (rome.side.sees(&milan.side).next().unwrap(), milan.side.sees(&rome.side).next().unwrap());

    assert_traffic(rome, milan, target, seen_as);

    let (status, text) = readiness(rome);
    assert_eq!(status, 200, "{text}");
    let named = "cannot add route fd00:10:71::/56: IPv6 is switched off on strait0: set \
                 net.ipv6.conf.strait0.disable_ipv6=0";
    assert!(text.starts_with("ready\n") && text.contains(named), "{text}");
    rome.gateway.set(&[("ipv6/conf/strait0/disable_ipv6", "0")]).unwrap();
    wait_until("IPv6 was back", PATIENCE, || Ok(readiness(rome).1 == "ready\n")).unwrap();
    world.assert_traffic();
    world.finish();
}

#[test]
fn the_device_has_no_link_local_address() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());

    for cluster in [world.rome(), world.milan()] {
        let text = ip(&cluster.gateway, &format!("-6 address show dev {DEVICE} scope link"));
        assert_eq!(text, "", "{}", cluster.name);
    }
    world.finish();
}

/// Milan takes nothing over the second link that comes from the address of the first.
#[test]
fn a_better_route_to_the_peer_is_used() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip"), Tool("nft")]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    connect((&rome.gateway, "second"), (&milan.gateway, "second"), 1500).unwrap();
    rome.gateway.add_address("second", "203.0.113.2/24".parse().unwrap()).unwrap();
    milan.gateway.add_address("second", "203.0.113.1/24".parse().unwrap()).unwrap();
    for rule in [
        "add table inet strict".to_owned(),
        "add chain inet strict input { type filter hook input priority 0; }".to_owned(),
        format!("add rule inet strict input iifname second ip saddr {} drop", rome.underlay),
    ] {
        run(&milan.gateway, "nft", &rule);
    }
    let ping = Ping { interval: Duration::from_millis(5), ..Ping::new(target, 40) };
    let before = ping.run(&rome.pod).unwrap();

    ip(&rome.gateway, &format!("route add {} via 203.0.113.1 dev second", milan.underlay));
    let log = || rome.process().unwrap().process().log();
    let is_seen = || Ok(log().contains("the path to a peer uses another interface"));
    wait_until("the way was seen to be another one", PATIENCE, is_seen).unwrap();
    let after = ping.run(&rome.pod).unwrap();

    assert!(before.is_perfect(), "{before:?}");
    assert!(after.is_perfect(), "{after:?}");
    world.assert_traffic();
    world.finish();
}

#[test]
fn a_connection_learns_that_the_path_has_shrunk() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    for is_ipv6 in [false, true] {
        let underlay = Underlay { is_ipv6, is_routed: false, mtu_bytes: 1500 };
        let world = World::start(&Layout::equal().with_underlay(underlay));
        let (rome, milan) = (world.rome(), world.milan());
        for (target, fixed) in rome.side.sees(&milan.side).zip([40, 60]) {
            let mut connection = Connection::open(rome, milan, target);
            connection.send(2_000_000);
            assert_eq!(connection.mss(), 1420 - fixed - TIMESTAMPS);

            for underlay_mtu in [1400, 1280] {
                let path_mtu = (underlay_mtu - if is_ipv6 { 80 } else { 60 }) & !15;
                set_underlay_mtu([rome, milan], underlay_mtu, path_mtu);
                connection.send(200_000);
                // No sender of IPv6 need send less than 1280 bytes: those leave in fragments.
                let largest = if target.is_ipv6() { path_mtu.max(1280) } else { path_mtu };
                assert_eq!(connection.mss(), largest - fixed - TIMESTAMPS, "{target}");

                let mut fresh = Connection::open(rome, milan, target);
                let [mut old, mut new] = [Duration::MAX; 2];
                for _ in 0..5 {
                    old = old.min(connection.send(10_000_000));
                    new = new.min(fresh.send(10_000_000));
                }
                let ratio = new.as_secs_f64() / old.as_secs_f64();
                eprintln!(
                    "{target}, {underlay_mtu}: {ratio:.2} of the throughput of a new connection"
                );
                // Where the ways are equal the rest is noise of the machine.
                let least = match (largest == path_mtu, std::env::var_os("STRAIT_FIGURES")) {
                    (false, _) => 0.0,
                    (true, None) => 0.5,
                    (true, Some(_)) => 0.8,
                };
                assert!(ratio >= least, "{target}: {old:?} against {new:?} of a new connection");
            }
            set_underlay_mtu([rome, milan], 1500, 1420);
        }
        world.finish();
    }
}

/// Gives the underlay links of `clusters` another MTU, and waits until their gateways know which one is left for
/// packets in the tunnel.
fn set_underlay_mtu(clusters: [&Cluster; 2], mtu_bytes: u32, path_mtu: u32) {
    for cluster in clusters {
        cluster.gateway.set_mtu(UNDERLAY_LINK, mtu_bytes).unwrap();
    }
    for cluster in clusters {
        let path_mtu = u64::from(path_mtu);
        let known = || Ok(cluster.metrics()?.sum("strait_peer_path_mtu_bytes", &[]) == path_mtu);
        wait_until("the path MTU was known", PATIENCE, known).unwrap();
    }
}

/// What each segment has for timestamps (RFC 7323), as Linux has them.
const TIMESTAMPS: u32 = 12;

/// The largest segment that a new connection sends, in bytes.
fn tcp_mss(from: &Cluster, to: &Cluster, target: IpAddr) -> u32 {
    Connection::open(from, to, target).mss()
}

/// A connection of which all that is sent is received and forgotten.
struct Connection {
    stream: TcpStream,
}

impl Connection {
    fn open(from: &Cluster, to: &Cluster, target: IpAddr) -> Self {
        let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let bind = move || TcpListener::bind((any, 0)).map_err(LabError::io("listen"));
        let listener = to.pod.run(bind).unwrap();
        let port = listener.local_addr().unwrap().port();
        to.pod
            .spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = vec![0; 256 * 1024];
                let mut left = [0; 8];
                // Each turn says how much comes, and is acknowledged by a byte.
                while stream.read_exact(&mut left).is_ok() {
                    let mut left = usize::try_from(u64::from_be_bytes(left)).unwrap();
                    while left > 0 {
                        let part = buffer.get_mut(..left.min(256 * 1024)).unwrap();
                        let len = stream.read(part).unwrap();
                        assert_ne!(len, 0, "the connection ended early");
                        left -= len;
                    }
                    stream.write_all(&[1]).unwrap();
                }
            })
            .unwrap();
        let dial = move || {
            TcpStream::connect(SocketAddr::new(target, port)).map_err(LabError::io("connect"))
        };

        Self { stream: from.pod.run(dial).unwrap() }
    }

    /// How long it takes until all of it has arrived.
    fn send(&mut self, bytes: usize) -> Duration {
        let begin = now();
        self.stream.write_all(&u64::try_from(bytes).unwrap().to_be_bytes()).unwrap();
        self.stream.write_all(&vec![7; bytes]).unwrap();
        self.stream.read_exact(&mut [0]).unwrap();

        begin.elapsed()
    }

    fn mss(&self) -> u32 {
        SockRef::from(&self.stream).tcp_mss().unwrap()
    }
}

fn readiness(cluster: &Cluster) -> (u16, String) {
    page(cluster, "/readyz")
}

fn page(cluster: &Cluster, path: &'static str) -> (u16, String) {
    cluster.gateway.run(move || scrape::get(METRICS_ADDRESS, path)).unwrap()
}

/// Asks the gateway about a packet from the pod.
fn explain(cluster: &Cluster, target: IpAddr) -> Output {
    let own = cluster.side.pod_addresses().find(|own| own.is_ipv4() == target.is_ipv4()).unwrap();
    let socket = cluster.config.admin_socket();

    Command::new(STRAIT)
        .args(["explain", &own.to_string(), &target.to_string(), "--dport", "80", "--socket"])
        .arg(socket)
        .output()
        .unwrap()
}

/// Renames an interface that is up, if the kernel can.
fn rename(namespace: &Namespace, from: &str, to: &str) -> bool {
    let output = try_run(namespace, "ip", &format!("link set {from} name {to}"));
    if String::from_utf8_lossy(&output.stderr).contains("Device or resource busy") {
        eprintln!("SKIPPED: renaming an interface that is up needs Linux 6.2");
        return false;
    }
    assert!(output.status.success(), "{output:?}");

    true
}

/// What `ip` prints.
fn ip(namespace: &Namespace, arguments: &str) -> String {
    run(namespace, "ip", arguments)
}

fn run(namespace: &Namespace, tool: &'static str, arguments: &str) -> String {
    let output = try_run(namespace, tool, arguments);

    assert!(output.status.success(), "{tool} {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn try_run(namespace: &Namespace, tool: &'static str, arguments: &str) -> Output {
    let program = strait_lab::process::find(tool).unwrap();
    let words: Vec<_> = arguments.split(' ').map(ToOwned::to_owned).collect();
    namespace
        .run(move || {
            Command::new(Path::new(&program)).args(words).output().map_err(LabError::io("run"))
        })
        .unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test measures real time")]
fn now() -> Instant {
    Instant::now()
}
