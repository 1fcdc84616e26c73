//! Rounds against the kernel, each test in its own network namespace: node 1, with node 2 on its network and node 3
//! behind a router.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use futures_util::TryStreamExt as _;
use ipnet::Ipv4Net;
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};
use strait_host::netlink::fixtures::in_namespace;

use super::super::flags::{OverlaySettings, Vxlan};
use super::super::forwarding::{Path, PathProblem};
use super::super::split_horizon::PrefixesByNode;
use super::super::state::Mac;
use super::*;
use crate::plan::{Hop, Places};

mod several;

type Hops = BTreeSet<Hop>;

const PLACE: Place = Place { table: 8483, priority: 500 };

#[test]
fn an_unneeded_device_is_removed_without_errors() {
    in_world(async |world| {
        let agent = world.agent("strait-vxlan", 8483);
        world.run(&agent, &plan_to(far())).await;
        assert!(world.found().await.own_device().is_some());

        let round = world.run(&agent, &plan_to(near())).await;

        assert_eq!(round.desired.paths.into_values().flatten().collect::<Vec<_>>(), [Path::Direct]);
        assert!(world.found().await.own_device().is_none());
    });
}

#[test]
fn without_own_addresses_the_device_still_carries() {
    in_world(async |world| {
        let agent = world.agent("strait-vxlan", 8483);
        world.run(&agent, &plan_to(far())).await;
        let before = world.found().await;

        let nameless = Plan { own: Vec::new(), ..plan_to(far()) };
        let round = world.run(&agent, &nameless).await;

        assert_eq!(round.desired.problems, [PathProblem::NoOwnAddress]);
        assert_eq!(round.desired.paths.into_values().flatten().collect::<Vec<_>>(), [Path::Former]);
        let found = world.found().await;
        assert_eq!(found.state, before.state);
        assert_eq!(index(&found), index(&before));

        let round = world.run(&agent, &plan_to(far())).await;
        assert_eq!((round.changed, round.desired.problems), (0, Vec::new()));
    });
}

#[test]
fn the_device_stays_while_nodes_are_unknown() {
    in_world(async |world| {
        let agent = world.agent("strait-vxlan", 8483);
        let here = || plan_to(here());
        world.run(&agent, &here()).await;
        let before = index(&world.found().await);
        assert!(before.is_some());

        // A Node has no address for a moment; the address of this one is on another host; or it has none.
        let mut forgotten = here();
        forgotten.others.insert("node-3".to_owned(), Vec::new());
        let foreign = Plan { own: vec![ip("172.18.9.9")], ..here() };
        let nameless = Plan { own: Vec::new(), ..here() };
        for plan in [forgotten, foreign, nameless] {
            world.run(&agent, &plan).await;
            assert_eq!(index(&world.found().await), before, "{plan:?}");
        }

        let mut alone = here();
        alone.others.remove("node-3");
        world.run(&agent, &alone).await;
        assert_eq!(index(&world.found().await), None);
    });
}

#[test]
fn a_replaced_device_carries_in_the_same_round() {
    in_world(async |world| {
        world.run(&world.agent("strait-vxlan", 8483), &plan_to(far())).await;

        for (name, port, hop) in [
            ("strait-vxlan", 8484, far()),
            ("strait-vxlan", 8485, former()),
            ("another", 8485, far()),
            ("a-third", 8485, former()),
        ] {
            let before = world.found().await;
            let round = world.run(&world.agent(name, port), &plan_to(hop)).await;

            let found = world.found().await;
            let (former, new) = (index(&before).unwrap(), index(&found).unwrap());
            assert_ne!(former, new, "{name} {port}");
            assert_eq!(found.state, before.state.with_device(former, new));
            assert_eq!(found.state, round.desired.state);
            assert_eq!(found.own_device().unwrap().name, name);
        }
    });
}

#[test]
fn a_foreign_interface_is_reported_and_routes_stay() {
    in_world(async |world| {
        world.run(&world.agent("strait-vxlan", 8483), &plan_to(far())).await;
        let before = world.found().await;

        let round = world.agent("uplink", 8483).round(&plan_to(far())).await.unwrap();

        let [failure] = round.failures.as_slice() else { panic!("{:?}", round.failures) };
        assert!(
            failure.to_string().contains("an interface of that name belongs to another program")
        );
        let found = world.found().await;
        assert_eq!((index(&found), found.state), (index(&before), before.state));
    });
}

