//! A node between the pod and the gateway of a cluster, which leads packets to the gateway in VXLAN of the kernel.
//!
//! ```text
//!   pod ── node ══ VXLAN ══ gateway ── underlay
//! ```
//!
//! The VXLAN ends in a device in the namespace of the gateway, or in the gateway itself.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum;
use ipnet::IpNet;
use strait_lab::netlink::{Via, connect};
use strait_lab::topology::{CLUSTER_LINK, POD_LINK};
use strait_lab::{Cluster, Namespace, NodeSection, OverlaySection};

use super::{Edge, run, tool};

/// The port and the identifier of `strait node`.
const PORT: u16 = 8483;
const VNI: u32 = 83;

/// The link of a node and of a gateway to each other.
const FABRIC_LINK: &str = "fabric";

/// The device of VXLAN on the node.
const VXLAN: &str = "vxlan83";

/// The outer addresses.
const NODE: Ipv4Addr = Ipv4Addr::new(172, 18, 3, 1);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 18, 3, 2);

/// The address of the node for the pod, and of node and gateway for each other inside VXLAN.
const ROUTER: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const INNER_NODE: Ipv4Addr = Ipv4Addr::new(169, 254, 83, 83);
const INNER_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 83, 1);

/// What VXLAN over IPv4 adds to a packet, in bytes.
pub(super) const OVERHEAD_BYTES: u16 = 50;

/// Where the nodes of the pods are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Nodes {
    /// On the hosts of their gateways: frames stay whole
    Near,
    /// On other hosts: each packet is a datagram of its own, because network cards do not segment or merge VXLAN
    Far,
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
        })
    }
}

/// Puts a node between the pod and the gateway of `cluster`, which has only IPv4, and configures the gateway for `edge`.
pub(super) fn insert(
    cluster: &mut Cluster,
    edge: Edge,
    nodes: Nodes,
    mtu: u16,
) -> anyhow::Result<Namespace> {
    let node = Namespace::router(format!("{}-node", cluster.name))?;
    cluster.gateway.remove_link(CLUSTER_LINK)?;
    join_pod(cluster, &node, mtu)?;
    connect((&node, FABRIC_LINK), (&cluster.gateway, FABRIC_LINK), mtu.into())?;
    node.add_address(FABRIC_LINK, on_fabric(NODE)?)?;
    cluster.gateway.add_address(FABRIC_LINK, on_fabric(GATEWAY)?)?;
    if nodes == Nodes::Far {
        for namespace in [&node, &*cluster.gateway] {
            ip(namespace, &format!("link set {FABRIC_LINK} gso_max_segs 1"))?;
        }
    }

    add_vxlan(&node, VXLAN, [NODE, GATEWAY], INNER_NODE, mtu)?;
    for realm in &cluster.side.realms {
        node.add_route(realm.remapped, VXLAN, Via::Router(INNER_GATEWAY.into()))?;
    }
    let pods = cluster.side.realms.iter().map(|realm| realm.pods);
    match edge {
        Edge::Device => {
            let gateway = &cluster.gateway;
            add_vxlan(gateway, CLUSTER_LINK, [GATEWAY, NODE], INNER_GATEWAY, mtu)?;
            for pods in pods {
                gateway.add_route(pods, CLUSTER_LINK, Via::Router(INNER_NODE.into()))?;
            }
        }
        Edge::Overlay => {
            let section = NodeSection { address: NODE.into(), mac: None, pods: pods.collect() };
            cluster.config.set_overlay(OverlaySection {
                encapsulation: "vxlan",
                port: PORT,
                vni: VNI,
                nodes: vec![section],
            });
        }
    }

    Ok(node)
}

fn join_pod(cluster: &Cluster, node: &Namespace, mtu: u16) -> anyhow::Result<()> {
    connect((node, CLUSTER_LINK), (&cluster.pod, POD_LINK), mtu.into())?;
    node.add_address(CLUSTER_LINK, IpAddr::from(ROUTER).into())?;
    for (realm, address) in cluster.side.realms.iter().zip(cluster.side.pod_addresses()) {
        node.add_route(realm.pods, CLUSTER_LINK, Via::Link)?;
        cluster.pod.add_address(POD_LINK, address.into())?;
        cluster.pod.add_route("0.0.0.0/0".parse()?, POD_LINK, Via::Router(ROUTER.into()))?;
    }

    Ok(())
}

fn on_fabric(address: Ipv4Addr) -> anyhow::Result<IpNet> {
    IpNet::new(address.into(), 24).context("a prefix of the fabric")
}

/// Creates a device of VXLAN with the defaults of `ip link`, and its address in it.
fn add_vxlan(
    namespace: &Namespace,
    device: &str,
    [local, remote]: [Ipv4Addr; 2],
    address: Ipv4Addr,
    mtu: u16,
) -> anyhow::Result<()> {
    let link = format!("type vxlan id {VNI} dstport {PORT} local {local} remote {remote}");
    for arguments in [
        format!("link add {device} {link}"),
        format!("address add {address}/32 dev {device}"),
        format!("link set {device} mtu {} up", mtu - OVERHEAD_BYTES),
    ] {
        ip(namespace, &arguments)?;
    }

    Ok(())
}

fn ip(namespace: &Namespace, arguments: &str) -> anyhow::Result<()> {
    let mut ip = Command::new(tool("ip")?);
    ip.args(arguments.split(' '));

    run(namespace, ip)
}
