//! Each wait of `connect` ends in time, with what was waited for, the last state, and a command that shows more.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Event;
use serde_json::json;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{GatewayClient, Network, WgGatewayClient};
use strait_control_lab::peering::{Work, World};
use strait_peering::{CommandError, Side, TimeoutError, connect, peers, reset};

use super::world::{RecordedReport, contact_of, desired, pair_of};

/// The namespace of the peering in Rome, and in Milan.
const IN_LOCAL: &str = "liqo-tenant-milan";
const IN_REMOTE: &str = "liqo-tenant-rome";

/// Enough for everything that exists already.
const SHORT: Duration = Duration::from_secs(5);

/// How far the stand-ins go, what is waited for then, the last state, and the command.
const WAITS: [[&str; 3]; 7] = [
    [
        "(local) Failed waiting for Configuration milan to be applied: not within 5s; found ",
        "no condition NetworkCIDRsConfigured in it: is the operator of this cluster running?",
        "kubectl get configuration milan -n liqo-tenant-milan -o yaml",
    ],
    [
        "(remote) Failed waiting for gateway pod gw-rome to be ready: ",
        "no Deployment gw-rome in namespace liqo-tenant-rome",
        "kubectl describe deployment gw-rome -n liqo-tenant-rome",
    ],
    [
        "(remote) Failed waiting for gateway pod gw-rome to be ready: ",
        "0 of 1 replicas of Deployment gw-rome ready",
        "kubectl describe deployment gw-rome -n liqo-tenant-rome",
    ],
    [
        "(remote) Failed waiting for GatewayServer rome to have an address: ",
        "no status.endpoint.addresses: has its Service an address?",
        "kubectl describe gatewayserver rome -n liqo-tenant-rome",
    ],
    [
        "(remote) Failed waiting for GatewayServer rome to have a Secret with its keys: ",
        "no Secret with the labels liqo.io/remote-cluster-id=rome,networking.liqo.io/gateway-resource=true",
        "kubectl describe gatewayserver rome -n liqo-tenant-rome",
    ],
    [
        "(remote) Failed waiting for Connection gw-rome to be created: ",
        "no Connection gw-rome in namespace liqo-tenant-rome",
        "kubectl logs deployment/gw-rome -n liqo-tenant-rome --all-containers",
    ],
    [
        "(local) Failed waiting for Connection gw-milan to be established: ",
        "Connecting: does UDP pass from the client to the address of the server?",
        "kubectl logs deployment/gw-milan -n liqo-tenant-milan --all-containers",
    ],
];

/// In the same order.
const GOT: [Work; 7] = [
    Work::Nothing,
    Work::Prefixes,
    Work::Deployments,
    Work::Pods,
    Work::Addresses,
    Work::Keys,
    Work::Connections,
];

pub(crate) async fn each_ends(world: &World) {
    let report = RecordedReport::default();
    for (work, [awaited, found, look_at]) in GOT.into_iter().zip(WAITS) {
        world.set_work(work).await;

        let error =
            connect(&pair_of(world), &desired(), report.session_of(SHORT)).await.unwrap_err();

        let text = error.to_string();
        assert!(!error.is_usage());
        let CommandError::Timeout(error) = error else { panic!("{work:?}: {text}") };
        let TimeoutError { timeout, .. } = *error;
        assert_eq!(timeout, SHORT);
        assert!(text.starts_with(awaited) && text.contains(found), "{work:?}: {text}");
        assert!(text.ends_with(&format!("; look at `{look_at}`")), "{work:?}: {text}");
    }

    // It continues where it was.
    world.set_work(Work::All).await;
    connect(&pair_of(world), &desired(), report.session()).await.unwrap();
    assert_eq!(report.lines().last().unwrap(), "(remote) Connection is established");
}

/// `connect` is not done while a part of the gateway is of a former generation.
pub(crate) async fn former_generations_are_not_taken_for_done(world: &World) {
    let report = RecordedReport::default();
    world.set_work(Work::All).await;
    connect(&pair_of(world), &desired(), report.session()).await.unwrap();
    let local = &world.local;
    let gateway = local.api::<GatewayClient>(IN_LOCAL).get("milan").await.unwrap();
    let generation = gateway.metadata.generation.unwrap();

    // The stand-in for the operator keeps the fields of other writers.
    let made_of = |generation: i64| json!({"metadata": {"annotations": {"strait.io/generation": generation.to_string()}}});
    let with_mtu = |mtu: u16| {
        let containers = json!([{"name": "wireguard", "args": [format!("--mtu={mtu}")]}]);
        json!({"spec": {"template": {"spec": {"containers": containers}}}})
    };
    for (wrong, right, says) in [
        (
            made_of(generation - 1),
            made_of(generation),
            "(local) Failed waiting for gateway pod gw-milan to be ready: ",
        ),
        (
            with_mtu(1280),
            with_mtu(1340),
            "Deployment gw-milan with an MTU of 1280 bytes, 1340 are asked for",
        ),
    ] {
        local.put_as::<Deployment>("user", IN_LOCAL, "gw-milan", wrong).await;
        let error =
            connect(&pair_of(world), &desired(), report.session_of(SHORT)).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");

        local.put_as::<Deployment>("user", IN_LOCAL, "gw-milan", right).await;
        connect(&pair_of(world), &desired(), report.session()).await.unwrap();
    }
}

