//! The watches and reconcile queues of the operator: each change reconciles the gateways and addresses that it affects.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::stream::{Stream, StreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use strait_api::labels::{GATEWAY_NAME, GATEWAY_NAMESPACE};
use strait_api::{
    GatewayClient, GatewayServer, IP, WgGatewayClient, WgGatewayClientTemplate, WgGatewayServer,
    WgGatewayServerTemplate,
};
use strait_kube::repeated_failure::RepeatedFailure;
use strait_kube::watch::{WATCH_SECONDS, unending};
use tracing::debug;

use super::context::Context;
use super::kind::{Gateway, Object, WireGuard, equal};
use super::queue::{ReconcileQueue, neighbours, owners};
use super::service_of_ip::{self, SERVICE_OF_IP};
use super::{Settings, foreign_cluster, in_force, render, wireguard};

/// The label of the definition of a kind of templates.
const TEMPLATE: (&str, &str) = ("networking.liqo.io/gatewaytemplate", "true");

/// Reconciles all gateways of a cluster, without end. May be dropped at any time.
pub async fn run(client: Client, settings: Settings) {
    let context = Arc::new(Context::new(client, settings));
    context.children.send_modify(|children| {
        children.extend([WgGatewayServer::resource(), WgGatewayClient::resource()].map(by_kind));
    });
    let mut templates = std::pin::pin!(templates(&context));
    // Before the first list it is not known which kinds are templates.
    while templates.next().await.is_some_and(|is_all| !is_all) {}

    let made = async {
        tokio::join!(
            wireguards::<WgGatewayServer>(&context),
            wireguards::<WgGatewayClient>(&context),
            reconcile_services_of_ips(&context),
            configurations(&context),
            foreign_cluster::run(&context),
        );
    };
    let requested = async {
        let mut children = context.children.subscribe();
        loop {
            let kinds = children.borrow_and_update().clone();
            debug!(kinds = ?kinds.keys(), "watches what templates make");
            tokio::select! {
                () = gateways::<GatewayServer>(&context, &kinds) => {}
                () = gateways::<GatewayClient>(&context, &kinds) => {}
                _ = children.changed() => {}
                _ = templates.next() => {}
            }
        }
    };

    tokio::join!(made, requested);
}

/// Reconciles all objects that request a gateway of one end, with `children` of these kinds.
async fn gateways<K: Gateway>(
    context: &Arc<Context>,
    children: &HashMap<GroupVersionKind, ApiResource>,
) {
    let mut queue =
        ReconcileQueue::<K>::new(&context.client).also_on(&context.of::<Secret>(), neighbours);
    for kind in children.values() {
        queue = queue.also_on(&context.cache(kind, ""), owners);
    }
    let templates = context.templates.lock().clone();
    for kind in templates.into_values() {
        let name = kind.kind.clone();
        let templates = context.cache(&kind, "");
        queue = queue.also_on(&templates, move |template, all| made_from(&name, template, all));
    }
    let round = |gateway: Arc<K>, context: Arc<Context>| async move {
        render::reconcile(&gateway, &context).await
    };

    queue.run(context, round).await;
}

/// Reconciles all objects that are a gateway of one end.
async fn wireguards<K: WireGuard>(context: &Arc<Context>) {
    let queue = ReconcileQueue::<K>::new(&context.client)
        .also_on(&context.of::<Deployment>(), owners)
        .also_on(&context.of::<Service>(), owners)
        .also_on(&context.of::<ServiceAccount>(), owners)
        .also_on(&context.of::<ClusterRoleBinding>(), bound)
        .also_on(&context.of::<RoleBinding>(), owners)
        .also_on(&context.of::<Secret>(), neighbours)
        .also_on(&context.of::<Pod>(), neighbours)
        .also_on(&context.of::<Node>(), on_node);
    let round = |gateway: Arc<K>, context: Arc<Context>| async move {
        wireguard::reconcile(&gateway, &context).await
    };

    queue.run(context, round).await;
}

/// Reconciles all addresses that may have a service in front of them.
async fn reconcile_services_of_ips(context: &Arc<Context>) {
    let service = ApiResource::erase::<Service>(&());
    let queue = ReconcileQueue::<IP>::new(&context.client)
        .also_on(&context.cache(&service, &equal(SERVICE_OF_IP)), owners)
        .also_on(&context.of::<EndpointSlice>(), owners);
    let round = |ip: Arc<IP>, context: Arc<Context>| async move {
        service_of_ip::reconcile(&ip, &context).await
    };

    queue.run(context, round).await;
}

/// Reconciles all objects that may have the condition of a gateway.
async fn configurations(context: &Arc<Context>) {
    let queue = ReconcileQueue::<in_force::Status>::new(&context.client)
        .also_on(&context.of::<Pod>(), neighbours)
        .also_on(&context.cache(&WgGatewayServer::resource(), ""), neighbours)
        .also_on(&context.cache(&WgGatewayClient::resource(), ""), neighbours);
    let round = |configuration: Arc<in_force::Status>, context: Arc<Context>| async move {
        in_force::reconcile(&configuration, &context).await
    };

    queue.run(context, round).await;
}

