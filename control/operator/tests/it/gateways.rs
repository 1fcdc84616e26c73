//! The operator against a real API server, with its shipped role. Deployments get their pods from a stand-in for the
//! kubelet.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{GatewayClient, GatewayServer, WgGatewayClient, WgGatewayServer};
use strait_control_lab::create;
use strait_control_lab::kubelet::{self, NODE};
use strait_control_lab::tenant::NAMESPACE;
use tokio::time::{Instant, sleep};

use crate::world::{PATIENCE, World, addresses, object, server};

#[tokio::test]
async fn a_gateway_is_created_kept_and_deleted() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    let start = Instant::now();
    world.ask_for_server().await;

    // All objects exist, and the endpoint is in the status.
    let made = world.until("milan", |server| !addresses(server).is_empty()).await;
    eprintln!("a gateway after {:?}", start.elapsed());
    let status = made.status.clone().expect("a status");
    assert_eq!(addresses(&made), ["172.18.0.3"]);
    assert_eq!(status.endpoint.and_then(|endpoint| endpoint.port), Some(30742));
    let secret = status.secret_ref.expect("a secret");
    assert_eq!(
        (secret.name.as_deref(), secret.namespace.as_deref()),
        (Some("gw-milan"), Some(NAMESPACE))
    );
    let place = status.internal_endpoint.expect("a place");
    assert_eq!((place.ip.as_deref(), place.node.as_deref()), (Some("10.244.1.9"), Some(NODE)));
    let child = status.server_ref.expect("a child");
    assert_eq!(
        (child.kind.as_deref(), child.name.as_deref()),
        (Some("WgGatewayServer"), Some("milan"))
    );

    let keys: Secret = world.api().get("gw-milan").await.expect("keys");
    let data = keys.data.clone().expect("data");
    assert_eq!((data["privateKey"].0.len(), data["publicKey"].0.len()), (32, 32));
    assert_eq!(keys.labels()["networking.liqo.io/gateway-resource"], "true");
    assert_eq!(keys.owner_references()[0].kind, "GatewayServer");
    assert_eq!(Some(&keys.owner_references()[0].uid), made.uid().as_ref());
    let deployment: Deployment = world.api().get("gw-milan").await.expect("a deployment");
    assert_eq!(deployment.owner_references()[0].kind, "WgGatewayServer");
    let pod = deployment.spec.clone().template.spec.expect("a pod");
    let volumes = pod.volumes.expect("volumes");
    let mounted = volumes.iter().find(|volume| volume.name == "wireguard-config").expect("one");
    let mounted = mounted.secret.as_ref().and_then(|secret| secret.secret_name.as_deref());
    assert_eq!(mounted, Some("gw-milan"));
    let service: Service = world.api().get("gw-milan").await.expect("a service");
    let port = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()?.first()).expect("a port");
    assert_eq!((port.port, port.node_port), (51840, Some(30742)));
    world.api::<ServiceAccount>().get("milan").await.expect("an account");
    let bindings: Api<ClusterRoleBinding> = Api::all(world.admin.clone());
    let binding = format!("liqo-gateway-{NAMESPACE}-milan");
    let bound = bindings.get(&binding).await.expect("a binding");
    assert_eq!(bound.labels()["networking.liqo.io/gateway-namespace"], NAMESPACE);

    // Objects that others delete or change are corrected; those that are right are not written again.
    world.api::<Deployment>().delete("gw-milan", &DeleteParams::background()).await.expect("gone");
    let again = world.until::<Deployment>("gw-milan", |_| true).await;
    assert_ne!(again.uid(), deployment.uid());
    let other = json!({"spec": {"type": "ClusterIP", "ports": null}});
    let _ = world
        .api::<Service>()
        .patch("gw-milan", &PatchParams::default(), &Patch::Merge(&other))
        .await;
    let type_ = |service: &Service| service.spec.clone().and_then(|spec| spec.type_);
    world
        .until("gw-milan", |service: &Service| type_(service).as_deref() == Some("NodePort"))
        .await;
    world.until("milan", |server: &GatewayServer| addresses(server) == ["172.18.0.3"]).await;

    // The address follows the node; without a pod it is kept.
    kubelet::move_node(&world.admin, "172.18.0.4").await;
    world.until("milan", |server: &GatewayServer| addresses(server) == ["172.18.0.4"]).await;

    // A change of the spec reaches the service.
    let change = json!({"spec": {"endpoint": {"nodePort": 30800}}});
    let servers = world.api::<GatewayServer>();
    servers
        .patch("milan", &PatchParams::default(), &Patch::Merge(&change))
        .await
        .expect("a change");
    let port =
        |server: &GatewayServer| server.status.clone().and_then(|status| status.endpoint?.port);
    let changed = world.until("milan", |server: &GatewayServer| port(server) == Some(30800)).await;

    // The objects record the generation that they were made from.
    let generation = changed.metadata.generation.expect("a generation").to_string();
    let deployment: Deployment = world.api().get("gw-milan").await.expect("a deployment");
    assert_eq!(deployment.annotations()["strait.io/generation"], generation);
    let service: Service = world.api().get("gw-milan").await.expect("a service");
    assert_eq!(service.annotations()["strait.io/generation"], generation);

    // With the gateway its binding is deleted, which cannot have an owner.
    world.api::<WgGatewayServer>().delete("milan", &DeleteParams::default()).await.expect("gone");
    let start = Instant::now();
    while bindings.get(&binding).await.is_ok_and(|found| found.uid() == bound.uid()) {
        assert!(start.elapsed() < PATIENCE, "the binding stays");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_gateway_with_foreign_finalizers_is_deleted() {
    let Some(mut world) = World::new().await else { return };
    // As in a restored copy: no field manager owns the finalizers.
    let finalizers = ["networking.liqo.io/clusterrolebinding", "example.com/archive"];
    let held = json!({
        "metadata": {"name": "milan", "finalizers": finalizers},
        "spec": {"deployment": {}, "service": {}},
    });
    create(world.api(), &object::<WgGatewayServer>(held)).await;
    world.api::<WgGatewayServer>().delete("milan", &DeleteParams::default()).await.expect("going");

    world.start_operator();

    let rest = |server: &WgGatewayServer| server.finalizers() == ["example.com/archive"];
    world.until("milan", rest).await;
}

#[tokio::test]
async fn objects_that_are_right_are_not_written() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    sleep(Duration::from_secs(1)).await;

    let before = world.versions().await;
    assert!(before.len() >= 6, "{before:?}");
    // The next operator reconciles every gateway again.
    world.tasks.pop().expect("an operator").abort();
    world.start_operator();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.versions().await, before);
}

