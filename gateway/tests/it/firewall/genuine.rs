//! What Liqo's controllers wrote for the two clusters of a run.

use std::cell::RefCell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DeserializeGuard;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use remap::ruleset::{Device, NodeId};
use remap::{Prefix, Rule};
use serde::de::DeserializeOwned;
use serde_json::Value;
use strait_api::{FirewallConfiguration, RouteConfiguration};
use strait_plan::lowering::{Lowered, Objects, Scope};

use super::gateway::Gateway;
use super::kernel::{Kernel, Passed};
use super::probe::{ICMP, Probe, TCP, UDP};
use super::{NEEDS, PACKETS, nft};
use crate::harness::compare::with_one_zero;
use crate::harness::require::require;

/// The source of all packets that are from no pod.
const UNKNOWN_SOURCE: Ipv4Addr = Ipv4Addr::new(10, 70, 0, 0);

#[test]
fn remapping_matches_the_kernel() {
    assert_agrees(|world| prop_oneof![world.outbound(), world.inbound()].boxed());
}

#[test]
fn mapped_addresses_match_the_kernel() {
    assert_agrees(|world| world.to_mapped_address().boxed());
}

#[test]
fn unknown_sources_match_the_kernel() {
    assert_agrees(|world| world.of_unknown_source().boxed());
}

#[test]
fn clamped_connections_match_the_kernel() {
    assert_agrees(|world| {
        let all = prop_oneof![
            world.outbound(),
            world.inbound(),
            world.of_unknown_source(),
            world.to_mapped_address()
        ];
        (all, 500_u16..1500).prop_map(|(probe, mss)| Probe { protocol: TCP, mss, ..probe }).boxed()
    });
}

/// Random packets, and then a reply to each that arrived.
fn assert_agrees(packets: impl Fn(&World) -> BoxedStrategy<Probe>) {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };

    let worlds = genuine();
    let count = PACKETS.div_ceil(worlds.len());
    for world in worlds {
        let kernel = world.kernel();
        let gateway = RefCell::new(Gateway::new(&world.lowered));
        let compare = |probes: Vec<Probe>| -> Vec<(Probe, Passed)> {
            let ours =
                probes.iter().map(|probe| gateway.borrow_mut().pass(probe).unwrap_or_default());
            let ours: Vec<Passed> = ours.collect();
            let expected = probes.iter().zip(&ours);
            let expected = expected.map(|(probe, ours)| (probe.clone(), ours.sent.is_some()));
            let theirs = kernel.pass(&expected.collect::<Vec<_>>());
            for ((probe, ours), theirs) in probes.iter().zip(&ours).zip(&theirs) {
                let sent = |passed: &Passed| {
                    passed.sent.clone().map(|(device, bytes)| (device, with_one_zero(bytes)))
                };
                assert_eq!(sent(theirs), sent(ours), "{}: {probe:?}", world.name);
            }
            probes.into_iter().zip(ours).collect()
        };

        let mut runner = TestRunner::deterministic();
        let packets = packets(&world);
        let probes = (0..).take(count).map(|number: u16| {
            let probe = packets.new_tree(&mut runner).unwrap().current();
            // Each is a flow of its own.
            Probe { id: number, ports: [1024 + number, probe.ports[1]], ..probe }
        });
        let passed = compare(probes.collect());

        let mut id = u16::try_from(count).unwrap();
        let replies = passed.iter().filter_map(|(probe, passed)| {
            id += 1;
            passed.sent.as_ref().map(|sent| probe.reply(id, sent))
        });
        let replies: Vec<_> = replies.collect();
        assert!(replies.len() > count / 2, "{}: {} arrived", world.name, replies.len());
        let arrived = compare(replies).iter().filter(|(_, passed)| passed.sent.is_some()).count();
        assert!(arrived > count / 2, "{}: {arrived} replies arrived", world.name);
    }
}

/// One cluster.
struct World {
    name: String,
    firewalls: Vec<FirewallConfiguration>,
    routes: Vec<RouteConfiguration>,
    lowered: Lowered,
}

fn genuine() -> Vec<World> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../control/api/tests/genuine");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4);

    files.iter().map(|path| World::read(path)).collect()
}

impl World {
    fn read(path: &Path) -> Self {
        let list: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let items = list["items"].as_array().expect("a list");
        let firewalls: Vec<FirewallConfiguration> = of_kind(items, "FirewallConfiguration");
        let routes: Vec<RouteConfiguration> = of_kind(items, "RouteConfiguration");
        let is_milan = path.display().to_string().contains("milan");
        let (id, remote, peer) = if is_milan { ("milan", "rome", 2) } else { ("rome", "milan", 1) };
        let scope = Scope {
            remote_cluster_id: remote.to_owned(),
            node_name: Some(format!("{id}-n1")),
            peer_address: [169, 254, 18, peer].into(),
            tracks_flows: true,
        };
        let lowered = Lowered::new(&scope, &objects(&firewalls, &routes));
        assert!(lowered.outcomes.iter().all(|outcome| outcome.problem.is_none()));

        Self { name: path.display().to_string(), firewalls, routes, lowered }
    }

