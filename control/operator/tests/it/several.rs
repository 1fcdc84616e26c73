//! Several gateways to one remote cluster.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use strait_api::labels::{GATEWAY_INDEX, REMOTE_CLUSTER_ID};
use strait_api::{Configuration, GatewayServer, IP};
use strait_control_lab::create;
use strait_control_lab::tenant::NAMESPACE;

use crate::world::{World, addresses, object, server};

/// The second gateway, which names the Secret that the operator makes for it.
fn second() -> GatewayServer {
    let mut second = server("strait-server");
    second.metadata.name = Some("milan-1".to_owned());
    second.labels_mut().insert(GATEWAY_INDEX.to_owned(), "1".to_owned());
    second.spec.secret_ref = object(json!({"name": "gw-milan-1"}));
    second.spec.endpoint = object(json!({
        "port": 51840, "serviceType": "NodePort", "nodePort": 30743,
    }));

    second
}

fn place(server: &GatewayServer) -> Option<String> {
    server.status.clone()?.internal_endpoint?.ip
}

fn secret(server: &GatewayServer) -> Option<String> {
    server.status.clone()?.secret_ref?.name
}

#[tokio::test]
async fn each_gateway_has_objects_of_its_own() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    create(world.api(), &second()).await;
    world.ask_for_server().await;

    let port = |server: &GatewayServer| server.status.clone().and_then(|it| it.endpoint?.port);
    for (name, node_port) in [("milan", 30742), ("milan-1", 30743)] {
        let is_complete = |server: &GatewayServer| {
            addresses(server) == ["172.18.0.3"] && port(server) == Some(node_port)
        };
        let made: GatewayServer = world.until(name, is_complete).await;
        assert_eq!(place(&made).as_deref(), Some("10.244.1.9"));
        let made_name = format!("gw-{name}");
        assert_eq!(secret(&made).as_ref(), Some(&made_name));
        let keys: Secret = world.api().get(&made_name).await.expect("keys");
        assert_eq!(Some(&keys.owner_references()[0].uid), made.uid().as_ref());
        world.api::<ServiceAccount>().get(name).await.expect("an account");
        world.api::<Service>().get(&made_name).await.expect("a Service");
        let deployment: Deployment = world.api().get(&made_name).await.expect("a Deployment");
        let volumes = deployment.spec.template.spec.and_then(|pod| pod.volumes);
        let mounted = volumes.into_iter().flatten().find_map(|volume| volume.secret?.secret_name);
        assert_eq!(mounted.as_ref(), Some(&made_name));
    }
    let bindings = ["milan", "milan-1"].map(|name| format!("liqo-gateway-{NAMESPACE}-{name}"));
    world.until_bound([&bindings, &[]]).await;

    // The place of each follows its own pod.
    let of_second = ListParams::default().labels("app.kubernetes.io/name=milan-1");
    let pods = world.api::<Pod>();
    let pod = pods.list(&of_second).await.expect("pods").items.remove(0).name_any();
    let moved = json!({"status": {"podIP": "10.244.1.10", "podIPs": [{"ip": "10.244.1.10"}]}});
    pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(&moved)).await.expect("it");
    let is_moved = |server: &GatewayServer| place(server).as_deref() == Some("10.244.1.10");
    world.until("milan-1", is_moved).await;
    let first: GatewayServer = world.api().get("milan").await.expect("the first");
    assert_eq!(place(&first).as_deref(), Some("10.244.1.9"));

    // The end of one does not concern the other.
    let now = DeleteParams::background();
    let first_uid = first.uid();
    world.api::<GatewayServer>().delete("milan-1", &now).await.expect("gone");
    let kind = world.of_kind(crate::world::NETWORKING, "WgGatewayServer", NAMESPACE);
    kind.delete("milan-1", &now).await.expect("going");
    world.until_bound([&bindings[..1], &[]]).await;
    let first: GatewayServer = world.api().get("milan").await.expect("the first");
    assert_eq!((first.uid(), secret(&first).as_deref()), (first_uid, Some("gw-milan")));
}

/// Two gateways with one key could not be told apart.
#[tokio::test]
async fn a_second_gateway_takes_no_other_keys() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    let labels = json!({"networking.liqo.io/gateway-resource": "true", REMOTE_CLUSTER_ID: "milan"});
    let keys = json!({
        "metadata": {"name": "own-keys", "labels": labels},
        "stringData": {"privateKey": "p".repeat(32), "publicKey": "q".repeat(32)},
    });
    create(world.api(), &object::<Secret>(keys)).await;

    world.ask_for_server().await;
    create(world.api(), &second()).await;

    let has =
        |name: &'static str| move |server: &GatewayServer| secret(server).as_deref() == Some(name);
    world.until("milan-1", has("gw-milan-1")).await;
    world.until("milan", has("own-keys")).await;
}

#[tokio::test]
async fn the_address_of_an_ip_masquerades_nothing() {
    let Some(mut world) = World::new().await else { return };
    let configuration = json!({
        "metadata": {"name": "milan", "labels": {REMOTE_CLUSTER_ID: "milan"}},
        "spec": {"local": {"cidr": {"pod": ["10.244.0.0/16"], "external": ["10.70.0.0/16"]}}},
    });
    create(world.api(), &object::<Configuration>(configuration)).await;
    let ip = json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "IP",
        "metadata": {"name": "db"}, "spec": {"ip": "192.0.2.7"},
    });
    create(world.api(), &object::<IP>(ip)).await;
    let status = Patch::Merge(json!({"status": {"ip": "10.70.0.1", "cidr": "10.70.0.0/16"}}));
    let ips = world.api::<IP>();
    ips.patch_status("db", &PatchParams::default(), &status).await.expect("an address");
    world.start_operator();
    world.ask_for_server().await;
    create(world.api(), &second()).await;

    let note = world.event_note("MasqueradeAddressTaken").await;
    assert_eq!(
        note,
        format!(
            "gateway 1 would masquerade nodes with 10.70.0.1, which is status.ip of IP {NAMESPACE}/db: delete that IP and make it again, or use fewer gateways"
        )
    );
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let deployments = world.api::<Deployment>();
    assert!(deployments.get_opt("gw-milan-1").await.expect("an answer").is_none());

    ips.delete("db", &DeleteParams::default()).await.expect("gone");
    world.until("milan-1", |server: &GatewayServer| !addresses(server).is_empty()).await;
}

#[tokio::test]
async fn a_wrong_gateway_index_is_reported() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    let mut wrong = second();
    wrong.labels_mut().insert(GATEWAY_INDEX.to_owned(), "8".to_owned());
    create(world.api(), &wrong).await;

    let note = world.event_note("GatewayIndexInvalid").await;

    let expected = "label strait.io/gateway-index=8: write the number of the gateway, from 0 to 7, or remove it";
    assert_eq!(note, expected);
    let change: Value = json!({"metadata": {"labels": {GATEWAY_INDEX: "7"}}});
    world.ask_for_server().await;
    let servers = world.api::<GatewayServer>();
    let parameters = PatchParams::default();
    servers.patch("milan-1", &parameters, &Patch::Merge(&change)).await.expect("a number");
    world.until("milan-1", |server: &GatewayServer| !addresses(server).is_empty()).await;
}
