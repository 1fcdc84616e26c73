//! Keeps one `ForeignCluster` per remote cluster, with the state of the network: `liqoctl info` reads it.
//!
//! It exists as long as a `Configuration`, a gateway or a `Connection` names the remote cluster in its label. One that
//! another program has made, for example Liqo's own controller, is left alone.

mod module;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::foreign_cluster::Module;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Configuration, Connection, ForeignCluster, GatewayClient, GatewayServer};
use strait_kube::repeated_failure::RepeatedFailure;
use strait_kube::within::is_within;
use strait_plan::objects::cluster_id;
use tokio::time::sleep;
use tracing::info;

use self::module::{Objects, module};
use super::apply::{apply, apply_status, delete};
use super::context::Context;
use super::problem::Problem;
use super::workload::object_name;

/// The label of a `ForeignCluster` of ours.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "strait.io");

/// All are looked at again after this time even without a change.
const RESYNC: Duration = Duration::from_secs(600);

/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// How often a missing definition is looked for.
const DEFINITION_POLL: Duration = Duration::from_secs(60);

/// Changes within this time are reconciled once.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Reconciles all of them, without end.
pub(super) async fn run(context: &Context) {
    until_defined(context).await;

    let kinds = [
        ApiResource::erase::<Configuration>(&()),
        ApiResource::erase::<Connection>(&()),
        ApiResource::erase::<ForeignCluster>(&()),
        ApiResource::erase::<GatewayClient>(&()),
        ApiResource::erase::<GatewayServer>(&()),
    ];
    let mut caches: Vec<_> = kinds.iter().map(|kind| context.cache(kind, "")).collect();
    caches.push(context.of::<Deployment>());
    let changes: Vec<_> = caches.iter().map(|cache| cache.changes().boxed()).collect();
    // A new definition is not served for a second or two: each watch waits for that, a list would fail.
    for cache in &caches {
        cache.until_complete().await;
    }
    let mut changes = stream::select_all(changes);
    let mut failure = RepeatedFailure::about("write the state of the network with other clusters");
    loop {
        let outcome = reconcile(context).await;
        context.settings.counts.count(&ForeignCluster::kind(&()), outcome.is_ok());
        failure.log(&outcome);
        let pause = if outcome.is_ok() { RESYNC } else { RETRY };
        tokio::select! {
            _ = changes.next() => {}
            () = sleep(pause) => {}
        }
        sleep(DEBOUNCE).await;
        while let Some(Some(_)) = changes.next().now_or_never() {}
    }
}

/// Waits for the definition of the kind, which Helm does not add to an installation that exists.
async fn until_defined(context: &Context) {
    let api = Api::<CustomResourceDefinition>::all(context.client.clone());
    let name = format!("{}.{}", ForeignCluster::plural(&()), ForeignCluster::group(&()));
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let mut failure = RepeatedFailure::about(format!("look for the definition {name}"));
    let mut is_reported = false;
    loop {
        let found = api.list_metadata(&named).await;
        failure.log(&found);
        let pause = if found.is_ok() { DEFINITION_POLL } else { RETRY };
        match found {
            Ok(found) if !found.items.is_empty() => return,
            Ok(_) if !is_reported => {
                info!(name, "the definition is missing: liqoctl info lists no remote cluster");
                is_reported = true;
            }
            Ok(_) | Err(_) => {}
        }
        sleep(pause).await;
    }
}

/// Brings every `ForeignCluster` of ours up to date. A failure with one does not affect the others.
async fn reconcile(context: &Context) -> Result<(), Problem> {
    let wanted = objects(context).await?;
    let kind = ApiResource::erase::<ForeignCluster>(&());
    let found = list(context, &kind).await?;
    let found: BTreeMap<String, DynamicObject> =
        found.into_iter().map(|object| (object.name_any(), object)).collect();

    let mut outcome = Ok(());
    for (id, objects) in &wanted {
        let known = found.get(id);
        if known.is_none_or(is_ours) {
            outcome = outcome.and(write(context, id, objects, known).await);
        }
    }
    let api = context.cache(&kind, "").api(None);
    let gone = found.iter().filter(|(id, object)| is_ours(object) && !wanted.contains_key(*id));
    for (id, object) in gone {
        let deleted = delete(&api, object).await;
        outcome =
            outcome.and(deleted.map_err(Problem::failed_to(format!("delete ForeignCluster {id}"))));
    }

    outcome
}

