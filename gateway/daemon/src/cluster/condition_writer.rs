//! Writes the condition of a `Configuration`.
//!
//! In the API `status.conditions` is one value, not a map by type: server-side apply would own all of it, and take the
//! conditions of Liqo's manager away. Hence the list is read, ours is put into it, and the list alone is patched, on
//! the condition that there was no write in between. No other field is sent, so fields of other releases are kept.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use strait_api::Configuration;
use strait_plan::conditions::{IN_FORCE, Key, Outcome, Verdict, merged};

/// The field manager, as in `managedFields`.
const FIELD_MANAGER: &str = "strait-gateway";

/// How often an update is tried when others write at the same time.
const ATTEMPTS: usize = 5;

/// The result of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The condition is written, or a later verdict decides: the object has changed or was deleted.
    Settled,
    /// Others write to the object all the time. Another call may succeed.
    Contended,
    /// The schema of this cluster has no conditions: it is of a release before 1.2.
    NoPlace,
}

/// Writes conditions, each only if it has changed.
pub struct ConditionWriter {
    client: Client,
    /// The resource version and the outcome that is known to be written, for objects that cannot be read whole.
    settled: BTreeMap<Key, (Option<String>, Outcome)>,
}

impl ConditionWriter {
    /// Sends no request yet.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self { client, settled: BTreeMap::new() }
    }

    /// Forgets objects that no longer have a verdict.
    pub fn forget_others(&mut self, verdicts: &[Verdict]) {
        let keys: BTreeSet<_> = verdicts.iter().map(Verdict::key).collect();

        self.settled.retain(|key, _| keys.contains(key));
    }

    /// Whether the verdict has to be written: only that of a `Configuration` has a condition.
    #[must_use]
    pub fn is_news(&self, verdict: &Verdict) -> bool {
        let is_said = verdict.known.as_ref().is_some_and(|known| verdict.is_reported_by(known));
        let settled = self.settled.get(&verdict.key());
        let is_settled = settled.is_some_and(|(version, outcome)| {
            (version, outcome) == (&verdict.resource_version, &verdict.outcome)
        });

        verdict.has_condition && !is_said && !is_settled
    }

    /// Writes the condition, if it has changed.
    ///
    /// # Errors
    ///
    /// The error of the API server. The next call writes what is missing.
    pub async fn write(&mut self, verdict: &Verdict, now: Timestamp) -> kube::Result<Written> {
        if !self.is_news(verdict) {
            return Ok(Written::Settled);
        }
        let object = &verdict.object;
        let resource = ApiResource::erase::<Configuration>(&());
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let name = object.name.as_deref().unwrap_or_default();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);

        for _ in 0..ATTEMPTS {
            let Some(found) = api.get_opt(name).await? else {
                return Ok(Written::Settled);
            };
            // The watch will cause another verdict.
            if found.uid() != object.uid || found.metadata.generation != verdict.generation {
                return Ok(Written::Settled);
            }
            let Some(conditions) = merged(conditions(&found), verdict, now) else {
                self.set_settled(verdict, &found);
                return Ok(Written::Settled);
            };
            let patch = json!({
                "metadata": {"resourceVersion": found.resource_version()},
                "status": {"conditions": conditions},
            });
            let parameters = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            match api.patch_status(name, &parameters, &Patch::Merge(&patch)).await {
                Ok(written) if is_kept(&written) => {
                    self.set_settled(verdict, &written);
                    return Ok(Written::Settled);
                }
                Ok(_) => return Ok(Written::NoPlace),
                Err(kube::Error::Api(status)) if status.is_not_found() => {
                    return Ok(Written::Settled);
                }
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }

        Ok(Written::Contended)
    }

    /// Treats a verdict as written that cannot be: the API server rejects the object as it is.
    pub fn give_up(&mut self, verdict: &Verdict) {
        let settled = (verdict.resource_version.clone(), verdict.outcome.clone());

        self.settled.insert(verdict.key(), settled);
    }

    fn set_settled(&mut self, verdict: &Verdict, found: &DynamicObject) {
        let settled = (found.resource_version(), verdict.outcome.clone());

        self.settled.insert(verdict.key(), settled);
    }
}

fn conditions(object: &DynamicObject) -> &[Value] {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);

    conditions.map(Vec::as_slice).unwrap_or_default()
}

/// Whether the condition was stored. An API server whose schema has no conditions drops them.
fn is_kept(object: &DynamicObject) -> bool {
    let type_ = |condition: &Value| condition.get("type").and_then(Value::as_str) == Some(IN_FORCE);

    conditions(object).iter().any(type_)
}