/// The error has the last Warning of the operator about the gateway.
pub(crate) async fn a_known_cause_is_named(world: &World) {
    let report = RecordedReport::default();
    world.set_work(Work::Prefixes).await;
    strait_peering::disconnect(&pair_of(world), true, report.session()).await.unwrap();
    let event = json!({
        "involvedObject": {
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "GatewayServer",
            "namespace": IN_REMOTE, "name": "rome",
        },
        "type": "Warning", "reason": "Refused", "lastTimestamp": "2026-01-01T00:00:00Z",
        "message": "cannot apply Service gw-rome: provided port is already allocated",
    });
    world.remote.put::<Event>(IN_REMOTE, "refused", event).await;

    let error = connect(&pair_of(world), &desired(), report.session_of(SHORT)).await.unwrap_err();

    let says = "; GatewayServer rome says Refused: cannot apply Service gw-rome: provided port is \
                already allocated; look at";
    assert!(error.to_string().contains(says), "{error}");
    let found = peers(&contact_of(&world.remote, Side::Only), &[], report.session()).await.unwrap();
    let alerts = &found[0].network.alerts;
    assert!(alerts[0].starts_with("GatewayServer rome says Refused: "), "{alerts:?}");
}

/// Only the operator removes that.
pub(crate) async fn remains_without_an_operator_are_reported(world: &World) {
    let report = RecordedReport::default();
    world.set_work(Work::All).await;
    connect(&pair_of(world), &desired(), report.session()).await.unwrap();
    report.lines();
    let held = |finalizers: &[&str]| {
        json!({
            "metadata": {"labels": {REMOTE_CLUSTER_ID: "milan"}, "finalizers": finalizers},
            "spec": {"deployment": {}},
        })
    };
    let finalizer = "networking.liqo.io/clusterrolebinding";
    world.local.put::<WgGatewayClient>(IN_LOCAL, "milan", held(&[finalizer])).await;
    let made = world.local.api::<WgGatewayClient>(IN_LOCAL);
    made.delete("milan", &Default::default()).await.unwrap();

    // Once when the gateway is deleted, and once when it is gone.
    for _ in 0..2 {
        let error = reset(&pair_of(world), true, report.session_of(SHORT)).await.unwrap_err();
        let says = format!(
            "found WgGatewayClient milan held by its finalizers {finalizer}, and with it stays \
             Deployment gw-milan, whose pods run on: is the operator of this cluster running?"
        );
        assert!(error.to_string().contains(&says), "{error}");
        assert!(
            !report.lines().iter().any(|line| line.contains("Gateway client correctly deleted"))
        );
    }

    world.local.put::<WgGatewayClient>(IN_LOCAL, "milan", held(&[])).await;

    let network = |finalizers: &[&str]| {
        json!({
            "metadata": {"labels": {REMOTE_CLUSTER_ID: "milan"}, "finalizers": finalizers},
            "spec": {"cidr": "10.97.0.0/16"},
        })
    };
    let finalizer = "network.ipam.liqo.io/finalizer";
    world.local.put::<Network>(IN_LOCAL, "milan-pod", network(&[finalizer])).await;
    let made = world.local.api::<Network>(IN_LOCAL);
    made.delete("milan-pod", &Default::default()).await.unwrap();
    let error = reset(&pair_of(world), true, report.session_of(SHORT)).await.unwrap_err();
    let says = format!("found Network milan-pod held by its finalizers {finalizer}");
    assert!(error.to_string().contains(&says), "{error}");
    world.local.put::<Network>(IN_LOCAL, "milan-pod", network(&[])).await;

    reset(&pair_of(world), true, report.session()).await.unwrap();
    assert_eq!(report.lines().last().unwrap(), "(remote) Network configuration already deleted");
}

pub(crate) async fn an_api_server_that_restarts_is_waited_for(mut world: World) {
    let report = RecordedReport::default();
    let pair = pair_of(&world);
    reset(&pair, true, report.session()).await.unwrap();
    world.set_work(Work::Pods).await;
    let wanted = desired();
    let joined = connect(&pair, &wanted, report.session());
    let outage = async {
        while !report.has_heard("(remote) Gateway pod gw-rome is ready") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        world.remote.server.restart().await;
        world.set_work(Work::All).await;
    };

    let (joined, ()) = tokio::join!(joined, outage);

    joined.unwrap();
    assert_eq!(report.lines().last().unwrap(), "(remote) Connection is established");
}
