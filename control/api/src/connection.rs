//! `Connection`: whether the gateways of two clusters reach each other.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One per gateway, `gw-<gateway>`, created and kept by the gateway itself.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "Connection",
    plural = "connections",
    shortname = "conn",
    category = "liqo",
    namespaced,
    status = "ConnectionStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
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
pub struct ConnectionSpec {
    /// The `WgGatewayServer` or `WgGatewayClient`, with the UID of its `GatewayServer` or
    /// `GatewayClient`.
    pub gateway_ref: ObjectReference,
    /// Which end this is: `Server` or `Client`.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Server", "Client"]))]
    pub type_: String,
}

/// The result of the last check of the gateway.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct ConnectionStatus {
    /// The round trip between the gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<ConnectionLatency>,
    /// `Connecting`, `Connected` or `Error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A round trip, and when it was measured.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct ConnectionLatency {
    /// When it was measured; missing if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// A duration such as `12ms` or `850μs`, or `N/A`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}
