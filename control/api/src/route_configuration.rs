//! `RouteConfiguration`: routing rules and routes for gateways and nodes.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{lenient, schema};

/// Its labels say who applies it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "RouteConfiguration",
    plural = "routeconfigurations",
    shortname = "rcnf",
    shortname = "rcnfg",
    shortname = "rcfg",
    shortname = "routecfg",
    category = "liqo",
    namespaced,
    status = "RouteConfigurationStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct RouteConfigurationSpec {
    /// The only table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<RouteTable>,
}

/// A routing table and the rules that lead to it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteTable {
    /// Its number follows from it.
    pub name: String,
    /// Each with routes of its own, all in the same table.
    #[schemars(length(min = 1))]
    pub rules: Vec<RouteRule>,
    /// Whom it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
}

/// What leads to the table. Whatever is given must match.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRule {
    /// Prefix of the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidr")]
    pub dst: Option<String>,
    /// Mark of the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub fwmark: Option<i64>,
    /// Interface it came in by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iif: Option<String>,
    /// Interface it goes out by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oif: Option<String>,
    /// Lower ones are asked first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub priority: Option<i64>,
    /// The routes.
    #[serde(deserialize_with = "lenient::or_default")]
    pub routes: Vec<Route>,
    /// Prefix of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidr")]
    pub src: Option<String>,
    /// Whom it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
}

/// One route.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// Interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Prefix of the destination.
    #[schemars(schema_with = "schema::cidr")]
    pub dst: String,
    /// The next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ipv4")]
    pub gw: Option<String>,
    /// Whether the next hop is taken to be on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onlink: Option<bool>,
    /// How far the destination is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["global", "link", "host", "site", "nowhere"]))]
    pub scope: Option<String>,
    /// The source address it prefers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ipv4")]
    pub src: Option<String>,
    /// Whom it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
}

/// What became of it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct RouteConfigurationStatus {
    /// One of each place that applies it.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<HostCondition>,
}

/// What became of it in one place.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostCondition {
    /// The gateway or the fabric pod that says so.
    pub host: String,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// `True` or `False`.
    pub status: String,
    /// `Applied`.
    #[serde(rename = "type")]
    pub type_: String,
}
