//! The identity of a gateway in the API.

use std::fmt;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// Group of the kinds of gateways.
const GROUP: &str = "networking.liqo.io";

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

impl Mode {
    /// The kind of the object that requests such a gateway.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Server => "GatewayServer",
            Self::Client => "GatewayClient",
        }
    }
}

/// Whether a `GatewayServer` or `GatewayClient` is among `owners`, but not the one of this `kind` and `name`: of several
/// gateways to one remote cluster, the owned object is for another.
///
/// The UID does not count, as a gateway that was deleted and created again is the same one.
#[must_use]
pub fn is_of_another_gateway(owners: &[OwnerReference], kind: &str, name: &str) -> bool {
    let mut gateways = owners.iter().filter(|owner| is_gateway(owner)).peekable();

    gateways.peek().is_some() && !gateways.any(|owner| owner.kind == kind && owner.name == name)
}

fn is_gateway(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split_once('/').map(|(group, _)| group);

    group == Some(GROUP)
        && [Mode::Server, Mode::Client].iter().any(|mode| owner.kind == mode.kind())
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
            kind: self.mode.kind().to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_can_be_of_another_gateway() {
        let owner = |kind: &str, name: &str| OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            ..OwnerReference::default()
        };
        let is_of_another =
            |owners: &[OwnerReference]| is_of_another_gateway(owners, "GatewayServer", "milan");
        let own = owner("GatewayServer", "milan");
        let second = owner("GatewayServer", "milan-1");
        let no_gateway = OwnerReference { api_version: "v1".to_owned(), ..second.clone() };

        assert!(!is_of_another(&[]));
        assert!(!is_of_another(std::slice::from_ref(&own)));
        assert!(!is_of_another(&[second.clone(), own]));
        assert!(!is_of_another(&[owner("Configuration", "milan"), no_gateway]));
        assert!(is_of_another(&[second]));
        assert!(is_of_another(&[owner("GatewayClient", "milan")]));
    }
}
