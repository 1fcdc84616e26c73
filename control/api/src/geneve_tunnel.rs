//! `GeneveTunnel`: the tunnel between one node and one gateway.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Named `<internal fabric>-<internal node>`.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "GeneveTunnel",
    plural = "genevetunnels",
    shortname = "gvtn",
    category = "liqo",
    namespaced,
    derive = "Default",
    derive = "PartialEq"
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
