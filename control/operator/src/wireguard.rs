//! Deploys the pods of a gateway object, and writes back its endpoint.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use serde_json::{Map, Value, json};
use strait_api::identity::Mode;
use strait_api::labels::{GATEWAY_NAME, GATEWAY_NAMESPACE, GENERATION, REMOTE_CLUSTER_ID};
use strait_kube::finalizer;
use strait_kube::within::is_within;

use super::apply::{Applied, annotate, api, apply, apply_status, delete};
use super::context::Context;
use super::endpoint::{EndpointError, active_pod, endpoint, internal_endpoint};
use super::keys::{self, Holder};
use super::kind::{OwnedKind, WireGuard, all_equal};
use super::problem::Problem;
use super::rollout;
use super::workload::{Site, Workload, workload};

/// Keeps a gateway until its ClusterRoleBinding, which no namespaced object can own, is deleted.
const FINALIZER: &str = "networking.liqo.io/clusterrolebinding";

/// Lists the bindings of a gateway, those for all namespaces and those for its own.
const LIST_BINDINGS: &str = "list ClusterRoleBindings";
const LIST_OWN_BINDINGS: &str = "list RoleBindings";

/// The immutable fields of a binding and of a deployment.
const ROLE: &str = "/roleRef";
const SELECTOR: &str = "/spec/selector";

/// HTTP status code.
const NOT_FOUND: u16 = 404;
const INVALID: u16 = 422;

/// Reconciles `gateway` and its objects.
pub(super) async fn reconcile<K: WireGuard>(
    gateway: &Arc<K>,
    context: &Context,
) -> Result<(), Problem> {
    let gateway = gateway.as_ref();
    if gateway.meta().deletion_timestamp.is_none() {
        // No binding is created for a gateway without the finalizer.
        let is_held = match finalizer::with(gateway, FINALIZER) {
            Some(all) => set_finalizers(gateway, &all, context).await?,
            None => true,
        };
        return if is_held { make(gateway, context).await } else { Ok(()) };
    }
    if let Some(others) = finalizer::without(gateway, FINALIZER) {
        unbind(gateway, context).await?;
        set_finalizers(gateway, &others, context).await?;
    }

    Ok(())
}

/// Sets the `finalizers` of `gateway`, and returns whether it has them: not if it was changed or deleted meanwhile,
/// which causes another round.
async fn set_finalizers<K: WireGuard>(
    gateway: &K,
    finalizers: &[&str],
    context: &Context,
) -> Result<bool, Problem> {
    let own = ApiResource::erase::<K>(&());
    let all = api(&context.client, &own, gateway.namespace().as_deref());
    let wanted = json!({"metadata": {
        "uid": gateway.uid(), "resourceVersion": gateway.resource_version(),
        "finalizers": finalizers,
    }});
    match all.patch(&gateway.name_any(), &PatchParams::default(), &Patch::Merge(&wanted)).await {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        outcome => outcome.map(|_| true).map_err(Problem::failed_to("write the finalizer")),
    }
}

async fn make<K: WireGuard>(gateway: &K, context: &Context) -> Result<(), Problem> {
    let (name, namespace) = (gateway.name_any(), gateway.namespace().unwrap_or_default());
    let cluster = gateway.labels().get(REMOTE_CLUSTER_ID).ok_or(Problem::NoCluster)?;
    let parents = gateway.owner_references();
    let parent = parents.iter().find(|owner| owner.controller == Some(true));
    let holder = Holder {
        namespace: &namespace,
        remote_cluster_id: cluster,
        owner: parent.ok_or(Problem::NoOwner)?,
    };
    let keys =
        keys::ensure(&context.secrets, &holder, gateway.secret(), context.settings.generate_keys)
            .await?;
    let secret = keys.secret.name.clone().unwrap_or_default();
    if keys.is_new {
        let note = format!("made secret {secret} with a new pair of keys");
        context.report(gateway, "KeysSecretEnforced", note).await;
    }

    let role = match K::MODE {
        Mode::Server => &context.settings.server_role,
        Mode::Client => &context.settings.client_role,
    };
    let owner = owner(gateway);
    let site = Site { name: &name, namespace: &namespace, owner: &owner, secret: &secret, role };
    let Workload { mut deployment, mut service, account, binding, metrics } =
        workload(gateway, &site)?;
    if let Some(generation) = gateway.annotations().get(GENERATION) {
        for made in std::iter::once(&mut deployment).chain(&mut service) {
            annotate(made, GENERATION, generation.clone());
        }
    }
    if let Some(account) = account {
        put::<ServiceAccount>(context, Some(&namespace), account).await?;
    }
    if site.is_bound_within_namespace() {
        put_or_replace::<RoleBinding>(context, Some(&namespace), binding, ROLE).await?;
    } else {
        put_or_replace::<ClusterRoleBinding>(context, None, binding, ROLE).await?;
    }
    unbind_former(&site, context).await?;
    let selector = deployment.pointer(SELECTOR).cloned().unwrap_or_default();
    deploy(gateway, context, &namespace, deployment).await?;
    if let Some(service) = service {
        let applied = put::<Service>(context, Some(&namespace), service).await?;
        if applied == Applied::Created {
            let note = format!("made service {}", site.object_name());
            context.report(gateway, "ServiceEnforced", note).await;
        }
    }
    write_endpoint(gateway, context, &site, &selector, keys.secret).await?;

    scrape(gateway, context, &site, metrics).await
}

