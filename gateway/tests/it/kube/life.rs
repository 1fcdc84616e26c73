//! The life of a peering: it comes up, it changes, its API servers go away, it ends.

use std::thread;
use std::time::Duration;

use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use strait_api::{Configuration, PublicKey};
use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_wg::PrivateKey;

use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{Fed, Mode, NAMESPACE, PATIENCE, wait_for_ping};
use crate::kube::observed::{assert_observed, assert_only_read_from_outside};
use crate::kube::peering::{Peering, alone};

/// How long the API servers are away.
const OUTAGE: Duration = Duration::from_secs(60);

#[test]
fn clusters_are_joined_with_either_server() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };

    for (layout, rome) in
        [(Layout::equal(), Mode::Client), (Layout::partly_overlapping(), Mode::Server)]
    {
        let Some(peering) = Peering::start(&layout, rome) else {
            return;
        };
        peering.assert_traffic();

        let type_ = match rome {
            Mode::Client => "Client",
            Mode::Server => "Server",
        };
        let table = peering.in_rome.table("connections");
        assert_eq!(table[0], ["Name", "Type", "Status", "Age", "Latency"]);
        assert_eq!(table[1][..3], ["gw-milan", type_, "Connected"]);
        assert!(table[1][4].ends_with("ms") || table[1][4].ends_with("μs"), "{table:?}");
        assert_observed(&peering.in_rome);
        assert_only_read_from_outside(peering.rome(), peering.milan());
        peering.finish();
    }
}

#[test]
fn changes_of_objects_are_followed_while_everything_runs() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let (rome, fed) = (&peering.rome().pod, &peering.in_rome);
    let target = peering.target();

    // Another name for the remote's pods.
    configure(fed, &json!({"status": {"remote": {"cidr": {"pod": ["10.99.0.0/16"]}}}}));
    wait_for_ping(rome, "10.99.2.7".parse().unwrap());
    assert!(!Ping::new(target, 1).run(rome).unwrap().is_perfect(), "the old name is gone");
    assert_eq!(fed.config()["peers"][0]["remap"]["value"][0]["local"], "10.99.0.0/16");

    // A name that makes no sense takes the prefix out of force, and the way back is a right one.
    configure(fed, &json!({"status": {"remote": {"cidr": {"pod": ["10.99.0.0/24"]}}}}));
    peering.assert_silent();
    assert!(fed.log("gateway").contains("Configuration liqo-tenant/milan"), "it is named");
    assert_eq!(fed.metrics().value("strait_objects_refused", &[]), Some("1"));
    fed.wait_for_condition("RemapInvalid");
    configure(fed, &json!({"status": {"remote": {"cidr": {"pod": ["10.71.0.0/16"]}}}}));
    wait_for_ping(rome, target);
    fed.wait_for_condition("InForce");

    // Without a key there is no peer.
    let key = fed.ask(|client| async move {
        let keys = Api::<PublicKey>::namespaced(client, NAMESPACE);
        let key = keys.get("milan").await.unwrap();
        keys.delete("milan", &DeleteParams::default()).await.unwrap();
        key
    });
    peering.assert_silent();
    fed.apply::<PublicKey>(&json!({"spec": key.spec}));
    wait_for_ping(rome, target);

    // The namespace is deleted with everything in it: the peer goes, the gateway stays.
    fed.ask(|client| async move {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
        namespaces.delete(NAMESPACE, &DeleteParams::default()).await.unwrap();
        // What the controller of namespaces does.
        let keys = Api::<PublicKey>::namespaced(client.clone(), NAMESPACE);
        keys.delete("milan", &DeleteParams::default()).await.unwrap();
        let configurations = Api::<Configuration>::namespaced(client, NAMESPACE);
        configurations.delete("milan", &DeleteParams::default()).await.unwrap();
    });
    peering.assert_silent();

    peering.finish();
}

