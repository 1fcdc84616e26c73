//! What people reach for when the network is in doubt, through the remap: `traceroute`, `mtr`, and
//! path-MTU discovery by the kernel.
//!
//! ```text
//!   pod ── gateway ══ tunnel ══ gateway ── node ── pod
//!          rome                 milan
//! ```
//!
//! Milan has one more router than usual, so that errors come from behind its gateway too. All of
//! these find the sender's flow by the packet embedded in an ICMP error: a hop or an MTU that shows
//! up was translated inside and out.
//!
//! Needs root and `/dev/net/tun`, and the tools themselves.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use ipnet::IpNet;
use socket2::SockRef;
use strait_lab::LabError;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::Underlay;
use strait_lab::layout::host;
use strait_lab::netlink::{Via, connect};
use strait_lab::process::find;
use strait_lab::topology::POD_LINK;
use strait_lab::traffic::{Amount, IcmpError, Ping, tcp};
use strait_lab::wait_until;

use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::world::World;

/// Hosts in Milan's pod CIDRs: the node, and the pod on it.
const NODE: u32 = 0x0901;
const POD: u32 = 0x0907;

/// Between the device, 1420, and the least that IPv6 allows.
const NODE_MTU: u32 = 1300;

#[test]
fn traceroute_shows_every_hop_under_its_remapped_address() {
    let Some(_turn) = require(&[Root, Tun, Tool("traceroute")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let node = Node::join(&world, 1500);

    for way in node.ways(&world) {
        for probe in [&[][..], &["--icmp"], &["--tcp"]] {
            let report = traceroute(&way, probe);

            way.assert_hops(&report);
        }
    }
    world.finish();
}

#[test]
fn mtr_shows_every_hop_under_its_remapped_address() {
    let Some(_turn) = require(&[Root, Tun, Tool("mtr")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let node = Node::join(&world, 1500);

    for way in node.ways(&world) {
        for probe in [&[][..], &["--udp"], &["--tcp"]] {
            let target = way.target.to_string();
            let arguments = ["--report-wide", "-n", "-c", "2", "-i", "0.2", "-G", "1", &target];

            let report = run(way.from, "mtr", &[probe, &arguments].concat());

            way.assert_hops(&report);
        }
    }
    world.finish();
}

#[test]
fn tcp_learns_an_mtu_behind_the_far_gateway() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let node = Node::join(&world, NODE_MTU);

    for target in node.seen_from_rome(&world) {
        let bulk = tcp(&world.rome().pod, &node.pod, target, Amount::Bytes(5_000_000)).unwrap();

        assert!(bulk.is_intact, "{target}: {bulk:?}");
        assert_eq!(learned_mtu(&world.rome().pod, target), Some(NODE_MTU), "{target}");
        assert_largest_packet_passes(&world.rome().pod, target, NODE_MTU);
    }
    world.finish();
}

#[test]
fn datagrams_learn_an_mtu_behind_the_far_gateway() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let node = Node::join(&world, NODE_MTU);

    for (target, own) in node.seen_from_rome(&world).zip(world.rome().side.pod_addresses()) {
        let error = ping_too_long(&world.rome().pod, target, NODE_MTU + 1);

        assert_eq!((error.embedded_source, error.embedded_destination), (own, target));
        assert_eq!(error.mtu_bytes, NODE_MTU);
        assert_eq!(learned_mtu(&world.rome().pod, target), Some(NODE_MTU), "{target}");
        assert_largest_packet_passes(&world.rome().pod, target, NODE_MTU);
    }
    world.finish();
}

/// Here it is the kernel next to the gateway that says so: the packet never gets to the tunnel.
#[test]
fn the_near_gateway_reports_the_tunnel_mtu() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal());
    let node = Node::join(&world, 1500);
    let device_mtu = device_mtu(&world.rome().gateway);

    for way in node.ways(&world) {
        let error = ping_too_long(way.from, way.target, device_mtu + 1);
        let bulk = tcp(way.from, way.to, way.target, Amount::Bytes(5_000_000)).unwrap();

        assert_eq!(error.embedded_destination, way.target);
        assert_eq!(error.mtu_bytes, device_mtu);
        assert!(bulk.is_intact, "{}: {bulk:?}", way.target);
        assert_eq!(learned_mtu(way.from, way.target), Some(device_mtu), "{}", way.target);
        assert_largest_packet_passes(way.from, way.target, device_mtu);
    }
    world.finish();
}

