//! `RouteConfiguration`: routing rules and routes for gateways and nodes.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{lenient, schema};

/// Its labels select who applies it.
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
    /// Its number follows from the name.
    pub name: String,
    /// Each with its own routes, all in the same table.
    #[schemars(length(min = 1))]
    pub rules: Vec<RouteRule>,
    /// The object that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
}

/// A rule that leads to the table. Every field that is set must match.
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
    /// The input interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iif: Option<String>,
    /// The output interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oif: Option<String>,
    /// Lower ones come first.
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
    /// The object that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
}

/// One route.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The output interface.
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
    /// The scope of the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["global", "link", "host", "site", "nowhere"]))]
    pub scope: Option<String>,
    /// The preferred source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ipv4")]
    pub src: Option<String>,
    /// The object that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
}

/// Where it was applied.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct RouteConfigurationStatus {
    /// One for each host that applies it.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<HostCondition>,
}

/// The result on one host.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostCondition {
    /// The gateway or the fabric pod that reports it.
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