#[tokio::test]
async fn a_client_has_no_service_and_one_secret() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.apply(include_str!("../../../../deploy/liqo/client.yaml")).await;
    for name in ["one", "two"] {
        let labels =
            json!({"networking.liqo.io/gateway-resource": "true", REMOTE_CLUSTER_ID: "milan"});
        let secret = json!({"metadata": {"name": name, "labels": labels}});
        create(world.api(), &object::<Secret>(secret)).await;
    }
    let client = json!({
        "metadata": {"name": "milan", "labels": {REMOTE_CLUSTER_ID: "milan"}},
        "spec": {
            "mtu": 1340,
            "endpoint": {"addresses": ["198.51.100.2"], "port": 30742, "protocol": "UDP"},
            "clientTemplateRef": {"name": "strait-client", "namespace": "liqo"},
        },
    });
    create(world.api(), &object::<GatewayClient>(client)).await;

    // An operator that has seen only one of them may report that first.
    let note = world.event_note_containing("KeysSecretCheckFailed", "found multiple secrets").await;
    assert!(note.ends_with("one, two: keep one, or name it in spec.secretRef"), "{note}");
    for name in ["one", "two"] {
        world.api::<Secret>().delete(name, &DeleteParams::default()).await.expect("gone");
    }
    let place =
        |client: &GatewayClient| client.status.clone().and_then(|status| status.internal_endpoint);
    let made = world.until("milan", |client: &GatewayClient| place(client).is_some()).await;
    assert_eq!(
        made.status.and_then(|status| status.client_ref?.kind).as_deref(),
        Some("WgGatewayClient")
    );
    let all = world.api::<Service>().list(&ListParams::default()).await.expect("a list");
    assert_eq!(all.items.len(), 0);
    world.api::<WgGatewayClient>().get("milan").await.expect("it");
    assert_eq!(world.api::<Pod>().list(&ListParams::default()).await.expect("pods").items.len(), 1);
}

#[tokio::test]
async fn the_operator_survives_an_api_server_outage() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.apply(include_str!("../../../../deploy/liqo/server.yaml")).await;
    world.server.restart().await;
    create(world.api(), &server("strait-server")).await;

    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
}