/// The objects of each remote cluster, by its id.
async fn objects(context: &Context) -> Result<BTreeMap<String, Objects>, Problem> {
    let mut all = BTreeMap::<String, Objects>::new();
    for object in list(context, &ApiResource::erase::<Configuration>(&())).await? {
        add_to_cluster(&mut all, &object, |objects| objects.has_configuration = true);
    }
    for object in list(context, &ApiResource::erase::<Connection>(&())).await? {
        add_to_cluster(&mut all, &object, |objects| objects.connections.push(object.clone()));
    }
    for object in list(context, &ApiResource::erase::<GatewayServer>(&())).await? {
        let deployment = deployment(context, &object).await?;
        add_to_cluster(&mut all, &object, |objects| objects.servers.push(deployment));
    }
    for object in list(context, &ApiResource::erase::<GatewayClient>(&())).await? {
        let deployment = deployment(context, &object).await?;
        add_to_cluster(&mut all, &object, |objects| objects.clients.push(deployment));
    }

    Ok(all)
}

/// Adds `object` to those of its remote cluster, if it names one.
fn add_to_cluster(
    all: &mut BTreeMap<String, Objects>,
    object: &DynamicObject,
    add: impl FnOnce(&mut Objects),
) {
    if let Some(id) = cluster_id(object) {
        add(all.entry(id.to_owned()).or_default());
    }
}

async fn list(context: &Context, kind: &ApiResource) -> Result<Vec<DynamicObject>, Problem> {
    let found = context.cache(kind, "").labelled(&[]).await;

    found.map_err(Problem::failed_to(format!("list {}", kind.plural)))
}

/// The `Deployment` of a gateway.
async fn deployment(
    context: &Context,
    gateway: &DynamicObject,
) -> Result<Option<DynamicObject>, Problem> {
    let name = object_name(&gateway.name_any());
    let found = context.of::<Deployment>().get(&name, gateway.namespace().as_deref()).await;

    found.map_err(Problem::failed_to(format!("get Deployment {name}")))
}

fn is_ours(object: &DynamicObject) -> bool {
    let (label, value) = MANAGED_BY;

    object.labels().get(label).is_some_and(|found| found == value)
}

async fn write(
    context: &Context,
    id: &str,
    objects: &Objects,
    known: Option<&DynamicObject>,
) -> Result<(), Problem> {
    let kind = ApiResource::erase::<ForeignCluster>(&());
    let api = context.cache(&kind, "").api(None);
    let (label, value) = MANAGED_BY;
    let object = json!({
        "apiVersion": kind.api_version, "kind": kind.kind,
        "metadata": {"name": id, "labels": {REMOTE_CLUSTER_ID: id, label: value}},
        "spec": {"clusterID": id},
    });
    let applied = apply(&api, id, known, object).await;
    applied.map_err(Problem::failed_to(format!("write ForeignCluster {id}")))?;

    let former = known.and_then(|known| known.data.pointer("/status/modules"));
    let of = |name: &str| former.and_then(|modules| modules.get(name)).cloned();
    let networking: Module =
        of("networking").and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default();
    // The other modules are Liqo's, as far as it is there.
    let other = |name: &str| of(name).unwrap_or_else(|| json!({"enabled": false}));
    let role = known.and_then(|known| known.data.pointer("/status/role")).and_then(Value::as_str);
    let status = json!({
        "role": role.unwrap_or("Unknown"),
        "modules": {
            "authentication": other("authentication"),
            "networking": module(objects, &networking, Timestamp::now()),
            "offloading": other("offloading"),
        },
    });
    let found = known.and_then(|known| known.data.get("status"));
    if found.is_some_and(|found| is_within(&status, found)) {
        return Ok(());
    }
    let applied = apply_status(&api, &kind, id, &status).await;

    applied.map_err(Problem::failed_to(format!("write the status of ForeignCluster {id}")))
}
