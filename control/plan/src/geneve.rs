//! The nodes of a gateway in Liqo's overlay: one Geneve tunnel to each, and the result of its check. Pure.
//!
//! | fact | from |
//! |---|---|
//! | the network identifier | `GeneveTunnel`, which names gateway and node |
//! | the outer address | `InternalNode`, `status.nodeIP`: `local` for gateways on the node, `remote` for others |
//! | the address in the overlay | `InternalNode`, `spec.interface.node.ip` |
//! | the address of the gateway in the overlay | `InternalFabric`, `spec.interface.gateway.ip` |
//! | the addresses that it leads to | the routes to its device ([`Lowered::node_prefixes`]) |
//!
//! # Sources
//!
//! `pkg/gateway/fabric/genevetunnel_controller.go` of Liqo 1.2.0, which makes one device for each tunnel.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::{Resource as _, ResourceExt as _};
use remap::Prefix;
use remap::ruleset::NodeId;
use strait_api::{GeneveTunnel, InternalFabric, InternalNode};

use crate::conncheck::Report;
use crate::lowering::Lowered;
use crate::objects::Listed;
use crate::status;

/// The largest network identifier.
const VNI_MAX: u32 = (1 << 24) - 1;

/// The objects that describe the overlay.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// The tunnels of this gateway: those of its namespace.
    pub tunnels: Vec<Listed<GeneveTunnel>>,
    /// The gateway's ends of these tunnels.
    pub fabrics: Vec<Listed<InternalFabric>>,
    /// The nodes of the cluster.
    pub nodes: Vec<Listed<InternalNode>>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where packets to it go.
    pub address: IpAddr,
    /// Another address that it may send from.
    pub other_address: Option<IpAddr>,
    /// Its address in the overlay.
    pub inner: IpAddr,
    /// The address of the gateway in the overlay; `None` until Liqo's manager has written it.
    pub gateway: Option<IpAddr>,
    /// The network identifier; at most 24 bits.
    pub vni: u32,
    /// The addresses that it leads to.
    pub prefixes: Vec<Prefix>,
    /// The source that it has in common with other nodes.
    pub shared_source: Option<IpAddr>,
}

/// A tunnel between the gateway and a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Tunnel {
    /// The name of the `InternalFabric`.
    pub fabric: String,
    /// The name of the `InternalNode`.
    pub node: String,
    /// Where packets to the node go; `None` while that is unknown.
    pub address: Option<IpAddr>,
    /// The result of the last check, in which the node sends PINGs to the gateway: connected or lost, and the round trip.
    /// Nodes of Liqo 1.2 and before write none.
    pub check: Option<Report>,
}

/// Why a node is not reached. The text is for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("InternalNode {node}: {cause}")]
pub struct Unreached {
    /// The name of the node.
    pub node: String,
    /// The cause.
    pub cause: Cause,
}

