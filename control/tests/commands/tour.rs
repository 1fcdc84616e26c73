//! `connect`, again, `disconnect` and `reset`.

use control::api::{Configuration, GatewayClient, GatewayServer, PublicKey};
use control::commands::{PortWanted, ServiceType, connect, disconnect, initialize, reset};
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::world::{Ear, World, wanted};

/// As the documentation prints it; of the names those of these clusters.
pub(crate) const CONNECTED: [&str; 23] = [
    "(local) Network configuration correctly retrieved",
    "(remote) Network configuration correctly retrieved",
    "(local) Network configuration correctly set up",
    "(remote) Network configuration correctly set up",
    "(local) Configuration applied successfully",
    "(remote) Configuration applied successfully",
    "(remote) Gateway server template \"wireguard-server/liqo\" correctly checked",
    "(local) Gateway client template \"wireguard-client/liqo\" correctly checked",
    "(local) Network correctly initialized",
    "(remote) Network correctly initialized",
    "(remote) Gateway server correctly set up",
    "(remote) Gateway pod gw-rome is ready",
    "(remote) Gateway server Service created successfully",
    "(local) Gateway client correctly set up",
    "(local) Gateway pod gw-milan is ready",
    "(remote) Gateway server Secret created successfully",
    "(local) Public key correctly created",
    "(local) Gateway client Secret created successfully",
    "(remote) Public key correctly created",
    "(remote) Connection created successfully",
    "(local) Connection created successfully",
    "(local) Connection is established",
    "(remote) Connection is established",
];

/// How many of these lines `init` has.
pub(crate) const INITIALIZED: usize = 10;

/// In Rome and in Milan.
const IN_LOCAL: &str = "liqo-tenant-milan";
const IN_REMOTE: &str = "liqo-tenant-rome";

pub(crate) async fn two_clusters(world: &World) {
    let ear = Ear::default();
    let before = world.content().await;

    initialize(&world.pair(), &wanted(), ear.session()).await.unwrap();
    assert_eq!(ear.lines(), CONNECTED[..INITIALIZED]);
    connect(&world.pair(), &wanted(), ear.session()).await.unwrap();
    assert_eq!(ear.lines(), CONNECTED);
    has_all_objects(world).await;

    writes_nothing_again(world, &ear).await;
    makes_way_for_another_service(world, &ear).await;
    leaves_a_reversed_pair_alone(world, &ear).await;

    disconnect(&world.pair(), true, ear.session()).await.unwrap();
    assert_eq!(ear.lines(), apart("correctly", "correctly"));
    disconnect(&world.pair(), true, ear.session()).await.unwrap();
    assert_eq!(ear.lines(), apart("already", "already"));
    connect(&world.pair(), &wanted(), ear.session()).await.unwrap();
    assert_eq!(ear.lines(), CONNECTED);
    reset(&world.pair(), true, ear.session()).await.unwrap();
    let forgotten = "Network configuration correctly deleted";
    let mut lines = apart("correctly", "correctly");
    lines.extend(["local", "remote"].map(|side| format!("({side}) {forgotten}")));
    assert_eq!(ear.lines(), lines);

    has_left_nothing(world, &before).await;
}

/// What `disconnect` says, after what became of the client and of the server.
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

    // Each has the key of the other, which goes with its own gateway.
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

async fn writes_nothing_again(world: &World, ear: &Ear) {
    let before = world.content().await;

    connect(&world.pair(), &wanted(), ear.session()).await.unwrap();

    assert_eq!(ear.lines(), CONNECTED);
    assert_eq!(world.content().await, before);
}

async fn makes_way_for_another_service(world: &World, ear: &Ear) {
    let mut wanted = wanted();
    wanted.exposure.service_type = ServiceType::LoadBalancer;
    wanted.client_address = Some("gateway.example".to_owned());
    wanted.client_port = Some(443);

    connect(&world.pair(), &wanted, ear.session()).await.unwrap();

    let lines = ear.lines();
    assert_eq!(lines[INITIALIZED], "(remote) Deleted existing gateway server");
    assert_eq!(lines[INITIALIZED + 1], "warning: (remote) its Service had type NodePort");
    assert_eq!(lines[INITIALIZED + 2..], CONNECTED[INITIALIZED..]);
    let service = world.remote.api::<Service>(IN_REMOTE).get("gw-rome").await.unwrap();
    assert_eq!(service.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));
    let client = world.local.api::<GatewayClient>(IN_LOCAL).get("milan").await.unwrap();
    let endpoint = client.spec.endpoint.unwrap();
    assert_eq!((endpoint.addresses[0].as_str(), endpoint.port), ("gateway.example", Some(443)));
}

async fn leaves_a_reversed_pair_alone(world: &World, ear: &Ear) {
    let pair = world.pair();
    let mut reversed = control::commands::Pair { local: pair.remote, remote: pair.local };
    reversed.local.side = control::commands::Side::Local;
    reversed.remote.side = control::commands::Side::Remote;
    let before = world.content().await;
    let mut wanted = wanted();
    wanted.exposure.node_port = PortWanted::Any;

    connect(&reversed, &wanted, ear.session()).await.unwrap();

    let lines = ear.lines();
    assert_eq!(lines.len(), INITIALIZED + 1, "{lines:?}");
    assert!(lines[INITIALIZED].contains("the clusters are joined already"), "{lines:?}");
    assert_eq!(world.content().await, before);
}

/// But for the namespaces.
async fn has_left_nothing(world: &World, before: &[String]) {
    let left = async || {
        let content = world.content().await;
        let left = content.into_iter().filter(|line| !before.contains(line));
        left.filter(|line| !line.contains("/liqo-tenant-")).collect::<Vec<_>>()
    };

    // The collector has a moment of its own.
    for _ in 0..100 {
        if left().await.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("left: {:?}", left().await);
}
