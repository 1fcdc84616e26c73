//! Writes objects that differ, and serializes them.

use std::fmt::Debug;

use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strait_kube::within::{Difference, differences, is_within};

use super::CommandError;
use super::context::PeeringSide;
use super::wait::{Progress, WaitTarget, until};

/// The field manager of verbs.
const FIELD_MANAGER: &str = "strait";

/// The format of a serialized object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One document, without the line of dashes.
    Yaml,
    /// Indented.
    Json,
}

/// Why an object cannot be serialized. No object here is known to cause it.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// As YAML.
    #[error("no YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
    /// As JSON.
    #[error("no JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Serializes `value`, with a line feed at its end.
///
/// # Errors
///
/// [`FormatError`] if that fails.
pub fn text(value: &impl Serialize, format: Format) -> Result<String, FormatError> {
    let mut text = match format {
        Format::Yaml => serde_saphyr::to_string(value)?,
        Format::Json => serde_json::to_string_pretty(value)?,
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }

    Ok(text)
}

/// The present state of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// It does not exist.
    Free,
    /// It exists, with these differences from the desired one.
    Taken(Vec<Difference>),
}

/// The present state of `object`.
pub(super) async fn place_of<K>(end: &PeeringSide<'_>, object: &K) -> Result<Place, CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let (api, name) = (end.api::<K>(), object.name_any());
    let doing = format!("reading {} {name} in namespace {}", K::kind(&()), end.namespace);
    let found = end.call(&doing, async || api.get_opt(&name).await).await?;
    let Some(found) = found else { return Ok(Place::Free) };
    let mut object = object.clone();
    end.marks.add_to(&mut object);
    let wanted = serde_json::to_value(&object).map_err(FormatError::Json)?;
    let found = serde_json::to_value(&found).map_err(FormatError::Json)?;

    Ok(Place::Taken(differences(&wanted, &found)))
}

/// Applies `object`, without the fields of others; returns the object as the server has it then.
///
/// The verb acts for the user: it takes fields over from other managers.
pub(super) async fn apply<K>(end: &PeeringSide<'_>, object: &K) -> Result<K, CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let api = end.api::<K>();
    let name = object.name_any();
    let what = format!("{} {name} in namespace {}", K::kind(&()), end.namespace);
    let found = end.call(&format!("reading {what}"), async || api.get_opt(&name).await).await?;
    let mut object = object.clone();
    end.marks.add_to(&mut object);
    let wanted = serde_json::to_value(&object).map_err(FormatError::Json)?;
    if let Some(found) = found
        && is_within(&wanted, &serde_json::to_value(&found).map_err(FormatError::Json)?)
    {
        return Ok(found);
    }
    let parameters = PatchParams::apply(FIELD_MANAGER).force();

    end.call(&format!("writing {what}"), async || {
        api.patch(&name, &parameters, &Patch::Apply(&wanted)).await
    })
    .await
}

/// Deletes the objects of a kind that belong to the peering; returns whether there were any.
pub(super) async fn delete_all<K>(end: &PeeringSide<'_>) -> Result<bool, CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    let objects = end.list::<K>().await?;
    for object in &objects {
        delete::<K>(end, &object.name_any()).await?;
    }

    Ok(!objects.is_empty())
}

/// Deletes one object; returns whether it existed.
pub(super) async fn delete<K>(end: &PeeringSide<'_>, name: &str) -> Result<bool, CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    let api = end.api::<K>();
    let doing = format!("deleting {} {name} in namespace {}", K::kind(&()), end.namespace);
    let parameters = DeleteParams::background();

    end.call(&doing, async || match api.delete(name, &parameters).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        deleted => deleted.map(|_| true),
    })
    .await
}

/// Waits until none of the objects that `selection` selects is left.
pub(super) async fn until_gone<K>(
    end: &PeeringSide<'_>,
    selection: watcher::Config,
) -> Result<(), CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (kind, namespace) = (K::kind(&()), &end.namespace);
    let awaited = WaitTarget {
        what: format!("{kind} to be deleted"),
        look_at: format!("kubectl get {} -n {namespace} -o yaml", K::plural(&())),
    };

    until(end, end.api::<K>(), selection, &awaited, |left| {
        Ok(match left {
            [] => Progress::Done(()),
            [first, ..] => {
                Progress::NotYet(format!("{kind} {}{}", first.name_any(), held_by(*first)))
            }
        })
    })
    .await
}

/// What holds `object` back, in words.
pub(super) fn held_by(object: &impl Resource) -> String {
    match object.finalizers() {
        [] => String::new(),
        finalizers => format!(" held by its finalizers {}", finalizers.join(", ")),
    }
}
