//! Each wait of `connect` ends in time, and says what was waited for, what was found, and what to look at.

use std::time::Duration;

use control::commands::{CommandError, TimeoutError, connect};

use super::stand_in::Work;
use super::world::{Ear, World, wanted};

/// Enough for all that is there already.
const SHORT: Duration = Duration::from_millis(1500);

/// How far others get, what is waited for then, what is found, and what to look at.
const WAITS: [[&str; 3]; 7] = [
    [
        "(local) Failed waiting for Configuration milan to be applied: not within 1500ms; found ",
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
        "kubectl get service gw-rome -n liqo-tenant-rome",
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

        let error = connect(&world.pair(), &wanted(), ear.session_of(SHORT)).await.unwrap_err();

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
    connect(&world.pair(), &wanted(), ear.session()).await.unwrap();
    assert_eq!(ear.lines().last().unwrap(), "(remote) Connection is established");
}

pub(crate) async fn an_api_server_that_restarts_is_waited_for(mut world: World) {
    let ear = Ear::default();
    let pair = world.pair();
    control::commands::reset(&pair, true, ear.session()).await.unwrap();
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
