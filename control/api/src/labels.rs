//! Labels, annotations and their values, letter by letter those of Liqo.

/// The label that joins all objects of one peer.
pub const REMOTE_CLUSTER_ID: &str = "liqo.io/remote-cluster-id";

/// The label of the active pod.
pub const ACTIVE: &str = "networking.liqo.io/active";

/// Marks what belongs to a gateway.
pub const COMPONENT: (&str, &str) = ("networking.liqo.io/component", "gateway");

/// Names the gateway that something belongs to.
pub const GATEWAY_NAME: &str = "networking.liqo.io/gateway-name";
/// Names the namespace of the gateway that something belongs to.
pub const GATEWAY_NAMESPACE: &str = "networking.liqo.io/gateway-namespace";

/// Marks secrets with keys, and public keys.
pub const GATEWAY_RESOURCE: (&str, &str) = ("networking.liqo.io/gateway-resource", "true");

/// On what is made for a gateway: the generation of the `GatewayServer` or `GatewayClient` that it was made from.
pub const GENERATION: &str = "strait.io/generation";

/// What a `Network` is for.
pub const NETWORK_TYPE: &str = "ipam.liqo.io/network-type";
/// Of [`NETWORK_TYPE`]: the pods of this cluster.
pub const POD_CIDR: &str = "pod-cidr";
/// Of [`NETWORK_TYPE`]: addresses for what has none of the cluster's own.
pub const EXTERNAL_CIDR: &str = "external-cidr";

/// `"true"` on a `Network` that may overlap others that have it.
pub const SHARED: &str = "ipam.liqo.io/network-shared";

/// `"true"` on a `Configuration` all of whose prefixes have their name here.
pub const CONFIGURED: &str = "configuration.liqo.io/configured";

/// The value of a label that is set.
pub const TRUE: &str = "true";
