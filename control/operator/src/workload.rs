//! The objects that one WireGuard gateway consists of. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};
use strait_api::embedded::EmbeddedMetadata;
use strait_api::labels::{GATEWAY_NAME, GATEWAY_NAMESPACE};

use super::kind::WireGuard;

/// The volume with the keys, for any Secret that the template names for it.
const KEYS_VOLUME: &str = "wireguard-config";

/// The role of Strait's own gateways, which need no rights outside their namespace. Those of Liqo do.
const OWN_ROLE: &str = "strait-gateway";

/// The account of a pod that names none.
const DEFAULT_ACCOUNT: &str = "default";

/// Why the objects of a gateway cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// There is no deployment.
    #[error("spec.deployment.spec is missing: nothing says what runs")]
    NoDeployment,
    /// There is no service.
    #[error("spec.service.spec is missing: nothing says how clients reach the gateway")]
    NoService,
    /// The object cannot be serialized.
    #[error("spec cannot be written as JSON: {0}")]
    Json(String),
}

/// The objects of one gateway.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    pub(super) deployment: Value,
    /// For a server.
    pub(super) service: Option<Value>,
    /// `None` for the account that every namespace has.
    pub(super) account: Option<Value>,
    pub(super) binding: Value,
    /// The service and the monitor for metrics; those that are not requested are `None`.
    pub(super) metrics: [Option<Value>; 2],
}

/// The identity of the gateway, and its owner, Secret and role.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    /// The gateway itself, as the owner of its objects.
    pub(super) owner: &'a OwnerReference,
    /// The name of the Secret with its keys.
    pub(super) secret: &'a str,
    /// The `ClusterRole` of its pods.
    pub(super) role: &'a str,
}

/// The name of the deployment and the service of the gateway called `name`.
pub(super) fn object_name(name: &str) -> String {
    format!("gw-{name}")
}

impl Site<'_> {
    /// The name of the deployment and the service.
    pub(super) fn object_name(&self) -> String {
        object_name(self.name)
    }

    pub(super) fn metrics_name(&self) -> String {
        format!("{}-metrics", self.name)
    }

    pub(super) fn binding_name(&self) -> String {
        format!("{}-{}-{}", self.role, self.namespace, self.name)
    }

    /// Whether the rights of its pods are limited to its namespace.
    pub(super) fn is_bound_within_namespace(&self) -> bool {
        self.role == OWN_ROLE
    }

    /// Whether `object` is owned by the gateway.
    pub(super) fn owns(&self, object: &impl ResourceExt) -> bool {
        object.owner_references().iter().any(|owner| owner.uid == self.owner.uid)
    }

    fn labels(&self) -> BTreeMap<String, String> {
        [(GATEWAY_NAME, self.name), (GATEWAY_NAMESPACE, self.namespace)]
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .into()
    }

    /// The metadata of an object called `name`, with what the template adds.
    fn metadata(&self, name: String, template: Option<&EmbeddedMetadata>) -> Value {
        let template = template.cloned().unwrap_or_default();
        let mut labels = template.labels;
        labels.extend(self.labels());
        let mut metadata = json!({
            "name": name, "namespace": self.namespace, "labels": labels,
            "ownerReferences": [self.owner],
        });
        if !template.annotations.is_empty() {
            put(&mut metadata, "annotations", json!(template.annotations));
        }

        metadata
    }
}

/// The objects of `gateway`.
///
/// # Errors
///
/// [`WorkloadError`] if a part is missing.
pub(super) fn workload<K: WireGuard>(
    gateway: &K,
    site: &Site<'_>,
) -> Result<Workload, WorkloadError> {
    let template = gateway.deployment();
    let mut spec = value(template.spec.as_ref().ok_or(WorkloadError::NoDeployment)?)?;
    mount_keys(&mut spec, site.secret);
    let account = spec.pointer("/template/spec/serviceAccountName").and_then(Value::as_str);
    let account = account.unwrap_or(DEFAULT_ACCOUNT).to_owned();
    let name = site.object_name();
    let metadata = site.metadata(name.clone(), template.metadata.as_ref());
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec,
    });

    let service = match gateway.service() {
        None => None,
        Some(template) => {
            let spec = value(template.spec.as_ref().ok_or(WorkloadError::NoService)?)?;
            let metadata = site.metadata(name, template.metadata.as_ref());
            Some(service(metadata, &spec))
        }
    };

    Ok(Workload {
        deployment,
        service,
        binding: binding(site, &account),
        account: (account != DEFAULT_ACCOUNT).then(|| {
            let metadata = site.metadata(account, None);
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        }),
        metrics: metrics(gateway, site)?,
    })
}

/// The binding of the account. No namespaced object can own a cluster-wide one: the operator must delete it itself.
fn binding(site: &Site<'_>, account: &str) -> Value {
    let name = site.binding_name();
    let (kind, metadata) = if site.is_bound_within_namespace() {
        ("RoleBinding", site.metadata(name, None))
    } else {
        ("ClusterRoleBinding", json!({"name": name, "labels": site.labels()}))
    };

    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": site.role,
        },
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": site.namespace}],
    })
}

fn metrics<K: WireGuard>(
    gateway: &K,
    site: &Site<'_>,
) -> Result<[Option<Value>; 2], WorkloadError> {
    let Some(metrics) = gateway.metrics().filter(|metrics| metrics.enabled) else {
        return Ok([None, None]);
    };
    let name = site.metrics_name();
    let scraped = match &metrics.service {
        Some(template) => {
            let spec = value(template.spec.as_ref().ok_or(WorkloadError::NoService)?)?;
            Some(service(site.metadata(name.clone(), template.metadata.as_ref()), &spec))
        }
        None => None,
    };
    let monitor = metrics.service_monitor.as_ref().map(|template| {
        let metadata = site.metadata(name, template.metadata.as_ref());
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
            "metadata": metadata, "spec": template.spec,
        })
    });

    Ok([scraped, monitor])
}

fn service(metadata: Value, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

/// The Secret may have been created for this gateway, under a name that the template cannot know.
fn mount_keys(spec: &mut Value, secret: &str) {
    let volumes = spec.pointer_mut("/template/spec/volumes").and_then(Value::as_array_mut);
    let is_keys = |volume: &&mut Value| volume.get("name").is_some_and(|name| name == KEYS_VOLUME);

    if let Some(volume) = volumes.and_then(|volumes| volumes.iter_mut().find(is_keys)) {
        let mut source = volume.get("secret").cloned().unwrap_or_else(|| json!({}));
        put(&mut source, "secretName", json!(secret));
        put(volume, "secret", source);
    }
}

fn put(object: &mut Value, key: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert(key.to_owned(), value);
    }
}

fn value(part: &impl Serialize) -> Result<Value, WorkloadError> {
    serde_json::to_value(part).map_err(|error| WorkloadError::Json(error.to_string()))
}
