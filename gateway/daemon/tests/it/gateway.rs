//! A gateway and an API server: it watches, creates its `Connection`, reports.
//!
//! With the rights of Liqo's own role for gateways and no others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use strait_api::configuration::ConfigurationSpec;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Configuration, Connection, PublicKey};
use strait_control_lab::create;
use strait_control_lab::roles::{reader, stock_role};
use strait_control_lab::tenant::{NAMESPACE, Tenant, identity};
use strait_daemon::cluster::connection::Connections;
use strait_daemon::cluster::object_watch::{Update, Watch};
use strait_plan::Desired;
use strait_plan::conncheck::{Report, State};
use strait_plan::objects::{self, Objects, Remapping, Scope};

const INTERVAL: Duration = Duration::from_secs(10);

fn public_key(cluster: &str, byte: u8) -> PublicKey {
    let mut object = PublicKey::new(cluster, Default::default());
    object.metadata.namespace = Some(NAMESPACE.to_owned());
    object.metadata.labels =
        Some(BTreeMap::from([(REMOTE_CLUSTER_ID.to_owned(), cluster.to_owned())]));
    object.spec.public_key = Some(ByteString(vec![byte; 32]));

    object
}

/// All keys, and no prefixes.
fn scope() -> Scope {
    Scope { remapping: Remapping::External, ..Scope::default() }
}

/// The objects as soon as they are as `wanted`, and the number of updates.
async fn until(watch: &mut Watch, wanted: impl Fn(&Objects) -> bool) -> (Objects, usize) {
    let mut updates = 0;
    let objects = async {
        loop {
            if let Update::Objects(objects) = watch.next().await {
                updates += 1;
                if wanted(&objects) {
                    return objects;
                }
            }
        }
    };
    let objects = tokio::time::timeout(Duration::from_secs(60), objects).await.expect("an update");

    (objects, updates)
}

