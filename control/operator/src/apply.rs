//! Server-side apply that writes only differences.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::core::ApiResource;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use strait_kube::digest::digest;
use strait_kube::within::is_within;

/// The field manager of the fields that are written here.
pub(super) const MANAGER: &str = "strait";

/// Annotation with a digest of what was applied last, so that a field which is no longer desired is detected.
const APPLIED: &str = "strait.io/applied";

/// The result of an apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    /// The object did not exist.
    Created,
    /// The object differed.
    Changed,
    /// Nothing was written.
    Right,
}

/// The API of one kind, in `namespace` or in none.
pub(super) fn api(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Applies `wanted` as the object called `name`, which is `found` now.
pub(super) async fn apply(
    api: &Api<DynamicObject>,
    name: &str,
    found: Option<&DynamicObject>,
    mut wanted: Value,
) -> kube::Result<Applied> {
    mark(&mut wanted);
    let found = found.map(serde_json::to_value).transpose().map_err(kube::Error::SerdeError)?;
    if found.as_ref().is_some_and(|found| is_within(&wanted, found)) {
        return Ok(Applied::Right);
    }
    let parameters = PatchParams::apply(MANAGER).force();
    api.patch(name, &parameters, &Patch::Apply(&wanted)).await?;

    Ok(if found.is_some() { Applied::Changed } else { Applied::Created })
}

/// Applies `status` as the status of the object called `name`.
pub(super) async fn apply_status(
    api: &Api<DynamicObject>,
    resource: &ApiResource,
    name: &str,
    status: &Value,
) -> kube::Result<()> {
    let wanted = json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {"name": name}, "status": status,
    });
    let parameters = PatchParams::apply(MANAGER).force();
    api.patch_status(name, &parameters, &Patch::Apply(&wanted)).await?;

    Ok(())
}

/// Deletes `object` unless its name belongs to another one by now.
pub(super) async fn delete(api: &Api<DynamicObject>, object: &DynamicObject) -> kube::Result<()> {
    let preconditions = Preconditions { uid: object.uid(), resource_version: None };
    let parameters = DeleteParams::background().preconditions(preconditions);
    match api.delete(&object.name_any(), &parameters).await {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}

/// Adds the digest of `wanted` to it.
fn mark(wanted: &mut Value) {
    let mark = digest(&[&wanted.to_string()]);
    annotate(wanted, APPLIED, mark);
}

/// Adds an annotation to `wanted`.
pub(super) fn annotate(wanted: &mut Value, key: &str, value: String) {
    let metadata = wanted.get_mut("metadata").and_then(Value::as_object_mut);
    let annotations =
        metadata.map(|metadata| metadata.entry("annotations").or_insert_with(|| json!({})));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.insert(key.to_owned(), Value::String(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_field_changes_the_mark() {
        let marked = |mut object: Value| {
            mark(&mut object);
            object
        };
        let more = marked(json!({"metadata": {"name": "a"}, "spec": {"a": 1, "b": 2}}));
        let less = marked(json!({"metadata": {"name": "a"}, "spec": {"a": 1}}));

        assert!(is_within(&more, &more));
        assert!(!is_within(&less, &more), "b must go");
        let plain = json!({"metadata": {"name": "a"}, "spec": {"a": 1}});
        assert!(is_within(&plain, &more), "as it would be without a mark");
    }
}
