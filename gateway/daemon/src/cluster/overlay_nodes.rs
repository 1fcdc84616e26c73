//! The nodes of the overlay, from the Nodes of the cluster.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use remap::Prefix;
use strait_api::vxlan;
use strait_io::overlay;
use strait_kube::nodes;
use strait_kube::watch::{Bundle, WATCH_SECONDS, changes, unending};
use strait_packet::overlay::{Mac, Vni};

/// Watches the nodes.
pub(super) struct OverlayNodes {
    store: Store<Node>,
    bundle: Bundle,
    /// The address of the node that this gateway runs on.
    own: IpAddr,
    vni: Vni,
}

impl OverlayNodes {
    /// Starts to watch. To be called within the runtime.
    pub(super) fn new(client: &Client, own: IpAddr, vni: Vni) -> Self {
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let api = Api::all(client.clone());
        let events = unending(move || watcher(api.clone(), config.clone())).modify(nodes::slim);
        let (store, writer) = reflector::store();
        let bundle = Bundle::new([changes("Node", reflector::reflector(writer, events))]);

        Self { store, bundle, own, vni }
    }

    /// Waits for the next change. Cancel safe.
    ///
    /// # Errors
    ///
    /// If the API server cannot be reached; the nodes that were returned last stay in force.
    pub(super) async fn next(&mut self) -> watcher::Result<Vec<overlay::Node>> {
        self.bundle.next().await?;
        let listed = self.store.state();

        Ok(overlay_nodes(listed.iter().map(AsRef::as_ref), self.own, self.vni))
    }
}

/// The node `own` as long as no other is known: all addresses are reached through it. So no question for a station is
/// answered; node agents have static neighbours, and the station of a node follows from its address.
pub(super) fn own_node(own: IpAddr, vni: Vni) -> overlay::Node {
    node(own, vni, everything().collect())
}

/// The nodes that may send, and the addresses that each leads to: those of its pods, as far as the Node has them. All other
/// addresses are reached through the node `own`, whose routes the CNI keeps.
fn overlay_nodes<'a>(
    listed: impl Iterator<Item = &'a Node>,
    own: IpAddr,
    vni: Vni,
) -> Vec<overlay::Node> {
    let mut own_node = own_node(own, vni);
    let mut found = Vec::new();
    for node in listed {
        let addresses: Vec<_> = nodes::internal_addresses(node).collect();
        // One of its addresses leads to its pods; from the others it may send.
        let mut pods: Vec<Prefix> = nodes::pod_cidrs(node).collect();
        if addresses.contains(&own) {
            own_node.pods.append(&mut pods);
        }
        for address in addresses.into_iter().filter(|address| *address != own) {
            found.push(self::node(address, vni, mem::take(&mut pods)));
        }
    }
    found.push(own_node);
    found.sort_by_key(|node| node.address);

    found
}

fn node(address: IpAddr, vni: Vni, pods: Vec<Prefix>) -> overlay::Node {
    let mac = Some(Mac(vxlan::station(address)));

    overlay::Node { mac, pods, ..overlay::Node::new(address, vni) }
}

/// All addresses of both IP versions.
fn everything() -> impl Iterator<Item = Prefix> {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

    any.into_iter().filter_map(|address| Prefix::new(address, 0).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_lead_to_their_pods() {
        let node = |number: u8, addresses: &[&str]| -> Node {
            let addresses: Vec<_> = addresses
                .iter()
                .map(|address| json!({"type": "InternalIP", "address": address}))
                .chain([json!({"type": "Hostname", "address": "host"})])
                .collect();
            let name = format!("node-{number}");
            serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"podCIDR": format!("10.244.{number}.0/24")},
                "status": {"addresses": addresses},
            }))
            .unwrap()
        };
        let nodes =
            [node(2, &["172.18.0.2", "fd00:18::2"]), node(1, &["172.18.0.1"]), node(3, &[])];
        let vni = Vni::new(83).unwrap();

        let found = overlay_nodes(nodes.iter(), [172, 18, 0, 2].into(), vni);

        let texts: Vec<_> = found
            .iter()
            .map(|node| {
                let pods: Vec<_> = node.pods.iter().map(ToString::to_string).collect();
                format!("{} {}", node.address, pods.join(" "))
            })
            .collect();
        assert_eq!(
            texts,
            ["172.18.0.1 10.244.1.0/24", "172.18.0.2 0.0.0.0/0 ::/0 10.244.2.0/24", "fd00:18::2 ",]
        );
        assert!(found.iter().all(|node| node.vni == vni));
        assert_eq!(found[0].mac, Some(Mac([0x0e, 0x53, 172, 18, 0, 1])));
    }
}
