//! Sources that the remote cluster does not know.

use std::net::IpAddr;

use serde_json::json;
use strait_api::Configuration;
use strait_lab::Layout;
use strait_lab::wait_until;

use crate::fed::{Mode, PATIENCE, wait_for_ping};
use crate::peering::Peering;
use crate::require::Need::{Root, Tun};
use crate::require::require;
use crate::world::assert_traffic;

/// As nodes and their processes do, which the `Configuration` does not name.
#[test]
fn whoever_is_no_pod_is_seen_under_the_first_external_address() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let (rome, milan) = (peering.rome(), peering.milan());
    let shared: IpAddr = "10.68.0.0".parse().unwrap();

    // The pods of Rome are said to be others than the one that there is.
    peering.in_rome.apply::<Configuration>(&json!({"spec": {
        "local": {"cidr": {"pod": ["10.99.0.0/16"], "external": ["10.70.0.0/16"]}},
        "remote": {"cidr": {"pod": ["10.244.0.0/16"]}},
    }}));
    peering.in_milan.apply::<Configuration>(&json!({
        "spec": {"remote": {"cidr": {"pod": ["10.244.0.0/16"], "external": ["10.70.0.0/16"]}}},
        "status": {"remote": {"cidr": {"pod": ["10.71.0.0/16"], "external": ["10.68.0.0/16"]}}},
    }));
    wait_until("the gateway knows the shared address", PATIENCE, || {
        let setting = &peering.in_rome.config()["settings"]["masquerade"];
        Ok(setting["value"] == json!(["10.70.0.0"]) && setting["origin"]["from"] == "object")
    })
    .unwrap();

    wait_for_ping(&rome.pod, peering.target());
    assert_traffic(rome, milan, peering.target(), shared);
    let mappings = peering.in_rome.metrics().sum("strait_masquerade_mappings", &[]);
    assert!(mappings > 0, "{mappings}");
    // The gateways themselves are no strangers to each other.
    peering.in_rome.wait_for("Connected");
    peering.in_milan.wait_for("Connected");

    peering.finish();
}
