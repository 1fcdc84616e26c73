//! Services in front of addresses.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use strait_api::IP;
use strait_control_lab::create;
use tokio::time::sleep;

use crate::world::{PATIENCE, World, object};

#[tokio::test]
async fn a_service_exists_while_it_is_requested() {
    let Some(mut world) = World::new().await else { return };
    let ip = |name: &str, template: Value| -> IP {
        object(json!({
            "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "IP", "metadata": {"name": name},
            "spec": {"ip": "192.0.2.7", "serviceTemplate": template},
        }))
    };
    let template = json!({
        "metadata": {"labels": {"team": "shop"}},
        "spec": {"ports": [{"port": 5432, "protocol": "TCP"}]},
    });
    let other = json!({"metadata": {"name": "taken"}, "spec": {"ports": [{"port": 1}]}});
    create(world.api(), &object::<Service>(other)).await;
    world.start_operator();
    create(world.api(), &ip("db", template.clone())).await;
    create(world.api(), &ip("taken", template)).await;

    let service = world.until::<Service>("db", |_| true).await;
    assert_eq!(service.labels().get("team").map(String::as_str), Some("shop"));
    let slice = world.until::<EndpointSlice>("db", |_| true).await;
    assert_eq!(slice.endpoints.expect("one")[0].addresses, ["192.0.2.7"]);
    assert_eq!(slice.ports.expect("one")[0].port, Some(5432));
    let services = world.api::<Service>();
    services.delete("db", &DeleteParams::default()).await.expect("a Service");
    world.until::<Service>("db", |other| other.uid() != service.uid()).await;
    for labels in [json!({"team": "harbour"}), json!({"ipam.strait.io/front": null})] {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        services.patch("db", &PatchParams::default(), &patch).await.expect("a Service");
        world.until("db", |other: &Service| other.labels() == service.labels()).await;
    }
    let note = world.event_note("NameTaken").await;
    assert!(note.contains("Service taken exists and belongs to another owner"), "{note}");
    let kept = world.api::<Service>().get("taken").await.expect("it");
    assert!(kept.owner_references().is_empty());
    let astray = world.api::<EndpointSlice>().get_opt("taken").await.expect("an answer");
    assert!(astray.is_none(), "the service of another owner keeps its traffic");

    let patch = Patch::Merge(json!({"spec": {"serviceTemplate": null}}));
    for name in ["db", "taken"] {
        let api = world.api::<IP>();
        api.patch(name, &PatchParams::default(), &patch).await.expect("an IP");
    }
    let gone = async {
        while world.api::<EndpointSlice>().get_opt("db").await.expect("an answer").is_some() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it goes");
    assert!(world.api::<Service>().get_opt("db").await.expect("an answer").is_none());
    assert!(world.api::<Service>().get_opt("taken").await.expect("an answer").is_some());
}
