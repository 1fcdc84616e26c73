//! Several next hops: what the kernel makes of them, and how soon routes follow a gateway.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::super::state::{NextHop, RouteKey, Target, Version};
use super::*;

/// The nodes of a large cluster.
const NODES: u8 = 100;

const PREFIX: &str = "10.71.0.0/16";
const EXTERNAL: &str = "10.81.0.0/16";

/// What a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A kernel may list several next hops of IPv6 in one message or in several, and replaces them one by one.
#[test]
fn next_hops_are_replaced_without_a_gap() {
    in_world(async |world| {
        let (uplink, network) = (world.index("uplink").await, world.index("network").await);
        let hops = |version, all: &[(u8, u32)]| {
            let hop = |(host, device): &(u8, u32)| NextHop {
                gateway: match version {
                    Version::V4 => IpAddr::from([172, 18, *host, 1]),
                    Version::V6 => IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, u16::from(*host)]),
                },
                device: *device,
            };
            Target::Via { hops: all.iter().map(hop).collect(), source: None }
        };
        let steps: [&[(u8, u32)]; 10] = [
            &[(2, uplink)],
            &[(2, uplink), (3, uplink)],
            &[(3, uplink)],
            &[(2, uplink), (3, uplink), (4, network)],
            &[(3, uplink), (5, network)],
            &[(5, network), (6, uplink)],
            &[(6, network), (6, uplink)],
            &[(2, uplink), (3, uplink), (4, uplink), (5, network), (6, network), (7, uplink)],
            &[(7, uplink)],
            &[(2, uplink), (3, uplink)],
        ];
        for (version, net, target) in [
            (Version::V4, "10.71.0.0/16", "10.71.2.7:9"),
            (Version::V6, "fd00:71::/56", "[fd00:71::7]:9"),
        ] {
            let net: IpNet = net.parse().unwrap();
            let (whole, last) = (RouteKey::of(net), RouteKey::of_last_resort(net));
            let state = |all| State {
                routes: [(whole, hops(version, all)), (last, Target::Unreachable)].into(),
                rules: [version].into(),
                ..State::default()
            };
            // A source for IPv6 that needs no detection of duplicates.
            let lo = world.index("lo").await;
            drop(world.handle.address().add(lo, ip("fd00::1"), 128).execute().await);
            let lookups = Lookups::start(target);
            for (number, step) in steps.iter().chain(&steps[..3]).enumerate() {
                let mut found = world.found().await;
                let wanted = state(step);
                let changes = found.state.changes(&wanted);
                let (_, failures) = make(&world.kernel, &changes, &mut found, None).await;
                assert!(failures.is_empty(), "{failures:?}");
                assert_eq!(found.state, wanted, "as noted");
                assert_eq!(world.found().await.state, wanted, "as the kernel lists it");
                if number == 0 {
                    lookups.begin();
                }
                // The thread gets its turn on a busy machine too.
                lookups.wait_for_more();
            }
            lookups.end();

            let mut found = world.found().await;
            let changes = found.state.changes(&State::default());
            let (_, failures) = make(&world.kernel, &changes, &mut found, None).await;
            assert!(failures.is_empty(), "{failures:?}");
            assert_eq!(world.found().await.state, State::default(), "nothing of {version} is left");
        }
    });
}

#[test]
fn a_round_spreads_over_near_and_far_nodes() {
    in_world(async |world| {
        let agent = world.agent("strait-vxlan", 8483);
        let plan = plan_to(&near() | &far());

        let round = world.run(&agent, &plan).await;

        let paths = round.desired.paths.into_values().flatten().collect::<Vec<_>>();
        assert_eq!(paths, [Path::Direct, Path::Vxlan]);
        let route = round.desired.state.route(PREFIX.parse().unwrap()).unwrap();
        assert_eq!(route.hops().count(), 2);
        // A second round finds nothing to do.
        assert_eq!(world.run(&agent, &plan).await.changed, 0);
        // The former hops that may still be right are kept.
        let mut one_left = plan_to(former());
        for places in one_left.places.values_mut() {
            places.addresses = [ip("172.18.3.1")].into();
        }
        let round = world.run(&agent, &one_left).await;
        let route = round.desired.state.route(PREFIX.parse().unwrap()).unwrap();
        let left: Vec<_> = route.hops().map(|hop| hop.gateway).collect();
        assert_eq!(left, [ip("172.18.3.1")]);
    });
}