/// Its Service has another port, so both templates make other pods, one after the other.
#[test]
fn a_moved_server_is_called_at_its_address() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let moved = |other: &Cluster, mode| -> Vec<_> {
        alone(other, mode).iter().map(|flag| flag.replace("=51840", "=51841")).collect()
    };
    let server = moved(peering.rome(), Mode::Server);
    let client = moved(peering.milan(), Mode::Client);

    peering.in_milan.stop("gateway");
    peering.in_milan.start("gateway", &server);
    peering.in_rome.wait_for("Error");
    peering.in_rome.stop("gateway");
    peering.in_rome.start("gateway", &client);

    peering.in_rome.wait_for("Connected");
    peering.in_milan.wait_for("Connected");
    peering.assert_traffic();
    peering.finish();
}

/// Each key changes by itself, and the other cluster's object follows a moment later, or went before.
#[test]
fn a_rotated_secret_costs_no_packet() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let Peering { in_rome, in_milan, clusters } = &peering;
    let [rome_key, milan_key] = [PrivateKey::generate(), PrivateKey::generate()];
    let interval = Duration::from_millis(60);
    let ping = Ping { interval, ..Ping::new(peering.target(), 200) };

    let report = thread::scope(|scope| {
        let pinging = scope.spawn(|| ping.run(&clusters.rome.pod).unwrap());
        in_rome.rotate(&rome_key);
        in_milan.learn(&rome_key);
        in_rome.learn(&milan_key);
        in_milan.rotate(&milan_key);
        assert!(!pinging.is_finished(), "the changes took longer than the traffic");
        pinging.join().unwrap()
    });

    assert!(report.is_perfect(), "lost {:?} of {}", report.unanswered, report.sent);
    peering.assert_traffic();
    peering.finish();
}

/// The object of the peer has the key that this gateway has for a while.
#[test]
fn our_own_key_is_refused_for_a_peer() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let Peering { in_rome, in_milan, .. } = &peering;
    let [key, another] = [PrivateKey::generate(), PrivateKey::generate()];
    in_milan.rotate(&key);
    in_rome.learn(&key);
    let refused = |count: &'static str| {
        let is_so = || Ok(in_rome.metrics().value("strait_objects_refused", &[]) == Some(count));
        wait_until(format!("{count} objects are refused"), PATIENCE, is_so).unwrap();
    };
    refused("0");

    in_rome.rotate(&key);
    refused("1");
    assert!(in_rome.log("gateway").contains("spec.publicKey is our own public key"));

    in_rome.rotate(&another);
    refused("0");
    in_milan.learn(&another);
    wait_for_ping(&peering.rome().pod, peering.target());
    peering.finish();
}

#[test]
fn an_api_server_outage_costs_no_packet() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::different(), Mode::Client) else {
        return;
    };
    let target = peering.target();

    let interval = Duration::from_millis(20);
    let count = u16::try_from(OUTAGE.as_millis() / interval.as_millis()).unwrap();
    let ping = Ping { interval, ..Ping::new(target, count) };
    let Peering { in_rome, in_milan, clusters } = &mut peering;
    let reloads = |fed: &Fed| fed.log("gateway").matches("configuration reloaded").count();
    let before = reloads(in_rome);
    let report = thread::scope(|scope| {
        let traffic = scope.spawn(|| ping.run(&clusters.rome.pod).unwrap());
        in_rome.kill_api_server();
        in_milan.kill_api_server();
        traffic.join().unwrap()
    });
    assert!(report.is_perfect(), "lost {:?} of {}", report.unanswered, report.sent);

    assert_eq!(reloads(in_rome), before, "an outage is no change");

    // What the watches saw last is history when they come back.
    for fed in [&mut peering.in_rome, &mut peering.in_milan] {
        fed.restart_api_server();
        fed.compact();
    }
    configure(
        &peering.in_rome,
        &json!({"status": {"remote": {"cidr": {"pod": ["10.99.0.0/16"]}}}}),
    );
    wait_for_ping(&peering.rome().pod, "10.99.2.7".parse().unwrap());
    peering.in_rome.wait_for("Connected");

    peering.finish();
}

fn configure(fed: &Fed, change: &Value) {
    fed.apply::<Configuration>(change);
}
