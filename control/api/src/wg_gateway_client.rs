//! `WgGatewayClient`: the objects of one WireGuard gateway client, as a template gave them.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type where nobody reaches it")]

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
    /// How they are scraped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The secret with the keys; made if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
}

/// What was made.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WgGatewayClientStatus {
    /// The active pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_endpoint: Option<InternalEndpoint>,
    /// The secret in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectReference>,
}