/// The device is there, and so are its entries, before packets need them.
#[test]
fn hops_in_reserve_are_prepared() {
    in_world(async |world| {
        let agent = world.agent("strait-vxlan", 8483);
        let prefix = PREFIX.parse().unwrap();
        let with_reserve = Plan { reserve: [(prefix, &here() | &far())].into(), ..plan_to(here()) };

        let round = world.run(&agent, &with_reserve).await;

        let found = world.found().await;
        assert!(found.own_device().is_some());
        assert_eq!(found.state.neighbours.keys().collect::<Vec<_>>(), [&ip("172.18.3.1")]);
        let route = round.desired.state.route(PREFIX.parse().unwrap()).unwrap();
        assert_eq!(route.hops().map(|hop| hop.gateway).collect::<Vec<_>>(), [ip("10.244.1.9")]);

        // Their gateway is used now: the route is all that changes.
        let used = Plan { reserve: with_reserve.reserve, ..plan_to(far()) };
        assert_eq!(world.run(&agent, &used).await.changed, 1);
    });
}

/// In a cluster of a hundred nodes, with as many routes of other programs.
#[test]
fn routes_follow_a_gateway_within_milliseconds() {
    in_world(async |world| {
        for number in 2..NODES {
            world.add_route(&format!("10.244.{number}.0/24"), Some("172.18.1.254")).await;
        }
        let mut agent = world.agent("strait-vxlan", 8483);
        let mut gateways: Vec<_> = Vec::new();
        for on in [2, 3] {
            gateways.push(Gateway::new(world, on).await);
        }
        agent.apply(cluster()).await;
        let external = "10.81.0.1/32";
        for gateway in &mut gateways {
            let own = if gateway.on == 3 { external } else { "10.81.0.0/32" };
            gateway.say(true, own);
        }
        let both = ["172.18.2.1", "172.18.3.1"].map(ip);
        follow_until(&mut agent, world, both.into()).await;
        agent.sync().await;
        assert_eq!(agent.report.borrow().problems, [""; 0]);
        assert_eq!(next_hops(world, external).await, [both[1]].into());

        let mut delays = Vec::new();
        for number in 0..20 {
            let forwards = number % 2 == 1;
            let expected = if forwards { both.into() } else { [both[0]].into() };
            let since = Instant::now();
            gateways[1].say(forwards, external);
            follow_until(&mut agent, world, expected).await;
            delays.push(since.elapsed());
            // The other gateways carry what only this one did.
            let part = if forwards { [both[1]].into() } else { BTreeSet::new() };
            assert_eq!(next_hops(world, external).await, part);
            agent.sync().await;
            assert!(agent.report.borrow().refused.is_empty(), "{:?}", agent.report.borrow());
        }
        delays.sort();
        assert!(delays[delays.len() / 4] < Duration::from_millis(20), "{delays:?}");
    });
}

/// Runs the agent until the route has these next hops.
async fn follow_until(agent: &mut Agent, world: &World, expected: BTreeSet<IpAddr>) {
    let since = Instant::now();
    loop {
        if agent.next_change().await == Changed::Gateways {
            agent.shift().await;
            if next_hops(world, PREFIX).await == expected {
                return;
            }
        }
        assert!(since.elapsed() < PATIENCE, "{:?}", world.found().await.state.routes);
    }
}

/// The next hops of a prefix in the kernel.
async fn next_hops(world: &World, prefix: &str) -> BTreeSet<IpAddr> {
    let state = world.found().await.state;
    let route = state.route(prefix.parse().unwrap());

    route.into_iter().flat_map(Target::hops).map(|hop| hop.gateway).collect()
}

