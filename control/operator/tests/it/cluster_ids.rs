//! The id of a cluster that has none.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use strait_control_lab::create;
use strait_operator::cluster_id;
use tokio::time::sleep;

use crate::world::{World, object, server};

#[tokio::test]
async fn a_cluster_without_an_id_gets_one() {
    let Some(world) = World::new().await else { return };
    let maps = Api::<ConfigMap>::namespaced(world.admin.clone(), "liqo");
    let ensure = async || cluster_id::ensure(world.operator.clone(), "liqo".to_owned()).await;
    let name = "liqo-clusterid-configmap";

    ensure().await;
    let made = maps.get(name).await.expect("it");
    let system = Api::<Namespace>::all(world.admin.clone()).get("kube-system").await.expect("it");
    assert_eq!(made.data.clone().expect("data")["CLUSTER_ID"], system.uid().expect("a UID"));
    assert_eq!(made.labels()["app.kubernetes.io/name"], "clusterid-configmap");
    assert_eq!(made.annotations()["strait.io/generated"], "true");
    let other = Patch::Merge(json!({"data": {"CLUSTER_ID": "rome"}}));
    let error = maps.patch(name, &PatchParams::default(), &other).await.expect_err("a refusal");
    assert!(error.to_string().contains("field is immutable"), "{error}");
    ensure().await;
    assert_eq!(maps.get(name).await.expect("it").resource_version(), made.resource_version());

    // One without an id has to be deleted first.
    let deletion = DeleteParams::default();
    maps.delete(name, &deletion).await.expect("gone");
    let empty = json!({"metadata": {"name": name}, "data": {"CLUSTER_ID": ""}});
    create(maps.clone(), &object::<ConfigMap>(empty)).await;
    let removal = async {
        sleep(Duration::from_secs(1)).await;
        maps.delete(name, &deletion).await.expect("gone");
    };
    tokio::join!(ensure(), removal);
    assert_eq!(maps.get(name).await.expect("it").annotations()["strait.io/generated"], "true");

    // Ids that users set are theirs, and none is generated while peers know another one.
    maps.delete(name, &deletion).await.expect("gone");
    let own = json!({"metadata": {"name": "clusterid-configmap"}, "data": {"CLUSTER_ID": "rome"}});
    create(maps.clone(), &object::<ConfigMap>(own)).await;
    ensure().await;
    assert_eq!(maps.get_opt(name).await.expect("an answer"), None);
    maps.delete("clusterid-configmap", &deletion).await.expect("gone");
    create(world.api(), &server("strait-server")).await;
    ensure().await;
    assert_eq!(maps.get_opt(name).await.expect("an answer"), None);
}
