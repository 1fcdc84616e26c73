//! Reports whether `FirewallConfiguration`s and `RouteConfiguration`s are executed, as Liqo's gateways do: one condition
//! for each gateway in the status, and an Event when it changes. The condition has no place for the cause of a refusal, so
//! the Event has it.
//!
//! Clusters of newer releases also have an object for each gateway, a `…Binding`, whose condition has that place.
//!
//! Level-triggered, for as long as this replica is the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::identity::Identity;
use strait_api::route_configuration::HostCondition;
use strait_api::{FirewallConfiguration, RouteConfiguration};
use strait_kube::events::{Event, EventWriter, Kind, Limit};
use strait_kube::repeated_failure::RepeatedFailure;
use strait_plan::conditions::shortened;
use strait_plan::lowering::Outcome;
use strait_plan::objects::ObjectName;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::bindings::Bindings;

/// The field manager, as in `managedFields`.
pub(super) const FIELD_MANAGER: &str = "strait-gateway";

/// Timeout of one call.
const CALL: Duration = Duration::from_secs(10);

/// First and longest pause between attempts; the first is also the minimum between rounds.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// How often an update is tried when others write at the same time.
const ATTEMPTS: usize = 5;

/// The outcome of an object, and what its status says already.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Applied {
    pub(super) outcome: Outcome,
    /// The name of its table.
    pub(super) table: String,
    /// The conditions of all gateways and nodes.
    pub(super) known: Vec<HostCondition>,
}

impl Applied {
    /// The cause of the refusal, if it is refused.
    pub(super) fn cause(&self) -> Option<String> {
        self.outcome.problem.as_ref().map(|problem| shortened(&problem.to_string()))
    }
}

/// Writes what has changed.
pub(super) struct AppliedReporter {
    client: Client,
    /// The name of this gateway, which its conditions have.
    host: String,
    events: EventWriter,
    limit: Limit,
    bindings: Bindings,
    /// The causes that Events of this process have reported, by object and UID.
    reported: BTreeMap<Key, Option<String>>,
    /// The last refusal of a write, which was logged.
    refusal: Option<String>,
}

/// An object with its UID.
pub(super) type Key = (ObjectName, Option<String>);