/// The causes of [`Unreached`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Cause {
    /// Liqo's manager has made no tunnel yet.
    #[error("there is no GeneveTunnel for it in the namespace of this gateway yet")]
    NoTunnel,
    /// The agent of the node has not written its address yet.
    #[error("status.nodeIP.{field} is not set: the liqo-fabric pod of the node writes it")]
    NoAddress { field: &'static str },
    /// An object has another type of field than its schema.
    #[error("it cannot be read: {cause}")]
    Malformed { cause: String },
    /// A field is no address.
    #[error("{field} is {value:?}, which is no address")]
    Address { field: &'static str, value: String },
    /// The identifier has more than 24 bits.
    #[error("GeneveTunnel {tunnel}: spec.id is {id}, which is not between 0 and {VNI_MAX}")]
    Identifier { tunnel: String, id: i32 },
}

/// The nodes that a gateway on the node `node_name` reaches, in the order of their names, and why others are not reached.
#[must_use]
pub fn nodes(
    node_name: Option<&str>,
    objects: &Objects,
    lowered: &Lowered,
) -> (Vec<Node>, Vec<Unreached>) {
    let mut sorted: Vec<_> = objects.nodes.iter().collect();
    sorted.sort_by_key(|node| node.name_any());
    let by_device: BTreeMap<&str, NodeId> =
        lowered.nodes_by_id().map(|(id, node)| (node.device.as_str(), id)).collect();

    let (mut found, mut unreached) = (Vec::new(), Vec::new());
    for listed in sorted.into_iter().filter(|node| node.meta().deletion_timestamp.is_none()) {
        let name = listed.name_any();
        let node = match &listed.0 {
            Ok(node) => node_of(node_name, &name, node, objects),
            Err(invalid) => Err(Cause::Malformed { cause: invalid.error.clone() }),
        };
        match node {
            Ok((device, mut node)) => {
                if let Some(id) = by_device.get(&*device) {
                    let leading = lowered.node_prefixes.iter().filter(|(_, leads)| *leads == id);
                    node.prefixes = leading.map(|(prefix, _)| *prefix).collect();
                    node.shared_source = lowered.shared_sources.get(id).copied();
                }
                found.push(node);
            }
            Err(cause) => unreached.push(Unreached { node: name, cause }),
        }
    }

    (found, unreached)
}

/// All tunnels of the gateway on the node `node_name`, in the order of the nodes' names.
#[must_use]
pub fn tunnels(node_name: Option<&str>, objects: &Objects) -> Vec<Tunnel> {
    let sound = objects.tunnels.iter().filter_map(|listed| listed.0.as_ref().ok());
    let tunnels = sound.map(|tunnel| {
        let node = tunnel.spec.internal_node_ref.name.clone().unwrap_or_default();
        let status = tunnel.status.as_ref().filter(|status| status.value.is_some());
        Tunnel {
            fabric: tunnel.spec.internal_fabric_ref.name.clone().unwrap_or_default(),
            address: known_address(node_name, &node, &objects.nodes),
            node,
            check: status.map(status::report),
        }
    });
    let mut tunnels: Vec<_> = tunnels.collect();
    tunnels.sort_by(|a, b| (&a.node, &a.fabric).cmp(&(&b.node, &b.fabric)));

    tunnels
}

/// Where packets to the node `name` go.
fn known_address(
    own_node: Option<&str>,
    name: &str,
    nodes: &[Listed<InternalNode>],
) -> Option<IpAddr> {
    let node = nodes.iter().find(|node| node.name_any() == name)?;

    Some(addresses(own_node, name, node.0.as_ref().ok()?).ok()?.0)
}

/// The node with the name of its device, without what it leads to.
fn node_of(
    own_node: Option<&str>,
    name: &str,
    node: &InternalNode,
    objects: &Objects,
) -> Result<(String, Node), Cause> {
    let tunnel = tunnel(name, &objects.tunnels).ok_or(Cause::NoTunnel)?;
    let vni = vni(tunnel)?;
    let interface = &node.spec.interface;
    let inner = address("spec.interface.node.ip", &interface.node.ip)?;
    let (address, other_address) = addresses(own_node, name, node)?;

    let node = Node {
        address,
        other_address,
        inner,
        gateway: gateway_address(tunnel, &objects.fabrics),
        vni,
        prefixes: Vec::new(),
        shared_source: None,
    };
    Ok((interface.gateway.name.clone(), node))
}

/// Where packets to the node `name` go, and another address that it may send from.
fn addresses(
    own_node: Option<&str>,
    name: &str,
    node: &InternalNode,
) -> Result<(IpAddr, Option<IpAddr>), Cause> {
    let status = node.status.clone().unwrap_or_default().node_ip;
    let [local, remote] = [("local", status.local), ("remote", status.remote)];
    let (to, other) = if own_node == Some(name) { (local, remote) } else { (remote, local) };
    let (field, Some(text)) = to else { return Err(Cause::NoAddress { field: to.0 }) };
    let to = address(field, &text)?;
    let other = other.1.and_then(|text| text.parse().ok()).filter(|other| *other != to);

    Ok((to, other))
}

/// The tunnel to the node; of several, the one whose name is the first.
fn tunnel<'a>(node: &str, tunnels: &'a [Listed<GeneveTunnel>]) -> Option<&'a GeneveTunnel> {
    let to_node = tunnels
        .iter()
        .filter(|tunnel| tunnel.meta().deletion_timestamp.is_none())
        .filter_map(|listed| listed.0.as_ref().ok())
        .filter(|tunnel| tunnel.spec.internal_node_ref.name.as_deref() == Some(node));

    to_node.min_by_key(|tunnel| tunnel.name_any())
}

