//! Renders the child of a `GatewayServer` or `GatewayClient` by its template, and copies back the child's status.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{ResourceExt as _, discovery};
use serde_json::{Map, Value, json};
use strait_api::identity::{Identity, Mode};
use strait_api::labels::{GENERATION, REMOTE_CLUSTER_ID};

use super::apply::{annotate, api, apply, apply_status, delete};
use super::child::{Child, Parent, child};
use super::context::Context;
use super::keys;
use super::kind::Gateway;
use super::masquerade_address;
use super::problem::Problem;

/// The API version that Liqo's template references omit.
const API_VERSION: &str = "networking.liqo.io/v1beta1";

/// The fields of a child's status that its parent repeats.
const REPEATED: [&str; 3] = ["endpoint", "internalEndpoint", "secretRef"];

/// Reconciles `gateway` and the child that its template makes.
pub(super) async fn reconcile<K: Gateway>(
    gateway: &Arc<K>,
    context: &Context,
) -> Result<(), Problem> {
    if gateway.meta().deletion_timestamp.is_some() {
        // The objects that it owns are deleted with it.
        return Ok(());
    }
    let identity = identity(gateway.as_ref())?;
    masquerade_address::check(gateway.as_ref(), &identity, context).await?;
    let (name, template) = template(gateway.as_ref(), &identity, context).await?;
    let schema = context.schema(K::MODE).clone();
    let secret = secret(gateway.as_ref(), &identity, context).await?;
    let parent = Parent { identity, spec: gateway.spec(), schema, secret };
    let Child { api_version, kind, name: child_name, mut object } =
        child(&parent, &name, &template)?;
    let generation = gateway.meta().generation.unwrap_or_default();
    annotate(&mut object, GENERATION, generation.to_string());

    let resource = child_resource(&name, &api_version, &kind, context).await?;
    let namespace = parent.identity.namespace.as_str();
    let cache = context.cache(&resource, "");
    let children = cache.api(Some(namespace));
    let doing = |verb: &str| Problem::failed_to(format!("{verb} {kind} {child_name}"));
    let found = cache.get(&child_name, Some(namespace)).await.map_err(doing("read"))?;
    if found.as_ref().is_some_and(|child| child.metadata.deletion_timestamp.is_some()) {
        // It may be that of a former gateway of the same name, and its status is void. Its deletion causes another
        // round.
        return Ok(());
    }
    apply(&children, &child_name, found.as_ref(), object).await.map_err(doing("apply"))?;

    let reference = json!({
        "apiVersion": api_version, "kind": kind, "name": child_name, "namespace": namespace,
    });
    let former = gateway.status();
    let status = status::<K>(&former, reference, found.as_ref());
    if status != former {
        let own = ApiResource::erase::<K>(&());
        let owns = api(&context.client, &own, Some(namespace));
        let doing = Problem::failed_to("write the status");
        apply_status(&owns, &own, &gateway.name_any(), &status).await.map_err(doing)?;
    }
    // Only now: the status of the new child has been copied.
    retire::<K>(&former, &status, &parent.identity, context).await
}

fn identity<K: Gateway>(gateway: &K) -> Result<Identity, Problem> {
    let cluster = gateway.labels().get(REMOTE_CLUSTER_ID).filter(|id| !id.is_empty());

    Ok(Identity {
        name: gateway.name_any(),
        namespace: gateway.namespace().unwrap_or_default(),
        remote_cluster_id: cluster.ok_or(Problem::NoCluster)?.clone(),
        uid: gateway.uid().unwrap_or_default(),
        mode: K::MODE,
    })
}

/// The name of the Secret with the keys of `gateway`, which may not exist yet.
async fn secret<K: Gateway>(
    gateway: &K,
    identity: &Identity,
    context: &Context,
) -> Result<String, Problem> {
    if let Some(name) = gateway.secret() {
        return Ok(name.to_owned());
    }

    keys::name(&context.secrets, identity)
        .await
        .map_err(Problem::failed_to("list the Secrets with keys"))
}

