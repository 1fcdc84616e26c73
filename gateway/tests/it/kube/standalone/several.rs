//! Several gateways for one peering: flows are spread over them, and move when one of them ends or dies.
//!
//! ```text
//!              ┌─ gateway 0 ─┐            ┌─ gateway 0 ─┐
//!   pod ─ node ┼─ gateway 1 ─┼─ fabric ───┼─ gateway 1 ─┼ node ─ pod
//!              └─ gateway 2 ─┘            └─ gateway 2 ─┘
//!   rome                                             milan
//! ```
//!
//! All gateways are pods of one node. The stand-in for the kubelet starts none again, so one that is gone stays away, and its
//! pod counts as running: nodes learn only from the gateway itself.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use strait_lab::Namespace;
use strait_lab::Scratch;
use strait_lab::traffic::{Amount, Ping, PingReport, tcp};
use strait_lab::wait_until;

use super::member::{Member, assert_tcp};
use super::{forward, strait};
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::kube::fed::{PATIENCE, wait_for_ping};

const CONNECT: [&str; 4] =
    ["--wait", "--timeout=90s", "--gw-server-service-type=NodePort", "--gateways=3"];

/// Between pings: the resolution of gaps.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long pings and TCP run around an event, which happens after the first second.
const AROUND: Duration = Duration::from_secs(5);

/// The longest gap when a gateway dies: what is promised, and what even a busy machine must reach.
const GAP_MAX: Duration = Duration::from_millis(300);
const BUSY_GAP_MAX: Duration = Duration::from_millis(1_500);

struct Two {
    rome: Member,
    milan: Member,
    _fabric: Namespace,
    _scratch: Scratch,
}

/// How a gateway goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Ends,
    Dies,
}

impl Two {
    /// `None` if there can be no API server here.
    fn start() -> Option<Self> {
        let scratch = Scratch::new().unwrap();
        let fabric = Namespace::new("fabric").unwrap();
        let rome = Member::start("rome", 2, [1, 5], &fabric, scratch.path())?;
        let milan = Member::start("milan", 3, [2, 7], &fabric, scratch.path())?;
        fabric.bridge("bridge", &["rome", "milan"]).unwrap();
        forward(&rome.site.namespace, &milan.site.namespace, milan.site.port());
        for Member { site, .. } in [&rome, &milan] {
            site.wait_for_operator();
        }

        Some(Self { rome, milan, _fabric: fabric, _scratch: scratch })
    }

    fn connect(&self) {
        let joined = strait(&self.rome.site, &self.milan.site, &["network", "connect"], &CONNECT);
        assert!(joined.status.success(), "{}", self.logs());

        for (from, to) in [(&self.rome, &self.milan), (&self.milan, &self.rome)] {
            wait_for_ping(&from.pod.namespace, from.calls(to));
            wait_until("every gateway forwards", PATIENCE, || Ok(from.spreads_over(3))).unwrap();
        }
    }

    /// Pings both ways and TCP while the gateway of `place` that carries them goes.
    fn assert_survives(&self, place: &Member, other: &Member, event: Event) {
        let (here, there) = (&place.pod.namespace, &other.pod.namespace);
        let (target, back) = (place.calls(other), other.calls(place));
        let count = u16::try_from(AROUND.as_millis() / INTERVAL.as_millis()).unwrap();
        let ping = |target| Ping { interval: INTERVAL, ..Ping::new(target, count) };
        let gateway = place.gateway_that_carries(other);

        let (pings, pings_back, connection) = thread::scope(|scope| {
            let pings = scope.spawn(|| ping(target).run(here).unwrap());
            let pings_back = scope.spawn(|| ping(back).run(there).unwrap());
            let connection = scope.spawn(|| tcp(here, there, target, Amount::Time(AROUND)));
            thread::sleep(Duration::from_secs(1));
            let process = place.site.process_of(&gateway).unwrap();
            let signal = match event {
                Event::Ends => Signal::SIGTERM,
                Event::Dies => Signal::SIGKILL,
            };
            kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
            (pings.join().unwrap(), pings_back.join().unwrap(), connection.join().unwrap())
        });

        let connection = connection.unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
        assert!(connection.is_intact, "{connection:?}");
        for (way, report) in [("from", &pings), ("to", &pings_back)] {
            let gap = longest_gap(report);
            let name = place.site.name;
            eprintln!(
                "{gateway} of {name} {event:?}: {way} {name} {} of {count} pings lost, longest gap {gap:?}",
                report.lost()
            );
            let limit = match event {
                Event::Ends => Duration::ZERO,
                Event::Dies if std::env::var_os("STRAIT_FIGURES").is_some() => GAP_MAX,
                Event::Dies => BUSY_GAP_MAX,
            };
            assert!(gap <= limit, "{gap:?}: {report:?}\n{}", self.logs());
        }
    }