/// The router between the gateways carries less than their own links. The kernel learns that from
/// the first large datagram; TCP gets an ICMP error from then on. Over IPv4 routers fragment without one.
#[test]
fn tcp_learns_the_mtu_of_the_underlay() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: true, is_routed: true, mtu_bytes: 1500 };
    let world = World::start(&Layout::equal().without_ipv6().with_underlay(underlay));
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    world.clusters.router.as_ref().unwrap().set_mtu("milan", 1300).unwrap();

    ping(target, 1400).run(&rome.pod).unwrap();
    wait_until("the way to milan was measured", Duration::from_secs(10), || {
        let metrics = rome.metrics()?;
        Ok(metrics.value("strait_peer_path_mtu_bytes", &[("peer", "milan"), ("source", "route")])
            == Some("1216"))
    })
    .unwrap();
    let segment_bytes = segment_of_a_connection(&rome.pod, &milan.pod, target);

    // Time stamps take 12 bytes of a segment.
    assert!((1216 - 40 - 12..=1216 - 40).contains(&segment_bytes), "{segment_bytes}");
    world.finish();
}

/// A node of Milan's cluster behind its gateway, and a pod on it.
struct Node {
    /// Alive as long as this is.
    _router: Namespace,
    pod: Namespace,
}

impl Node {
    /// `mtu_bytes` is that of the link from node to pod. The pod does not know: else it would say so
    /// in its TCP handshake, and the sender would have nothing to learn.
    fn join(world: &World, mtu_bytes: u32) -> Self {
        let gateway = &world.milan().gateway;
        let router = Namespace::router("milan-node").unwrap();
        let pod = Namespace::new("milan-node-pod").unwrap();
        connect((gateway, "node"), (&router, "gateway"), 1500).unwrap();
        connect((&router, "pod"), (&pod, POD_LINK), 1500).unwrap();
        router.set_mtu("pod", mtu_bytes).unwrap();

        for realm in &world.milan().side.realms {
            let [on_node, on_pod] = [NODE, POD].map(|number| host(realm.pods, number));
            let [at_gateway, at_node] = match on_node {
                IpAddr::V4(_) => [[169, 254, 1, 1], [169, 254, 1, 2]].map(IpAddr::from),
                IpAddr::V6(_) => ["fe80::1", "fe80::2"].map(|address| address.parse().unwrap()),
            };
            let everything = IpNet::new(on_node, 0).unwrap().trunc();
            if on_node.is_ipv6() {
                // Link-local, so each link needs its own.
                gateway.add_address("node", at_gateway.into()).unwrap();
            }
            router.add_address("gateway", on_node.into()).unwrap();
            router.add_address("pod", at_node.into()).unwrap();
            pod.add_address(POD_LINK, on_pod.into()).unwrap();

            gateway.add_route(on_node.into(), "node", Via::Link).unwrap();
            gateway.add_route(on_pod.into(), "node", Via::Router(on_node)).unwrap();
            router.add_route(everything, "gateway", Via::Router(at_gateway)).unwrap();
            router.add_route(on_pod.into(), "pod", Via::Link).unwrap();
            pod.add_route(everything, POD_LINK, Via::Router(at_node)).unwrap();
        }

        Self { _router: router, pod }
    }

    /// The addresses of the pod as Rome sees them.
    fn seen_from_rome(&self, world: &World) -> impl Iterator<Item = IpAddr> {
        world.rome().side.realms.iter().map(|realm| host(realm.remapped, POD))
    }

    /// Between Rome's pod and this one, both ways and both families.
    fn ways<'a>(&'a self, world: &'a World) -> Vec<Way<'a>> {
        let (milan, rome) = (world.milan(), world.rome());
        let mut ways = Vec::new();

        for (realm, target) in rome.side.realms.iter().zip(self.seen_from_rome(world)) {
            let hops = vec![tunnel_address(target, 1), host(realm.remapped, NODE), target];
            ways.push(Way { from: &rome.pod, to: &self.pod, target, near: 1, far: hops });
        }
        for target in milan.side.sees(&rome.side) {
            let hops = vec![tunnel_address(target, 2), target];
            ways.push(Way { from: &self.pod, to: &rome.pod, target, near: 2, far: hops });
        }

        ways
    }
}

/// From one pod to another.
struct Way<'a> {
    from: &'a Namespace,
    to: &'a Namespace,
    target: IpAddr,
    /// How many hops are in the sender's own cluster.
    near: usize,
    /// What comes then.
    far: Vec<IpAddr>,
}

