//! Pods with networks of their own on the only node of a cluster: what a CNI and kube-proxy do there.
//!
//! ```text
//!   pod ─ node ─ uplink        each pod has a link of its own, and the node a route to it
//! ```
//!
//! Only the node knows addresses of pods, as in most clouds: what leaves by the uplink has the node's.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use strait_lab::Namespace;
use strait_lab::netlink::{Via, connect};

use super::forward;
use crate::harness::tools::nft;

/// The link of a node towards the others.
pub(super) const UPLINK: &str = "uplink";

/// Between a pod and its node, in bytes.
const MTU: u32 = 1500;

/// What a node has for its pods alone: the CNI's table is made once, kube-proxy's again and again.
const MASQUERADE: &str = "table ip cni {
    chain postrouting {
        type nat hook postrouting priority srcnat;
        ip saddr 10.244.0.0/16 oifname \"uplink\" masquerade
    }
}";

/// A pod; with it goes its link.
pub(crate) struct Pod {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) address: IpAddr,
    node: Arc<Namespace>,
    link: String,
}

/// A port of the node that leads to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exposed {
    pub(crate) node_port: i32,
    pub(crate) pod: IpAddr,
    pub(crate) port: i32,
}

/// The network of the pods that deployments ask for.
pub(super) struct PodNetwork {
    node: Arc<Namespace>,
    /// Where the API server listens, on the loopback of the node.
    api_port: u16,
    /// How many pods there have been.
    made: u8,
    exposed: Vec<Exposed>,
}

impl Pod {
    /// A pod with the address 10.244.`third`.`fourth` on `node`, which knows it as `link`.
    pub(crate) fn new(node: &Arc<Namespace>, link: String, third: u8, fourth: u8) -> Self {
        // Gateways forward; others are not asked to.
        let namespace = Namespace::router(format!("{link} of {}", node.name())).unwrap();
        let address = IpAddr::from([10, 244, third, fourth]);
        let router = IpAddr::from([169, 254, third, fourth]);
        connect((&**node, &link), (&namespace, "eth0"), MTU).unwrap();
        namespace.add_address("eth0", address.into()).unwrap();
        namespace.add_route(everything(), "eth0", Via::Router(router)).unwrap();
        node.add_address(&link, router.into()).unwrap();
        node.add_route(address.into(), &link, Via::Link).unwrap();

        Self { namespace: Arc::new(namespace), address, node: Arc::clone(node), link }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Gone already if the node is.
        let _ = self.node.remove_link(&self.link);
    }
}

impl PodNetwork {
    pub(super) fn new(node: Arc<Namespace>, api_port: u16) -> Self {
        nft(&node, MASQUERADE);

        Self { node, api_port, made: 0, exposed: Vec::new() }
    }

    /// Another pod, which reaches the API server as if it were its own.
    pub(super) fn add(&mut self) -> Pod {
        self.made += 1;
        let pod = Pod::new(&self.node, format!("gateway{}", self.made), 0, self.made);
        forward(&pod.namespace, &self.node, self.api_port);

        pod
    }

    /// Has these ports and no others lead to pods.
    pub(super) fn expose(&mut self, exposed: Vec<Exposed>) {
        if exposed == self.exposed {
            return;
        }
        expose(&self.node, &exposed);

        self.exposed = exposed;
    }
}

/// Has these ports of `node` and no others lead to pods. What is under way goes on as it began.
pub(crate) fn expose(node: &Namespace, exposed: &[Exposed]) {
    let rules = exposed.iter().map(|Exposed { node_port, pod, port }| {
        format!("udp dport {node_port} dnat to {pod}:{port}\n")
    });
    let rules: String = rules.collect();

    // All of it at once, or nothing.
    let table = format!(
        "table ip proxy\ndelete table ip proxy\ntable ip proxy {{\nchain prerouting {{\n\
         type nat hook prerouting priority dstnat;\n{rules}}}\n}}"
    );
    nft(node, &table);
}

fn everything() -> IpNet {
    Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into()
}
