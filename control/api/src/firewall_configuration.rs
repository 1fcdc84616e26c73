//! `FirewallConfiguration`: a table of packet rules for gateways and nodes.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lenient;
use super::route_configuration::HostCondition;

/// Its labels select who applies it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "FirewallConfiguration",
    plural = "firewallconfigurations",
    shortname = "fw",
    shortname = "fwconfig",
    shortname = "fwcfg",
    category = "liqo",
    namespaced,
    status = "FirewallConfigurationStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct FirewallConfigurationSpec {
    /// The only table.
    pub table: FirewallTable,
}

/// A table of nftables.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct FirewallTable {
    /// In any order; their hooks and priorities determine when they apply.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub chains: Vec<Chain>,
    /// The address family.
    #[schemars(extend("enum" = ["INET", "IPV4", "IPV6", "ARP", "NETDEV", "BRIDGE"]))]
    pub family: String,
    /// Unique where it applies.
    pub name: String,
}

/// Rules that a packet passes at one hook.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
// A field with a default is still required: the API server fills it in first.
#[schemars(extend("required" = ["hook", "name", "policy", "priority", "rules", "type"]))]
pub struct Chain {
    /// The hook.
    #[schemars(extend("enum" = ["prerouting", "input", "forward", "output", "postrouting", "ingress"]))]
    pub hook: String,
    /// Unique in the table.
    pub name: String,
    /// The verdict on a packet that no rule decides on.
    #[schemars(extend("enum" = ["drop", "accept"]))]
    pub policy: String,
    /// Lower ones come first.
    #[serde(default)]
    pub priority: i32,
    /// Of one kind only.
    #[schemars(extend("maxProperties" = 1))]
    pub rules: Rules,
    /// The kind of the rules.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["filter", "route", "nat"]))]
    pub type_: String,
}

/// Rules of one kind.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rules {
    /// Rules that accept or drop packets.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub filter_rules: Vec<FilterRule>,
    /// Rules that translate addresses.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub nat_rules: Vec<NatRule>,
    /// Not implemented by Liqo or Strait.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub route_rules: Vec<NamedRule>,
}

/// A rule that filters packets.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["action", "counter", "match"]))]
pub struct FilterRule {
    /// The action.
    #[schemars(extend("enum" = ["ctmark", "metamarkfromctmark", "tcpmssclamp", "accept", "drop", "reject", "notrack"]))]
    pub action: String,
    /// Whether packets are counted.
    #[serde(default = "yes")]
    pub counter: bool,
    /// All of them must match.
    #[serde(deserialize_with = "lenient::or_default")]
    #[schemars(required)]
    pub r#match: Vec<Match>,
    /// Unique in the chain; a webhook gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A mark, or a segment size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A rule that translates addresses.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NatRule {
    /// All of them must match.
    #[serde(deserialize_with = "lenient::or_default")]
    pub r#match: Vec<Match>,
    /// Unique in the chain; a webhook gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which address is translated.
    #[schemars(extend("enum" = ["dnat", "snat", "masquerade"]))]
    pub nat_type: String,
    /// The object that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<ObjectReference>,
    /// An address, or a prefix that keeps the host bits; none masquerades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// A rule without content.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct NamedRule {
    /// Unique in the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a packet must be like. Every field that is set must match.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Match {
    /// The interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<MatchDevice>,
    /// An address or a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<MatchEnd>,
    /// Whether it must be equal or different.
    #[schemars(extend("enum" = ["eq", "neq"]))]
    pub op: String,
    /// A port, or a range `a-b`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<MatchEnd>,
    /// The protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto: Option<MatchProtocol>,
}

/// An interface.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct MatchDevice {
    /// The input or the output interface.
    #[schemars(extend("enum" = ["in", "out"]))]
    pub position: String,
    /// Its name.
    pub value: String,
}

/// A property of one end of a flow.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct MatchEnd {
    /// The end: source or destination.
    #[schemars(extend("enum" = ["src", "dst"]))]
    pub position: String,
    /// The value.
    pub value: String,
}

/// A protocol.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct MatchProtocol {
    /// Its name.
    #[schemars(extend("enum" = ["tcp", "udp"]))]
    pub value: String,
}

/// Where it was applied.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct FirewallConfigurationStatus {
    /// One for each host that applies it.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<HostCondition>,
}

const fn yes() -> bool {
    true
}