/// The name and the spec of the template that `gateway` refers to.
async fn template<K: Gateway>(
    gateway: &K,
    identity: &Identity,
    context: &Context,
) -> Result<(String, Value), Problem> {
    let reference = gateway.template().cloned().unwrap_or_default();
    let name = reference.name.filter(|name| !name.is_empty());
    let name = name.ok_or(Problem::NoTemplate { field: K::TEMPLATE })?;
    let api_version = reference.api_version.unwrap_or_else(|| API_VERSION.to_owned());
    let kind = reference.kind.unwrap_or_else(|| format!("WgGateway{}Template", K::MODE));
    let namespace = reference.namespace.unwrap_or_else(|| identity.namespace.clone());

    let Some(resource) = known_template(&api_version, &kind, context) else {
        return Err(Problem::NotATemplate { api_version, kind });
    };
    let doing = Problem::failed_to(format!("read {kind} {namespace}/{name}"));
    let templates = context.cache(&resource, "");
    match templates.get(&name, Some(&namespace)).await.map_err(doing)? {
        Some(template) => Ok((name, template.data.get("spec").cloned().unwrap_or_default())),
        None => Err(Problem::TemplateMissing { kind, namespace, name }),
    }
}

/// In the stored version: a reference may have the version of an older document.
fn known_template(api_version: &str, kind: &str, context: &Context) -> Option<ApiResource> {
    let (group, _) = api_version.split_once('/')?;
    let templates = context.templates.lock();

    templates.get(&(kind.to_owned(), group.to_owned())).cloned()
}

/// The API resource of a child's kind, which is watched from then on.
async fn child_resource(
    template: &str,
    api_version: &str,
    kind: &str,
    context: &Context,
) -> Result<ApiResource, Problem> {
    let unknown = || Problem::ChildKindUnknown {
        template: template.to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    };
    let (group, version) = api_version.split_once('/').ok_or_else(unknown)?;
    let gvk = GroupVersionKind::gvk(group, version, kind);
    if let Some(known) = context.children.borrow().get(&gvk) {
        return Ok(known.clone());
    }

    let found = discovery::pinned_kind(&context.client, &gvk).await;
    let (resource, _) = found.map_err(|source| {
        let is_unknown = matches!(&source, kube::Error::Discovery(_))
            || matches!(&source, kube::Error::Api(status) if status.is_not_found());
        let what = || format!("look {kind} of {api_version} up");
        if is_unknown { unknown() } else { Problem::Kube { what: what(), source } }
    })?;
    context.children.send_modify(|children| {
        children.insert(gvk, resource.clone());
    });

    Ok(resource)
}

/// The status of `gateway`: its child, and the fields of the child's status. A field that a new child does not have yet
/// is kept.
fn status<K: Gateway>(former: &Value, reference: Value, child: Option<&DynamicObject>) -> Value {
    let child_status = child.and_then(|child| child.data.get("status"));
    let mut status = Map::new();
    for field in REPEATED {
        let of = |status: &Value| status.get(field).filter(|value| !value.is_null()).cloned();
        if let Some(value) = child_status.and_then(of).or_else(|| of(former)) {
            status.insert(field.to_owned(), value);
        }
    }
    if K::MODE == Mode::Client {
        // A client has no endpoint for others.
        status.remove("endpoint");
    }
    status.insert(K::CHILD.to_owned(), reference);

    Value::Object(status)
}

/// Deletes the former child if the template makes another one now.
async fn retire<K: Gateway>(
    former: &Value,
    status: &Value,
    identity: &Identity,
    context: &Context,
) -> Result<(), Problem> {
    let child = |status: &Value| -> Option<ObjectReference> {
        serde_json::from_value(status.get(K::CHILD)?.clone()).ok()
    };
    let (Some(former), Some(now)) = (child(former), child(status)) else { return Ok(()) };
    if (&former.kind, &former.name) == (&now.kind, &now.name) {
        return Ok(());
    }
    let (Some(api_version), Some(kind), Some(name)) =
        (former.api_version, former.kind, former.name)
    else {
        return Ok(());
    };

    let resource = match child_resource(&name, &api_version, &kind, context).await {
        // With the kind its objects are gone.
        Err(Problem::ChildKindUnknown { .. }) => return Ok(()),
        resource => resource?,
    };
    let children = api(&context.client, &resource, Some(&identity.namespace));
    let doing = |verb: &str| Problem::failed_to(format!("{verb} the former {kind} {name}"));
    let found = children.get_opt(&name).await.map_err(doing("read"))?;
    let is_own = |found: &DynamicObject| {
        found.owner_references().iter().any(|owner| owner.uid == identity.uid)
    };
    match found.filter(is_own) {
        Some(found) => delete(&children, &found).await.map_err(doing("delete")),
        None => Ok(()),
    }
}
