//! `InternalFabric`: how the nodes of a cluster reach one of its gateways.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::internal_node::{InterfaceAddress, InterfaceName};
use super::{lenient, schema};

/// Named after the remote cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "InternalFabric",
    plural = "internalfabrics",
    shortname = "if",
    shortname = "ifabric",
    category = "liqo",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Gateway IP", type_ = "string", json_path = ".spec.gatewayIP"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct InternalFabricSpec {
    /// The address of the active gateway pod.
    #[serde(rename = "gatewayIP")]
    #[schemars(schema_with = "schema::ipv4")]
    pub gateway_ip: String,
    /// Both ends of the link between a node and the gateway.
    pub interface: FabricInterface,
    /// The MTU of that link, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub mtu: Option<i64>,
    /// The local prefixes for those of the remote cluster.
    #[serde(
        rename = "remoteCIDRs",
        default,
        deserialize_with = "lenient::strings",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "schema::cidrs")]
    pub remote_cidrs: Vec<String>,
}

/// Both ends of the link between a node and the gateway.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct FabricInterface {
    /// The end in the gateway.
    pub gateway: InterfaceAddress,
    /// The end on every node.
    pub node: InterfaceName,
}