#[test]
fn two_thousand_prefixes_fit_into_the_nftables_table() {
    in_world(async |_| {
        let remotes = (0..2_000_u32).map(|n| format!("10.{}.{}.0/24", n / 128, 2 * (n % 128)));
        let remotes = remotes.map(|text| text.parse().unwrap());
        let pods = ["10.244.0.0/16".parse().unwrap()];
        let ruleset = Ruleset::new(pods.into_iter(), remotes, PrefixesByNode::new());

        assert_eq!(ruleset.apply().unwrap(), Outcome::Written);
        assert_eq!(ruleset.apply().unwrap(), Outcome::Unchanged);
        assert!(nftables::remove().unwrap());
        assert!(!nftables::remove().unwrap());
    });
}

#[test]
fn a_near_node_is_known_by_its_neighbour() {
    in_world(async |world| {
        let mut agent = world.agent("strait-vxlan", 8483);
        let (uplink, node) = (world.index("uplink").await, ip("172.18.2.1"));
        let round = world.run(&agent, &plan_to(near())).await;
        assert_eq!(round.near_nodes.unresolved, [(uplink, node)].into());
        let known: Vec<_> = world.handle.neighbours().get().execute().try_collect().await.unwrap();
        let destination =
            NeighbourAttribute::Destination(NeighbourAddress::Inet([172, 18, 2, 1].into()));
        let is_asked = known.iter().any(|found| found.attributes.contains(&destination));
        assert!(is_asked, "the kernel resolves it: {known:?}");

        let neighbour = world.handle.neighbours().add(uplink, node).link_layer_address(&[2; 6]);
        neighbour.replace().execute().await.unwrap();
        agent.near_nodes = world.run(&agent, &plan_to(near())).await.near_nodes;
        assert_eq!(agent.near_nodes.neighbours.get(&(uplink, node)), Some(&Mac([2; 6])));

        // The kernel forgets it.
        let down = LinkUnspec::new_with_index(uplink).down().build();
        let up = LinkUnspec::new_with_index(uplink).up().build();
        for change in [down, up] {
            world.handle.link().change(change).execute().await.unwrap();
        }
        world.add_route("172.18.2.1/32", None).await;
        let near_nodes = world.run(&agent, &plan_to(near())).await.near_nodes;
        assert_eq!(near_nodes.neighbours.get(&(uplink, node)), Some(&Mac([2; 6])));
        assert!(near_nodes.unresolved.is_empty());
    });
}

#[test]
fn a_second_own_device_is_removed() {
    in_world(async |world| {
        // As left by a process that identified its device by name.
        let leave = async |device: &str, port| {
            let local = ip("172.18.1.1");
            let (vni, mac, mtu_bytes) = (83, Mac::of_node(local), 1450);
            let overlay = Overlay { device: device.to_owned(), vni, port, local, mac, mtu_bytes };
            world.kernel.set_device(None, &overlay).await.unwrap();
        };
        leave("former", 8482).await;
        leave("strait-vxlan", 8483).await;

        world.run(&world.agent("strait-vxlan", 8483), &plan_to(far())).await;

        let found = world.found().await;
        assert_eq!((found.stale(), &*found.own_device().unwrap().name), (0, "strait-vxlan"));
        leave("former", 8482).await;
        let summary = clean_up(&world.kernel, PLACE, "strait-vxlan").await.unwrap();
        assert_eq!(
            summary,
            "removed 2 routes, 1 rules, 1 outdated, interface strait-vxlan, nftables table strait-node (table 8483)\n"
        );
        let nothing = clean_up(&world.kernel, PLACE, "strait-vxlan").await.unwrap();
        assert_eq!(nothing, "nothing of strait node is on this host (table 8483)\n");
    });
}

#[test]
fn events_and_answers_use_separate_sockets() {
    in_world(async |_| {
        // Protocol 0 is that of routes and links; a socket for requests is in none of its groups.
        let sockets = |is_listening: bool| {
            let all = fs::read_to_string("/proc/thread-self/net/netlink").unwrap();
            let columns = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let columns = columns.filter(|columns| columns[1] == "0");
            columns.filter(|columns| (columns[3] != "00000000") == is_listening).count()
        };
        let count = || (sockets(false), sockets(true));
        let (asking, listening) = count();

        let kernel = Kernel::connect(PLACE).unwrap();
        kernel.found("strait-vxlan").await.unwrap();

        assert_eq!(count(), (asking + 1, listening + 1));
    });
}

