//! The endpoint of a gateway.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{lenient, schema};

/// The address of a gateway server from outside its cluster.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[x_kube(
    validation = Rule::new("!(has(self.port) && has(self.ports))").message("port and ports are mutually exclusive"),
    validation = Rule::new("has(self.port) || (has(self.ports) && size(self.ports) > 0)").message("at least one of port or ports must be set"),
    validation = Rule::new("!(has(self.ports)) || self.ports.all(p, self.ports.filter(q, q == p).size() == 1)").message("ports must not contain duplicates"),
)]
pub struct Endpoint {
    /// Addresses and names, all equivalent.
    #[serde(default, deserialize_with = "lenient::strings", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The port of the only tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// The ports of several tunnels.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "schema::ports")]
    pub ports: Vec<i32>,
    /// Always `UDP` for WireGuard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["TCP", "UDP"]))]
    pub protocol: Option<String>,
}

/// The address of a gateway inside its cluster.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
pub struct InternalEndpoint {
    /// The address of the active pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ipv4")]
    pub ip: Option<String>,
    /// The node of that pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}
