//! `connect`, again, `disconnect` and `reset`.

use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer, PublicKey};
use strait_control_lab::peering::World;
use strait_control_lab::peering::transcript::{CONNECTED, INIT, INITIALIZED, connected_formerly};
use strait_peering::{
    CommandError, Connect, NodePort, ServiceType, connect, disconnect, initialize, reset,
};

use super::world::{RecordedReport, desired, pair_of};

/// The namespace of the peering in Rome, and in Milan.
const IN_LOCAL: &str = "liqo-tenant-milan";
const IN_REMOTE: &str = "liqo-tenant-rome";

pub(crate) async fn two_clusters(world: &World) {
    let report = RecordedReport::default();
    let before = world.content().await;

    initialize(&pair_of(world), report.session()).await.unwrap();
    assert_eq!(report.lines(), INIT);
    connect(&pair_of(world), &desired(), report.session()).await.unwrap();
    assert_eq!(report.lines(), CONNECTED);
    has_all_objects(world).await;

    writes_nothing_again(world, &report).await;
    keeps_what_is_not_named(world, &report).await;
    asks_before_a_gateway_is_replaced(world, &report).await;
    another_service_type_replaces_the_gateway(world).await;
    updates_the_clients_address_of_the_server(world, &report).await;
    leaves_a_reversed_pair_alone(world, &report).await;

    disconnect(&pair_of(world), true, report.session()).await.unwrap();
    assert_eq!(report.lines(), apart("correctly", "correctly"));
    disconnect(&pair_of(world), true, report.session()).await.unwrap();
    assert_eq!(report.lines(), apart("already", "already"));
    connect(&pair_of(world), &desired(), report.session()).await.unwrap();
    assert_eq!(report.lines(), CONNECTED);
    reset(&pair_of(world), true, report.session()).await.unwrap();
    let forgotten = "Network configuration correctly deleted";
    let mut lines = apart("correctly", "correctly");
    lines.extend(["local", "remote"].map(|side| format!("({side}) {forgotten}")));
    assert_eq!(report.lines(), lines);

    assert_nothing_left(world, &before).await;
}

/// The output of `disconnect`, with the outcome for the client and the server.
fn apart(client: &str, server: &str) -> Vec<String> {
    [
        "(local) Cluster identity correctly retrieved".to_owned(),
        "(remote) Cluster identity correctly retrieved".to_owned(),
        format!("(local) Gateway client {client} deleted"),
        "(remote) Gateway client already deleted".to_owned(),
        "(local) Gateway server already deleted".to_owned(),
        format!("(remote) Gateway server {server} deleted"),
    ]
    .into()
}

async fn has_all_objects(world: &World) {
    let World { local, remote } = world;

    let namespace: Namespace = Api::all(local.client.clone()).get(IN_LOCAL).await.unwrap();
    assert_eq!(namespace.labels()["liqo.io/tenant-namespace"], "true");
    assert_eq!(namespace.labels()["liqo.io/remote-cluster-id"], "milan");

    let configuration = local.api::<Configuration>(IN_LOCAL).get("milan").await.unwrap();
    assert_eq!(configuration.labels()["liqo.io/remote-cluster-id"], "milan");
    let cidr = configuration.spec.remote.unwrap().cidr.unwrap();
    assert_eq!(
        (cidr.pod[0].as_str(), cidr.external[0].as_str()),
        ("10.244.0.0/16", "10.80.0.0/16")
    );
    let configuration = remote.api::<Configuration>(IN_REMOTE).get("rome").await.unwrap();
    let cidr = configuration.spec.remote.unwrap().cidr.unwrap();
    assert_eq!(cidr.external[..], ["10.70.0.0/16"]);

    let server = remote.api::<GatewayServer>(IN_REMOTE).get("rome").await.unwrap();
    assert_eq!(
        json!(server.spec),
        json!({
            "endpoint": {"port": 51840, "serviceType": "NodePort"},
            "mtu": 1340,
            "serverTemplateRef": {
                "apiVersion": "networking.liqo.io/v1beta1", "kind": "WgGatewayServerTemplate",
                "name": "wireguard-server", "namespace": "liqo",
            },
        })
    );
    let client = local.api::<GatewayClient>(IN_LOCAL).get("milan").await.unwrap();
    assert_eq!(
        json!(client.spec),
        json!({
            "endpoint": {"addresses": ["172.18.0.3"], "port": 30742, "protocol": "UDP"},
            "mtu": 1340,
            "clientTemplateRef": {
                "apiVersion": "networking.liqo.io/v1beta1", "kind": "WgGatewayClientTemplate",
                "name": "wireguard-client", "namespace": "liqo",
            },
        })
    );

    // Each has the key of the other, owned by its own gateway.
    let key = local.api::<PublicKey>(IN_LOCAL).get("milan").await.unwrap();
    assert_eq!(key.spec.public_key.as_ref().unwrap().0, format!("{:x<32}", "rome").into_bytes());
    assert_eq!(key.labels()["networking.liqo.io/gateway-resource"], "true");
    let owner = &key.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), Some(&owner.uid)),
        ("GatewayClient", client.metadata.uid.as_ref())
    );
    let key = remote.api::<PublicKey>(IN_REMOTE).get("rome").await.unwrap();
    assert_eq!(key.spec.public_key.as_ref().unwrap().0, format!("{:x<32}", "milan").into_bytes());
    assert_eq!(key.owner_references()[0].kind, "GatewayServer");
}

async fn writes_nothing_again(world: &World, report: &RecordedReport) {
    let before = world.content().await;

    connect(&pair_of(world), &desired(), report.session()).await.unwrap();
    assert_eq!(report.lines(), CONNECTED);
    let formerly = Connect { has_former_lines: true, ..desired() };
    connect(&pair_of(world), &formerly, report.session()).await.unwrap();
    assert_eq!(report.lines(), connected_formerly());

    assert_eq!(world.content().await, before);
}

