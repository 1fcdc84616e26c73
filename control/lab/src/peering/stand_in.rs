//! A stand-in for the operator, the gateways and the garbage collector of a cluster.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions,
};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer, Network, PublicKey};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::revision;

/// The node port of every server.
const NODE_PORT: u16 = 30742;

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// It does nothing.
    Nothing,
    /// Prefixes get local prefixes.
    Prefixes,
    /// And gateways get Deployments, without a pod.
    Deployments,
    /// And those have pods.
    Pods,
    /// And servers get addresses.
    Addresses,
    /// And gateways get keys.
    Keys,
    /// And they try to connect.
    Connections,
    /// And succeed.
    All,
}

/// Works until it is dropped.
pub struct StandIn {
    work: watch::Sender<Work>,
    /// The number of complete rounds.
    rounds: watch::Receiver<u64>,
    task: AbortHandle,
}

impl StandIn {
    /// Starts it; it does [`Work::All`].
    pub fn start(client: Client) -> Self {
        let (work, receiver) = watch::channel(Work::All);
        let (counter, rounds) = watch::channel(0);
        let task = tokio::spawn(run(client, receiver, counter)).abort_handle();

        Self { work, rounds, task }
    }

    /// Applies from now on; work in progress is completed first.
    pub async fn set(&self, work: Work) {
        self.work.send_replace(work);
        self.whole_round().await;
    }

