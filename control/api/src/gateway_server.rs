//! `GatewayServer`: a gateway of this cluster that a client of another one connects to.
#![expect(unreachable_pub, reason = "KubeSchema repeats the type in a private place")]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::embedded::LocalReference;
use super::endpoint::{Endpoint, InternalEndpoint};
use super::{lenient, schema};

/// Named after the remote cluster by default.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "GatewayServer",
    plural = "gatewayservers",
    shortname = "gws",
    shortname = "gwserver",
    category = "liqo",
    namespaced,
    status = "GatewayServerStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(
        name = "Template Kind",
        type_ = "string",
        json_path = ".spec.serverTemplateRef.kind",
        priority = "1"
    ),
    printcolumn(
        name = "Template Name",
        type_ = "string",
        json_path = ".spec.serverTemplateRef.name"
    ),
    printcolumn(
        name = "Template Namespace",
        type_ = "string",
        json_path = ".spec.serverTemplateRef.namespace",
        priority = "1"
    ),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.endpoint.addresses[*]"),
    printcolumn(name = "Port", type_ = "string", json_path = ".status.endpoint.port"),
    printcolumn(
        name = "Protocol",
        type_ = "string",
        json_path = ".status.endpoint.protocol",
        priority = "1"
    ),
    printcolumn(name = "MTU", type_ = "integer", json_path = ".spec.mtu", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct GatewayServerSpec {
    /// How it is to be exposed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<ServerEndpoint>,
    /// The MTU of the tunnel, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub mtu: Option<i64>,
    /// The Secret with the keys; created if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// The template of the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_template_ref: Option<ObjectReference>,
    /// Annotations of the service.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub service_annotations: BTreeMap<String, String>,
    /// Labels of the service.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub service_labels: BTreeMap<String, String>,
}

/// How a server is to be exposed.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.port) && has(self.ports))").message("port and ports are mutually exclusive"),
    validation = Rule::new("!(has(self.nodePort) && has(self.nodePorts))").message("nodePort and nodePorts are mutually exclusive"),
    validation = Rule::new("has(self.port) || (has(self.ports) && size(self.ports) > 0)").message("at least one of port or ports must be set"),
    validation = Rule::new("!(has(self.ports)) || self.ports.all(p, self.ports.filter(q, q == p).size() == 1)").message("ports must not contain duplicates"),
    validation = Rule::new("!(has(self.nodePorts)) || self.nodePorts.all(p, self.nodePorts.filter(q, q == p).size() == 1)").message("nodePorts must not contain duplicates"),
)]
pub struct ServerEndpoint {
    /// The address that is requested from a load balancer.
    #[serde(default, rename = "loadBalancerIP", skip_serializing_if = "Option::is_none")]
    pub load_balancer_ip: Option<String>,
    /// The requested node port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
    /// The same for several tunnels.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "schema::ports")]
    pub node_ports: Vec<i32>,
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
    /// The type of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"], "default" = "ClusterIP"))]
    pub service_type: Option<String>,
}

/// The objects of the gateway.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayServerStatus {
    /// The endpoint for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The active pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_endpoint: Option<InternalEndpoint>,
    /// The Secret in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectReference>,
    /// The object that the template made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_ref: Option<ObjectReference>,
}
