//! One cluster in the middle, two that peer with it and not with each other; all with the same pod CIDR.
//!
//! ```text
//!   pod ─ rome ─┐                        10.244.1.5 is the pod of Rome, and that of Naples
//!               ├─ fabric ─ milan ─ pod  10.244.2.7 is the pod of Milan, the hub
//!   pod ─ naples ─┘
//! ```
//!
//! Each city is a node, with an API server, an operator and the agent of nodes. Each gateway is a pod of
//! its own, so Milan's node has two of them.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use strait_lab::Namespace;
use strait_lab::Scratch;
use strait_lab::now;
use strait_lab::traffic::{Datagrams, Ping, udp};
use strait_lab::wait_until;

use super::member::{Member, assert_tcp};
use super::{forward, strait};
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::kube::fed::{PATIENCE, wait_for_ping};

/// Kubernetes chooses the ports on the nodes: two servers are on one of them.
const CONNECT: [&str; 3] = ["--wait", "--timeout=60s", "--gw-server-service-type=NodePort"];

struct Three {
    rome: Member,
    naples: Member,
    milan: Member,
    _fabric: Namespace,
    _scratch: Scratch,
}

impl Three {
    /// All operators work, and no cluster knows of another. `None` if there can be no API server here.
    fn start() -> Option<Self> {
        let scratch = Scratch::new().unwrap();
        let fabric = Namespace::new("fabric").unwrap();
        let member = |name, number, pod| Member::start(name, number, pod, &fabric, scratch.path());
        let rome = member("rome", 2, [1, 5])?;
        let naples = member("naples", 4, [1, 5])?;
        let milan = member("milan", 3, [2, 7])?;
        fabric.bridge("bridge", &["rome", "naples", "milan"]).unwrap();
        for spoke in [&rome, &naples] {
            forward(&spoke.site.namespace, &milan.site.namespace, milan.site.port());
        }
        for Member { site, .. } in [&rome, &naples, &milan] {
            site.wait_for_operator();
        }

        Some(Self { rome, naples, milan, _fabric: fabric, _scratch: scratch })
    }

    const fn spokes(&self) -> [&Member; 2] {
        [&self.rome, &self.naples]
    }

    /// `strait network VERB` of a spoke and the hub, which must succeed.
    fn network(&self, spoke: &Member, verb: &str, more: &[&str]) {
        let output = strait(&spoke.site, &self.milan.site, &["network", verb], more);

        assert!(output.status.success(), "{}", self.logs());
    }

    fn logs(&self) -> String {
        let logs = |Member { site, .. }: &Member| {
            let pods = ["strait-operator", "strait-node", "gw-rome", "gw-naples", "gw-milan"];
            let logs = pods.map(|pod| format!("{pod} of {}:\n{}", site.name, site.log(pod)));
            logs.concat()
        };

        [&self.rome, &self.naples, &self.milan].map(logs).concat()
    }
}

#[test]
fn spokes_of_a_hub_do_not_disturb_another() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    let start = now();
    let Some(three) = Three::start() else {
        return;
    };
    eprintln!("three clusters in {:?}", start.elapsed());
    for spoke in three.spokes() {
        three.network(spoke, "connect", &CONNECT);
    }
    let Three { rome, naples, milan, .. } = &three;
    assert_ne!(milan.calls(rome), milan.calls(naples));
    let status = milan.site.shell("strait status");
    eprintln!("$ strait status\n{status}");
    assert_eq!(status.matches("Healthy").count(), 2, "{status}");
    let plan = strait(&rome.site, &milan.site, &["plan", "reset"], &[]).stdout;
    let plan = String::from_utf8(plan).unwrap();
    assert!(plan.contains("liqo-tenant-rome/rome") && !plan.contains("naples"), "{plan}");

    all_talk_at_once(&three);
    spokes_reach_each_other_only_where_all_three_say_so(&three);
    one_leaves_and_comes_back(&three);
    eprintln!("all of it in {:?}", start.elapsed());
}

/// Gateways end the VXLAN of node agents, and have neither a device nor a capability.
#[test]
fn gateways_with_an_overlay_join_clusters() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft"), Tool("setpriv")]) else {
        return;
    };
    let Some(three) = Three::start() else {
        return;
    };
    let Three { rome, milan, .. } = &three;
    rome.gives_gateways_an_overlay();
    milan.gives_gateways_an_overlay();

    three.network(rome, "connect", &CONNECT);

    for (from, to) in [(rome, milan), (milan, rome)] {
        wait_for_ping(&from.pod.namespace, from.calls(to));
        let report = Ping::new(from.calls(to), 20).run(&from.pod.namespace).unwrap();
        assert!(report.is_perfect() && report.errors.is_empty(), "{report:?}");
        assert_tcp(from, to, from.calls(to), to.calls(from));
        let logs = from.site.log(&format!("gw-{}", to.site.name));
        assert!(logs.contains("overlay="), "{logs}");
    }
}

