//! Each wait of `connect` ends in time, and says what was waited for, what was found, and what to look at.

use std::time::Duration;

use control::api::{GatewayClient, WgGatewayClient};
use control::commands::{CommandError, Side, TimeoutError, connect, peers, reset};
use control::objects::REMOTE_CLUSTER_ID;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

use strait_control_lab::peering::{Work, World};

use super::world::{Ear, contact_of, pair_of, wanted};

/// In Rome and in Milan.
const IN_LOCAL: &str = "liqo-tenant-milan";
const IN_REMOTE: &str = "liqo-tenant-rome";

/// Enough for all that is there already.
const SHORT: Duration = Duration::from_secs(5);

/// How far others get, what is waited for then, what is found, and what to look at.
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
    let ear = Ear::default();
    for (work, [awaited, found, look_at]) in GOT.into_iter().zip(WAITS) {
        world.let_work(work).await;

        let error = connect(&pair_of(world), &wanted(), ear.session_of(SHORT)).await.unwrap_err();

        let text = error.to_string();
        assert!(!error.is_usage());
        let CommandError::Timeout(error) = error else { panic!("{work:?}: {text}") };
        let TimeoutError { timeout, .. } = *error;
        assert_eq!(timeout, SHORT);
        assert!(text.starts_with(awaited) && text.contains(found), "{work:?}: {text}");
        assert!(text.ends_with(&format!("; look at `{look_at}`")), "{work:?}: {text}");
    }

    // It goes on where it was.
    world.let_work(Work::All).await;
    connect(&pair_of(world), &wanted(), ear.session()).await.unwrap();
    assert_eq!(ear.lines().last().unwrap(), "(remote) Connection is established");
}

/// As long as something of the gateway is as it was before, `connect` is not done.
pub(crate) async fn what_was_before_is_not_taken_for_done(world: &World) {
    let ear = Ear::default();
    world.let_work(Work::All).await;
    connect(&pair_of(world), &wanted(), ear.session()).await.unwrap();
    let local = &world.local;
    let gateway = local.api::<GatewayClient>(IN_LOCAL).get("milan").await.unwrap();
    let generation = gateway.metadata.generation.unwrap();

    // The stand-in for the operator leaves the fields of other writers.
    let made_of = |generation: i64| json!({"metadata": {"annotations": {"strait.io/generation": generation.to_string()}}});
    let told = |mtu: u16| {
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
            told(1280),
            told(1340),
            "Deployment gw-milan with an MTU of 1280 bytes, 1340 are asked for",
        ),
    ] {
        local.put_as::<Deployment>("user", IN_LOCAL, "gw-milan", wrong).await;
        let error = connect(&pair_of(world), &wanted(), ear.session_of(SHORT)).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");

        local.put_as::<Deployment>("user", IN_LOCAL, "gw-milan", right).await;
        connect(&pair_of(world), &wanted(), ear.session()).await.unwrap();
    }
}

/// The last Warning of the operator about the gateway is in the error.
pub(crate) async fn a_known_cause_is_named(world: &World) {
    let ear = Ear::default();
    world.let_work(Work::Prefixes).await;
    control::commands::disconnect(&pair_of(world), true, ear.session()).await.unwrap();
    let event = json!({
        "involvedObject": {
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "GatewayServer",
            "namespace": IN_REMOTE, "name": "rome",
        },
        "type": "Warning", "reason": "Refused", "lastTimestamp": "2026-01-01T00:00:00Z",
        "message": "cannot apply Service gw-rome: provided port is already allocated",
    });
    world.remote.put::<Event>(IN_REMOTE, "refused", event).await;

    let error = connect(&pair_of(world), &wanted(), ear.session_of(SHORT)).await.unwrap_err();

    let says = "; GatewayServer rome says Refused: cannot apply Service gw-rome: provided port is \
                already allocated; look at";
    assert!(error.to_string().contains(says), "{error}");
    let found = peers(&contact_of(&world.remote, Side::Only), &[], ear.session()).await.unwrap();
    let alerts = &found[0].network.alerts;
    assert!(alerts[0].starts_with("GatewayServer rome says Refused: "), "{alerts:?}");
}

/// Nothing but the operator takes that away.
pub(crate) async fn what_stays_without_an_operator_is_named(world: &World) {
    let ear = Ear::default();
    world.let_work(Work::All).await;
    connect(&pair_of(world), &wanted(), ear.session()).await.unwrap();
    ear.lines();
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

    // Once when the gateway goes, and once when it has gone.
    for _ in 0..2 {
        let error = reset(&pair_of(world), true, ear.session_of(SHORT)).await.unwrap_err();
        let says = format!(
            "found WgGatewayClient milan held by its finalizers {finalizer}, and with it stays \
             Deployment gw-milan, whose pods run on: is the operator of this cluster running?"
        );
        assert!(error.to_string().contains(&says), "{error}");
        assert!(!ear.lines().iter().any(|line| line.contains("Gateway client correctly deleted")));
    }

    world.local.put::<WgGatewayClient>(IN_LOCAL, "milan", held(&[])).await;
    reset(&pair_of(world), true, ear.session()).await.unwrap();
    assert_eq!(ear.lines().last().unwrap(), "(remote) Network configuration correctly deleted");
}

pub(crate) async fn an_api_server_that_restarts_is_waited_for(mut world: World) {
    let ear = Ear::default();
    let pair = pair_of(&world);
    reset(&pair, true, ear.session()).await.unwrap();
    world.let_work(Work::Pods).await;
    let wanted = wanted();
    let joined = connect(&pair, &wanted, ear.session());
    let outage = async {
        while !ear.has_heard("(remote) Gateway pod gw-rome is ready") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        world.remote.server.restart().await;
        world.let_work(Work::All).await;
    };

    let (joined, ()) = tokio::join!(joined, outage);

    joined.unwrap();
    assert_eq!(ear.lines().last().unwrap(), "(remote) Connection is established");
}
