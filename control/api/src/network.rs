//! `Network`: a prefix that somebody uses, and what it is called here.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type where nobody reaches it")]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::schema;

/// Its label `ipam.liqo.io/network-type` says what it is for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "ipam.liqo.io",
    version = "v1alpha1",
    kind = "Network",
    plural = "networks",
    shortname = "net",
    category = "liqo",
    namespaced,
    status = "NetworkStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Desired CIDR", type_ = "string", json_path = ".spec.cidr"),
    printcolumn(name = "Remapped CIDR", type_ = "string", json_path = ".status.cidr"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// As it is called where it belongs.
    #[schemars(schema_with = "schema::cidr")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("CIDR field is immutable"))]
    pub cidr: String,
    /// How many addresses at its beginning are taken from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("PreAllocated field is immutable"))]
    pub pre_allocated: Option<i32>,
}

/// What was chosen.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
pub struct NetworkStatus {
    /// As it is called here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidr")]
    pub cidr: Option<String>,
}