/// Each pod of a spoke with that of the hub, both ways: pings first, then TCP.
fn all_talk_at_once(three: &Three) {
    let ways = three.spokes().map(|spoke| [(spoke, &three.milan), (&three.milan, spoke)]);
    for (from, to) in ways.as_flattened() {
        wait_for_ping(&from.pod.namespace, from.calls(to));
    }
    thread::scope(|scope| {
        for (from, to) in ways.as_flattened() {
            scope.spawn(|| {
                let report = Ping::new(from.calls(to), 20).run(&from.pod.namespace).unwrap();
                assert!(report.is_perfect() && report.errors.is_empty(), "{report:?}");
            });
        }
    });
    thread::scope(|scope| {
        for (from, to) in ways.as_flattened() {
            scope.spawn(|| assert_tcp(from, to, from.calls(to), to.calls(from)));
        }
    });
}

/// As the manual has it, in "Three clusters and more".
fn spokes_reach_each_other_only_where_all_three_say_so(three: &Three) {
    let Three { rome, naples, milan, .. } = three;
    let [of_rome, of_naples] = [rome, naples].map(|spoke| milan.prefix_at(spoke, 0));
    assert_eq!(rome.answers(milan.calls(naples)), 0, "spokes do not reach each other by default");

    // Rome alone: what it sends arrives as from a stranger of the hub, and no answer finds back.
    rome.adds(milan, "remote", &of_naples);
    let has_name = |spoke: &Member| {
        let names = || spoke.site.names("milan");
        let is_named = || Ok(names().get(1).is_some_and(|name| !name.is_empty()));
        wait_until("the second prefix has a name", PATIENCE, is_named).unwrap();
    };
    has_name(rome);
    let target = rome.calls_through(milan, 1, naples);
    assert_eq!(seen_as(rome, naples, target), naples.calls_strangers_of(milan));
    assert_eq!(rome.answers(target), 0, "{target}: the hub did not agree");

    naples.adds(milan, "remote", &of_rome);
    has_name(naples);
    milan.adds(rome, "local", &of_naples);
    milan.adds(naples, "local", &of_rome);
    wait_for_ping(&rome.pod.namespace, target);
    let back = naples.calls_through(milan, 1, rome);
    wait_for_ping(&naples.pod.namespace, back);
    assert_tcp(rome, naples, target, back);
    assert_tcp(naples, rome, back, target);
    all_talk_at_once(three);

    let said = |verb: &[&str], more: &[&str]| {
        let output = strait(&rome.site, &milan.site, verb, more);
        String::from_utf8(output.stdout).unwrap()
    };
    let plan = said(&["plan", "connect"], &CONNECT);
    assert!(plan.contains(&format!("spec.remote.cidr.pod[1]    {of_naples}")), "{plan}");
    let found = said(&["check"], &[]);
    assert!(
        found.starts_with("error    (local) Configuration liqo-tenant-milan/milan: PrefixesDiffer")
    );
    assert!(found.contains("1 error, "), "{found}");
}

/// Who `to` takes `from` for, once datagrams to `target` arrive there.
fn seen_as(from: &Member, to: &Member, target: IpAddr) -> IpAddr {
    let datagrams = Datagrams { count: 10, payload_bytes: 100, per_second: 100 };
    let mut seen = None;
    wait_until(format!("datagrams to {target} arrive"), PATIENCE, || {
        let train = udp(&from.pod.namespace, &to.pod.namespace, target, datagrams)?;
        seen = train.client_seen_as;
        Ok(seen.is_some())
    })
    .unwrap();

    seen.unwrap().ip()
}

/// What becomes of Rome is nothing to Naples.
fn one_leaves_and_comes_back(three: &Three) {
    let Three { rome, naples, milan, .. } = three;
    let target = naples.calls(milan);
    let name = milan.prefix_at(naples, 0);
    let interval = Duration::from_millis(10);
    let ping = Ping { interval, ..Ping::new(target, 1000) };

    let report = thread::scope(|scope| {
        let undisturbed = scope.spawn(|| ping.run(&naples.pod.namespace).unwrap());
        three.network(rome, "disconnect", &["--yes", "--wait"]);
        assert_eq!(rome.answers(rome.calls(milan)), 0);
        three.network(rome, "reset", &["--yes", "--wait"]);
        three.network(rome, "connect", &CONNECT);
        undisturbed.join().unwrap()
    });

    assert!(report.is_perfect() && report.errors.is_empty(), "{report:?}");
    assert_eq!(milan.prefix_at(naples, 0), name);
    all_talk_at_once(three);
}
