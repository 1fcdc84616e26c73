//! `ForeignCluster`: the state of the network with one remote cluster, as Liqo's tools display it.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One per remote cluster, named after it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "core.liqo.io",
    version = "v1beta1",
    kind = "ForeignCluster",
    plural = "foreignclusters",
    shortname = "fc",
    category = "liqo",
    status = "ForeignClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Role", type_ = "string", json_path = ".status.role"),
    printcolumn(
        name = "ClusterID",
        type_ = "string",
        json_path = ".spec.clusterID",
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ForeignClusterSpec {
    /// The id of the remote cluster.
    #[serde(rename = "clusterID")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("ClusterID field is immutable"))]
    pub cluster_id: String,
}

/// The state of each module of Liqo that the two clusters share.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ForeignClusterStatus {
    /// The URL of the remote API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server_url: Option<String>,
    /// Conditions of no module.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ModuleCondition>,
    /// The URL of the proxy in front of the remote API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_proxy_url: Option<String>,
    /// By module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<Modules>,
    /// The generation that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether the remote cluster offers resources to this one, or uses those of this one.
    #[schemars(extend(
        "default" = "Unknown",
        "enum" = ["Consumer", "Provider", "ConsumerAndProvider", "Unknown"],
    ))]
    pub role: String,
    /// The namespaces of the pair of clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_namespace: Option<TenantNamespaces>,
}

/// The modules of Liqo.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Modules {
    /// Who may use the remote cluster.
    pub authentication: Module,
    /// The gateways.
    pub networking: Module,
    /// Pods that run in the remote cluster.
    pub offloading: Module,
}

/// The state of one module.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Module {
    /// Its conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ModuleCondition>,
    /// Whether it is in use with this remote cluster.
    pub enabled: bool,
}

/// A condition of a module. Unlike conditions of Kubernetes it has a status of many values.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModuleCondition {
    /// When the status became what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The reason, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its status.
    #[schemars(extend("default" = "None", "enum" = [
        "None", "Pending", "Established", "Error", "Ready", "NotReady", "SomeNotReady",
    ]))]
    pub status: String,
    /// What it is about.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = [
        "APIServerStatus",
        "NetworkConnectionStatus",
        "NetworkGatewayServerStatus",
        "NetworkGatewayClientStatus",
        "NetworkGatewayPresence",
        "NetworkConfigurationStatus",
        "AuthIdentityControlPlaneStatus",
        "AuthTenantStatus",
        "OffloadingVirtualNodeStatus",
        "OffloadingNodeStatus",
    ]))]
    pub type_: String,
}

/// The namespaces of a pair of clusters.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct TenantNamespaces {
    /// In this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// In the remote cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}