/// Another thread, which asks for the route to an address all the time.
struct Lookups {
    thread: thread::JoinHandle<()>,
    count: Arc<AtomicU64>,
    is_routed: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Lookups {
    fn start(target: &'static str) -> Self {
        let [is_routed, is_over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (may_ask, must_end) = (Arc::clone(&is_routed), Arc::clone(&is_over));
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let thread = thread::spawn(move || {
            let target: SocketAddr = target.parse().unwrap();
            let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            while !must_end.load(Ordering::Acquire) {
                if may_ask.load(Ordering::Acquire) {
                    // "unreachable" by the route of last resort is an error here.
                    UdpSocket::bind(any).unwrap().connect(target).unwrap();
                    counted.fetch_add(1, Ordering::Release);
                }
            }
        });

        Self { thread, count, is_routed, is_over }
    }

    /// From now on there is a route.
    fn begin(&self) {
        self.is_routed.store(true, Ordering::Release);
    }

    /// Waits for ten more lookups, or for one that finds no route.
    fn wait_for_more(&self) {
        let wanted = self.count.load(Ordering::Acquire) + 10;
        let start = Instant::now();
        while self.count.load(Ordering::Acquire) < wanted && !self.thread.is_finished() {
            assert!(start.elapsed() < PATIENCE, "no lookup");
            thread::yield_now();
        }
    }

    /// # Panics
    ///
    /// If one found no route.
    fn end(self) {
        self.is_over.store(true, Ordering::Release);

        self.thread.join().unwrap();
    }
}

/// The state page of a gateway pod, which repeats a line until it gets another one.
struct Gateway {
    on: u8,
    line: std::sync::mpsc::Sender<String>,
}

impl Gateway {
    /// That of the gateway on node `on`; its address is on this host.
    async fn new(world: &World, on: u8) -> Self {
        let address = IpAddr::from([10, 244, on, 9]);
        let lo = world.index("lo").await;
        world.handle.address().add(lo, address, 32).execute().await.unwrap();
        let listener = TcpListener::bind((address, 8085)).unwrap();
        let (line, lines) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            read_request(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
            let mut last = String::new();
            loop {
                match lines.recv_timeout(Duration::from_millis(100)) {
                    Ok(line) => last = line,
                    Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                    Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
                }
                let chunk = format!("{:x}\r\n{last}\r\n", last.len());
                if !last.is_empty() && stream.write_all(chunk.as_bytes()).is_err() {
                    return;
                }
            }
        });

        Self { on, line }
    }

    fn say(&self, forwards: bool, own_destination: &str) {
        let line = json!({"forwards": forwards, "own_destinations": [own_destination]});
        self.line.send(format!("{line}\n")).unwrap();
    }
}

fn read_request(stream: &mut TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        request.extend(byte);
    }
}

/// Gateways to Rome on node 2, a neighbour, and on node 3, behind a router.
fn cluster() -> Objects {
    let read = |value: Value| serde_json::from_value(value).unwrap();
    let node = |number: u8| {
        read(json!({
            "metadata": {"name": format!("node-{number}")},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("172.18.{number}.1")}]},
        }))
    };
    let pod = |on: u8| {
        json!({
            "metadata": {"name": format!("gw-{on}"), "namespace": "tenant", "labels": {
                "networking.liqo.io/component": "gateway", "networking.liqo.io/active": "true",
                "networking.liqo.io/gateway-name": format!("rome-{on}"),
            }},
            "spec": {"nodeName": format!("node-{on}"), "containers": [{
                "name": "strait", "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8085}},
            }]},
            "status": {"phase": "Running", "podIP": format!("10.244.{on}.9")},
        })
    };
    let rome = json!({
        "metadata": {
            "name": "rome", "namespace": "tenant", "labels": {"liqo.io/remote-cluster-id": "rome"},
        },
        "spec": {"remote": {"cidr": {"pod": [PREFIX], "external": [EXTERNAL]}}},
        "status": {"remote": {"cidr": {"pod": [PREFIX], "external": [EXTERNAL]}}},
    });

    Objects {
        configurations: vec![Arc::new(serde_json::from_value(rome).unwrap())],
        pods: [2, 3].map(|on| Arc::new(serde_json::from_value(pod(on)).unwrap())).into(),
        nodes: (1..=NODES).map(node).map(Arc::new).collect(),
        ..Objects::default()
    }
}
