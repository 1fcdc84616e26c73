//! Two clusters, each with a pod, a node and a gateway that ends an overlay.
//!
//! ```text
//!   pod ── node ══ VXLAN ══ gateway ── underlay ── gateway ══ VXLAN ══ node ── pod
//!               [router]                                   [router]
//! ```

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use strait_lab::netlink::{Via, connect};
use strait_lab::process::find;
use strait_lab::topology::{CLUSTER_LINK, POD_LINK};
use strait_lab::{Cluster, Direction, Layout, Namespace, NodeSection, OverlaySection, TwoClusters};

use crate::harness::STRAIT;
use crate::harness::tools::ip;
use crate::harness::world::assert_traffic;

/// The port and the identifier of `strait node`.
pub(super) const PORT: u16 = 8483;
pub(super) const VNI: u32 = 83;

/// The link of a node and of a gateway to each other.
const FABRIC_LINK: &str = "fabric";

const FABRIC_MTU: u32 = 1500;

/// The station of a node with an IPv6 address.
const STATION: &str = "06:53:00:00:00:01";

/// Addresses of the gateway for nodes, which it answers for like for any other.
const NEXT_HOP_V4: &str = "169.254.83.1";
const NEXT_HOP_V6: &str = "fe80::53";

/// What is between a node and its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fabric {
    /// A veth pair, as between a node and a pod on it.
    SameHost,
    /// A router, as between a pod and another node.
    Routed,
    /// Likewise, with IPv6 addresses of nodes and gateways.
    RoutedIpv6,
}

/// What differs from the usual in one cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// The gateway has a device, and its pod no node.
    pub(super) keeps_device: bool,
    /// The prefixes of the node; without them those of the pods.
    pub(super) pods: Option<Vec<IpNet>>,
    /// A further prefix that the node leads to the gateway.
    pub(super) extra_route: Option<IpNet>,
    /// Further nodes behind the first one, each with a pod.
    pub(super) further_nodes: u8,
}

/// Running gateways, and the nodes.
pub(super) struct OverlayWorld {
    pub(super) clusters: TwoClusters,
    /// Rome's and Milan's, if they have one.
    nodes: Vec<Node>,
    pub(super) further_pods: Vec<FurtherPod>,
}

/// The node of a cluster.
pub(super) struct Node {
    pub(super) namespace: Namespace,
    pub(super) address: IpAddr,
    /// The outer address of the gateway.
    pub(super) gateway: IpAddr,
    /// Between node and gateway.
    pub(super) router: Option<Namespace>,
}

/// The pod of a further node.
pub(super) struct FurtherPod {
    pub(super) namespace: Namespace,
    pub(super) address: IpAddr,
    _node: Namespace,
}

impl OverlayWorld {
    pub(super) fn start(layout: &Layout, fabric: Fabric) -> Self {
        Self::start_with(layout, fabric, |_, _| ())
    }

    /// The same with changes of Rome and of Milan.
    pub(super) fn start_with(
        layout: &Layout,
        fabric: Fabric,
        change: impl FnOnce(&mut Changes, &mut Changes),
    ) -> Self {
        let (mut of_rome, mut of_milan) = (Changes::default(), Changes::default());
        change(&mut of_rome, &mut of_milan);
        let mut clusters = TwoClusters::new(layout).unwrap();
        let (mut nodes, mut further_pods) = (Vec::new(), Vec::new());
        let each = [(&mut clusters.rome, of_rome, 16), (&mut clusters.milan, of_milan, 18)];
        for (cluster, changes, network) in each {
            if !changes.keeps_device {
                let node = insert_node(cluster, fabric, &changes, network);
                for number in 1..=changes.further_nodes {
                    further_pods.push(add_further_node(cluster, &node, network, number));
                }
                nodes.push(node);
            }
        }
        let program = without_capabilities(&clusters);
        let TwoClusters { milan, rome, scratch, .. } = &mut clusters;
        for cluster in [&mut *milan, &mut *rome] {
            let has_device = cluster.config.overlay.is_none();
            let program = if has_device { Path::new(STRAIT) } else { &program };
            cluster.start(program, scratch).unwrap();
        }
        for cluster in [rome, milan] {
            cluster.process().unwrap().wait_for_session().unwrap();
        }

        Self { clusters, nodes, further_pods }
    }

    pub(super) const fn rome(&self) -> &Cluster {
        &self.clusters.rome
    }

    pub(super) const fn milan(&self) -> &Cluster {
        &self.clusters.milan
    }

    /// Rome's node.
    pub(super) fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// Milan's node.
    pub(super) fn node_of_milan(&self) -> &Node {
        &self.nodes[1]
    }

