//! Removes the condition `strait.io/InForce` of a `Configuration` when its gateway is gone.
//!
//! The gateway cannot do that itself: its role binding is deleted before its pod, and a pod that is killed writes
//! nothing.
//!
//! A condition that returns while there is no gateway comes from one that this operator did not make, for
//! example `strait gateway --kube` on a host. It stays: that gateway would write it again without end.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ObjectMeta, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Resource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use strait_api::Configuration;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_plan::conditions;
use strait_plan::objects::cluster_id;

use super::apply::{MANAGER, api};
use super::context::Context;
use super::kind::Object;
use super::problem::Problem;

/// The part of a `Configuration` that is read here, valid or not otherwise.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Status {
    metadata: ObjectMeta,
    #[serde(default)]
    status: Value,
}

impl Resource for Status {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(dt: &()) -> Cow<'_, str> {
        Configuration::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        Configuration::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        Configuration::version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        Configuration::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Object for Status {
    fn status(&self) -> Value {
        self.status.clone()
    }
}

/// Removes the condition from `configuration` if no gateway is left that could have written it.
pub(super) async fn reconcile(
    configuration: &Arc<Status>,
    context: &Context,
) -> Result<(), Problem> {
    let conditions = configuration.status.get("conditions").and_then(Value::as_array);
    let conditions = conditions.map(Vec::as_slice).unwrap_or_default();
    let Some(others) = conditions::without_ours(conditions) else { return Ok(()) };
    let namespace = configuration.namespace().unwrap_or_default();
    let cluster = cluster_id(configuration.as_ref()).unwrap_or_default();
    if has_gateway(&namespace, cluster, context).await? {
        context.note_removed(configuration.as_ref(), false);
        return Ok(());
    }
    if context.is_removed(configuration.as_ref()) {
        return Ok(());
    }

    let all = api(&context.client, &Status::resource(), Some(&namespace));
    let patch = json!({
        "metadata": {
            "uid": configuration.uid(), "resourceVersion": configuration.resource_version(),
        },
        "status": {"conditions": others},
    });
    let parameters =
        PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match all.patch_status(&configuration.name_any(), &parameters, &Patch::Merge(&patch)).await {
        // The watch delivers another version, which is reconciled.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        outcome => {
            outcome.map_err(Problem::failed_to("remove the condition of a gateway"))?;
            context.note_removed(configuration.as_ref(), true);
            Ok(())
        }
    }
}

/// Whether there is a gateway to `cluster` in `namespace`, or a pod that may be left of it.
async fn has_gateway(namespace: &str, cluster: &str, context: &Context) -> Result<bool, Problem> {
    let kinds: Vec<ApiResource> = context.children.borrow().values().cloned().collect();
    for kind in kinds {
        let found = context.cache(&kind, "").labelled(&[(REMOTE_CLUSTER_ID, cluster)]).await;
        let found = found.map_err(Problem::failed_to(format!("list {}", kind.plural)))?;
        if found.iter().any(|gateway| gateway.namespace().as_deref() == Some(namespace)) {
            return Ok(true);
        }
    }
    let pods =
        context.of::<Pod>().list(namespace).await.map_err(Problem::failed_to("list pods"))?;

    Ok(pods.iter().any(may_run))
}

/// A container that has not ended may still write.
fn may_run(pod: &DynamicObject) -> bool {
    let phase = pod.data.pointer("/status/phase").and_then(|phase| phase.as_str());

    !matches!(phase, Some("Succeeded" | "Failed"))
}
