//! Labels, annotations and their values, letter by letter those of Liqo.

use kube::ResourceExt;

/// The label with the id of the remote cluster, on all objects of one peer.
pub const REMOTE_CLUSTER_ID: &str = "liqo.io/remote-cluster-id";

/// The label of the active pod of a gateway.
pub const ACTIVE: &str = "networking.liqo.io/active";

/// The annotation of the pod of a gateway that was the last one to establish a session: nodes send packets there.
pub const HAS_SESSION: &str = "strait.io/has-session";

/// The label that numbers the gateways of one peering, from 0 in decimal, on each `GatewayServer` and `GatewayClient` and on
/// the `PublicKey` that belongs to it. Without it the number is 0.
pub const GATEWAY_INDEX: &str = "strait.io/gateway-index";

/// The most gateways of one peering.
pub const GATEWAYS_MAX: u8 = 8;

/// The number in the label [`GATEWAY_INDEX`] of `object`.
///
/// # Errors
///
/// The value of the label, if that is no decimal number below [`GATEWAYS_MAX`].
pub fn gateway_index(object: &impl ResourceExt) -> Result<u8, &str> {
    let Some(text) = object.labels().get(GATEWAY_INDEX) else { return Ok(0) };
    let mut all = 0..GATEWAYS_MAX;

    all.find(|index| index.to_string() == *text).ok_or(text.as_str())
}

/// The label of gateway pods that end the overlay of nodes themselves, without a device.
pub const OVERLAY_EDGE: (&str, &str) = ("strait.io/edge", "overlay");

/// The label of all objects of a gateway.
pub const COMPONENT: (&str, &str) = ("networking.liqo.io/component", "gateway");

/// Names the gateway that something belongs to.
pub const GATEWAY_NAME: &str = "networking.liqo.io/gateway-name";
/// Names the namespace of the gateway that something belongs to.
pub const GATEWAY_NAMESPACE: &str = "networking.liqo.io/gateway-namespace";

/// The label of Secrets with keys, and of public keys.
pub const GATEWAY_RESOURCE: (&str, &str) = ("networking.liqo.io/gateway-resource", "true");

/// On the objects of a gateway: the generation of the `GatewayServer` or `GatewayClient` that they were made from.
pub const GENERATION: &str = "strait.io/generation";

/// The purpose of a `Network`.
pub const NETWORK_TYPE: &str = "ipam.liqo.io/network-type";
/// Value of [`NETWORK_TYPE`]: the pods of this cluster.
pub const POD_CIDR: &str = "pod-cidr";
/// Value of [`NETWORK_TYPE`]: addresses for hosts that have none of the cluster's own.
pub const EXTERNAL_CIDR: &str = "external-cidr";

/// `"true"` on a `Network` that may overlap others that have it.
pub const SHARED: &str = "ipam.liqo.io/network-shared";

/// `"true"` on a `Configuration` all of whose prefixes have a local prefix.
pub const CONFIGURED: &str = "configuration.liqo.io/configured";

/// The value of a label that is set.
pub const TRUE: &str = "true";

/// Who applies a `FirewallConfiguration`: `gateway`, or `fabric` for nodes.
pub const FIREWALL_CATEGORY: &str = "networking.liqo.io/firewall-category";
/// A part of the gateways of [`FIREWALL_CATEGORY`].
pub const FIREWALL_SUBCATEGORY: &str = "networking.liqo.io/firewall-subcategory";
/// The one gateway of [`FIREWALL_CATEGORY`], by the id of its remote cluster.
pub const FIREWALL_UNIQUE: &str = "networking.liqo.io/firewall-unique";

/// Who applies a `RouteConfiguration`: `gateway`, or `fabric` for nodes.
pub const ROUTE_CATEGORY: &str = "networking.liqo.io/route-category";
/// A part of the gateways of [`ROUTE_CATEGORY`].
pub const ROUTE_SUBCATEGORY: &str = "networking.liqo.io/route-subcategory";
/// The one gateway of [`ROUTE_CATEGORY`], by the id of its remote cluster, or the node whose gateways apply it.
pub const ROUTE_UNIQUE: &str = "networking.liqo.io/route-unique";

/// Value of the categories: gateways.
pub const GATEWAY: &str = "gateway";
/// Value of the subcategories: every gateway, for what concerns the nodes of the cluster.
pub const FABRIC: &str = "fabric";
/// Value of [`ROUTE_SUBCATEGORY`]: the gateways on one node.
pub const FABRIC_NODE: &str = "fabric-node";
/// Value of [`FIREWALL_SUBCATEGORY`]: every gateway.
pub const ALL_GATEWAYS: &str = "all-gateways";
/// Value of [`FIREWALL_SUBCATEGORY`]: every gateway, for one address of the external CIDR.
pub const IP_MAPPING: &str = "ip-mapping";
