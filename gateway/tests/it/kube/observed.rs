//! What a gateway that is fed by an API server says of itself.

use std::net::SocketAddr;

use serde_json::{Value, json};
use strait_lab::Cluster;
use strait_lab::scrape;

use crate::kube::fed::{Fed, HEALTH, NAMESPACE};

/// What a gateway that is connected says of itself.
pub(crate) fn assert_observed(fed: &Fed) {
    let metrics = fed.metrics();
    let value = |name: &str, labels: &[(&str, &str)]| -> f64 {
        metrics.value(name, labels).unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    };
    let peer = [("peer", fed.peer)];
    let cluster = [("cluster_id", fed.peer)];
    assert!((value("liqo_peer_is_connected", &cluster) - 1.0).abs() < f64::EPSILON);
    let rtt_us = value("strait_peer_probe_rtt_seconds", &peer) * 1e6;
    assert!((value("liqo_peer_latency_us", &cluster) - rtt_us).abs() <= 1.0);
    assert!((0.0..=1.0).contains(&value("strait_peer_probe_loss_ratio", &peer)));
    assert!(value("strait_peer_probe_jitter_seconds", &peer) >= 0.0);
    assert!(value("strait_objects_refused", &[]).abs() < f64::EPSILON);

    let config = fed.config();
    let (settings, peer) = (&config["settings"], &config["peers"][0]);
    assert_eq!(settings["interface"]["origin"], json!({"from": "default"}));
    assert_eq!(settings["name"]["origin"], json!({"from": "flag", "flag": "--name"}));
    assert_eq!(
        settings["ping_interval"],
        json!({
            "value": "200ms",
            "origin": {"from": "environment", "variable": "STRAIT_PING_INTERVAL"},
        })
    );
    for (key, kind) in
        [("public_key", "PublicKey"), ("allowed_ips", "Configuration"), ("remap", "Configuration")]
    {
        let object =
            json!({"from": "object", "kind": kind, "namespace": NAMESPACE, "name": fed.peer});
        assert_eq!(peer[key]["origin"], object, "{key}");
    }
    let log = fed.log("gateway");
    assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{log}");
}

/// Any host that reaches the port of `gateway` may read; only its own host may change the log filter.
pub(crate) fn assert_only_read_from_outside(gateway: &Cluster, outside: &Cluster) {
    let address = SocketAddr::new(gateway.underlay, HEALTH.port());
    let put = move || scrape::put(address, "/log?level=debug");
    let get = move || scrape::get(address, "/log");
    let own = move || scrape::put(HEALTH, "/log?level=info");

    let (status, before) = outside.gateway.run(get).unwrap();
    let (refused, _) = outside.gateway.run(put).unwrap();
    let (_, after) = outside.gateway.run(get).unwrap();

    assert_eq!((status, refused), (200, 403));
    assert_eq!(before, after);
    assert_eq!(gateway.gateway.run(own).unwrap().0, 200);
}
