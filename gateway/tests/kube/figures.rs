//! How soon what objects say is in force for packets, and what it costs them.
//!
//! Each test prints what it measured. With `STRAIT_FIGURES` set, which `make bench-cluster` does with
//! the release build, the figures that are promised are demanded; without, what even a busy machine
//! must reach.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use futures_util::AsyncReadExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use strait_api::Configuration;
use strait_lab::Layout;
use strait_lab::TwoClusters;
use strait_lab::gateway::{PeerSection, RemapSection};
use strait_lab::now;
use strait_lab::traffic::{Amount, Ping, tcp};
use strait_lab::wait_until;
use strait_wg::PrivateKey;

use crate::fed::{Mode, NAMESPACE, put, wait_for_ping};
use crate::peering::{Peering, alone};
use crate::require::Need::{Root, Tun};
use crate::require::require;
use crate::world::{STRAIT, World};

/// How many peers are many.
const PEERS: u16 = 1_000;

/// How long own objects change before others do: long beside what a gateway saves up for a flood.
const SLICE: Duration = Duration::from_secs(2);

/// From one request to the next of a ping that waits for a change.
const PRECISION: Duration = Duration::from_millis(1);

/// From the write of an object to the first packet that it lets pass.
#[test]
fn a_change_is_in_force_for_packets_before_anybody_waits_for_it() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let changes: u8 = if is_strict() { 200 } else { 20 };

    let delays: Vec<_> = (1..=changes).map(|number| until_in_force(&peering, number)).collect();
    let [requested, written] = [0, 1].map(|end| {
        let mut delays: Vec<_> = delays.iter().map(|delay| delay[end]).collect();
        delays.sort_unstable();
        delays
    });
    let p99 = |delays: &[Duration]| delays[delays.len() - 1 - delays.len() / 100];
    for (what, delays) in [("request", &requested), ("answer", &written)] {
        let median = delays[delays.len() / 2];
        eprintln!("in force {median:?} (median), {:?} (p99) after the {what}", p99(delays));
    }
    assert!(p99(&requested) <= bound(50, 2_000), "{delays:?}");

    peering.finish();
}

/// Gives the remote's pods another name, and asks for it until it answers.
fn until_in_force(peering: &Peering, number: u8) -> [Duration; 2] {
    let target = IpAddr::from([10, number, 2, 7]);
    let timeout = Duration::from_millis(100);
    let ping = Ping {
        interval: PRECISION,
        timeout,
        ..Ping::new(target, if is_strict() { 500 } else { 2_000 })
    };
    let (report, written) = thread::scope(|scope| {
        let asking = scope.spawn(|| ping.run(&peering.rome().pod).unwrap());
        let written = peering.in_rome.ask(move |client| async move {
            let api = Api::<Configuration>::namespaced(client, NAMESPACE);
            // A connection that is made while the clock runs is nothing the gateway could help.
            api.get("milan").await.unwrap();
            let cidr = json!({"pod": [format!("10.{number}.0.0/16")]});
            let patch = Patch::Merge(json!({"status": {"remote": {"cidr": cidr}}}));
            let start = now();
            api.patch_status("milan", &PatchParams::default(), &patch).await.unwrap();
            [start, now()]
        });
        (asking.join().unwrap(), written)
    });

    let Some(first) = report.first_reply else { panic!("{target} never answered") };
    // The round trip is counted too, and the pause before the request.
    written.map(|at| first.saturating_duration_since(at))
}

/// From the start of a process to the first packet through it.
#[test]
fn a_gateway_forwards_soon_after_its_start() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::different(), Mode::Client) else {
        return;
    };
    let (target, arguments) = (peering.target(), alone(peering.milan(), Mode::Client));
    let starts = if is_strict() { 20 } else { 3 };

    let mut delays = Vec::new();
    for _ in 0..starts {
        peering.in_rome.stop("gateway");
        let start = now();
        peering.in_rome.start("gateway", &arguments);
        let ping = Ping { timeout: PRECISION, ..Ping::new(target, 1) };
        while !ping.run(&peering.rome().pod).is_ok_and(|report| report.received == 1) {
            assert!(start.elapsed() < Duration::from_secs(30), "{target} never answered");
        }
        delays.push(start.elapsed());
    }
    delays.sort_unstable();
    eprintln!("forwards after {:?} (median), {:?} (most)", delays[starts / 2], delays[starts - 1]);
    assert!(delays[starts - 1] <= bound(300, 5_000), "{delays:?}");

    peering.finish();
}

