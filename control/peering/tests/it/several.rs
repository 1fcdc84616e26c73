//! `info`, `check`, `generate` and `disconnect` with two gateways for one peering.

use std::time::Duration;

use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use strait_api::identity::Mode;
use strait_api::{Connection, GatewayClient, GatewayServer, PublicKey};
use strait_control_lab::peering::{Cluster, Work, World};
use strait_peering::{
    Format, Generate, Health, PeerInfo, Side, check_pair, connect, disconnect, generate, peers,
    reset,
};

use super::world::{RecordedReport, contact_of, desired, pair_of};

/// The namespace of the peering in Rome, and in Milan.
const IN_LOCAL: &str = "liqo-tenant-milan";
const IN_REMOTE: &str = "liqo-tenant-rome";

pub(crate) async fn gateways_of_one_peering(world: &World) {
    let report = RecordedReport::default();
    world.set_work(Work::All).await;
    connect(&pair_of(world), &desired(), report.session()).await.expect("joined");
    second_gateway(world).await;

    each_gateway_is_shown(world, &report).await;
    one_of_two_is_degraded(world, &report).await;
    a_key_is_printed_with_its_index(world, &report).await;
    each_pair_is_compared(world, &report).await;

    disconnect(&pair_of(world), true, report.session()).await.expect("parted");
    let servers = world.remote.api::<GatewayServer>(IN_REMOTE);
    assert_eq!(servers.list(&Default::default()).await.expect("a list").items, []);
    let clients = world.local.api::<GatewayClient>(IN_LOCAL);
    assert_eq!(clients.list(&Default::default()).await.expect("a list").items, []);
    reset(&pair_of(world), true, report.session()).await.expect("forgotten");
}

/// A second server and client, each with the key of the other.
async fn second_gateway(world: &World) {
    let World { local, remote } = world;
    let server = json!({"endpoint": {"port": 51841, "serviceType": "ClusterIP"}, "mtu": 1340});
    put_second::<GatewayServer>(remote, IN_REMOTE, "rome", server).await;
    let endpoint = json!({"addresses": ["172.18.0.3"], "port": 51841, "protocol": "UDP"});
    let client = json!({"endpoint": endpoint, "mtu": 1340});
    put_second::<GatewayClient>(local, IN_LOCAL, "milan", client).await;

    give_key::<GatewayClient>(local, IN_LOCAL, "milan", "rome-1").await;
    give_key::<GatewayServer>(remote, IN_REMOTE, "rome", "milan-1").await;
    for cluster in [local, remote] {
        cluster.stand_in.whole_round().await;
    }
}

async fn put_second<K>(cluster: &Cluster, namespace: &str, id: &str, spec: Value)
where
    K: Resource<DynamicType = ()>,
{
    let labels = json!({"liqo.io/remote-cluster-id": id, "strait.io/gateway-index": "1"});
    let object = json!({"metadata": {"labels": labels}, "spec": spec});
    cluster.put::<K>(namespace, &format!("{id}-1"), object).await;
}

/// Gives the second gateway the key that the stand-in makes for the gateway `of`.
async fn give_key<K>(cluster: &Cluster, namespace: &str, id: &str, of: &str)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let name = format!("{id}-1");
    let owner = cluster.api::<K>(namespace).get(&name).await.expect("a gateway");
    let key = k8s_openapi::ByteString(format!("{of:x<32}").into_bytes());
    let metadata = json!({
        "labels": {
            "liqo.io/remote-cluster-id": id, "strait.io/gateway-index": "1",
            "networking.liqo.io/gateway-resource": "true",
        },
        "ownerReferences": [owner.owner_ref(&())],
    });
    let object = json!({"metadata": metadata, "spec": {"publicKey": key}});
    cluster.put::<PublicKey>(namespace, &name, object).await;
}

