//! Builds the objects that verbs write, from the typed values and the existing state. Pure.

use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use remap::Prefix;
use strait_api::configuration::{Cluster, ClusterCidr, ConfigurationSpec};
use strait_api::endpoint::Endpoint;
use strait_api::gateway_client::GatewayClientSpec;
use strait_api::gateway_server::{GatewayServerSpec, ServerEndpoint};
use strait_api::labels::{GATEWAY_INDEX, GATEWAY_RESOURCE, REMOTE_CLUSTER_ID};
use strait_api::public_key::{KEY_BYTES, PublicKeySpec};
use strait_api::{Configuration, GatewayClient, GatewayServer, PublicKey};

use super::Prefixes;

/// The default MTU of a tunnel, in bytes: that of Liqo.
pub(crate) const DEFAULT_MTU: u16 = 1340;

/// The default port of gateway servers: that of Liqo.
pub(crate) const DEFAULT_PORT: u16 = 51840;

/// The default template of gateway servers: that of Liqo, whose name ours has as well.
pub(crate) const SERVER_TEMPLATE: &str = "wireguard-server";

/// The default template of gateway clients: that of Liqo, whose name ours has as well.
pub(crate) const CLIENT_TEMPLATE: &str = "wireguard-client";

/// How a gateway server is exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// For clients of the same cluster.
    ClusterIp,
    /// On a port of every node.
    NodePort,
    /// By a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The default: that of Liqo.
    pub const DEFAULT: Self = Self::LoadBalancer;

    /// From the spelling of the API; `None` for a type that gateways do not use.
    pub(super) fn of_api(text: &str) -> Option<Self> {
        [Self::ClusterIp, Self::NodePort, Self::LoadBalancer]
            .into_iter()
            .find(|service_type| service_type.to_string() == text)
    }
}

impl fmt::Display for ServiceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        })
    }
}

/// How clients reach a gateway server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The type of the Service.
    pub service_type: ServiceType,
    /// The UDP port, of the Service and of the gateway.
    pub port: u16,
    /// The UDP port on the nodes.
    pub node_port: NodePort,
    /// The address that is requested from the load balancer; `None` leaves it to the balancer.
    pub load_balancer_ip: Option<String>,
}

/// A port on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePort {
    /// Chosen by Kubernetes.
    Any,
    /// This one.
    Exactly(u16),
}

impl NodePort {
    /// The number, if one is requested.
    #[must_use]
    pub const fn number(self) -> Option<u16> {
        match self {
            Self::Any => None,
            Self::Exactly(port) => Some(port),
        }
    }
}

impl Exposure {
    /// The difference of `service` that cannot be changed without an interruption; `None` if it fits.
    pub(super) fn difference(&self, service: &Service) -> Option<String> {
        let spec = service.spec.clone().unwrap_or_default();
        let type_ = spec.type_.unwrap_or_else(|| "ClusterIP".to_owned());
        let ports = spec.ports.unwrap_or_default();
        let has_port = ports.iter().any(|port| port.port == i32::from(self.port));
        let has_node_port = self.node_port.number().is_none_or(|wanted| {
            ports.iter().any(|port| port.node_port == Some(i32::from(wanted)))
        });
        let wanted_ip = self.load_balancer_ip.as_ref();

        if type_ != self.service_type.to_string() {
            Some(format!("type {type_}"))
        } else if !has_port {
            Some("another port".to_owned())
        } else if !has_node_port {
            Some("another port on the nodes".to_owned())
        } else if wanted_ip.is_some_and(|wanted| spec.load_balancer_ip.as_ref() != Some(wanted)) {
            Some("another address of the load balancer".to_owned())
        } else {
            None
        }
    }
}

/// The template of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateRef {
    /// `GROUP/VERSION` of its kind.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

impl TemplateRef {
    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.api_version.clone()),
            kind: Some(self.kind.clone()),
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            ..ObjectReference::default()
        }
    }
}

/// The metadata of every object of a peering. Without a namespace the user who applies it chooses one.
fn metadata(name: &str, namespace: Option<&str>, remote_cluster_id: &str) -> ObjectMeta {
    let labels = [(REMOTE_CLUSTER_ID.to_owned(), remote_cluster_id.to_owned())];

    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(labels.into()),
        ..ObjectMeta::default()
    }
}

/// Gives `object` the index of its gateway among those of the peering. The first one needs no label.
pub(super) fn with_index<K: Resource>(mut object: K, index: u8) -> K {
    if index > 0 {
        object.labels_mut().insert(GATEWAY_INDEX.to_owned(), index.to_string());
    }

    object
}

/// The prefixes of the remote cluster, in its own addresses. The rest of the object is written by others.
pub(super) fn configuration(
    name: &str,
    namespace: Option<&str>,
    remote_cluster_id: &str,
    prefixes: &Prefixes,
) -> Configuration {
    let texts =
        |prefixes: &[Prefix]| prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().into();
    let cidr = ClusterCidr { external: texts(&prefixes.external), pod: texts(&prefixes.pod) };
    let remote = Some(Cluster { cidr: Some(cidr) });

    Configuration {
        metadata: metadata(name, namespace, remote_cluster_id),
        spec: ConfigurationSpec { local: None, remote },
        status: None,
    }
}

/// A gateway server for the client of `remote_cluster_id`.
pub(super) fn gateway_server(
    name: &str,
    namespace: Option<&str>,
    remote_cluster_id: &str,
    template: &TemplateRef,
    exposure: &Exposure,
    mtu: u16,
) -> GatewayServer {
    let endpoint = ServerEndpoint {
        load_balancer_ip: exposure.load_balancer_ip.clone(),
        node_port: exposure.node_port.number().map(i32::from),
        port: Some(exposure.port.into()),
        service_type: Some(exposure.service_type.to_string()),
        ..ServerEndpoint::default()
    };

    GatewayServer {
        metadata: metadata(name, namespace, remote_cluster_id),
        spec: GatewayServerSpec {
            endpoint: Some(endpoint),
            mtu: Some(mtu.into()),
            server_template_ref: Some(template.reference()),
            ..GatewayServerSpec::default()
        },
        status: None,
    }
}

/// A gateway client for the server of `remote_cluster_id` at `endpoint`.
pub(super) fn gateway_client(
    name: &str,
    namespace: Option<&str>,
    remote_cluster_id: &str,
    template: &TemplateRef,
    endpoint: Endpoint,
    mtu: u16,
) -> GatewayClient {
    GatewayClient {
        metadata: metadata(name, namespace, remote_cluster_id),
        spec: GatewayClientSpec {
            client_template_ref: Some(template.reference()),
            endpoint: Some(endpoint),
            mtu: Some(mtu.into()),
            secret_ref: None,
        },
        status: None,
    }
}

/// The key of the gateway of `remote_cluster_id`, owned by `owner`.
pub(super) fn public_key(
    name: &str,
    namespace: Option<&str>,
    remote_cluster_id: &str,
    key: [u8; KEY_BYTES],
    owner: Option<OwnerReference>,
) -> PublicKey {
    let mut metadata = metadata(name, namespace, remote_cluster_id);
    let (label, value) = GATEWAY_RESOURCE;
    metadata.labels.get_or_insert_default().insert(label.to_owned(), value.to_owned());
    metadata.owner_references = owner.map(|owner| vec![owner]);

    PublicKey { metadata, spec: PublicKeySpec { public_key: Some(ByteString(key.to_vec())) } }
}