/// From the signal until they are all in the table.
#[test]
fn a_thousand_peers_of_a_file_are_in_force_within_a_second_and_64_mib() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let mut world = World::prepare(&Layout::equal().without_ipv6());
    let TwoClusters { rome, scratch, .. } = &mut world.clusters;
    rome.start(Path::new(STRAIT), scratch).unwrap();
    let gateway = rome.process().unwrap();
    let mut config = rome.config.clone();
    config.peers.extend((0..PEERS).map(idle_peer));

    let start = now();
    gateway.reload(&config, scratch).unwrap();
    wait_until("all peers were there", Duration::from_secs(30), || {
        Ok(gateway.metrics()?.sum("strait_table_generation", &[]) == 2)
    })
    .unwrap();
    let elapsed = start.elapsed();
    assert!(gateway.metrics().unwrap().has("strait_peer_has_session", &[("peer", "idle-999")]));
    let memory = peak_memory(gateway.process().id());
    eprintln!("{PEERS} peers of a file in force after {elapsed:?}, with {memory:.1} MiB at most");
    assert!(elapsed <= bound(1_000, 20_000), "{elapsed:?}");
    assert!(memory <= 64.0, "{memory} MiB");

    rome.stop().unwrap();
}

fn idle_peer(number: u16) -> PeerSection {
    let [high, low] = number.to_be_bytes();
    let prefix = |first: u8| format!("{first}.{high}.{low}.0/24").parse().unwrap();
    let key = PrivateKey::generate().public_key();

    PeerSection {
        remaps: vec![RemapSection { remote: prefix(20), local: prefix(21) }],
        ..PeerSection::new(&format!("idle-{number}"), key, vec![prefix(20)])
    }
}

/// In MiB, as proc(5) has it in `status`.
fn peak_memory(process: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();

    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// The throughput of one stream while a hundred changes a second arrive, to that while as many changes of
/// somebody else's object do, which says as much, to somebody who only reads them: what the API server costs
/// is not the gateway's, and grows with the object and the number of its writers. In turn, in slices of one
/// stream, as the machine is another one every few seconds.
#[test]
fn changes_cost_the_packets_nothing() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::different(), Mode::Client) else {
        return;
    };
    wait_for_ping(&peering.rome().pod, peering.target());
    let pairs = if is_strict() { 40 } else { 2 };
    let (rome, milan) = (peering.rome(), peering.milan());
    let stream = SLICE * 2 * u32::try_from(pairs + 1).unwrap();
    let bytes = thread::scope(|scope| {
        let pods = scope
            .spawn(|| tcp(&rome.pod, &milan.pod, peering.target(), Amount::Time(stream)).unwrap());
        let bytes = peering.in_rome.ask(move |client| change_in_turn(client, pairs));
        let report = pods.join().unwrap();
        assert!(report.is_intact, "{report:?}");
        bytes
    });
    let tables = peering.in_rome.metrics().sum("strait_table_generation", &[]);
    assert!(tables > u64::try_from(pairs).unwrap(), "of all changes {tables} were in force");
    let mut ratios: Vec<_> = bytes.iter().map(|[own, foreign]| own / foreign).collect();
    ratios.sort_by(f64::total_cmp);
    let quartile = |number: usize| ratios[(pairs * number / 4).min(pairs - 1)];
    let [lower, median, upper] = [1, 2, 3].map(quartile);
    eprintln!(
        "throughput while own objects change, to while others do: \
         {median:.3} [{lower:.3}, {upper:.3}], {tables} tables"
    );
    assert!(median >= if is_strict() { 0.97 } else { 0.5 }, "{ratios:?}");

    peering.finish();
}

