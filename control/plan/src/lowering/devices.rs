//! The devices of a gateway by their names in objects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use remap::ruleset::{Devices, NodeId};

use crate::routing;

/// The name of the tunnel in objects. Releases with several tunnels number the others: all of them are the tunnel.
pub const TUNNEL_DEVICE: &str = "liqo-tunnel";

/// How the names of the devices to nodes start in objects.
const NODE_DEVICES: &str = "liqo.";

/// A node of this cluster, as routes name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name of the device of Liqo's gateway that leads there (`InternalNode`, `spec.interface.gateway.name`).
    pub device: String,
    /// The address of the node in the overlay (`InternalNode`, `spec.interface.node.ip`).
    pub address: IpAddr,
}

/// All nodes, in the order of their devices.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    list: Vec<Node>,
    by_address: BTreeMap<IpAddr, NodeId>,
}

impl Nodes {
    /// The nodes that `rules` name: by a route to an address on the link of a device, or by a next hop there.
    pub(super) fn of<'a>(rules: impl IntoIterator<Item = &'a routing::Rule>) -> Self {
        let routes = rules.into_iter().flat_map(|rule| &rule.routes);
        let named = routes.filter_map(|route| {
            let device = route.device.as_deref().filter(|name| name.starts_with(NODE_DEVICES))?;
            let on_link = route.destination.is_host().then(|| route.destination.network());
            Some((device, route.next_hop.or(on_link)?))
        });
        let by_device: BTreeMap<&str, IpAddr> = named.collect();

        let list: Vec<Node> = by_device
            .into_iter()
            .map(|(device, address)| Node { device: device.to_owned(), address })
            .collect();
        let by_address = ids().zip(&list).map(|(id, node)| (node.address, id)).collect();

        Self { list, by_address }
    }

    /// The devices that a name in an object stands for; an asterisk at its end stands for any rest.
    ///
    /// Devices of the pod that this gateway does not forward from or to are none: no packet meets their name.
    pub(super) fn named(&self, name: &str) -> Devices {
        let stands_for = |device: &str| match name.strip_suffix('*') {
            Some(start) => device.starts_with(start),
            None => device == name,
        };
        let nodes = ids().zip(&self.list).filter(|(_, node)| stands_for(&node.device));

        let has_tunnel = stands_for(TUNNEL_DEVICE) || is_tunnel(name);
        let devices = Devices::new(has_tunnel, nodes.map(|(id, _)| id));

        // The asterisk stands for nodes that no route names yet too.
        if stands_for(NODE_DEVICES) { devices.with_any_node() } else { devices }
    }

    /// The node that a route leads to, if it leads to one.
    pub(super) fn behind(&self, route: &routing::Route) -> Option<NodeId> {
        let by_device = route.device.as_deref().and_then(|name| self.named(name).single_node());

        by_device.or_else(|| self.by_address.get(&route.next_hop?).copied())
    }

    pub(super) fn into_list(self) -> Vec<Node> {
        self.list
    }
}

/// Whether `name` is that of a tunnel.
pub(super) fn is_tunnel(name: &str) -> bool {
    name.starts_with(TUNNEL_DEVICE)
}

fn ids() -> impl Iterator<Item = NodeId> {
    (0..).map(NodeId)
}
