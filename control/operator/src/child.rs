//! The object that a template makes from a `GatewayServer` or a `GatewayClient`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};
use strait_api::identity::{Identity, Mode};
use strait_api::labels::REMOTE_CLUSTER_ID;

use crate::template::{Data, TemplateError, render, render_metadata};

/// The `GatewayServer` or `GatewayClient`.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent {
    /// The identity of its gateway.
    pub identity: Identity,
    /// Its spec, as the API server returned it.
    pub spec: Value,
    /// The OpenAPI schema of the spec.
    pub schema: Value,
    /// The name of the Secret with its keys, which may not exist yet.
    pub secret: String,
}

/// The desired object.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its API version, `GROUP/VERSION`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The whole object, for server-side apply.
    pub object: Value,
}

/// Why a template makes no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChildError {
    /// The template does not specify a kind.
    #[error("{template}: spec.objectKind needs apiVersion and kind")]
    NoKind {
        /// The name of the template.
        template: String,
    },
    /// The template has no object.
    #[error("{template}: spec.template needs metadata and spec")]
    NoTemplate {
        /// The name of the template.
        template: String,
    },
    /// The object would be in another namespace than its owner.
    #[error(
        "{template}: spec.template.metadata.namespace comes to {found:?}: it must be {expected:?}, that of its gateway"
    )]
    NamespaceElsewhere {
        /// The name of the template.
        template: String,
        /// The rendered namespace.
        found: String,
        /// The namespace of the owner.
        expected: String,
    },
    /// An expression has no value.
    #[error("{template}: spec.template.{part}{error}")]
    Template {
        /// The name of the template.
        template: String,
        /// The path of the rendered part.
        part: &'static str,
        /// The place in that part, and the problem.
        error: Box<TemplateError>,
    },
    /// The rendered metadata is invalid.
    #[error("{template}: spec.template.metadata comes to what is none: {error}")]
    Metadata {
        /// The name of the template.
        template: String,
        /// The problems.
        error: String,
    },
}

/// The object that the template called `name`, whose spec is `template`, makes from `parent`.
///
/// Labels and annotations of the parent's spec override those of the template.
///
/// # Errors
///
/// [`ChildError`] with the place in the template.
pub fn child(parent: &Parent, name: &str, template: &Value) -> Result<Child, ChildError> {
    let text = |pointer: &str| template.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let template_name = || name.to_owned();
    let (Some(api_version), Some(kind)) =
        (text("/objectKind/apiVersion"), text("/objectKind/kind"))
    else {
        return Err(ChildError::NoKind { template: template_name() });
    };
    let part = |pointer: &str| {
        let missing = || ChildError::NoTemplate { template: template_name() };
        template.pointer(pointer).filter(|part| part.is_object()).ok_or_else(missing)
    };
    let data = Data::new(&parent.identity, &parent.spec, &parent.schema, &parent.secret);
    let wrong = |part| {
        move |error| ChildError::Template {
            template: name.to_owned(),
            part,
            error: Box::new(error),
        }
    };
    let metadata = render_metadata(part("/template/metadata")?, &data).map_err(wrong(""))?;
    let mut spec = render(part("/template/spec")?, &data).map_err(wrong("spec."))?;

    let mut metadata: ObjectMeta = serde_json::from_value(metadata).map_err(|error| {
        ChildError::Metadata { template: template_name(), error: error.to_string() }
    })?;
    let Identity { name: own_name, namespace, remote_cluster_id, .. } = &parent.identity;
    let found = metadata.namespace.get_or_insert_with(|| namespace.clone());
    if found != namespace {
        let (template, found) = (template_name(), found.clone());
        let expected = namespace.clone();
        return Err(ChildError::NamespaceElsewhere { template, found, expected });
    }
    let name = metadata.name.get_or_insert_with(|| own_name.clone()).clone();
    metadata.owner_references = Some(vec![owner(&parent.identity)]);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(REMOTE_CLUSTER_ID.to_owned(), remote_cluster_id.clone());
    if let Some(service) = spec.get_mut("service").and_then(Value::as_object_mut) {
        for (key, asked) in [("labels", "serviceLabels"), ("annotations", "serviceAnnotations")] {
            if let Some(entries) = parent.spec.get(asked).and_then(Value::as_object) {
                add(service, key, entries);
            }
        }
    }

    let object =
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec});
    Ok(Child { api_version, kind, name, object })
}

/// Its deletion deletes the child.
fn owner(identity: &Identity) -> OwnerReference {
    OwnerReference {
        api_version: "networking.liqo.io/v1beta1".to_owned(),
        kind: match identity.mode {
            Mode::Server => "GatewayServer".to_owned(),
            Mode::Client => "GatewayClient".to_owned(),
        },
        name: identity.name.clone(),
        uid: identity.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Adds `entries` to the map called `key` of the metadata of `object`, and creates both where they are missing.
fn add(object: &mut Map<String, Value>, key: &str, entries: &Map<String, Value>) {
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    let map = metadata.as_object_mut().map(|map| map.entry(key).or_insert_with(|| json!({})));

    if let Some(map) = map.and_then(Value::as_object_mut) {
        map.extend(entries.clone());
    }
}
