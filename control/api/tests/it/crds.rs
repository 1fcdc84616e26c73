//! The definitions of the API on a real API server.

use std::fmt::Debug;

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer, IP, PublicKey};
use strait_control_lab::{ApiServer, install_api};

#[tokio::test]
async fn the_api_server_accepts_and_enforces_every_definition() {
    let Some(server) = ApiServer::start().await else { return };
    let client = server.client().await;

    install_api(&client).await;

    keeps_what_was_written(&client).await;
    refuses_what_the_rules_forbid(&client).await;
    keeps_the_templates_whole(&client).await;
    takes_manifests_of_the_former_version(&client).await;
    takes_one_prefix_for_a_list_of_one(&client).await;
    prints_one_prefix_without_brackets(&client).await;
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

/// The templates that we ship for Liqo: a field that is not in the definitions would be dropped.
async fn keeps_the_templates_whole(client: &Client) {
    for text in [
        include_str!("../../../../deploy/liqo/server.yaml"),
        include_str!("../../../../deploy/liqo/client.yaml"),
        include_str!("../../../../deploy/liqo/server-whole.yaml"),
        include_str!("../../../../deploy/liqo/client-whole.yaml"),
    ] {
        let mut template: DynamicObject = serde_saphyr::from_str(text).unwrap();
        template.metadata.namespace = None;

        assert_eq!(create(client, &template).await.unwrap().data, template.data);
    }
}

/// As in documents of Liqo before 1.0.
const FORMER_MANIFESTS: &str = "
apiVersion: networking.liqo.io/v1alpha1
kind: Configuration
metadata:
  labels:
    liqo.io/remote-cluster-id: 506f88d4-9918-4848-ab74-2a75ae32647f     # the remote cluster ID
  name: dry-paper
spec:
  remote:
    cidr:
      external: 10.70.0.0/16        # the external CIDR of the remote cluster
      pod: 10.243.0.0/16            # the pod CIDR of the remote cluster
---
apiVersion: networking.liqo.io/v1alpha1
kind: GatewayServer
metadata:
  labels:
    liqo.io/remote-cluster-id: 506f88d4-9918-4848-ab74-2a75ae32647f
  name: server
spec:
  endpoint:
    port: 51820
    serviceType: NodePort
  mtu: 1340
  serverTemplateRef:
    apiVersion: networking.liqo.io/v1alpha1
    kind: WgGatewayServerTemplate
    name: wireguard-server
    namespace: liqo
---
apiVersion: networking.liqo.io/v1alpha1
kind: GatewayClient
metadata:
  creationTimestamp: null
  labels:
    liqo.io/remote-cluster-id: ef7a1f41-c753-4a0e-83e5-bed013e7fe4f
  name: client
  namespace: default
spec:
  clientTemplateRef:
    apiVersion: networking.liqo.io/v1alpha1
    kind: WgGatewayClientTemplate
    name: wireguard-client
    namespace: liqo
  endpoint:
    addresses:
    - 10.42.3.54
    port: 32133
    protocol: UDP
  mtu: 1340
---
apiVersion: networking.liqo.io/v1alpha1
kind: PublicKey
metadata:
  creationTimestamp: null
  labels:
    liqo.io/remote-cluster-id: ef7a1f41-c753-4a0e-83e5-bed013e7fe4f
    networking.liqo.io/gateway-resource: \"true\"
  name: dry-paper
spec:
  publicKey: GExyYe7RJ3Lo5nQVa6K2Tp9zobXCvWmJawsLxu7hn10=
";

async fn takes_manifests_of_the_former_version(client: &Client) {
    let manifests: Vec<DynamicObject> = serde_saphyr::from_multiple(FORMER_MANIFESTS).unwrap();
    assert_eq!(manifests.len(), 4);
    for manifest in &manifests {
        assert_eq!(create(client, manifest).await.unwrap().data, manifest.data);
    }

    let server = read::<GatewayServer>(client, "server").await;
    assert_eq!(server.spec.endpoint.unwrap().port, Some(51820));
    let address = read::<GatewayClient>(client, "client").await.spec.endpoint.unwrap().addresses;
    assert_eq!(address, ["10.42.3.54"]);
    assert_eq!(read::<PublicKey>(client, "dry-paper").await.spec.public_key.unwrap().0.len(), 32);
    let cidr = read::<Configuration>(client, "dry-paper").await.spec.remote.unwrap().cidr.unwrap();
    assert_eq!(
        (&cidr.pod[..], &cidr.external[..]),
        (&["10.243.0.0/16".to_owned()][..], &["10.70.0.0/16".to_owned()][..])
    );
}

async fn takes_one_prefix_for_a_list_of_one(client: &Client) {
    let with = |pod: serde_json::Value| {
        let mut object = object::<Configuration>(json!({
            "spec": {"remote": {"cidr": {"pod": pod, "external": "10.70.0.0/16"}}},
        }));
        object.metadata.name = None;
        object.metadata.generate_name = Some("one-".to_owned());
        object
    };

    for (right, read_as) in [
        (json!("10.243.0.0/16"), &["10.243.0.0/16"][..]),
        (json!(["10.243.0.0/16", "fd00::/64"]), &["10.243.0.0/16", "fd00::/64"]),
        (json!(null), &[]),
    ] {
        let made = create(client, &with(right)).await.unwrap().name_any();
        let spec = read::<Configuration>(client, &made).await.spec;
        assert_eq!(spec.remote.unwrap().cidr.unwrap().pod[..], *read_as);
    }
    for wrong in [
        json!("10.243.0.0"),
        json!(""),
        json!(7),
        json!(true),
        json!({"a": "b"}),
        json!(["10.243.0.0"]),
        json!([7]),
        json!([null]),
    ] {
        create(client, &with(wrong.clone())).await.expect_err(&wrong.to_string());
    }
}

async fn prints_one_prefix_without_brackets(client: &Client) {
    let request = http::Request::get("/apis/networking.liqo.io/v1beta1/configurations")
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: serde_json::Value = client.request(request).await.unwrap();

    let cells: Vec<_> = table["columnDefinitions"].as_array().unwrap().iter().collect();
    let names: Vec<_> = cells.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["Name", "Desired Pod CIDR ", "Remapped Pod CIDR"]);
    let rows = table["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["cells"][0] == "milan").unwrap();
    assert_eq!(
        (&row["cells"][1], &row["cells"][4]),
        (&json!("10.244.0.0/16"), &json!("10.70.0.0/16"))
    );
}

async fn read<K>(client: &Client, name: &str) -> K
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    Api::default_namespaced(client.clone()).get(name).await.expect("the typed object")
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