    /// The kernel with the objects that concern this gateway.
    fn kernel(&self) -> Kernel {
        let concerns = |kind: &str, object: &dyn Fn() -> (Option<String>, String)| {
            let (namespace, name) = object();
            self.lowered.outcomes.iter().any(|outcome| {
                let of = &outcome.object;
                of.kind == kind && Some(&of.namespace) == namespace.as_ref() && of.name == name
            })
        };
        let nodes: Vec<&str> = self.lowered.nodes.iter().map(|node| node.device.as_str()).collect();
        let kernel = Kernel::new(&nodes);
        let mut calls: Vec<String> = Vec::new();
        for (number, object) in self.routes.iter().enumerate() {
            if concerns("RouteConfiguration", &|| (object.namespace(), object.name_any())) {
                calls.extend(nft::routes(object, 1000 + number));
            }
        }
        kernel.route(calls);
        let firewalls = self.firewalls.iter().filter(|object| {
            concerns("FirewallConfiguration", &|| (object.namespace(), object.name_any()))
        });
        let tables: String = firewalls.map(nft::table).collect();
        assert!(kernel.install(&tables), "{tables}");

        kernel
    }

    fn node(&self) -> impl Strategy<Value = Device> + use<> {
        let nodes = u32::try_from(self.lowered.nodes.len()).unwrap();

        (0..nodes).prop_map(|node| Device::Node(NodeId(node)))
    }

    /// From pods to addresses of the remote cluster, and to others.
    fn outbound(&self) -> impl Strategy<Value = Probe> + use<> {
        let local = self.lowered.remaps.iter().map(Rule::local).collect();
        let pods = prop::sample::select(self.pods());
        let source = prop_oneof![9 => pods, 1 => within(vec!["10.244.0.0/16".parse().unwrap()])];

        probe(self.node(), source, prop_oneof![9 => within(local), 1 => foreign_address()])
    }

    /// From addresses of the remote cluster, and from others, to pods, and to others.
    fn inbound(&self) -> impl Strategy<Value = Probe> + use<> {
        let remote = self.lowered.remaps.iter().map(Rule::remote).collect();
        let pods = prop::sample::select(self.pods());
        let source = prop_oneof![9 => within(remote), 1 => foreign_address()];

        probe(Just(Device::Tunnel), source, prop_oneof![9 => pods, 1 => foreign_address()])
    }

    fn to_mapped_address(&self) -> impl Strategy<Value = Probe> + use<> {
        let remote = self.lowered.remaps.iter().map(Rule::remote).collect();
        let maps = &self.lowered.cluster.host_maps;
        let external: Vec<_> = maps.iter().map(|map| v4(map.external())).collect();

        probe(Just(Device::Tunnel), within(remote), prop::sample::select(external))
    }

    fn of_unknown_source(&self) -> impl Strategy<Value = Probe> + use<> {
        let local = self.lowered.remaps.iter().map(Rule::local).collect();

        probe(self.node(), Just(UNKNOWN_SOURCE), within(local))
    }

    fn pods(&self) -> Vec<Ipv4Addr> {
        let rules =
            self.routes.iter().flat_map(|object| strait_plan::routing::rules(object).unwrap());
        let routes = rules.flat_map(|rule| rule.routes).filter(|route| route.is_for_pod);

        routes.map(|route| v4(route.destination.network())).collect()
    }
}

/// Objects as a watch lists them.
pub(crate) fn objects(
    firewalls: &[FirewallConfiguration],
    routes: &[RouteConfiguration],
) -> Objects {
    let firewalls = firewalls.iter().map(|object| Arc::new(DeserializeGuard(Ok(object.clone()))));
    let routes = routes.iter().map(|object| Arc::new(DeserializeGuard(Ok(object.clone()))));

    Objects { firewall_configurations: firewalls.collect(), route_configurations: routes.collect() }
}

fn of_kind<K: DeserializeOwned>(items: &[Value], kind: &str) -> Vec<K> {
    let items = items.iter().filter(|item| item["kind"] == kind);

    items.map(|item| serde_json::from_value(item.clone()).unwrap()).collect()
}

fn probe(
    input: impl Strategy<Value = Device> + 'static,
    source: impl Strategy<Value = Ipv4Addr> + 'static,
    destination: impl Strategy<Value = Ipv4Addr> + 'static,
) -> BoxedStrategy<Probe> {
    let protocol = prop::sample::select(vec![TCP, UDP, ICMP]);
    let fields = (input, source, destination, protocol, 1_u16..1024);

    fields
        .prop_map(|(input, source, destination, protocol, port)| Probe {
            id: 0,
            input,
            source,
            destination,
            protocol,
            ports: [0, port],
            mss: 1460,
            is_reply: false,
        })
        .boxed()
}

fn within(prefixes: Vec<Prefix>) -> impl Strategy<Value = Ipv4Addr> {
    (prop::sample::select(prefixes), any::<u32>()).prop_map(|(prefix, host)| {
        v4(prefix.with_host_bits_of(Ipv4Addr::from_bits(host).into()).unwrap())
    })
}

/// In no prefix of the two clusters.
fn foreign_address() -> impl Strategy<Value = Ipv4Addr> {
    any::<u16>().prop_map(|host| Ipv4Addr::from_bits(u32::from(host) | 0x0a63_0000))
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address} in objects of IPv4"),
    }
}
