//! The `ForeignCluster` of each remote cluster, as `liqoctl info` reads it.

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use strait_api::foreign_cluster::{Module, ModuleCondition};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Configuration, Connection, ForeignCluster, GatewayServer};
use strait_control_lab::create;
use tokio::time::{Instant, sleep};

use crate::world::{PATIENCE, World, object};

#[tokio::test]
async fn a_foreign_cluster_shows_the_network() {
    let Some(mut world) = World::new().await else { return };
    let clusters = Api::<ForeignCluster>::all(world.admin.clone());
    let foreign = json!({"metadata": {"name": "paris"}, "spec": {"clusterID": "paris"}});
    create(clusters.clone(), &object::<ForeignCluster>(foreign)).await;
    world.start_operator();
    let labels = |id: &str| json!({"name": id, "labels": {REMOTE_CLUSTER_ID: id}});
    for id in ["milan", "paris"] {
        let configuration = object::<Configuration>(json!({"metadata": labels(id), "spec": {}}));
        create(world.api(), &configuration).await;
    }

    let missing = "NetworkConfigurationStatus Ready, NetworkGatewayPresence NotReady, NetworkConnectionStatus NotReady";
    until(&clusters, Some(missing)).await;

    world.ask_for_server().await;
    let ready = "NetworkConfigurationStatus Ready, NetworkGatewayPresence Ready, NetworkGatewayServerStatus ";
    until(&clusters, Some(&format!("{ready}Ready, NetworkConnectionStatus NotReady"))).await;

    let connection = json!({
        "metadata": {"name": "gw-milan", "labels": {REMOTE_CLUSTER_ID: "milan"}},
        "spec": {"type": "Server", "gatewayRef": {}},
    });
    create(world.api(), &object::<Connection>(connection)).await;
    let connected = Patch::Merge(json!({"status": {"value": "Connected"}}));
    let patched = world
        .api::<Connection>()
        .patch_status("gw-milan", &PatchParams::default(), &connected)
        .await;
    patched.expect("a status");
    until(&clusters, Some(&format!("{ready}Ready, NetworkConnectionStatus Established"))).await;

    let now = DeleteParams::background();
    world.api::<GatewayServer>().delete("milan", &now).await.expect("gone");
    world.api::<Connection>().delete("gw-milan", &now).await.expect("gone");
    world.api::<Configuration>().delete("milan", &now).await.expect("gone");
    until(&clusters, None).await;
    let foreign = clusters.get("paris").await.expect("that of another program");
    assert_eq!(foreign.status, None);
}

/// Waits until the networking module of the cluster has these conditions; `None`: until it is gone.
async fn until(clusters: &Api<ForeignCluster>, wanted: Option<&str>) {
    let start = Instant::now();
    loop {
        let found = clusters.get_opt("milan").await.expect("an answer").map(shown);
        if found.as_deref() == wanted {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{found:?} instead of {wanted:?}");
        sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn shown(cluster: ForeignCluster) -> String {
    let modules = cluster.status.and_then(|status| status.modules).unwrap_or_default();
    let Module { conditions, .. } = modules.networking;
    let shown = |one: &ModuleCondition| format!("{} {}", one.type_, one.status);

    conditions.iter().map(shown).collect::<Vec<_>>().join(", ")
}