/// The gateways that refer to `template`, which is of this `kind`.
fn made_from<K: Gateway>(
    kind: &str,
    template: &DynamicObject,
    all: &Store<K>,
) -> Vec<ObjectRef<K>> {
    let default = format!("WgGateway{}Template", K::MODE);
    let refers = |gateway: &&Arc<K>| {
        gateway.template().is_some_and(|reference| {
            let namespace = reference.namespace.clone().or_else(|| gateway.namespace());
            reference.name == template.metadata.name
                && namespace == template.metadata.namespace
                && reference.kind.as_ref().unwrap_or(&default) == kind
        })
    };
    let all = all.state();

    all.iter().filter(refers).map(|gateway| ObjectRef::from_obj(gateway.as_ref())).collect()
}

/// The gateway of a binding.
fn bound<K: WireGuard>(binding: &DynamicObject, _: &Store<K>) -> Vec<ObjectRef<K>> {
    let label = |label: &str| binding.labels().get(label);
    let gateway = label(GATEWAY_NAME).zip(label(GATEWAY_NAMESPACE));

    gateway.map(|(name, namespace)| ObjectRef::new(name).within(namespace)).into_iter().collect()
}

/// The gateways whose active pod runs on `node`, and those that have none yet.
fn on_node<K: WireGuard>(node: &DynamicObject, all: &Store<K>) -> Vec<ObjectRef<K>> {
    let is_there = |gateway: &&Arc<K>| {
        let status = gateway.status();
        let place = status.pointer("/internalEndpoint/node").and_then(|node| node.as_str());
        gateway.service().is_some() && place.is_none_or(|place| *place == node.name_any())
    };
    let all = all.state();

    all.iter().filter(is_there).map(|gateway| ObjectRef::from_obj(gateway.as_ref())).collect()
}

/// Keeps the kinds of templates up to date. Yields after each change whether the first list is complete.
fn templates(context: &Arc<Context>) -> impl Stream<Item = bool> + Send + use<> {
    let api = Api::<CustomResourceDefinition>::all(context.client.clone());
    let (label, value) = TEMPLATE;
    let config =
        watcher::Config::default().timeout(WATCH_SECONDS).labels(&format!("{label}={value}"));
    let context = Arc::clone(context);
    let mut known: BTreeMap<String, ApiResource> = BTreeMap::new();
    let mut failure = RepeatedFailure::about("watch the kinds of gateway templates");
    let mut is_all = false;

    unending(move || watcher(api.clone(), config.clone())).filter_map(move |event| {
        failure.log(&event);
        match event {
            Ok(watcher::Event::Init) => known.clear(),
            Ok(watcher::Event::InitApply(crd) | watcher::Event::Apply(crd)) => {
                known.insert(crd.name_any(), resource(&crd));
            }
            Ok(watcher::Event::Delete(crd)) => {
                known.remove(&crd.name_any());
            }
            Ok(watcher::Event::InitDone) => is_all = true,
            Err(_) => return std::future::ready(None),
        }
        // Until all are listed again, the former ones are kept.
        let is_changed = is_all && set_templates(&context, known.values());
        std::future::ready((is_changed || !is_all).then_some(is_all))
    })
}

/// Sets the kinds of templates to `kinds`, beside our own. Returns whether they have changed.
fn set_templates<'a>(context: &Context, kinds: impl Iterator<Item = &'a ApiResource>) -> bool {
    let own = [
        ApiResource::erase::<WgGatewayServerTemplate>(&()),
        ApiResource::erase::<WgGatewayClientTemplate>(&()),
    ];
    let kinds = own.into_iter().chain(kinds.cloned());
    let kinds: BTreeMap<_, _> =
        kinds.map(|kind| ((kind.kind.clone(), kind.group.clone()), kind)).collect();
    let mut known = context.templates.lock();
    let is_changed = *known != kinds;
    *known = kinds;

    is_changed
}

fn resource(crd: &CustomResourceDefinition) -> ApiResource {
    let spec = &crd.spec;
    let stored = spec.versions.iter().find(|version| version.storage);
    let version = stored.map(|version| version.name.clone()).unwrap_or_default();

    ApiResource {
        api_version: format!("{}/{version}", spec.group),
        group: spec.group.clone(),
        version,
        kind: spec.names.kind.clone(),
        plural: spec.names.plural.clone(),
    }
}

fn by_kind(resource: ApiResource) -> (GroupVersionKind, ApiResource) {
    let kind = GroupVersionKind::gvk(&resource.group, &resource.version, &resource.kind);

    (kind, resource)
}
