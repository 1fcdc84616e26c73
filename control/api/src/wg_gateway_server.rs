//! `WgGatewayServer`: the objects of one WireGuard gateway server, as a template gave them.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type where nobody reaches it")]

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
    /// How they are scraped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The secret with the keys; made if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// How clients reach them.
    pub service: ServiceTemplate,
}

/// What was made.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WgGatewayServerStatus {
    /// Where clients find it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The active pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_endpoint: Option<InternalEndpoint>,
    /// The secret in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectReference>,
}
