//! Traits of the reconciled kinds: those that request a gateway, and those that are one.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::Resource;
use kube::core::ApiResource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use strait_api::embedded::{DeploymentTemplate, LocalReference, Metrics, ServiceTemplate};
use strait_api::identity::Mode;
use strait_api::labels::{COMPONENT, GATEWAY_NAME, GATEWAY_RESOURCE};
use strait_api::{GatewayClient, GatewayServer, IP, WgGatewayClient, WgGatewayServer};

/// The label of our slices: the EndpointSlice controller ignores them, and the cache selects them.
pub(super) const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "strait.io");

/// A kind of ours.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// The status, as the API server returned it; null if there is none.
    fn status(&self) -> Value;

    /// The kind in the API.
    fn resource() -> ApiResource {
        ApiResource::erase::<Self>(&())
    }
}

/// One end of a connection.
pub(super) trait Role: Object {
    /// Server or client.
    const MODE: Mode;
}

/// A kind that requests a gateway.
pub(super) trait Gateway: Role {
    /// The field of its status that names the object which its template made.
    const CHILD: &'static str;
    /// The field that names its template.
    const TEMPLATE: &'static str;

    fn spec(&self) -> Value;
    fn template(&self) -> Option<&ObjectReference>;
    /// The name of the Secret with its keys, if it names one.
    fn secret(&self) -> Option<&str>;
}

/// A kind that is a gateway, made by a template.
pub(super) trait WireGuard: Role {
    fn deployment(&self) -> &DeploymentTemplate;
    /// The service by which clients reach it, if it is a server.
    fn service(&self) -> Option<&ServiceTemplate>;
    fn metrics(&self) -> Option<&Metrics>;
    /// The name of the Secret with its keys, if the template names one.
    fn secret(&self) -> Option<&str>;
}

/// A kind of Kubernetes that gateways, or services in front of addresses, consist of.
pub(super) trait OwnedKind: Resource<DynamicType = ()> {
    /// The label selector of the relevant objects; empty for all of them.
    fn labels() -> String;
}

macro_rules! owned_kind {
    ($kind:ty, $labels:expr) => {
        impl OwnedKind for $kind {
            fn labels() -> String {
                $labels
            }
        }
    };
}

owned_kind!(Deployment, GATEWAY_NAME.to_owned());
owned_kind!(Service, GATEWAY_NAME.to_owned());
owned_kind!(ServiceAccount, GATEWAY_NAME.to_owned());
owned_kind!(ClusterRoleBinding, GATEWAY_NAME.to_owned());
owned_kind!(RoleBinding, GATEWAY_NAME.to_owned());
owned_kind!(Secret, equal(GATEWAY_RESOURCE));
owned_kind!(Pod, equal(COMPONENT));
owned_kind!(Node, String::new());
owned_kind!(EndpointSlice, equal(MANAGED_BY));

/// Selects the objects that have this label with this value.
pub(super) fn equal((label, value): (&str, &str)) -> String {
    format!("{label}={value}")
}

/// Selects the objects that have all these labels with these values.
pub(super) fn all_equal(labels: &[(&str, &str)]) -> String {
    labels.iter().copied().map(equal).collect::<Vec<_>>().join(",")
}

fn name(reference: Option<&LocalReference>) -> Option<&str> {
    reference?.name.as_deref().filter(|name| !name.is_empty())
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

macro_rules! object {
    ($kind:ty) => {
        impl Object for $kind {
            fn status(&self) -> Value {
                json(&self.status)
            }
        }
    };
}

object!(GatewayServer);
object!(GatewayClient);
object!(WgGatewayServer);
object!(WgGatewayClient);
object!(IP);

impl Role for GatewayServer {
    const MODE: Mode = Mode::Server;
}

impl Role for GatewayClient {
    const MODE: Mode = Mode::Client;
}

impl Role for WgGatewayServer {
    const MODE: Mode = Mode::Server;
}

impl Role for WgGatewayClient {
    const MODE: Mode = Mode::Client;
}

impl Gateway for GatewayServer {
    const CHILD: &'static str = "serverRef";
    const TEMPLATE: &'static str = "spec.serverTemplateRef";

    fn spec(&self) -> Value {
        json(&self.spec)
    }

    fn template(&self) -> Option<&ObjectReference> {
        self.spec.server_template_ref.as_ref()
    }

    fn secret(&self) -> Option<&str> {
        name(self.spec.secret_ref.as_ref())
    }
}

impl Gateway for GatewayClient {
    const CHILD: &'static str = "clientRef";
    const TEMPLATE: &'static str = "spec.clientTemplateRef";

    fn spec(&self) -> Value {
        json(&self.spec)
    }

    fn template(&self) -> Option<&ObjectReference> {
        self.spec.client_template_ref.as_ref()
    }

    fn secret(&self) -> Option<&str> {
        name(self.spec.secret_ref.as_ref())
    }
}

impl WireGuard for WgGatewayServer {
    fn deployment(&self) -> &DeploymentTemplate {
        &self.spec.deployment
    }

    fn service(&self) -> Option<&ServiceTemplate> {
        Some(&self.spec.service)
    }

    fn metrics(&self) -> Option<&Metrics> {
        self.spec.metrics.as_ref()
    }

    fn secret(&self) -> Option<&str> {
        name(self.spec.secret_ref.as_ref())
    }
}

impl WireGuard for WgGatewayClient {
    fn deployment(&self) -> &DeploymentTemplate {
        &self.spec.deployment
    }

    fn service(&self) -> Option<&ServiceTemplate> {
        None
    }

    fn metrics(&self) -> Option<&Metrics> {
        self.spec.metrics.as_ref()
    }

    fn secret(&self) -> Option<&str> {
        name(self.spec.secret_ref.as_ref())
    }
}