#[tokio::test]
async fn a_stock_role_suffices_for_the_connection() {
    let Some(Tenant { admin, gateway, server: _server }) = Tenant::start(&stock_role()).await
    else {
        return;
    };
    let api: Api<Connection> = Api::namespaced(admin, NAMESPACE);
    let mut connections = Connections::new(gateway, identity());
    let now = Timestamp::now();
    let connected = Report {
        state: State::Connected,
        latency: Some(Duration::from_millis(12)),
        ..Report::default()
    };

    // There is no object to report to, which is no error.
    connections.report(&connected, now, INTERVAL).await.unwrap();
    connections.ensure().await.unwrap();
    let made = api.get("gw-milan").await.unwrap();
    assert_eq!(made.status.clone().unwrap().value.as_deref(), Some("Connecting"));
    assert_eq!(made.owner_references()[0].kind, "GatewayServer");

    // Another writer in between.
    let label = json!({"metadata": {"labels": {"team": "net", REMOTE_CLUSTER_ID: "oslo"}}});
    api.patch("gw-milan", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    connections.report(&connected, now, INTERVAL).await.unwrap();
    connections.ensure().await.unwrap();
    let kept = api.get("gw-milan").await.unwrap();
    assert_eq!(kept.labels()[REMOTE_CLUSTER_ID], "milan");
    assert_eq!(kept.labels()["team"], "net");
    let status = kept.status.clone().unwrap();
    assert_eq!(status.value.as_deref(), Some("Connected"));
    assert_eq!(status.latency.unwrap().value.as_deref(), Some("12ms"));

    // Nothing new within the interval: nothing is written.
    connections.report(&connected, now, INTERVAL).await.unwrap();
    let unchanged = api.get("gw-milan").await.unwrap();
    assert_eq!(unchanged.resource_version(), kept.resource_version());

    api.delete("gw-milan", &DeleteParams::default()).await.unwrap();
    let lost = Report { state: State::Lost, ..Report::default() };
    connections.report(&lost, now, INTERVAL).await.unwrap();
    connections.ensure().await.unwrap();
    connections.report(&lost, now, INTERVAL).await.unwrap();
    let status = api.get("gw-milan").await.unwrap().status.unwrap();
    assert_eq!(status.value.as_deref(), Some("Error"));
    assert_eq!(status.latency.unwrap().value.as_deref(), Some("N/A"));
}

#[tokio::test]
async fn bursts_are_few_updates_and_outages_lose_nothing() {
    let Some(Tenant { mut server, admin, gateway }) = Tenant::start(&stock_role()).await else {
        return;
    };
    const KEYS: u16 = 1_000;
    let api: Api<PublicKey> = Api::namespaced(admin.clone(), NAMESPACE);
    let mut watch = Watch::new(&gateway, NAMESPACE, &scope());

    let (none, _) = until(&mut watch, |_| true).await;
    assert_eq!(none.public_keys.len(), 0);

    let writes = async {
        for number in 0..KEYS {
            create(api.clone(), &public_key(&format!("cluster-{number}"), 1)).await;
        }
    };
    let all = until(&mut watch, |objects| objects.public_keys.len() == usize::from(KEYS));
    let start = Instant::now();
    let ((), (_, updates)) = tokio::join!(writes, all);
    let most = start.elapsed().as_millis() / 20 + 1;
    eprintln!("{KEYS} keys in {:?}: {updates} updates", start.elapsed());
    assert!(u128::try_from(updates).unwrap() <= most, "{updates} updates, at most {most}");

    server.kill();
    let unreachable = async { while !matches!(watch.next().await, Update::Unreachable(_)) {} };
    tokio::time::timeout(Duration::from_secs(60), unreachable).await.expect("the outage shows");
    server.restart().await;
    // The watch must start again: its resource version has expired.
    server.compact();
    let mut younger = public_key("cluster-7", 2);
    younger.metadata.resource_version =
        api.get("cluster-7").await.unwrap().metadata.resource_version;
    api.replace("cluster-7", &Default::default(), &younger).await.unwrap();
    api.delete("cluster-8", &DeleteParams::default()).await.unwrap();

    let (objects, _) =
        until(&mut watch, |objects| objects.public_keys.len() == usize::from(KEYS) - 1).await;
    let requested = objects::read(&scope(), &objects);
    let key =
        |name: &str| requested.peers.iter().find(|peer| peer.name == name).map(|peer| peer.keys);
    assert_eq!(key("cluster-8"), None);
    // Two keys belong to one cluster each; all the others are one key for many clusters.
    assert_eq!(key("cluster-7"), Some([2; 32]));
}

/// From the write to the moment at which the plan can begin, on an idle API server. Ten changes a second are no flood.
#[tokio::test]
async fn a_change_is_reported_within_milliseconds() {
    let Some(Tenant { admin, gateway, server: _server }) = Tenant::start(&stock_role()).await
    else {
        return;
    };
    const CHANGES: usize = 100;
    let api: Api<PublicKey> = Api::namespaced(admin, NAMESPACE);
    create(api.clone(), &public_key("milan", 0)).await;
    let mut watch = Watch::new(&gateway, NAMESPACE, &scope());
    until(&mut watch, |objects| objects.public_keys.len() == 1).await;

    let mut delays = Vec::with_capacity(CHANGES);
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    for number in 1..=u8::try_from(CHANGES).unwrap() {
        ticks.tick().await;
        let key = json!({"spec": {"publicKey": ByteString(vec![number; 32])}});
        let start = Instant::now();
        api.patch("milan", &PatchParams::default(), &Patch::Merge(&key)).await.unwrap();
        until(&mut watch, |objects| {
            let requested = objects::read(&scope(), objects);
            requested.peers.first().is_some_and(|peer| peer.keys == [number; 32])
        })
        .await;
        delays.push(start.elapsed());
    }

    delays.sort();
    let (median, p99) = (delays[CHANGES / 2], delays[CHANGES - 2]);
    eprintln!("reported after {median:?} (median), {p99:?} (p99)");
    // The figure is 50 ms at p99; neighbours of a test machine can take longer than that.
    assert!(median < Duration::from_millis(50) && p99 < Duration::from_millis(500), "{delays:?}");
}

/// As many as in one namespace of a large hub, written at once; a gateway that starts reads them all.
#[tokio::test]
async fn many_peers_are_planned_in_a_moment() {
    let Some(Tenant { admin, gateway, server: _server }) = Tenant::start(&reader()).await else {
        return;
    };
    // What takes long is to write the objects.
    let peers: u16 = if is_set("STRAIT_SLOW") || is_set("STRAIT_FIGURES") { 1_000 } else { 200 };
    let keys: Api<PublicKey> = Api::namespaced(admin.clone(), NAMESPACE);
    let configurations: Api<Configuration> = Api::namespaced(admin, NAMESPACE);
    let scope = Scope::default();
    let mut watch = Watch::new(&gateway, NAMESPACE, &scope);
    until(&mut watch, |_| true).await;

    let write = |number: u16| {
        let (keys, configurations) = (keys.clone(), configurations.clone());
        async move {
            let (high, low) = (number >> 8, number & 0xff);
            let name = format!("cluster-{number}");
            let mut key = public_key(&name, 0);
            key.spec.public_key =
                Some(ByteString([[1; 30].as_slice(), &number.to_be_bytes()].concat()));
            let mut configuration = Configuration::new(&name, ConfigurationSpec::default());
            configuration.metadata = key.metadata.clone();
            let cidr = |first: u8| json!({"cidr": {"pod": [format!("{first}.{high}.{low}.0/24")]}});
            configuration.spec.remote = serde_json::from_value(cidr(10)).unwrap();
            create(keys, &key).await;
            let mut made = create(configurations.clone(), &configuration).await;
            made.status = serde_json::from_value(json!({"remote": cidr(11)})).unwrap();
            configurations.replace_status(&name, &Default::default(), &made).await.unwrap();
        }
    };
    let is_complete = |objects: &Objects| {
        let desired = Desired::new(&scope, objects);
        desired.peers.iter().filter(|peer| !peer.remaps.is_empty()).count() == usize::from(peers)
    };
    let start = Instant::now();
    let writes = stream::iter(0..peers).map(write).buffer_unordered(16).collect::<Vec<()>>();
    let (_, (_, updates)) = tokio::join!(writes, until(&mut watch, is_complete));
    eprintln!("{peers} peers written in {:?}: {updates} updates", start.elapsed());

    let start = Instant::now();
    let mut watch = Watch::new(&gateway, NAMESPACE, &scope);
    let (objects, _) = until(&mut watch, is_complete).await;
    let Desired { rejected, .. } = Desired::new(&scope, &objects);
    let elapsed = start.elapsed();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    eprintln!("{peers} peers read and planned in {elapsed:?}; {memory}");
    assert_eq!(rejected, []);
    let limit = Duration::from_secs(if is_set("STRAIT_FIGURES") { 1 } else { 20 });
    assert!(elapsed < limit, "{elapsed:?}");
}

/// Whether this variable of the environment is set.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}
