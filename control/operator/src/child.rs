//! The object that a template makes of a `GatewayServer` or a `GatewayClient`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};
use strait_api::identity::{Identity, Mode};
use strait_api::labels::REMOTE_CLUSTER_ID;

use crate::template::{Data, TemplateError, render, render_metadata};

/// What asks for a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Parent {
    /// Whose gateway it is, and which end.
    pub identity: Identity,
    /// As the API server has it.
    pub spec: Value,
    /// The OpenAPI schema of that.
    pub schema: Value,
    /// The name of the Secret with its keys, which may not be there yet.
    pub secret: String,
}

/// What is to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Of the object, `GROUP/VERSION`.
    pub api_version: String,
    /// Of the object.
    pub kind: String,
    /// Of the object.
    pub name: String,
    /// All of it, for server-side apply.
    pub object: Value,
}

/// Why a template makes no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChildError {
    /// It does not say what it makes.
    #[error("{template}: spec.objectKind needs apiVersion and kind")]
    NoKind {
        /// Which template.
        template: String,
    },
    /// There is nothing to make.
    #[error("{template}: spec.template needs metadata and spec")]
    NoTemplate {
        /// Which template.
        template: String,
    },
    /// Its owner could not own it.
    #[error(
        "{template}: spec.template.metadata.namespace comes to {found:?}: it must be {expected:?}, that of its gateway"
    )]
    NamespaceElsewhere {
        /// Which template.
        template: String,
        /// What it comes to.
        found: String,
        /// What it must come to.
        expected: String,
    },
    /// An expression has no value.
    #[error("{template}: spec.template.{part}{error}")]
    Template {
        /// Which template.
        template: String,
        /// The way to where its places begin.
        part: &'static str,
        /// Where, and what.
        error: Box<TemplateError>,
    },
    /// What it comes to is no metadata.
    #[error("{template}: spec.template.metadata comes to what is none: {error}")]
    Metadata {
        /// Which template.
        template: String,
        /// What is wrong with it.
        error: String,
    },
}

/// What the template called `name` makes of `parent`, whose spec is `template`.
///
/// Labels and annotations that users ask for win over those of the template.
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

/// With it gone the child goes.
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

/// Puts `entries` into the map called `key` of the metadata of `object`, where there may be neither.
fn add(object: &mut Map<String, Value>, key: &str, entries: &Map<String, Value>) {
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    let map = metadata.as_object_mut().map(|map| map.entry(key).or_insert_with(|| json!({})));

    if let Some(map) = map.and_then(Value::as_object_mut) {
        map.extend(entries.clone());
    }
}
