//! The identity of a gateway in the API.

use std::fmt;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// Group and version of the kinds of gateways.
const API_VERSION: &str = "networking.liqo.io/v1beta1";

/// The identity of one gateway. All its replicas have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the `GatewayServer` or `GatewayClient`.
    pub name: String,
    /// The namespace of that object, of its peers' objects and of the pod.
    pub namespace: String,
    /// The id of the remote cluster, as in this cluster.
    pub remote_cluster_id: String,
    /// The UID of the `GatewayServer` or `GatewayClient`.
    pub uid: String,
    /// Whether it is the server or the client.
    pub mode: Mode,
}

/// The ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Waits for the client to connect.
    Server,
    /// Knows the endpoint of the server.
    Client,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "Server",
            Self::Client => "Client",
        })
    }
}

impl Identity {
    /// The name of all objects which belong to this gateway.
    #[must_use]
    pub fn object_name(&self) -> String {
        format!("gw-{}", self.name)
    }

    /// As an owner reference that does not block deletion.
    #[must_use]
    pub fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: format!("Gateway{}", self.mode),
            name: self.name.clone(),
            uid: self.uid.clone(),
            ..OwnerReference::default()
        }
    }

    /// As Liqo refers to a gateway: the kind and the name are those of the object which its template rendered, the UID
    /// is that of the `GatewayServer` or `GatewayClient`.
    #[must_use]
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(format!("WgGateway{}", self.mode)),
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}
