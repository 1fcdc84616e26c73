//! The `FirewallConfigurationBinding`s and `RouteConfigurationBinding`s of this gateway, in clusters that have them (Liqo
//! after 1.2).
//!
//! Each links an object to the pod that executes it, and says in a condition whether that is done and why not. It is owned
//! by the object, and deleted with it.
//!
//! # Deviation
//!
//! There is no finalizer: what an object asks for ends with the object here, and nothing is left to be removed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Resource as _};
use serde_json::{Value, json};
use strait_api::FirewallConfiguration;
use strait_plan::objects::ObjectName;
use tracing::warn;

use super::applied::{Applied, FIELD_MANAGER, Key, call};

/// The type of the condition.
const APPLIED: &str = "Applied";

/// The longest name of an object, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// Writes bindings, each only if it has changed.
pub(super) struct Bindings {
    client: Client,
    pod: String,
    /// The namespace of the pod.
    namespace: String,
    /// The kinds that this cluster has and that this gateway may write; `None` before the API server was asked.
    writable: Option<BTreeSet<String>>,
    /// What was written, by object and UID.
    written: BTreeMap<Key, (Option<i64>, Option<String>)>,
}

impl Bindings {
    /// For the gateway in this pod. Sends no request yet.
    pub(super) const fn new(client: Client, pod: String, namespace: String) -> Self {
        Self { client, pod, namespace, writable: None, written: BTreeMap::new() }
    }

    /// Forgets objects that are gone.
    pub(super) fn forget_others(&mut self, keys: &BTreeSet<Key>) {
        self.written.retain(|key, _| keys.contains(key));
    }

    /// Writes the binding of an object and its condition. Returns whether nothing is left for later.
    ///
    /// # Errors
    ///
    /// If the API server is away. The next call writes what is missing.
    pub(super) async fn write(&mut self, applied: &Applied, now: Timestamp) -> kube::Result<bool> {
        let outcome = &applied.outcome;
        let kind = format!("{}Binding", outcome.object.kind);
        let key = (outcome.object.clone(), outcome.uid.clone());
        let content = (outcome.generation, applied.cause());
        if self.written.get(&key) == Some(&content) || !self.is_writable(&kind).await? {
            return Ok(true);
        }
        match self.put(&kind, applied, now).await {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.written.insert(key, content);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 404 | 422) => {
                warn!("objects of kind {kind} are not written: {}", status.message);
                if let Some(writable) = &mut self.writable {
                    writable.remove(&kind);
                }
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Every account may read what kinds there are; the role says nothing about kinds that are not there.
    async fn is_writable(&mut self, kind: &str) -> kube::Result<bool> {
        if self.writable.is_none() {
            let version = FirewallConfiguration::api_version(&());
            let found = call(self.client.list_api_group_resources(&version)).await?;
            let kinds = found.resources.into_iter().map(|resource| resource.kind);
            self.writable = Some(kinds.collect());
        }

        Ok(self.writable.as_ref().is_some_and(|kinds| kinds.contains(kind)))
    }

    /// Returns whether it is written: one of a former object of that name has to go first.
    async fn put(&self, kind: &str, applied: &Applied, now: Timestamp) -> kube::Result<bool> {
        let ObjectName { kind: of, namespace, name: object } = &applied.outcome.object;
        let group = FirewallConfiguration::group(&());
        let version = FirewallConfiguration::version(&());
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, &version, kind));
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let name = name(object, &self.pod);

        let found = match call(api.get_opt(&name)).await? {
            Some(found) if is_owned(&found, applied.outcome.uid.as_deref()) => found,
            Some(_) => return Ok(false),
            None => {
                let reference = if *of == FirewallConfiguration::kind(&()) {
                    "firewallConfigurationRef"
                } else {
                    "routeConfigurationRef"
                };
                let made = json!({
                    "apiVersion": FirewallConfiguration::api_version(&()), "kind": kind,
                    "metadata": {
                        "name": name, "namespace": namespace,
                        "ownerReferences": [{
                            "apiVersion": FirewallConfiguration::api_version(&()), "kind": of,
                            "name": object, "uid": applied.outcome.uid,
                            "controller": true, "blockOwnerDeletion": true,
                        }],
                    },
                    "spec": {
                        reference: {"name": object},
                        "targetRef": {
                            "apiVersion": "v1", "kind": "Pod",
                            "name": self.pod, "namespace": self.namespace,
                        },
                    },
                });
                let made = serde_json::from_value(made).map_err(kube::Error::SerdeError)?;
                call(api.create(&PostParams::default(), &made)).await?
            }
        };

        let former = found.data.pointer("/status/conditions").and_then(Value::as_array);
        let former = former.into_iter().flatten().find(|it| it["type"] == json!(APPLIED));
        let condition = condition(applied, former, now);
        let patch = json!({"status": {"conditions": [condition], "tableName": applied.table}});
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };

        call(api.patch_status(&name, &parameters, &Patch::Merge(&patch))).await.map(|_| true)
    }
}

fn is_owned(binding: &DynamicObject, uid: Option<&str>) -> bool {
    let owners = binding.metadata.owner_references.as_deref().unwrap_or_default();

    owners.iter().any(|owner| Some(owner.uid.as_str()) == uid)
}

fn condition(applied: &Applied, former: Option<&Value>, now: Timestamp) -> Condition {
    let cause = applied.cause();
    let (status, reason) = match &cause {
        None => ("True", "ApplySucceeded"),
        Some(_) => ("False", "ApplyFailed"),
    };
    let same = former
        .filter(|former| former["status"] == json!(status))
        .and_then(|former| serde_json::from_value(former["lastTransitionTime"].clone()).ok());

    Condition {
        last_transition_time: same.unwrap_or(Time(now)),
        message: cause.unwrap_or_else(|| "all of it is in force".to_owned()),
        observed_generation: applied.outcome.generation,
        reason: reason.to_owned(),
        status: status.to_owned(),
        type_: APPLIED.to_owned(),
    }
}

/// As Liqo's gateways name it.
fn name(object: &str, pod: &str) -> String {
    let room = NAME_BYTES_MAX.saturating_sub(1 + pod.len());

    format!("{}-{pod}", object.get(..room).unwrap_or(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        assert_eq!(name("milan-remap-podcidr", "gw-milan-0"), "milan-remap-podcidr-gw-milan-0");
        let long = name(&"a".repeat(250), "gw-milan-0");
        assert_eq!(long.len(), NAME_BYTES_MAX);
        assert!(long.ends_with("a-gw-milan-0"));
    }
}
