//! `WgGatewayServer`: the objects of one WireGuard gateway server, as a template rendered them.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::embedded::{DeploymentTemplate, LocalReference, Metrics, ServiceTemplate};
use super::endpoint::{Endpoint, InternalEndpoint};

/// Named after its `GatewayServer`.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "WgGatewayServer",
    plural = "wggatewayservers",
    shortname = "wgs",
    shortname = "wggs",
    category = "liqo",
    namespaced,
    status = "WgGatewayServerStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct WgGatewayServerSpec {
    /// The pods.
    pub deployment: DeploymentTemplate,
    /// How their metrics are scraped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The Secret with the keys; created if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// The service by which clients reach them.
    pub service: ServiceTemplate,
}

/// The objects of the gateway.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WgGatewayServerStatus {
    /// The endpoint for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The active pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_endpoint: Option<InternalEndpoint>,
    /// The Secret in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectReference>,
}
