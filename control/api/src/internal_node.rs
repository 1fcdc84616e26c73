//! `InternalNode`: how a node reaches the gateways of its cluster.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Named after the node.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "InternalNode",
    plural = "internalnodes",
    shortname = "in",
    shortname = "inode",
    category = "liqo",
    status = "InternalNodeStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Node IP Local", type_ = "string", json_path = ".status.nodeIP.local"),
    printcolumn(name = "Node IP Remote", type_ = "string", json_path = ".status.nodeIP.remote"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct InternalNodeSpec {
    /// Both ends of the link between the node and a gateway.
    pub interface: NodeInterface,
}

/// Both ends of the link between a node and a gateway.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct NodeInterface {
    /// The end in the gateway.
    pub gateway: InterfaceName,
    /// The end on the node.
    pub node: InterfaceAddress,
}

/// An interface by name.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct InterfaceName {
    /// At most 15 bytes.
    pub name: String,
}

/// An interface by address.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct InterfaceAddress {
    /// The address inside the tunnel between node and gateway.
    #[schemars(schema_with = "schema::ipv4")]
    pub ip: String,
}

/// The addresses of the node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct InternalNodeStatus {
    /// The addresses from which it reaches gateways.
    #[serde(rename = "nodeIP")]
    pub node_ip: NodeIp,
}

/// The addresses from which a node reaches gateways.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct NodeIp {
    /// For gateways on the same node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ipv4")]
    pub local: Option<String>,
    /// For gateways on other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ipv4")]
    pub remote: Option<String>,
}
