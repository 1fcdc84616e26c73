//! Two clusters, each with an API server of its own, joined by what their objects say.
//!
//! Needs root, `/dev/net/tun`, and what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

#![cfg(feature = "daemon")]
#![expect(
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test may panic, and says why"
)]

#[expect(dead_code, clippy::disallowed_methods, reason = "shared with the tests of control")]
#[path = "../../../control/tests/harness/mod.rs"]
mod api_server;
#[path = "../harness/require.rs"]
mod require;
#[expect(dead_code, reason = "these gateways have no configuration files")]
#[path = "../harness/world.rs"]
mod world;

mod beside;
mod fed;
mod replicas;

use control::api::Configuration;
use fed::{Fed, Mode, wait_for_ping, whole, whole_role};
use require::Need::{Root, Tun};
use require::require;
use serde_json::json;
use strait_gateway::lab::traffic::Ping;
use strait_gateway::lab::{Layout, TwoClusters};
use world::assert_traffic;

#[test]
fn clusters_with_one_pod_cidr_are_joined_and_stay_so_without_their_api_servers() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let clusters = TwoClusters::new(&Layout::equal().without_ipv6()).unwrap();
    let (rome, milan) = (&clusters.rome, &clusters.milan);
    let Some(mut in_rome) = Fed::new(rome, milan, whole_role(), &clusters) else {
        return;
    };
    let Some(mut in_milan) = Fed::new(milan, rome, whole_role(), &clusters) else {
        return;
    };
    in_rome.start("client", &whole(milan, Mode::Client));
    in_milan.start("server", &whole(rome, Mode::Server));

    in_rome.wait_for("Connected");
    in_milan.wait_for("Connected");
    for (from, to) in [(rome, milan), (milan, rome)] {
        for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
            assert_traffic(from, to, target, seen_as);
        }
    }

    // Nobody notices that the API server is away.
    in_rome.kill_api_server();
    let target = rome.side.sees(&milan.side).next().unwrap();
    let ping = Ping::new(target, 200).run(&rome.pod).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");
    in_rome.restart_api_server();

    // Another name for the remote's pods, while everything runs.
    in_rome.apply::<Configuration>(&json!({
        "status": {"remote": {"cidr": {"pod": ["10.99.0.0/16"]}}},
    }));
    wait_for_ping(&rome.pod, "10.99.2.7".parse().unwrap());
    assert!(!Ping::new(target, 1).run(&rome.pod).unwrap().is_perfect(), "the old name is gone");

    in_rome.finish();
    in_milan.finish();
}