/// Bytes through the device of the gateway while its own `Configuration` changes, and while that of
/// another one does, as often as there are pairs.
async fn change_in_turn(client: kube::Client, pairs: usize) -> Vec<[f64; 2]> {
    let api = Api::<Configuration>::namespaced(client.clone(), NAMESPACE);
    foreign_configuration(&client).await;
    for name in ["milan", "oslo"] {
        let external = json!({"spec": {"remote": {"cidr": {"external": ["10.70.0.0/24"]}}}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(external)).await.unwrap();
    }
    say_as_much(&api).await;
    tokio::spawn(read_changes(client, "oslo"));
    let mut measured = Vec::with_capacity(pairs);
    // The stream has begun by the second of these.
    for name in ["oslo", "milan"] {
        slice(&api, name).await;
    }
    for pair in 0..pairs {
        // What comes second may find another machine.
        let bytes = if pair % 2 == 0 {
            let own = slice(&api, "milan").await;
            [own, slice(&api, "oslo").await]
        } else {
            let foreign = slice(&api, "oslo").await;
            [slice(&api, "milan").await, foreign]
        };
        measured.push(bytes);
    }

    measured
}

/// Gives the other one the condition that a gateway of its own would have written. Then an API server has as
/// much to do for a change of either.
async fn say_as_much(api: &Api<Configuration>) {
    let patience = now() + Duration::from_secs(30);
    let conditions = loop {
        let own = serde_json::to_value(api.get("milan").await.unwrap()).unwrap();
        let conditions = &own["status"]["conditions"];
        if conditions[0]["observedGeneration"] == own["metadata"]["generation"] {
            break conditions.clone();
        }
        assert!(now() < patience, "{own}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    api.patch_status("oslo", &PatchParams::apply("strait-gateway"), &patch).await.unwrap();

    let own = api.get("milan").await.unwrap();
    let other = api.get("oslo").await.unwrap();
    assert_eq!(writers(&own), writers(&other));
    let [own, other] = [own, other].map(|object| serde_json::to_vec(&object).unwrap().len());
    assert!(own.abs_diff(other) < own / 20, "{own} and {other} bytes");
}

/// Who has written the object, and which part of it.
fn writers(object: &Configuration) -> BTreeSet<(Option<String>, Option<String>)> {
    let fields = object.metadata.managed_fields.iter().flatten();

    fields.map(|field| (field.manager.clone(), field.subresource.clone())).collect()
}

/// Has the changes of one cluster's objects sent, as a gateway has, and does nothing with them.
async fn read_changes(client: kube::Client, cluster: &str) {
    let path = format!("/apis/networking.liqo.io/v1beta1/namespaces/{NAMESPACE}/configurations");
    let query = format!(
        "watch=true&timeoutSeconds=600&labelSelector=liqo.io%2Fremote-cluster-id%3D{cluster}"
    );
    let request = http::Request::get(format!("{path}?{query}")).body(Vec::new()).unwrap();
    let mut changes = client.request_stream(request).await.unwrap();
    let mut buffer = vec![0; 64 * 1024];
    while changes.read(&mut buffer).await.unwrap() > 0 {}
}

/// Bytes a second while the `Configuration` called `name` changes a hundred times a second.
async fn slice(api: &Api<Configuration>, name: &str) -> f64 {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let (start, before) = (now(), device_bytes());
    while start.elapsed() < SLICE {
        ticks.tick().await;
        // Not the prefix of the traffic, but each time another table and another route.
        let external = [format!("10.200.{}.0/24", start.elapsed().subsec_millis() % 256)];
        let patch = Patch::Merge(json!({"status": {"remote": {"cidr": {"external": external}}}}));
        api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    (device_bytes() - before) / start.elapsed().as_secs_f64()
}

/// What the kernel has given to the tunnel device of this namespace, as proc_pid_net(5) has it.
fn device_bytes() -> f64 {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = devices.lines().find_map(|line| line.trim().strip_prefix("liqo-tunnel:")).unwrap();

    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// Of a cluster that has nothing to do with the gateway.
async fn foreign_configuration(client: &kube::Client) {
    let configuration = json!({
        "spec": {"remote": {"cidr": {"pod": ["10.10.0.0/16"]}}},
        "status": {"remote": {"cidr": {"pod": ["100.64.0.0/16"]}}},
    });

    put::<Configuration>(client, "oslo", &configuration).await;
}

fn is_strict() -> bool {
    std::env::var_os("STRAIT_FIGURES").is_some()
}

fn bound(strict_ms: u64, busy_ms: u64) -> Duration {
    Duration::from_millis(if is_strict() { strict_ms } else { busy_ms })
}
