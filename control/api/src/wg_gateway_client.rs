//! `WgGatewayClient`: the objects of one WireGuard gateway client, as a template rendered them.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::embedded::{DeploymentTemplate, LocalReference, Metrics};
use super::endpoint::InternalEndpoint;

/// Named after its `GatewayClient`.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "WgGatewayClient",
    plural = "wggatewayclients",
    shortname = "wgc",
    shortname = "wggc",
    category = "liqo",
    namespaced,
    status = "WgGatewayClientStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct WgGatewayClientSpec {
    /// The pods.
    pub deployment: DeploymentTemplate,
    /// How their metrics are scraped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The Secret with the keys; created if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
}

/// The objects of the gateway.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WgGatewayClientStatus {
    /// The active pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_endpoint: Option<InternalEndpoint>,
    /// The Secret in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectReference>,
}
