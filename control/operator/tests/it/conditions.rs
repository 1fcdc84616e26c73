//! The condition that a gateway puts on a `Configuration`, once the gateway is gone.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{GatewayServer, WgGatewayServer};
use strait_control_lab::create;
use strait_control_lab::tenant::NAMESPACE;
use tokio::time::{Instant, sleep};

use crate::world::{NETWORKING, PATIENCE, World, addresses, server};

#[tokio::test]
async fn the_condition_is_removed_with_its_gateway() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "Because", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        })
    };
    let applied = json!({
        "apiVersion": NETWORKING, "kind": "Configuration",
        "metadata": {"name": "milan", "labels": {REMOTE_CLUSTER_ID: "milan"}},
        "status": {"conditions": [condition("strait.io/InForce"), condition("example.com/Other")]},
    });
    let configurations = world.of_kind(NETWORKING, "Configuration", NAMESPACE);
    let parameters = PatchParams::apply("strait-gateway").force();
    configurations.patch("milan", &parameters, &Patch::Apply(&applied)).await.expect("it");
    configurations.patch_status("milan", &parameters, &Patch::Apply(&applied)).await.expect("it");
    let types = async || -> Vec<String> {
        let found = configurations.get("milan").await.expect("it");
        let conditions = found.data["status"]["conditions"].as_array().cloned();
        let type_ = |condition: &Value| condition["type"].as_str().map(str::to_owned);
        conditions.iter().flatten().filter_map(type_).collect()
    };
    let ours = "strait.io/InForce".to_owned();
    sleep(Duration::from_secs(1)).await;
    assert!(types().await.contains(&ours), "its gateway is there");

    let now = DeleteParams::background();
    world.api::<GatewayServer>().delete("milan", &now).await.expect("gone");
    world.api::<WgGatewayServer>().delete("milan", &now).await.expect("going");
    sleep(Duration::from_secs(1)).await;
    assert!(types().await.contains(&ours), "a pod that runs may still write it");

    world.api::<Deployment>().delete("gw-milan", &now).await.expect("gone");
    let start = Instant::now();
    while types().await.contains(&ours) {
        assert!(start.elapsed() < PATIENCE, "the condition stays");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(types().await, ["example.com/Other"]);

    // A condition that is written again, by a gateway unknown to the operator, is kept.
    sleep(Duration::from_secs(1)).await;
    configurations.patch_status("milan", &parameters, &Patch::Apply(&applied)).await.expect("it");
    sleep(Duration::from_secs(1)).await;
    assert!(types().await.contains(&ours), "it would be written again without end");
}

/// Its endpoint would be that of the one being deleted, with that one's service.
#[tokio::test]
async fn a_new_gateway_ignores_a_deleted_namesake() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    let before = world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;

    let hold = json!({"metadata": {"finalizers": ["example.com/archive"]}});
    let cloud = json!({"metadata": {"finalizers": ["example.com/balancer"]}});
    let merge = |wanted| (PatchParams::default(), Patch::Merge(wanted));
    let (parameters, hold) = merge(hold);
    let gateways = world.api::<WgGatewayServer>();
    gateways.patch("milan", &parameters, &hold).await.expect("held");
    let (parameters, cloud) = merge(cloud);
    let services = world.api::<Service>();
    services.patch("gw-milan", &parameters, &cloud).await.expect("held");
    let now = DeleteParams::default();
    world.api::<GatewayServer>().delete("milan", &now).await.expect("gone");
    gateways.delete("milan", &now).await.expect("going");
    services.delete("gw-milan", &now).await.expect("going");

    create(world.api(), &server("strait-server")).await;
    sleep(Duration::from_secs(1)).await;
    let made: GatewayServer = world.api().get("milan").await.expect("the new one");
    assert_ne!(made.uid(), before.uid());
    assert!(addresses(&made).is_empty(), "{:?}", made.status);

    let (parameters, free) = merge(json!({"metadata": {"finalizers": null}}));
    gateways.patch("milan", &parameters, &free).await.expect("free");
    let has_child = |server: &GatewayServer| {
        server.status.as_ref().is_some_and(|status| status.server_ref.is_some())
    };
    let made: GatewayServer = world.until("milan", has_child).await;
    sleep(Duration::from_secs(1)).await;
    assert!(addresses(&made).is_empty(), "of the service that is going: {:?}", made.status);

    let (parameters, free) = merge(json!({"metadata": {"finalizers": null}}));
    services.patch("gw-milan", &parameters, &free).await.expect("free");
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
}