/// Deploys the pods.
async fn deploy<K: WireGuard>(
    gateway: &K,
    context: &Context,
    namespace: &str,
    wanted: Value,
) -> Result<(), Problem> {
    let name = name_of(&wanted);
    let _turn = context.rollouts.lock().await;
    let waits = rollout::waits_for(context, namespace, &gateway_name(&wanted), &wanted).await;
    if let Some(other) = waits.map_err(Problem::failed_to("read the other gateways"))? {
        let note = format!("gateway {other} is being replaced; {name} is changed after that");
        context.report(gateway, "RolloutWaits", note).await;
        // The pods of the other one cause another round.
        return Ok(());
    }
    let applied = put_or_replace::<Deployment>(context, Some(namespace), wanted, SELECTOR).await?;
    if applied == Applied::Created {
        context.report(gateway, "DeploymentEnforced", format!("made Deployment {name}")).await;
    }

    Ok(())
}

/// The gateway that a Deployment is for, as in its labels.
fn gateway_name(deployment: &Value) -> String {
    let labels = deployment.pointer("/metadata/labels");
    let name = labels.and_then(|labels| labels.get(GATEWAY_NAME)).and_then(Value::as_str);

    name.unwrap_or_default().to_owned()
}

/// Applies the objects that metrics need, and deletes those that are no longer requested.
async fn scrape<K: WireGuard>(
    gateway: &K,
    context: &Context,
    site: &Site<'_>,
    [service, monitor]: [Option<Value>; 2],
) -> Result<(), Problem> {
    let name = site.metrics_name();
    let doing = |what: &str| Problem::failed_to(format!("{what} {name}"));
    let services = context.of::<Service>();
    let found = services.get(&name, Some(site.namespace)).await.map_err(doing("read Service"))?;
    ensure(&services.api(Some(site.namespace)), site, found, service)
        .await
        .map_err(doing("write Service"))?;

    // Where no monitor is requested, the API server is asked for one once in the life of the operator.
    let is_wanted = monitor.is_some();
    if !is_wanted && context.is_unmonitored(gateway) {
        return Ok(());
    }
    let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", "ServiceMonitor");
    let monitors = api(&context.client, &ApiResource::from_gvk(&kind), Some(site.namespace));
    match monitors.get_opt(&name).await {
        // The kind is unknown, not the object.
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {
            if is_wanted {
                return Err(Problem::NoMonitors);
            }
        }
        found => {
            let found = found.map_err(doing("read ServiceMonitor"))?;
            ensure(&monitors, site, found, monitor).await.map_err(doing("write ServiceMonitor"))?;
        }
    }
    context.note_monitored(gateway, is_wanted);

    Ok(())
}

/// Applies `wanted` in place of `found`, or deletes `found` if it is the gateway's own.
async fn ensure(
    all: &Api<DynamicObject>,
    site: &Site<'_>,
    found: Option<DynamicObject>,
    wanted: Option<Value>,
) -> kube::Result<()> {
    match (wanted, found) {
        (Some(wanted), found) => {
            apply(all, &site.metrics_name(), found.as_ref(), wanted).await.map(|_| ())
        }
        (None, Some(found)) if site.owns(&found) => delete(all, &found).await,
        (None, _) => Ok(()),
    }
}