    /// Flows of nodes, whose sources the other cluster does not know, by every gateway.
    fn assert_nodes_reach_pods(&self) {
        for (from, to) in [(&self.rome, &self.milan), (&self.milan, &self.rome)] {
            let (node, target) = (&from.site.namespace, from.calls(to));
            // Addresses are the same each time: only ports make the kernel choose another gateway.
            node.set(&[("ipv4/fib_multipath_hash_policy", "1")]).unwrap();
            to.site.namespace.set(&[("ipv4/fib_multipath_hash_policy", "1")]).unwrap();
            let before = from.carried(to);
            let mut sources = std::collections::BTreeSet::new();
            for _ in 0..12 {
                let report = tcp(node, &to.pod.namespace, target, Amount::Bytes(10_000)).unwrap();
                assert!(report.is_intact, "{report:?}");
                sources.insert(report.client_seen_as.ip());
            }
            assert!(sources.len() > 1, "each gateway has an address of its own: {sources:?}");
            let carried = from.carried(to).into_iter().zip(before);
            let carrying = carried.filter(|((_, now), (_, before))| now > before).count();
            assert!(carrying > 1, "{carrying}");
        }
    }

    fn logs(&self) -> String {
        let logs = |Member { site, .. }: &Member| {
            let other = if site.name == "rome" { "milan" } else { "rome" };
            let gateways = (0..3).map(|index| format!("gw-{}", name(other, index)));
            let pods = ["strait-operator", "strait-node"].map(str::to_owned).into_iter();
            let logs = pods.chain(gateways);
            logs.map(|pod| format!("{pod} of {}:\n{}", site.name, site.log(&pod))).collect()
        };
        let all: [String; 2] = [&self.rome, &self.milan].map(logs);

        all.concat()
    }
}

impl Member {
    /// Whether the node has a route with `count` next hops, or as many routes.
    fn spreads_over(&self, count: usize) -> bool {
        let routes = self.site.shell("ip route show table all");

        routes.matches("nexthop").count() >= count
    }

    /// The packets that each of its gateways to `other` has forwarded, by name.
    fn carried(&self, other: &Self) -> Vec<(String, u64)> {
        let names = (0..3).map(|index| name(other.site.name, index));

        names
            .filter_map(|name| {
                let process = self.site.process_of(&name)?;
                Some((name, packets_of(process)?))
            })
            .collect()
    }

    /// The gateway that carries the packets of its pod to that of `other`.
    fn gateway_that_carries(&self, other: &Self) -> String {
        let before = self.carried(other);
        let ping = Ping { interval: INTERVAL, ..Ping::new(self.calls(other), 100) };
        let report = ping.run(&self.pod.namespace).unwrap();
        assert!(report.is_perfect() && report.errors.is_empty(), "{report:?}");

        let carried = self.carried(other).into_iter().zip(before);
        let mut new = carried.map(|((name, now), (_, before))| (now - before, name));
        let (packets, name) = new.by_ref().max().unwrap();
        assert!(packets >= 100, "{name} has {packets}");

        name
    }
}

/// The name of the gateway with this index to the cluster `other`.
fn name(other: &str, index: u8) -> String {
    if index == 0 { other.to_owned() } else { format!("{other}-{index}") }
}

/// What the kernel has sent to the device of the network of `process`; without a device, the datagrams that its sockets have
/// sent.
fn packets_of(process: u32) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{process}/net/{file}")).ok();
    let devices = read("dev")?;
    if let Some(device) = devices.lines().find(|line| line.contains("liqo-tunnel")) {
        let (_, counters) = device.split_once(':')?;
        return counters.split_whitespace().nth(9)?.parse().ok();
    }
    let protocols = read("snmp")?;
    let sockets = protocols.lines().rfind(|line| line.starts_with("Udp:"))?;

    sockets.split_whitespace().nth(4)?.parse().ok()
}

/// The longest run of requests without a reply.
fn longest_gap(report: &PingReport) -> Duration {
    let mut longest = 0;
    let mut run = 0;
    let mut last = None;
    for number in &report.unanswered {
        run = if last.is_some_and(|last| last + 1 == *number) { run + 1 } else { 1 };
        longest = longest.max(run);
        last = Some(*number);
    }

    INTERVAL * longest
}

#[test]
fn flows_survive_gateways_that_end_and_die() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    let Some(two) = Two::start() else {
        return;
    };
    two.connect();
    let Two { rome, milan, .. } = &two;

    two.assert_nodes_reach_pods();
    two.assert_survives(rome, milan, Event::Ends);
    two.assert_survives(milan, rome, Event::Dies);
    for (from, to) in [(rome, milan), (milan, rome)] {
        assert_tcp(from, to, from.calls(to), to.calls(from));
    }
}

#[test]
fn flows_survive_gateways_with_an_overlay() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft"), Tool("setpriv")]) else {
        return;
    };
    let Some(two) = Two::start() else {
        return;
    };
    for member in [&two.rome, &two.milan] {
        member.gives_gateways_an_overlay();
    }
    two.connect();
    let Two { rome, milan, .. } = &two;

    two.assert_survives(milan, rome, Event::Ends);
    two.assert_survives(rome, milan, Event::Dies);
    for (from, to) in [(rome, milan), (milan, rome)] {
        assert_tcp(from, to, from.calls(to), to.calls(from));
    }
}