/// The address of the gateway in the overlay, of its end of `tunnel`.
fn gateway_address(tunnel: &GeneveTunnel, fabrics: &[Listed<InternalFabric>]) -> Option<IpAddr> {
    let name = tunnel.spec.internal_fabric_ref.name.as_deref()?;
    let fabric = fabrics.iter().find(|fabric| fabric.name_any() == name)?;

    fabric.0.as_ref().ok()?.spec.interface.gateway.ip.parse().ok()
}

fn vni(tunnel: &GeneveTunnel) -> Result<u32, Cause> {
    let id = tunnel.spec.id;
    let vni = u32::try_from(id).ok().filter(|id| *id <= VNI_MAX);

    vni.ok_or_else(|| Cause::Identifier { tunnel: tunnel.name_any(), id })
}

fn address(field: &'static str, text: &str) -> Result<IpAddr, Cause> {
    text.parse().map_err(|_| Cause::Address { field, value: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use kube::core::DeserializeGuard;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::conncheck::State;
    use crate::lowering;

    #[test]
    fn a_gateway_reaches_its_own_node_locally() {
        let (nodes, unreached) = nodes(Some("n1"), &objects(), &lowered());

        assert_eq!(unreached, []);
        let facts: Vec<_> = nodes.iter().map(|node| (node.address, node.vni)).collect();
        assert_eq!(facts, [(ip("172.18.0.1"), 7), (ip("192.0.2.2"), 0)]);
        assert_eq!(nodes[0].other_address, Some(ip("192.0.2.1")));
        assert_eq!(nodes[0].inner, ip("10.80.0.1"));
        assert_eq!(nodes[0].gateway, Some(ip("10.80.0.9")));
        let prefixes: Vec<_> = nodes[0].prefixes.iter().map(ToString::to_string).collect();
        assert_eq!(prefixes, ["10.80.0.1/32", "10.244.1.5/32"]);
        assert_eq!(nodes[1].shared_source, Some(ip("10.70.0.0")));
    }

    #[test]
    fn a_node_without_its_objects_is_named() {
        let (found, unreached) =
            nodes(None, &Objects { tunnels: Vec::new(), ..objects() }, &lowered());
        assert_eq!(found, []);
        assert_eq!(unreached[0].cause, Cause::NoTunnel);
        let mut without_status = objects();
        without_status.nodes[0] = listed(internal_node("n1", 1, json!({})));
        let mut large = objects();
        large.tunnels[0] = listed(tunnel("n1", 1 << 24));

        let texts = |objects| nodes(None, &objects, &lowered()).1.remove(0).to_string();
        assert!(texts(without_status).contains("n1: status.nodeIP.remote is not set"));
        assert!(texts(large).contains("spec.id is 16777216"));
    }

    #[test]
    fn tunnels_have_the_checks_that_nodes_wrote() {
        let checked = |node: &str, status: Value| {
            let mut object = serde_json::to_value(tunnel(node, 1)).unwrap();
            object["status"] = status;
            listed(from(object))
        };
        let latency = |value: &str| json!({"value": value, "timestamp": "2026-08-24T10:00:00Z"});
        let checks = vec![
            checked("n2", json!({"value": "Error", "latency": latency("N/A")})),
            checked("n1", json!({"value": "Connected", "latency": latency("850μs")})),
            listed(tunnel("n3", 1)),
        ];

        let tunnels = tunnels(Some("n1"), &Objects { tunnels: checks, ..objects() });

        let facts: Vec<_> = tunnels
            .iter()
            .map(|tunnel| {
                let check = tunnel.check.map(|check| (check.state, check.latency));
                (&*tunnel.fabric, &*tunnel.node, tunnel.address, check)
            })
            .collect();
        let latency = Some(Duration::from_micros(850));
        let connected = Some((State::Connected, latency));
        assert_eq!(
            facts,
            [
                ("milan", "n1", Some(ip("172.18.0.1")), connected),
                ("milan", "n2", Some(ip("192.0.2.2")), Some((State::Lost, None))),
                ("milan", "n3", None, None),
            ]
        );
    }

    #[test]
    fn an_unknown_fabric_gives_no_gateway_address() {
        let (nodes, unreached) =
            nodes(Some("n1"), &Objects { fabrics: Vec::new(), ..objects() }, &lowered());

        assert_eq!(unreached, []);
        assert_eq!(nodes[0].gateway, None);
    }

    fn objects() -> Objects {
        let node = |name: &str, number: u8| {
            let ips = json!({
                "local": format!("172.18.0.{number}"), "remote": format!("192.0.2.{number}"),
            });
            listed(internal_node(name, number, json!({"nodeIP": ips})))
        };

        Objects {
            tunnels: vec![listed(tunnel("n1", 7)), listed(tunnel("n2", 0))],
            fabrics: vec![listed(fabric())],
            nodes: vec![node("n1", 1), node("n2", 2)],
        }
    }

    fn fabric() -> InternalFabric {
        from(json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "InternalFabric",
            "metadata": {"name": "milan", "namespace": "tenant"},
            "spec": {
                "gatewayIP": "10.244.1.2",
                "interface": {"gateway": {"ip": "10.80.0.9"}, "node": {"name": "liqo.milan"}},
            },
        }))
    }

    fn internal_node(name: &str, number: u8, status: Value) -> InternalNode {
        let mut object = json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "InternalNode",
            "metadata": {"name": name},
            "spec": {"interface": {
                "gateway": {"name": format!("liqo.{name}")},
                "node": {"ip": format!("10.80.0.{number}")},
            }},
        });
        if status != json!({}) {
            object["status"] = status;
        }

        serde_json::from_value(object).unwrap()
    }

    fn tunnel(node: &str, id: i32) -> GeneveTunnel {
        from(json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "GeneveTunnel",
            "metadata": {"name": format!("milan-{node}"), "namespace": "tenant"},
            "spec": {
                "id": id,
                "internalFabricRef": {"name": "milan", "namespace": "tenant"},
                "internalNodeRef": {"name": node},
            },
        }))
    }

    /// Two nodes that share a source.
    fn lowered() -> Lowered {
        let labels = |kind: &str| {
            json!({
                format!("networking.liqo.io/{kind}-category"): "gateway",
                format!("networking.liqo.io/{kind}-subcategory"): "fabric",
            })
        };
        let to_node = |number: u8| {
            json!({"dst": format!("10.80.0.{number}/32"), "routes": [
                {"dst": format!("10.80.0.{number}/32"), "dev": format!("liqo.n{number}"), "scope": "link"},
            ]})
        };
        let routes = from(json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "RouteConfiguration",
            "metadata": {"name": "routes", "labels": labels("route")},
            "spec": {"table": {"name": "t", "rules": [
                to_node(1), to_node(2),
                {"iif": "liqo-tunnel", "routes": [{"dst": "10.244.1.5/32", "gw": "10.80.0.1"}]},
            ]}},
        }));
        let mark = |number: u8| {
            json!({"action": "ctmark", "value": number.to_string(), "counter": true, "match": [
                {"op": "eq", "ip": {"position": "src", "value": "10.70.0.0"}},
                {"op": "eq", "dev": {"position": "in", "value": format!("liqo.n{number}")}},
            ]})
        };
        let restore = json!({"action": "metamarkfromctmark", "counter": true, "match": [
            {"op": "eq", "ip": {"position": "dst", "value": "10.70.0.0"}},
            {"op": "eq", "dev": {"position": "in", "value": "liqo-tunnel"}},
        ]});
        let chain = |hook: &str, rules: Vec<Value>| {
            json!({
                "name": hook, "hook": hook, "policy": "accept", "priority": 0, "type": "filter",
                "rules": {"filterRules": rules},
            })
        };
        let firewall = from(json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "FirewallConfiguration",
            "metadata": {"name": "marks", "labels": labels("firewall")},
            "spec": {"table": {"name": "t", "family": "IPV4", "chains": [
                chain("forward", vec![mark(1), mark(2)]), chain("prerouting", vec![restore]),
            ]}},
        }));
        let scope = lowering::Scope {
            remote_cluster_id: "milan".to_owned(),
            node_name: Some("n1".to_owned()),
            peer_address: ip("169.254.18.1"),
            tracks_flows: false,
        };
        let objects = lowering::Objects {
            firewall_configurations: vec![listed(firewall)],
            route_configurations: vec![listed(routes)],
        };

        Lowered::new(&scope, &objects)
    }

    fn from<K: DeserializeOwned>(object: Value) -> K {
        serde_json::from_value(object).unwrap()
    }

    fn listed<K>(object: K) -> Listed<K> {
        Arc::new(DeserializeGuard(Ok(object)))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