    /// The packets of one direction of a gateway at rest that were dropped for `reason`.
    pub(super) fn drops(&self, cluster: &Cluster, direction: Direction, reason: &str) -> u64 {
        let account = cluster.metrics_at_rest().unwrap().account(direction);

        account.drops.get(reason).copied().unwrap_or(0)
    }

    /// Both gateways have no capability, and could get none.
    pub(super) fn assert_without_capabilities(&self) {
        for cluster in [self.rome(), self.milan()] {
            let id = cluster.process().unwrap().process().id();
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                let line = status.lines().find(|line| line.starts_with(set)).unwrap();
                assert_eq!(line, format!("{set}:\t0000000000000000"), "{}", cluster.name);
            }
        }
    }

    /// Both ways, every family: ping, TCP and UDP arrive whole, from the right address.
    pub(super) fn assert_traffic(&self) {
        for (from, to) in [(self.rome(), self.milan()), (self.milan(), self.rome())] {
            for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
                assert_traffic(from, to, target, seen_as);
            }
        }
    }

    /// The packet-for-packet account holds, and both gateways exit with status 0.
    pub(super) fn finish(mut self) {
        for cluster in [self.milan(), self.rome()] {
            cluster.metrics_at_rest().unwrap();
        }

        self.clusters.stop().unwrap();
    }
}

impl Drop for OverlayWorld {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for cluster in [self.rome(), self.milan()] {
                let Ok(gateway) = cluster.process() else { continue };
                eprintln!("log of gateway {}:\n{}", cluster.name, gateway.process().log());
            }
        }
    }
}

