//! The definitions of the API on a real API server.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

// Under the name that it has in the other crates, whose tests share the harness.
extern crate strait_control as control;

#[expect(dead_code, reason = "nothing is restarted here")]
mod harness;

use control::api::{Configuration, Connection, GatewayServer, IP, PublicKey};
use harness::{ApiServer, install_api};
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, Resource};
use serde_json::json;

#[tokio::test]
async fn the_api_server_takes_every_definition_and_enforces_it() {
    let Some(server) = ApiServer::start().await else { return };
    let client = server.client().await;

    install_api(&client).await;

    keeps_what_was_written(&client).await;
    refuses_what_the_rules_forbid(&client).await;
    keeps_the_templates_whole(&client).await;
}

async fn keeps_what_was_written(client: &Client) {
    let configuration = object::<Configuration>(json!({
        "spec": {"remote": {"cidr": {"pod": ["10.244.0.0/16"], "external": ["10.70.0.0/16"]}}},
    }));
    let connection = object::<Connection>(json!({
        "spec": {"type": "Server", "gatewayRef": {"kind": "WgGatewayServer", "name": "milan"}},
    }));
    let key = object::<PublicKey>(
        json!({"spec": {"publicKey": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}}),
    );

    assert_eq!(create(client, &configuration).await.unwrap().data, configuration.data);
    assert_eq!(create(client, &connection).await.unwrap().data, connection.data);
    assert_eq!(create(client, &key).await.unwrap().data, key.data);

    let read: PublicKey =
        Api::default_namespaced(client.clone()).get("milan").await.expect("the typed object");
    assert_eq!(read.spec.public_key.unwrap().0, (0..32).collect::<Vec<u8>>());
}

async fn refuses_what_the_rules_forbid(client: &Client) {
    let both = object::<GatewayServer>(json!({"spec": {"endpoint": {"port": 1, "ports": [1]}}}));
    let neither = object::<GatewayServer>(json!({"spec": {"endpoint": {}}}));
    let twice = object::<GatewayServer>(json!({"spec": {"endpoint": {"ports": [1, 1]}}}));
    let type_ = object::<Connection>(json!({"spec": {"type": "Peer", "gatewayRef": {}}}));
    let empty = object::<IP>(json!({}));

    for (object, why) in [
        (both, "port and ports are mutually exclusive"),
        (neither, "at least one of port or ports must be set"),
        (twice, "ports must not contain duplicates"),
        (type_, "Unsupported value: \"Peer\""),
        (empty, "spec: Required value"),
    ] {
        let error = create(client, &object).await.expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// What we ship for Liqo: a field that the definitions do not know would be gone.
async fn keeps_the_templates_whole(client: &Client) {
    for text in [
        include_str!("../../deploy/liqo/server.yaml"),
        include_str!("../../deploy/liqo/client.yaml"),
    ] {
        let mut template: DynamicObject = serde_saphyr::from_str(text).unwrap();
        template.metadata.namespace = None;

        assert_eq!(create(client, &template).await.unwrap().data, template.data);
    }
}

fn object<K: Resource<DynamicType = ()>>(data: serde_json::Value) -> DynamicObject {
    let resource = kube::core::ApiResource::erase::<K>(&());

    DynamicObject::new("milan", &resource).within("default").data(data)
}

async fn create(client: &Client, object: &DynamicObject) -> kube::Result<DynamicObject> {
    let types = object.types.as_ref().unwrap();
    let (group, version) = types.api_version.split_once('/').unwrap();
    let kind = kube::core::GroupVersionKind::gvk(group, version, &types.kind);
    let (resource, _) = kube::discovery::pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);

    api.create(&PostParams::default(), object).await
}