impl Way<'_> {
    /// `report` is what a tool printed: a line for each hop, with its number and its address.
    fn assert_hops(&self, report: &str) {
        let hop = |line: &str| {
            let mut words = line.split_whitespace();
            words.next()?.trim_end_matches(".|--").parse::<u8>().ok()?;
            Some(words.next()?.to_owned())
        };
        let hops: Vec<_> = report.lines().filter_map(hop).collect();
        let far: Vec<_> = self.far.iter().map(IpAddr::to_string).collect();

        assert_eq!(hops.len(), self.near + far.len(), "{report}");
        assert!(hops.ends_with(&far), "not {far:?}:\n{report}");
    }
}

/// What `traceroute` prints, which is asked again if it was stuck.
///
/// With `--icmp` and `--tcp` one socket takes every answer. The kernel queues an error there first
/// and marks the socket afterwards; `traceroute` on another core can read the error in between. Then
/// the mark stays, and it asks an empty queue for errors until its time is over, with all the
/// answers unread: seen once in some hundred runs on two busy cores. What is really lost is lost
/// each time.
fn traceroute(way: &Way<'_>, probe: &[&str]) -> String {
    const ATTEMPTS: usize = 3;

    let target = way.target.to_string();
    let arguments = [probe, &["-n", "-q", "1", "-m", "8", "-w", "3", &target]].concat();

    let has_one_socket = !probe.is_empty();
    let mut report = run(way.from, "traceroute", &arguments);
    for _ in 1..ATTEMPTS {
        if has_one_socket && report.contains('*') {
            report = run(way.from, "traceroute", &arguments);
        }
    }

    report
}

/// The far gateway answers with the address of its device, which is allowed but not remapped.
fn tunnel_address(like: IpAddr, number: u16) -> IpAddr {
    match like {
        IpAddr::V4(_) => format!("169.254.18.{number}").parse().unwrap(),
        IpAddr::V6(_) => format!("fd00:169:254:18::{number}").parse().unwrap(),
    }
}

/// The error about a packet of `packet_bytes`, all headers included.
fn ping_too_long(from: &Namespace, target: IpAddr, packet_bytes: u32) -> IcmpError {
    let report = ping(target, packet_bytes).run(from).unwrap();

    let [error] = report.errors[..] else { panic!("one error for {target}: {report:?}") };
    assert_eq!(report.received, 0);

    error
}

fn assert_largest_packet_passes(from: &Namespace, target: IpAddr, packet_bytes: u32) {
    let report = ping(target, packet_bytes).run(from).unwrap();

    assert!(report.is_perfect() && report.errors.is_empty(), "{target}: {report:?}");
}

/// One echo request that is a packet of `packet_bytes`.
fn ping(target: IpAddr, packet_bytes: u32) -> Ping {
    let headers = if target.is_ipv4() { 20 + 8 } else { 40 + 8 };
    let payload_bytes = usize::try_from(packet_bytes).unwrap() - headers;

    Ping { payload_bytes, ..Ping::new(target, 1) }
}

/// What the kernel has noted about the path to `target`.
fn learned_mtu(from: &Namespace, target: IpAddr) -> Option<u32> {
    number_after("mtu", &run(from, "ip", &["route", "get", &target.to_string()]))
}

/// The largest segment that a connection sends, in bytes.
fn segment_of_a_connection(from: &Namespace, to: &Namespace, target: IpAddr) -> u32 {
    const PORT: u16 = 5999;

    let listener =
        to.run(|| TcpListener::bind(("0.0.0.0", PORT)).map_err(LabError::io("listen"))).unwrap();
    let connect = move || {
        let stream = TcpStream::connect((target, PORT)).map_err(LabError::io("connect"))?;
        SockRef::from(&stream).tcp_mss().map_err(LabError::io("read the segment size"))
    };
    let segment_bytes = from.run(connect).unwrap();
    drop(listener);

    segment_bytes
}

fn device_mtu(gateway: &Namespace) -> u32 {
    number_after("mtu", &run(gateway, "ip", &["link", "show", "strait0"])).unwrap()
}

fn number_after(word: &str, text: &str) -> Option<u32> {
    text.split_whitespace().skip_while(|other| *other != word).nth(1)?.parse().ok()
}

/// What `program` prints in a namespace.
fn run(namespace: &Namespace, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(find(program).unwrap());
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());

    let output = namespace.start(command).unwrap().wait_with_output().unwrap();

    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