/// The peering in Rome, once it has this state.
async fn peer_with(world: &World, report: &RecordedReport, status: Health) -> PeerInfo {
    let context = contact_of(&world.local, Side::Only);
    let found = async {
        loop {
            let found = peers(&context, &["milan".to_owned()], report.session()).await;
            let found = found.expect("an answer").remove(0);
            if found.network.status == status {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(30), found).await.expect("the state in time")
}

async fn each_gateway_is_shown(world: &World, report: &RecordedReport) {
    let found = peer_with(world, report, Health::Healthy).await;

    assert_eq!(
        found.to_string(),
        "Peer milan\n  Network\n    Status          Healthy\n    CIDR\n      Remote\n        \
         Pod CIDR        10.244.0.0/16 → Remapped to 10.71.0.0/16\n        \
         External CIDR   10.80.0.0/16\n    \
         Gateway milan\n      Status          Healthy\n      Latency         12ms\n      \
         Role            Server\n      Address         172.18.0.3\n      Port            30742\n    \
         Gateway milan-1\n      Status          Healthy\n      Latency         12ms\n      \
         Role            Server\n      Address         172.18.0.3\n      Port            51841\n"
    );
    let value = serde_json::to_value(&found).expect("JSON");
    let second = json!({
        "name": "milan-1", "status": "Healthy", "role": "Server", "address": ["172.18.0.3"],
        "port": 51841, "latency": "12ms",
    });
    assert_eq!(value["network"]["gateways"][1], second);
}

async fn one_of_two_is_degraded(world: &World, report: &RecordedReport) {
    // The stand-in does not write Connections any more.
    world.set_work(Work::Keys).await;
    let connections = world.local.api::<Connection>(IN_LOCAL);
    let status = |value: &str| Patch::Merge(json!({"status": {"value": value}}));
    let parameters = PatchParams::default();
    connections.patch_status("gw-milan-1", &parameters, &status("Connecting")).await.expect("it");

    let found = peer_with(world, report, Health::Degraded).await;

    assert_eq!(found.network.alerts, ["1 of 2 gateways unhealthy: milan-1"]);
    let states: Vec<_> = found.network.gateways.iter().map(|it| it.status).collect();
    assert_eq!(states, [Health::Healthy, Health::Unhealthy]);
    let [alert] = &found.network.gateways[1].alerts[..] else { panic!("{found}") };
    assert!(alert.starts_with("Connection: Connecting: "), "{alert}");

    connections.patch_status("gw-milan", &parameters, &status("Connecting")).await.expect("it");
    let found = peer_with(world, report, Health::Unhealthy).await;
    assert_eq!(found.network.alerts, ["2 of 2 gateways unhealthy: milan, milan-1"]);
    world.set_work(Work::All).await;
    peer_with(world, report, Health::Healthy).await;
}

async fn a_key_is_printed_with_its_index(world: &World, report: &RecordedReport) {
    let context = contact_of(&world.local, Side::Only);
    let context =
        strait_peering::ClusterContext { namespace: Some(IN_LOCAL.to_owned()), ..context };
    let wanted = Generate::PublicKey { mode: Mode::Client, name: "milan-1".to_owned() };

    let text = generate(&context, &wanted, Format::Json, report.session()).await.expect("a key");

    let object: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(object["metadata"]["name"], "rome-1");
    assert_eq!(object["metadata"]["labels"]["strait.io/gateway-index"], "1");
}

async fn each_pair_is_compared(world: &World, report: &RecordedReport) {
    let pair = pair_of(world);
    let reasons = async || {
        let found = check_pair([&pair.local, &pair.remote], report.session()).await;
        let found = found.expect("findings").findings;
        let all = found.iter().flat_map(|cause| std::iter::once(cause).chain(&cause.consequences));
        // Another peering has problems of its own.
        all.filter(|it| !it.object.contains("liqo-tenant-cl01"))
            .map(|it| format!("{}{}: {}", it.side, it.object, it.reason))
            .collect::<Vec<_>>()
    };
    let mismatches = [
        "KeyDiffers",
        "NoCounterpart",
        "SeveralGateways",
        "SharedNamespace",
        "SharedNamespace",
        "MTUDiffers",
        "SameEnd",
        "PublicKeyMissing",
    ];
    let found = reasons().await;
    let wrong = |line: &&String| mismatches.iter().any(|reason| line.ends_with(reason));
    assert_eq!(found.iter().find(wrong), None, "{found:#?}");
    assert!(found.iter().any(|line| line.contains("/milan-1: TemplateMissing")), "{found:#?}");

    let keys = world.local.api::<PublicKey>(IN_LOCAL);
    let wrong = Patch::Merge(json!({"spec": {"publicKey": k8s_openapi::ByteString(vec![9; 32])}}));
    keys.patch("milan-1", &PatchParams::default(), &wrong).await.expect("a key");
    let found = reasons().await;
    let differs = found.iter().filter(|line| line.ends_with("KeyDiffers")).collect::<Vec<_>>();
    assert_eq!(differs, ["(local) PublicKey liqo-tenant-milan/milan-1: KeyDiffers"]);

    let servers = world.remote.api::<GatewayServer>(IN_REMOTE);
    servers.delete("rome-1", &DeleteParams::default()).await.expect("it");
    let found = check_pair([&pair.local, &pair.remote], report.session()).await.expect("findings");
    let alone = found.findings.iter().find(|it| it.reason == "NoCounterpart").expect("it");
    assert_eq!(alone.object, "GatewayClient liqo-tenant-milan/milan-1");
    assert_eq!(alone.remedy, "`strait network connect --gateways 2` again, or delete it");
}
