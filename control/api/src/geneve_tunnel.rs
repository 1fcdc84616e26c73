//! `GeneveTunnel`: the tunnel between one node and one gateway.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::connection::ConnectionStatus;

/// Named `<internal fabric>-<internal node>`. With Liqo after 1.2 the node checks the tunnel and writes the result to the
/// status.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "GeneveTunnel",
    plural = "genevetunnels",
    shortname = "gvtn",
    category = "liqo",
    namespaced,
    status = "ConnectionStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.value"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Latency",
        type_ = "string",
        json_path = ".status.latency.value",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct GeneveTunnelSpec {
    /// The virtual network identifier, 24 bits. 0 is valid too.
    pub id: i32,
    /// The gateway's end.
    pub internal_fabric_ref: ObjectReference,
    /// The node's end.
    pub internal_node_ref: ObjectReference,
}
