//! The objects that one WireGuard gateway consists of. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};
use strait_api::embedded::EmbeddedMetadata;
use strait_api::labels::{GATEWAY_NAME, GATEWAY_NAMESPACE};

use super::kind::WireGuard;

/// The volume with the keys, whichever secret the template names for it.
const KEYS_VOLUME: &str = "wireguard-config";

/// The role of Strait's own gateways, which ask for nothing outside their namespace. Those of Liqo do.
const OWN_ROLE: &str = "strait-gateway";

/// Of a pod that names none.
const DEFAULT_ACCOUNT: &str = "default";

/// What a gateway asks for cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// Nothing says what runs.
    #[error("spec.deployment.spec is missing: nothing says what runs")]
    NoDeployment,
    /// Nothing says what is exposed.
    #[error("spec.service.spec is missing: nothing says how clients reach the gateway")]
    NoService,
    /// No object can be written that way.
    #[error("spec cannot be written as JSON: {0}")]
    Json(String),
}

/// What there is to make for one gateway.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    pub(super) deployment: Value,
    /// Of a server.
    pub(super) service: Option<Value>,
    /// `None` for the one that every namespace has.
    pub(super) account: Option<Value>,
    pub(super) binding: Value,
    /// Where metrics are scraped, and by whom; those that are not asked for are `None`.
    pub(super) metrics: [Option<Value>; 2],
}

/// Who the gateway is, and what it is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    /// The gateway itself, as the owner of what is made for it.
    pub(super) owner: &'a OwnerReference,
    /// The name of the secret with its keys.
    pub(super) secret: &'a str,
    /// The `ClusterRole` with the rights of its pods.
    pub(super) role: &'a str,
}

impl Site<'_> {
    /// Of the deployment and the service.
    pub(super) fn object_name(&self) -> String {
        format!("gw-{}", self.name)
    }

    pub(super) fn metrics_name(&self) -> String {
        format!("{}-metrics", self.name)
    }

    pub(super) fn binding_name(&self) -> String {
        format!("{}-{}-{}", self.role, self.namespace, self.name)
    }

    /// Whether the rights of its pods are those in its namespace, or the same in all.
    pub(super) fn is_bound_within_namespace(&self) -> bool {
        self.role == OWN_ROLE
    }

    /// Whether `object` goes with the gateway.
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

/// What `gateway` asks for.
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

/// The account's rights. Nothing of a namespace can own what belongs to none: who made a binding for all
/// namespaces must take it away.
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

/// The secret may have been made for this gateway, under a name that no template can know.
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
