//! `GatewayClient`: a gateway of this cluster that connects to the server of another one.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::embedded::LocalReference;
use super::endpoint::{Endpoint, InternalEndpoint};
use super::schema;

/// Named after the remote cluster by default.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "GatewayClient",
    plural = "gatewayclients",
    shortname = "gwc",
    shortname = "gwclient",
    category = "liqo",
    namespaced,
    status = "GatewayClientStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(
        name = "Template Kind",
        type_ = "string",
        json_path = ".spec.clientTemplateRef.kind",
        priority = "1"
    ),
    printcolumn(
        name = "Template Name",
        type_ = "string",
        json_path = ".spec.clientTemplateRef.name"
    ),
    printcolumn(
        name = "Template Namespace",
        type_ = "string",
        json_path = ".spec.clientTemplateRef.namespace",
        priority = "1"
    ),
    printcolumn(name = "IP", type_ = "string", json_path = ".spec.endpoint.addresses[*]"),
    printcolumn(name = "Port", type_ = "string", json_path = ".spec.endpoint.port"),
    printcolumn(
        name = "Protocol",
        type_ = "string",
        json_path = ".spec.endpoint.protocol",
        priority = "1"
    ),
    printcolumn(name = "MTU", type_ = "integer", json_path = ".spec.mtu", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct GatewayClientSpec {
    /// The template of the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_template_ref: Option<ObjectReference>,
    /// The endpoint of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The MTU of the tunnel, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub mtu: Option<i64>,
    /// The Secret with the keys; created if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
}

/// The objects of the gateway.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayClientStatus {
    /// The object that the template made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ref: Option<ObjectReference>,
    /// The active pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_endpoint: Option<InternalEndpoint>,
    /// The Secret in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectReference>,
}
