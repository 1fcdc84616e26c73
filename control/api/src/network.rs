//! `Network`: a prefix in use, and its local prefix.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::schema;

/// Its label `ipam.liqo.io/network-type` names its purpose.
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
    /// The prefix in the addresses of its own cluster.
    #[schemars(schema_with = "schema::cidr")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("CIDR field is immutable"))]
    pub cidr: String,
    /// The number of addresses at its beginning that are reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("PreAllocated field is immutable"))]
    pub pre_allocated: Option<i32>,
}

/// The allocated prefix.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
pub struct NetworkStatus {
    /// The local prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidr")]
    pub cidr: Option<String>,
}
