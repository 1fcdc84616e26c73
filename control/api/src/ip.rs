//! `IP`: one address that other clusters are to reach under an address of the external prefix.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::embedded::ServiceTemplate;
use super::schema;

/// It may have any name.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "ipam.liqo.io",
    version = "v1alpha1",
    kind = "IP",
    plural = "ips",
    category = "liqo",
    namespaced,
    status = "IPStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Local IP", type_ = "string", json_path = ".spec.ip"),
    printcolumn(name = "Remapped IP", type_ = "string", json_path = ".status.ip"),
    printcolumn(name = "Remapped IP CIDR", type_ = "string", json_path = ".status.cidr"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct IPSpec {
    /// The address itself.
    #[schemars(schema_with = "schema::ipv4")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("IP field is immutable"))]
    pub ip: String,
    /// Whether the host with the address sees the node instead of the remote pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
    /// The network the address is taken from; the external prefix if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ref: Option<ObjectReference>,
    /// A service in front of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_template: Option<ServiceTemplate>,
}

/// The allocated address.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
pub struct IPStatus {
    /// The prefix the address is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidr")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("CIDR field is immutable"))]
    pub cidr: Option<String>,
    /// The address under which others reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ipv4")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("IP field is immutable"))]
    pub ip: Option<String>,
}