/// A program that starts the gateway without capabilities, and without a way to get one.
pub(super) fn without_capabilities(clusters: &TwoClusters) -> PathBuf {
    let setpriv = find("setpriv").unwrap();
    let options = "--bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs";
    let script = format!("#!/bin/sh\nexec {} {options} -- {STRAIT} \"$@\"\n", setpriv.display());
    let program = clusters.scratch.write("strait-without-capabilities", &script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();

    program
}

/// Puts a node between the pod and the gateway of `cluster`, whose outer addresses are in `172.network.0.0/16` or
/// `fd17:network::/32`.
fn insert_node(cluster: &mut Cluster, fabric: Fabric, changes: &Changes, network: u8) -> Node {
    cluster.gateway.remove_link(CLUSTER_LINK).unwrap();
    cluster.gateway.set(&[("ipv4/ip_forward", "0"), ("ipv6/conf/all/forwarding", "0")]).unwrap();
    let namespace = Namespace::router(format!("{}-node", cluster.name)).unwrap();
    join_pod(cluster, &namespace);
    let (address, gateway, router) = join_gateway(cluster, &namespace, fabric, network);
    let node = Node { namespace, address, gateway, router };

    let pods: Vec<IpNet> = cluster.side.realms.iter().map(|realm| realm.pods).collect();
    let remapped = cluster.side.realms.iter().map(|realm| realm.remapped);
    node.add_vxlan(remapped.chain(changes.extra_route));
    // An IPv6 node is not asked for its station.
    let mac = address.is_ipv6().then(|| STATION.to_owned());
    let section = NodeSection { address, mac, pods: changes.pods.clone().unwrap_or(pods) };
    cluster.config.set_overlay(OverlaySection {
        encapsulation: "vxlan",
        port: PORT,
        vni: VNI,
        nodes: vec![section],
    });

    node
}

fn join_pod(cluster: &Cluster, node: &Namespace) {
    connect((node, CLUSTER_LINK), (&cluster.pod, POD_LINK), FABRIC_MTU).unwrap();
    for (realm, address) in cluster.side.realms.iter().zip(cluster.side.pod_addresses()) {
        let (router, any): (IpAddr, IpNet) = match address {
            IpAddr::V4(_) => ("169.254.1.1".parse().unwrap(), "0.0.0.0/0".parse().unwrap()),
            IpAddr::V6(_) => ("fe80::1".parse().unwrap(), "::/0".parse().unwrap()),
        };
        node.add_address(CLUSTER_LINK, router.into()).unwrap();
        node.add_route(realm.pods, CLUSTER_LINK, Via::Link).unwrap();
        cluster.pod.add_address(POD_LINK, address.into()).unwrap();
        cluster.pod.add_route(any, POD_LINK, Via::Router(router)).unwrap();
    }
}

/// Returns the outer addresses of the node and the gateway, and the router between them.
fn join_gateway(
    cluster: &Cluster,
    node: &Namespace,
    fabric: Fabric,
    network: u8,
) -> (IpAddr, IpAddr, Option<Namespace>) {
    let is_ipv6 = fabric == Fabric::RoutedIpv6;
    let at = |subnet: u8, host: u8| outer(is_ipv6, network, subnet, host);
    let net = |subnet: u8, host: u8| subnet_of(at(subnet, host));
    let gateway = &cluster.gateway;
    let of_gateway = match fabric {
        Fabric::SameHost => 3,
        Fabric::Routed | Fabric::RoutedIpv6 => 4,
    };
    let router = match fabric {
        Fabric::SameHost => {
            connect((node, FABRIC_LINK), (gateway, FABRIC_LINK), FABRIC_MTU).unwrap();
            None
        }
        Fabric::Routed | Fabric::RoutedIpv6 => {
            let router = Namespace::router(format!("{}-router", cluster.name)).unwrap();
            connect((node, FABRIC_LINK), (&router, "node"), FABRIC_MTU).unwrap();
            connect((gateway, FABRIC_LINK), (&router, "gateway"), FABRIC_MTU).unwrap();
            router.add_address("node", net(3, 254)).unwrap();
            router.add_address("gateway", net(4, 254)).unwrap();
            Some(router)
        }
    };
    node.add_address(FABRIC_LINK, net(3, 1)).unwrap();
    gateway.add_address(FABRIC_LINK, net(of_gateway, 2)).unwrap();
    if router.is_some() {
        node.add_route(net(4, 0).trunc(), FABRIC_LINK, Via::Router(at(3, 254))).unwrap();
        gateway.add_route(net(3, 0).trunc(), FABRIC_LINK, Via::Router(at(4, 254))).unwrap();
    }

    (at(3, 1), at(of_gateway, 2), router)
}

/// Adds a node that reaches the gateway through `first`, and its pod.
fn add_further_node(cluster: &mut Cluster, first: &Node, network: u8, number: u8) -> FurtherPod {
    let at = |host: u8| outer(false, network, 4 + number, host);
    let name = cluster.name;
    let namespace = Namespace::router(format!("{name}-node{number}")).unwrap();
    let link = format!("node{number}");
    connect((&namespace, FABRIC_LINK), (&first.namespace, &link), FABRIC_MTU).unwrap();
    namespace.add_address(FABRIC_LINK, subnet_of(at(1))).unwrap();
    first.namespace.add_address(&link, subnet_of(at(254))).unwrap();
    namespace
        .add_route(subnet_of(first.gateway).trunc(), FABRIC_LINK, Via::Router(at(254)))
        .unwrap();
    cluster
        .gateway
        .add_route(subnet_of(at(0)).trunc(), FABRIC_LINK, Via::Router(first.address))
        .unwrap();

    let pod = Namespace::new(format!("{name}-pod{number}")).unwrap();
    let [address, router] = [5, 1].map(|host| IpAddr::from([10, 244, 100 + number, host]));
    connect((&namespace, CLUSTER_LINK), (&pod, POD_LINK), FABRIC_MTU).unwrap();
    namespace.add_address(CLUSTER_LINK, subnet_of(router)).unwrap();
    pod.add_address(POD_LINK, subnet_of(address)).unwrap();
    pod.add_route("0.0.0.0/0".parse().unwrap(), POD_LINK, Via::Router(router)).unwrap();

    let node = Node { namespace, address: at(1), gateway: first.gateway, router: None };
    node.add_vxlan(cluster.side.realms.iter().map(|realm| realm.remapped));
    let pods = vec![subnet_of(address).trunc()];
    let overlay = cluster.config.overlay.as_mut().unwrap();
    overlay.nodes.push(NodeSection { address: node.address, mac: None, pods });

    FurtherPod { namespace: pod, address, _node: node.namespace }
}

fn outer(is_ipv6: bool, network: u8, subnet: u8, host: u8) -> IpAddr {
    if is_ipv6 {
        return [0xfd17, network.into(), subnet.into(), 0, 0, 0, 0, host.into()].into();
    }

    [172, network, subnet, host].into()
}

fn subnet_of(address: IpAddr) -> IpNet {
    IpNet::new(address, if address.is_ipv4() { 24 } else { 64 }).unwrap()
}

impl Node {
    /// Leads `prefixes` into a VXLAN device to the gateway.
    fn add_vxlan(&self, prefixes: impl Iterator<Item = IpNet>) {
        let Self { namespace, address, gateway, .. } = self;
        ip(
            namespace,
            &format!(
                "link add vx type vxlan id {VNI} dstport {PORT} local {address} remote {gateway}"
            ),
        );
        if address.is_ipv6() {
            ip(namespace, &format!("link set vx address {STATION}"));
        }
        ip(namespace, "address add 169.254.83.83/32 dev vx");
        ip(namespace, "link set vx up");
        for prefix in prefixes {
            let next_hop = match prefix {
                IpNet::V4(_) => NEXT_HOP_V4,
                IpNet::V6(_) => NEXT_HOP_V6,
            };
            ip(namespace, &format!("route add {prefix} via {next_hop} dev vx onlink"));
        }
    }
}