/// Deletes the bindings of `gateway` that have no owner, also those to a role that it had before.
async fn unbind<K: WireGuard>(gateway: &K, context: &Context) -> Result<(), Problem> {
    let (name, namespace) = (gateway.name_any(), gateway.namespace().unwrap_or_default());
    let labels = [(GATEWAY_NAME, &*name), (GATEWAY_NAMESPACE, &*namespace)];
    let bindings = context.of::<ClusterRoleBinding>().api(None);
    // From the API server: a binding missing in the cache would stay.
    let found = bindings.list(&ListParams::default().labels(&all_equal(&labels))).await;

    delete_bindings(found.map_err(Problem::failed_to(LIST_BINDINGS))?, &bindings).await
}

/// Deletes the bindings of a gateway to roles that it had before, which may grant more than the present one.
async fn unbind_former(site: &Site<'_>, context: &Context) -> Result<(), Problem> {
    let labels = [(GATEWAY_NAME, site.name), (GATEWAY_NAMESPACE, site.namespace)];
    let is_within = site.is_bound_within_namespace();
    let is_former = |binding: &DynamicObject, is_of_namespace: bool| {
        is_of_namespace != is_within || binding.name_any() != site.binding_name()
    };

    let all = context.of::<ClusterRoleBinding>();
    let found = all.labelled(&labels).await.map_err(Problem::failed_to(LIST_BINDINGS))?;
    let former = found.into_iter().filter(|binding| is_former(binding, false));
    delete_bindings(former, &all.api(None)).await?;

    let own = context.of::<RoleBinding>();
    let found = own.labelled(&labels).await.map_err(Problem::failed_to(LIST_OWN_BINDINGS))?;
    // A user who may create bindings in the namespace may set any label; the gateway's own has an owner.
    let is_own = |binding: &DynamicObject| {
        binding.namespace().as_deref() == Some(site.namespace) && site.owns(binding)
    };
    let former = found.into_iter().filter(|binding| is_own(binding) && is_former(binding, true));

    delete_bindings(former, &own.api(Some(site.namespace))).await
}

async fn delete_bindings(
    bindings: impl IntoIterator<Item = DynamicObject>,
    all: &Api<DynamicObject>,
) -> Result<(), Problem> {
    for binding in bindings {
        let doing = Problem::failed_to(format!("delete binding {}", binding.name_any()));
        delete(all, &binding).await.map_err(doing)?;
    }

    Ok(())
}

/// Writes the endpoint of the gateway, whose pods `selector` selects. While it cannot be determined, the former one is kept.
async fn write_endpoint<K: WireGuard>(
    gateway: &K,
    context: &Context,
    site: &Site<'_>,
    selector: &Value,
    secret: ObjectReference,
) -> Result<(), Problem> {
    let pods = context.of::<Pod>().list(site.namespace).await;
    let pods = pods.map_err(Problem::failed_to("list pods"))?;
    // The namespace may have pods of several gateways.
    let own = pods.into_iter().filter(|pod| is_selected(pod, selector));
    let pods: Vec<Pod> = own.filter_map(|pod| pod.try_parse().ok()).collect();
    let inside = internal_endpoint(&pods);
    let endpoint = match gateway.service() {
        None => None,
        Some(_) => Some(external_endpoint(context, site, &pods).await?),
    };

    let former = gateway.status();
    let mut status = Map::new();
    put_known(&mut status, &former, "endpoint", endpoint);
    put_known(&mut status, &former, "internalEndpoint", Some(inside));
    status.insert("secretRef".to_owned(), serde_json::to_value(secret).unwrap_or_default());
    let status = Value::Object(status);
    if status == former {
        return Ok(());
    }
    let own = ApiResource::erase::<K>(&());
    let owns = api(&context.client, &own, Some(site.namespace));

    apply_status(&owns, &own, site.name, &status)
        .await
        .map_err(Problem::failed_to("write the status"))
}

/// Whether `pod` has the labels that `selector` of a Deployment requires.
fn is_selected(pod: &DynamicObject, selector: &Value) -> bool {
    let required = selector.get("matchLabels").and_then(Value::as_object);
    let has = |(label, value): (&String, &Value)| {
        pod.labels().get(label).is_some_and(|found| value == found)
    };

    required.is_none_or(|required| required.iter().all(has))
}