#[test]
fn a_lost_answer_ends_the_round() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = Duration::from_millis(1);

    let outcome = runtime.block_on(within(limit, std::future::pending::<Result<(), _>>()));

    let text = format!("{:#}", anyhow::Error::from(outcome.unwrap_err()));
    assert_eq!(text, "cannot get an answer of the kernel within 1ms: timed out");
}

/// Node 1.
struct World {
    handle: Handle,
    kernel: Kernel,
}

fn in_world(test: impl AsyncFnOnce(&World)) {
    in_namespace(|_, _| async {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        tokio::spawn(connection);
        let pair = LinkVeth::new("uplink", "network").build();
        handle.link().add(pair).execute().await.unwrap();
        let world = World { handle, kernel: Kernel::connect(PLACE).unwrap() };
        for name in ["uplink", "network"] {
            let up = LinkUnspec::new_with_index(world.index(name).await).up().build();
            world.handle.link().change(up).execute().await.unwrap();
        }
        let uplink = world.index("uplink").await;
        world.handle.address().add(uplink, ip("172.18.1.1"), 24).execute().await.unwrap();
        world.add_route("172.18.2.1/32", None).await;
        world.add_route("10.244.1.9/32", None).await;
        world.add_route("0.0.0.0/0", Some("172.18.1.254")).await;

        test(&world).await;
    });
}

impl World {
    /// An agent with a device of this name and port.
    fn agent(&self, device: &str, port: u16) -> Agent {
        let overlay = OverlaySettings { device: device.to_owned(), vni: 83, port, mtu_bytes: None };
        let settings = Settings {
            node: "node-1".to_owned(),
            vxlan: Vxlan::Auto,
            overlay,
            masquerade_bypass: true,
            place: PLACE,
        };
        let kernel = Kernel::connect(PLACE).unwrap();

        Agent::new(
            settings,
            kernel,
            watch::channel(Report::default()).0,
            watch::channel(Facts::default()).0,
        )
    }

    /// One round without a refusal, after which the kernel is in the desired state.
    async fn run(&self, agent: &Agent, plan: &Plan) -> Round {
        let round = agent.round(plan).await.unwrap();
        assert!(round.failures.is_empty(), "{:?}", round.failures);
        assert_eq!(self.found().await.state, round.desired.state);

        round
    }

    async fn found(&self) -> Found {
        self.kernel.found("strait-vxlan").await.unwrap()
    }

    async fn index(&self, name: &str) -> u32 {
        let found = self.handle.link().get().match_name(name).execute();
        let found: Vec<_> = found.try_collect().await.unwrap();

        found[0].header.index
    }

    async fn add_route(&self, to: &str, router: Option<&str>) {
        let to: Ipv4Net = to.parse().unwrap();
        let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to.network(), to.prefix_len())
            .output_interface(self.index("uplink").await);
        if let Some(router) = router {
            route = route.gateway(router.parse().unwrap());
        }
        self.handle.route().add(route.build()).execute().await.unwrap();
    }
}

/// The index of our VXLAN device.
fn index(found: &Found) -> Option<u32> {
    found.own_device().map(|own| own.index)
}

fn former() -> Hops {
    Hops::new()
}

fn plan_to(hops: Hops) -> Plan {
    let addresses = |number: u8| vec![IpAddr::from([172, 18, number, 1])];
    let prefix = "10.71.0.0/16".parse().unwrap();
    let places = Places {
        addresses: [addresses(2), addresses(3)].concat().into_iter().collect(),
        is_incomplete: false,
    };

    Plan {
        hops: [(prefix, hops)].into(),
        places: [(prefix, places)].into(),
        own: addresses(1),
        others: [2, 3].map(|number| (format!("node-{number}"), addresses(number))).into(),
        is_complete: true,
        ..Plan::default()
    }
}

fn near() -> Hops {
    [Hop::Node { name: "node-2".to_owned(), address: ip("172.18.2.1") }].into()
}

fn far() -> Hops {
    [Hop::Node { name: "node-3".to_owned(), address: ip("172.18.3.1") }].into()
}

fn here() -> Hops {
    [Hop::Pod(ip("10.244.1.9"))].into()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