    /// Waits for another complete round.
    pub async fn whole_round(&self) {
        let mut rounds = self.rounds.clone();
        let begun = *rounds.borrow() + 1;
        rounds.wait_for(|done| *done > begun).await.expect("it works");
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(client: Client, work: watch::Receiver<Work>, rounds: watch::Sender<u64>) {
    let mut complete = None;
    loop {
        let work = *work.borrow();
        // The server may be away; then there is nothing to do.
        if let Ok(revision) = revision(&client).await
            && complete != Some((work, revision.clone()))
        {
            let result = round(&client, &|part| work >= part).await;
            complete = result.is_ok().then_some((work, revision));
        }
        rounds.send_modify(|rounds| *rounds += 1);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

async fn round(client: &Client, does: &(dyn Fn(Work) -> bool + Sync)) -> kube::Result<()> {
    collect(client).await?;
    if does(Work::Prefixes) {
        for configuration in all::<Configuration>(client).await? {
            configure(client, &configuration).await?;
        }
    }
    for server in all::<GatewayServer>(client).await? {
        let spec = server.spec.endpoint.clone().unwrap_or_default();
        let mut service = json!({"spec": {
            "type": spec.service_type,
            "ports": [{"port": spec.port, "protocol": "UDP"}],
        }});
        let mut port = json!(spec.port);
        if spec.service_type.as_deref() == Some("NodePort") {
            port = json!(NODE_PORT);
            service["spec"]["ports"][0]["nodePort"] = port.clone();
        }
        gateway(client, &server, does).await?;
        if does(Work::Addresses) {
            put::<Service>(client, &server, service).await?;
            let status = json!({"status": {
                "endpoint": {"addresses": ["172.18.0.3"], "port": port, "protocol": "UDP"},
                "serverRef": {"kind": "WgGatewayServer", "name": server.name_any()},
                "internalEndpoint": {"ip": "10.244.0.9"},
            }});
            patch_status(client, &server, status).await?;
        }
    }
    for client_gateway in all::<GatewayClient>(client).await? {
        gateway(client, &client_gateway, does).await?;
        if does(Work::Addresses) {
            let status = json!({"status": {
                "clientRef": {"kind": "WgGatewayClient", "name": client_gateway.name_any()},
                "internalEndpoint": {"ip": "10.244.0.9"},
            }});
            patch_status(client, &client_gateway, status).await?;
        }
    }

    Ok(())
}

/// The Deployment, the keys and the Connection of a gateway.
async fn gateway<K>(
    client: &Client,
    gateway: &K,
    does: &(dyn Fn(Work) -> bool + Sync),
) -> kube::Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let labels = json!({"app": gateway.name_any()});
    let pod = json!({"containers": [{"name": "wireguard", "image": "none"}]});
    if does(Work::Deployments) {
        let mut deployment = json!({"spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels}, "spec": pod,
            },
        }});
        if does(Work::Pods) {
            deployment["status"] = json!({"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1});
        }
        put::<Deployment>(client, gateway, deployment).await?;
    }
    if does(Work::Pods) {
        let status = json!({"phase": "Running"});
        let pod = json!({"metadata": {"labels": labels}, "spec": pod, "status": status});
        put::<Pod>(client, gateway, pod).await?;
    }
    if does(Work::Keys) {
        let key = STANDARD.encode(format!("{:x<32}", gateway.name_any()));
        let secret = json!({
            "metadata": {"labels": {"networking.liqo.io/gateway-resource": "true"}},
            "data": {"privateKey": key, "publicKey": key},
        });
        put::<Secret>(client, gateway, secret).await?;
    }
    let keys = all::<PublicKey>(client).await?;
    if does(Work::Connections) && keys.iter().any(|key| key.namespace() == gateway.namespace()) {
        let value = if does(Work::All) { "Connected" } else { "Connecting" };
        let connection = json!({
            "spec": {"type": "Server", "gatewayRef": {"name": gateway.name_any()}},
            "status": {"value": value, "latency": {"value": "12ms"}},
        });
        put::<Connection>(client, gateway, connection).await?;
    }

    Ok(())
}

async fn configure(client: &Client, configuration: &Configuration) -> kube::Result<()> {
    let remote = configuration.spec.remote.clone().unwrap_or_default().cidr.unwrap_or_default();
    let status = json!({"status": {
        "remote": {"cidr": {"pod": ["10.71.0.0/16"], "external": remote.external}},
        "conditions": [{
            "type": "NetworkCIDRsConfigured", "status": "True", "reason": "NetworkCIDRsConfigured",
            "message": "All network CIDRs are configured",
            "observedGeneration": configuration.metadata.generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }});

    patch_status(client, configuration, status).await
}

/// Deletes the objects that have lost their owners.
///
/// Others create owners and objects meanwhile: an object is an orphan only if its owner is missing in a later list, and
/// one with a new owner is kept.
async fn collect(client: &Client) -> kube::Result<()> {
    let kinds = [
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<Pod>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<Secret>(&()),
        ApiResource::erase::<PublicKey>(&()),
        ApiResource::erase::<Connection>(&()),
        ApiResource::erase::<Network>(&()),
    ];
    let mut objects = Vec::new();
    for kind in &kinds {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
        let found = api.list(&ListParams::default()).await?;
        objects.extend(found.into_iter().map(|object| (kind, object)));
    }
    let mut owners: Vec<_> = all::<GatewayServer>(client).await?.iter().map(uid).collect();
    owners.extend(all::<GatewayClient>(client).await?.iter().map(uid));
    owners.extend(all::<Configuration>(client).await?.iter().map(uid));

    for (kind, object) in objects {
        let mut of_object = object.owner_references().iter().peekable();
        if of_object.peek().is_some() && of_object.all(|owner| !owners.contains(&owner.uid)) {
            let namespace = object.namespace().unwrap_or_default();
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, kind);
            let unchanged =
                Preconditions { uid: object.uid(), resource_version: object.resource_version() };
            let deletion = DeleteParams::default().grace_period(0).preconditions(unchanged);
            match api.delete(&object.name_any(), &deletion).await {
                Err(kube::Error::Api(answer)) if [404, 409].contains(&answer.code) => {}
                result => drop(result?),
            }
        }
    }

    Ok(())
}

fn uid<K: Resource>(object: &K) -> String {
    object.uid().unwrap_or_default()
}

async fn all<K>(client: &Client) -> kube::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    Ok(Api::all(client.clone()).list(&ListParams::default()).await?.items)
}

/// Creates an object that the gateway owns.
async fn put<K>(
    client: &Client,
    gateway: &(impl Resource<DynamicType = ()> + Sized),
    mut object: Value,
) -> kube::Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let namespace = gateway.namespace().unwrap_or_default();
    let name = format!("gw-{}", gateway.name_any());
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    object["metadata"]["name"] = json!(name);
    object["metadata"]["labels"][REMOTE_CLUSTER_ID] = json!(gateway.labels()[REMOTE_CLUSTER_ID]);
    object["metadata"]["ownerReferences"] = json!([gateway.owner_ref(&())]);
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &namespace, &ApiResource::erase::<K>(&()));
    let parameters = PatchParams::apply("stand-in").force();
    api.patch(&name, &parameters, &Patch::Apply(&object)).await?;
    if object.get("status").is_some() {
        api.patch_status(&name, &parameters, &Patch::Apply(&object)).await?;
    }

    Ok(())
}

async fn patch_status<K>(client: &Client, object: &K, mut status: Value) -> kube::Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let namespace = object.namespace().unwrap_or_default();
    status["apiVersion"] = json!(K::api_version(&()));
    status["kind"] = json!(K::kind(&()));
    status["metadata"] = json!({"name": object.name_any()});
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &namespace, &ApiResource::erase::<K>(&()));
    let parameters = PatchParams::apply("stand-in").force();
    api.patch_status(&object.name_any(), &parameters, &Patch::Apply(&status)).await?;

    Ok(())
}