/// Writes the status of objects whenever `applied` changes.
pub(super) async fn run(mut reporter: AppliedReporter, mut applied: watch::Receiver<Vec<Applied>>) {
    let [first, longest] = RETRY;
    let mut pause = first;
    let mut failure = RepeatedFailure::about("write the status of rules and routes");
    loop {
        let current = applied.borrow_and_update().clone();
        let round = reporter.round(&current, Timestamp::now()).await;
        failure.log(&round);
        match round {
            Ok(again) => {
                pause = first;
                sleep(first).await;
                let changed = match again {
                    false => Ok(applied.changed().await),
                    true => timeout(longest, applied.changed()).await,
                };
                // The cluster source was dropped.
                if matches!(changed, Ok(Err(_))) {
                    return;
                }
            }
            Err(_) => {
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
    }
}

impl AppliedReporter {
    /// For the gateway that runs in `pod`. Sends no request yet.
    pub(super) fn new(client: &Client, identity: &Identity, pod: String, now: Timestamp) -> Self {
        Self {
            client: client.clone(),
            host: identity.name.clone(),
            events: EventWriter::new(client.clone(), identity.object_name()),
            limit: Limit::new(now),
            bindings: Bindings::new(client.clone(), pod, identity.namespace.clone()),
            reported: BTreeMap::new(),
            refusal: None,
        }
    }

    /// Writes what is new. Returns whether something is left for later.
    ///
    /// # Errors
    ///
    /// The first that another round may not meet.
    async fn round(&mut self, applied: &[Applied], now: Timestamp) -> kube::Result<bool> {
        let keys: BTreeSet<_> = applied.iter().map(|applied| key(&applied.outcome)).collect();
        self.reported.retain(|key, _| keys.contains(key));
        self.bindings.forget_others(&keys);
        let mut is_left = false;
        for applied in applied {
            is_left |= !self.report(applied, now).await?;
            is_left |= !self.bindings.write(applied, now).await?;
        }

        Ok(is_left)
    }

    /// Returns whether all of it is written.
    async fn report(&mut self, applied: &Applied, now: Timestamp) -> kube::Result<bool> {
        let cause = applied.cause();
        let status = status(&applied.outcome);
        let ours = applied.known.iter().find(|condition| condition.host == self.host);
        let is_written = ours.is_some_and(|ours| ours.status == status);
        let reported = self.reported.get(&key(&applied.outcome));
        let is_reported = match (reported, &cause) {
            (Some(reported), cause) => reported == cause,
            (None, None) => is_written,
            (None, Some(_)) => false,
        };
        // Without room for an Event the condition is written nevertheless, and a refusal gets its Event later.
        let has_room = is_reported || self.limit.room(now).is_ok();
        if !is_reported && has_room {
            if let Some(cause) = &cause {
                warn!("{} is not applied: {cause}", applied.outcome.object);
            }
            let event = event(applied, cause.as_deref());
            let written = call(self.events.write(&event, now)).await;
            self.permitted(written)?;
            self.limit.take();
            self.reported.insert(key(&applied.outcome), cause);
        }
        if !is_written {
            let written = self.write(applied, now).await;
            self.permitted(written)?;
        }

        Ok(has_room)
    }

    /// A refusal by the role of the gateway, or by the API, is logged once; the round goes on.
    fn permitted(&mut self, written: kube::Result<()>) -> kube::Result<()> {
        match written {
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 404 | 422) => {
                if self.refusal.as_ref() != Some(&status.message) {
                    warn!("the status of rules and routes is not written: {}", status.message);
                    self.refusal = Some(status.message);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Puts the condition of this gateway into the status. The list is one value in the API: it is read, and written on the
    /// condition that there was no other write.
    async fn write(&self, applied: &Applied, now: Timestamp) -> kube::Result<()> {
        let ObjectName { kind, namespace, name } = &applied.outcome.object;
        let api = objects(&self.client, kind, namespace);
        for _ in 0..ATTEMPTS {
            let Some(found) = call(api.get_opt(name)).await? else { return Ok(()) };
            // The watch will cause another round.
            if found.uid() != applied.outcome.uid {
                return Ok(());
            }
            let conditions = found.data.pointer("/status/conditions").and_then(Value::as_array);
            let conditions = conditions.map(Vec::as_slice).unwrap_or_default();
            let is_ours = |condition: &&Value| condition.get("host") == Some(&json!(self.host));
            let former = conditions.iter().find(is_ours).cloned();
            let former: Option<HostCondition> =
                former.and_then(|former| serde_json::from_value(former).ok());
            let ours = applied.outcome.condition(&self.host, former.as_ref(), now);
            let others = conditions.iter().filter(|condition| !is_ours(condition)).cloned();
            let merged: Vec<Value> = others.chain(serde_json::to_value(ours)).collect();
            let patch = json!({
                "metadata": {"resourceVersion": found.resource_version()},
                "status": {"conditions": merged},
            });
            let parameters = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            match call(api.patch_status(name, &parameters, &Patch::Merge(&patch))).await {
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                written => return written.map(drop),
            }
        }

        Ok(())
    }
}

/// Objects of the kind, which is one of the two.
fn objects(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = if kind == FirewallConfiguration::kind(&()) {
        ApiResource::erase::<FirewallConfiguration>(&())
    } else {
        ApiResource::erase::<RouteConfiguration>(&())
    };

    Api::namespaced_with(client.clone(), namespace, &resource)
}

fn key(outcome: &Outcome) -> Key {
    (outcome.object.clone(), outcome.uid.clone())
}

fn status(outcome: &Outcome) -> &'static str {
    if outcome.problem.is_none() { "True" } else { "False" }
}

/// With the reason and the beginning of the message that Liqo's gateways use.
fn event(applied: &Applied, cause: Option<&str>) -> Event {
    let Outcome { object: ObjectName { kind, namespace, name }, uid, .. } = &applied.outcome;
    let object = ObjectReference {
        api_version: Some(FirewallConfiguration::api_version(&()).into_owned()),
        kind: Some(kind.clone()),
        namespace: Some(namespace.clone()),
        name: Some(name.clone()),
        uid: uid.clone(),
        ..ObjectReference::default()
    };
    let message = format!("{kind} Applied: {}", status(&applied.outcome));
    let reason = if *kind == FirewallConfiguration::kind(&()) {
        "FirewallConfigurationUpdate"
    } else {
        "RouteConfigurationUpdate"
    };
    match cause {
        None => Event { object, kind: Kind::Normal, reason, message },
        Some(cause) => {
            Event { object, kind: Kind::Warning, reason, message: format!("{message}: {cause}") }
        }
    }
}

/// The answer to a `call`, or the timeout as an error of the service.
pub(super) async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let timed_out = || kube::Error::Service("the API server does not answer".into());

    timeout(CALL, call).await.unwrap_or_else(|_| Err(timed_out()))
}