/// A flag that is left out keeps the present value.
async fn keeps_what_is_not_named(world: &World, report: &RecordedReport) {
    let nothing = Connect { waits: true, ..Connect::default() };
    let mtu = Connect { mtu: Some(1300), ..nothing.clone() };
    let address = Connect {
        client_address: Some("gateway.example".to_owned()),
        client_port: Some(443),
        ..nothing.clone()
    };
    for named in [nothing.clone(), mtu, address] {
        connect(&pair_of(world), &named, report.session()).await.unwrap();
        assert_eq!(report.lines(), CONNECTED);
        let before = world.content().await;

        connect(&pair_of(world), &nothing, report.session()).await.unwrap();

        assert_eq!(report.lines(), CONNECTED);
        assert_eq!(world.content().await, before);
    }
    let server = world.remote.api::<GatewayServer>(IN_REMOTE).get("rome").await.unwrap();
    let endpoint = server.spec.endpoint.unwrap();
    assert_eq!((endpoint.service_type.as_deref(), server.spec.mtu), (Some("NodePort"), Some(1300)));
    let client = world.local.api::<GatewayClient>(IN_LOCAL).get("milan").await.unwrap();
    assert_eq!(client.spec.endpoint.unwrap().addresses, ["gateway.example"]);
    assert_eq!(client.spec.mtu, Some(1300));
}

async fn asks_before_a_gateway_is_replaced(world: &World, report: &RecordedReport) {
    let mut wanted = desired();
    wanted.exposure.service_type = Some(ServiceType::LoadBalancer);
    let before = world.content().await;

    let error = connect(&pair_of(world), &wanted, report.session()).await.unwrap_err();

    assert!(matches!(error, CommandError::Aborted), "{error}");
    let lines = report.lines();
    assert_eq!(
        lines.last().unwrap(),
        "question: (remote) Gateway server rome would be replaced, as its Service has type NodePort: \
         nothing passes until it is there again."
    );
    assert_eq!(world.content().await, before);
}

async fn another_service_type_replaces_the_gateway(world: &World) {
    let report = RecordedReport::that_allows();
    let mut wanted = desired();
    wanted.exposure.service_type = Some(ServiceType::LoadBalancer);
    wanted.client_address = Some("other.example".to_owned());
    wanted.client_port = Some(444);

    connect(&pair_of(world), &wanted, report.session()).await.unwrap();

    let lines = report.lines();
    assert_eq!(lines[..2], CONNECTED[..2]);
    assert!(lines[2].starts_with("question: "), "{lines:?}");
    assert_eq!(lines[3..=INITIALIZED], CONNECTED[2..INITIALIZED]);
    let rest = &lines[INITIALIZED + 1..];
    assert_eq!(rest[0], "(remote) Deleted existing gateway server");
    assert_eq!(rest[1], "warning: (remote) its Service had type NodePort");
    assert_eq!(rest[2..], CONNECTED[INITIALIZED..]);
    let service = world.remote.api::<Service>(IN_REMOTE).get("gw-rome").await.unwrap();
    assert_eq!(service.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));
    let client = world.local.api::<GatewayClient>(IN_LOCAL).get("milan").await.unwrap();
    let endpoint = client.spec.endpoint.unwrap();
    assert_eq!((endpoint.addresses[0].as_str(), endpoint.port), ("other.example", Some(444)));
}

/// The Connection still reports that the client reaches the former one.
async fn updates_the_clients_address_of_the_server(world: &World, report: &RecordedReport) {
    let servers = world.remote.api::<GatewayServer>(IN_REMOTE);
    servers.delete("rome", &DeleteParams::default()).await.unwrap();
    world.remote.stand_in.whole_round().await;
    let connections = world.local.api::<Connection>(IN_LOCAL);
    let stale = connections.get("gw-milan").await.unwrap().status.unwrap();
    assert_eq!(stale.value.as_deref(), Some("Connected"));

    connect(&pair_of(world), &desired(), report.session()).await.unwrap();

    assert_eq!(report.lines(), CONNECTED);
    let server = servers.get("rome").await.unwrap().status.unwrap().endpoint.unwrap();
    let client = world.local.api::<GatewayClient>(IN_LOCAL).get("milan").await.unwrap();
    assert_eq!(client.spec.endpoint.unwrap().addresses, server.addresses);
}

async fn leaves_a_reversed_pair_alone(world: &World, report: &RecordedReport) {
    let pair = pair_of(world);
    let mut reversed = strait_peering::Pair { local: pair.remote, remote: pair.local };
    reversed.local.side = strait_peering::Side::Local;
    reversed.remote.side = strait_peering::Side::Remote;
    let before = world.content().await;
    let mut wanted = desired();
    wanted.exposure.node_port = Some(NodePort::Any);

    connect(&reversed, &wanted, report.session()).await.unwrap();

    let lines = report.lines();
    assert_eq!(lines.len(), INITIALIZED + 1, "{lines:?}");
    assert!(lines[INITIALIZED].contains("the clusters are joined already"), "{lines:?}");
    assert_eq!(world.content().await, before);
}

/// Except for the namespaces.
async fn assert_nothing_left(world: &World, before: &[String]) {
    let left = async || {
        let content = world.content().await;
        let left = content.into_iter().filter(|line| !before.contains(line));
        left.filter(|line| !line.contains("/liqo-tenant-")).collect::<Vec<_>>()
    };

    // The garbage collector works asynchronously.
    for _ in 0..100 {
        if left().await.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("left: {:?}", left().await);
}