async fn external_endpoint(
    context: &Context,
    site: &Site<'_>,
    pods: &[Pod],
) -> Result<Result<strait_api::endpoint::Endpoint, EndpointError>, Problem> {
    let name = site.object_name();
    let doing = Problem::failed_to(format!("read Service {name}"));
    let service = context.of::<Service>().get(&name, Some(site.namespace)).await.map_err(doing)?;
    // A service that is being deleted may be that of a former gateway of the same name, and its address is void.
    let service = service.filter(|service| service.metadata.deletion_timestamp.is_none());
    let service = service.and_then(|service| service.try_parse().ok()).unwrap_or_default();
    let node = active_pod(pods).ok().and_then(|pod| pod.spec.as_ref()?.node_name.clone());
    let nodes = match node {
        None => Vec::new(),
        Some(node) => {
            let doing = Problem::failed_to(format!("read Node {node}"));
            let node = context.of::<Node>().get(&node, None).await.map_err(doing)?;
            node.and_then(|node| node.try_parse().ok()).into_iter().collect()
        }
    };

    Ok(endpoint(&service, pods, &nodes))
}

fn put_known<T: Serialize>(
    status: &mut Map<String, Value>,
    former: &Value,
    field: &str,
    found: Option<Result<T, EndpointError>>,
) {
    let value = match found {
        None => None,
        Some(Ok(found)) => serde_json::to_value(found).ok(),
        Some(Err(_)) => former.get(field).cloned(),
    };
    if let Some(value) = value {
        status.insert(field.to_owned(), value);
    }
}

async fn put<K: OwnedKind>(
    context: &Context,
    namespace: Option<&str>,
    wanted: Value,
) -> Result<Applied, Problem> {
    let cache = context.of::<K>();
    let (kind, name) = (K::kind(&()), name_of(&wanted));
    let doing = |verb: &str| Problem::failed_to(format!("{verb} {kind} {name}"));
    let found = cache.get(&name, namespace).await.map_err(doing("read"))?;

    apply(&cache.api(namespace), &name, found.as_ref(), wanted).await.map_err(doing("apply"))
}

/// As [`put`]. The value at `fixed` is immutable: an object with another value there is replaced.
async fn put_or_replace<K: OwnedKind>(
    context: &Context,
    namespace: Option<&str>,
    wanted: Value,
    fixed: &str,
) -> Result<Applied, Problem> {
    let cache = context.of::<K>();
    let all = cache.api(namespace);
    let (kind, name) = (K::kind(&()), name_of(&wanted));
    let doing = |verb: &str| Problem::failed_to(format!("{verb} {kind} {name}"));
    let mut found = cache.get(&name, namespace).await.map_err(doing("read"))?;
    if !found.as_ref().is_some_and(|found| is_another(&wanted, found, fixed)) {
        match apply(&all, &name, found.as_ref(), wanted.clone()).await {
            // An object without the labels is not in the cache. A binding under this name would leave the gateway
            // without rights, so it is replaced; the Deployment of another owner is not.
            Err(kube::Error::Api(status))
                if found.is_none() && status.code == INVALID && fixed == ROLE =>
            {
                found = all.get_opt(&name).await.map_err(doing("read"))?;
                if !found.as_ref().is_some_and(|found| is_another(&wanted, found, fixed)) {
                    return Err(doing("apply")(kube::Error::Api(status)));
                }
            }
            outcome => return outcome.map_err(doing("apply")),
        }
    }
    if let Some(found) = found {
        delete(&all, &found).await.map_err(doing("replace"))?;
    }

    apply(&all, &name, None, wanted).await.map_err(doing("apply"))
}

/// Whether the value at `fixed` differs. The API server omits empty values.
fn is_another(wanted: &Value, found: &DynamicObject, fixed: &str) -> bool {
    let pair = wanted.pointer(fixed).zip(found.data.pointer(fixed));

    pair.is_some_and(|(wanted, found)| !is_within(wanted, found) || !is_within(found, wanted))
}

fn name_of(object: &Value) -> String {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);

    name.unwrap_or_default().to_owned()
}

fn owner<K: WireGuard>(gateway: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: gateway.name_any(),
        uid: gateway.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
