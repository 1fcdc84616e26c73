//! The part of a node that gateways need: pods for deployments, which run at once.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{create, revision};

/// The only node.
pub const NODE: &str = "node-1";

/// Creates the node, which is ready.
pub async fn node(client: &Client, address: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    create(nodes, &object(json!({"metadata": {"name": NODE}}))).await;
    move_node(client, address).await;
}

/// Gives the node another address.
pub async fn move_node(client: &Client, address: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True", "reason": "", "message": "",
            "lastHeartbeatTime": null, "lastTransitionTime": null}],
        "addresses": [{"type": "InternalIP", "address": address}],
    }});

    nodes
        .patch_status(NODE, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .expect("a node");
}

/// Runs a pod for every deployment, and none without, until dropped.
pub async fn run(client: Client) {
    let mut complete = None;
    loop {
        // It ends with the API server.
        if let Ok(revision) = revision(&client).await
            && complete.as_ref() != Some(&revision)
            && let Ok(true) = has_its_pods(&client).await
        {
            complete = Some(revision);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the pods were right; otherwise it starts and deletes some.
async fn has_its_pods(client: &Client) -> kube::Result<bool> {
    let deployments: Api<Deployment> = Api::all(client.clone());
    let pods: Api<Pod> = Api::all(client.clone());
    let wanted = deployments.list(&ListParams::default()).await?;
    let found = pods.list(&ListParams::default()).await?;
    let owned = |pod: &Pod| pod.owner_references().first().map(|owner| owner.uid.clone());
    let mut are_right = true;
    for deployment in &wanted.items {
        if !found.items.iter().any(|pod| owned(pod) == deployment.uid()) {
            are_right = false;
            start(client, deployment).await;
        }
    }
    for pod in &found.items {
        if !wanted.items.iter().any(|deployment| deployment.uid() == owned(pod)) {
            are_right = false;
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace(pod));
            let now = DeleteParams::default().grace_period(0);
            let _ = pods.delete(&pod.name_any(), &now).await;
        }
    }

    Ok(are_right)
}

async fn start(client: &Client, deployment: &Deployment) {
    let namespace = deployment.namespace().expect("a namespace");
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let template = deployment.spec.clone().template;
    let uid = deployment.uid().expect("a UID");
    let name = format!("{}-{}", deployment.name_any(), &uid[..5]);
    let pod = json!({
        "metadata": {
            "name": name, "labels": template.metadata.and_then(|metadata| metadata.labels),
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": deployment.name_any(), "uid": uid,
            }],
        },
        "spec": template.spec,
    });
    let mut pod: Pod = object(pod);
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(NODE.to_owned());
        spec.volumes = None;
        for container in &mut spec.containers {
            container.volume_mounts = None;
        }
    }

    // A failure is repeated in the next round.
    if pods.create(&Default::default(), &pod).await.is_ok() {
        let status = json!({"status": {"phase": "Running", "podIP": "10.244.1.9", "podIPs": [{"ip": "10.244.1.9"}]}});
        let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let status = json!({"status": {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}});
    let _ = deployments
        .patch_status(&deployment.name_any(), &PatchParams::default(), &Patch::Merge(&status))
        .await;
}

fn namespace(pod: &Pod) -> String {
    pod.namespace().expect("a namespace")
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}
