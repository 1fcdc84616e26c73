//! A namespace of one peering, and the gateway in it.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::ObjectMeta;
use kube::{Api, Client};
use strait_api::identity::{Identity, Mode};

use crate::{ApiServer, create};

/// The namespace of every object that concerns the gateway.
pub const NAMESPACE: &str = "liqo-tenant-milan";

/// The gateway to Milan.
pub fn identity() -> Identity {
    Identity {
        name: "milan".to_owned(),
        namespace: NAMESPACE.to_owned(),
        remote_cluster_id: "milan".to_owned(),
        uid: "0b7ef1a4-6a4b-4d3d-8a6c-6f8b7a5d1c11".to_owned(),
        mode: Mode::Server,
    }
}

/// An API server with the API and the namespace, as an administrator and as a gateway with a role.
pub struct Tenant {
    /// The API server failed.
    pub server: ApiServer,
    /// A client that may do everything.
    pub admin: Client,
    /// A client with the role of a gateway.
    pub gateway: Client,
}

impl Tenant {
    /// `None` if no API server can run here.
    pub async fn start(role: &ClusterRole) -> Option<Self> {
        let server = ApiServer::start_with_api().await?;
        let admin = server.client().await;
        let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
        create(Api::all(admin.clone()), &Namespace { metadata, ..Namespace::default() }).await;
        let gateway = server.client_with(NAMESPACE, role).await;

        Some(Self { server, admin, gateway })
    }
}
