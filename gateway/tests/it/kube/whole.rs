//! In place of Liqo's whole gateway pod: one process without any capability, with what Liqo's controllers wrote in a run of
//! the genuine ones, and the rights of Liqo's role.
//!
//! ```text
//!   nodes ══ Geneve ══ gateway of Rome ── underlay ── gateway of Milan ── pod
//!   (packets on sockets)                              (a device, a file)
//! ```

mod node;
mod objects;
mod world;

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use strait_api::{FirewallConfiguration, RouteConfiguration};
use strait_lab::wait_until;

use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::kube::fed::{NAMESPACE, PATIENCE};
use node::{Datagram, unreachable};
use objects::{INNER, INNER_GATEWAY};
use world::{PORT, World};

/// Pods of Rome on the first and on the second node.
const PODS: [&str; 2] = ["10.244.1.5", "10.244.2.5"];

/// The source of everything that is no pod, and what Milan calls that.
const UNKNOWN: &str = "10.70.0.0";
const UNKNOWN_IN_MILAN: &str = "10.68.0.0";

/// Milan's pod, and what Rome calls it.
const REMOTE: &str = "10.71.2.7";

#[test]
fn one_process_replaces_liqos_gateway_pod() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip"), Tool("setpriv")]) else { return };
    let Some(mut world) = World::start() else { return };

    pods_talk_although_their_addresses_overlap(&mut world);
    a_remote_reaches_a_mapped_address(&mut world);
    unknown_sources_of_two_nodes_are_told_apart(&mut world);
    rules_of_users_are_executed(&mut world);
    a_rule_that_cannot_be_executed_is_refused(&world);
    bindings_have_the_cause(&world);
    nodes_check_their_tunnels(&mut world);
    world.finish();
}

fn pods_talk_although_their_addresses_overlap(world: &mut World) {
    for (node, pod) in PODS.into_iter().enumerate() {
        let asked = Datagram::new((pod, 5_000), (REMOTE, PORT), b"question");
        world.nodes[node].send(&asked);

        // Milan's pod has addresses of the same prefix.
        let called = pod.replace("10.244", "10.71");
        let from = world.assert_at_milan((&called, 5_000), b"question");
        world.milan_pod.send_to(b"answer", from).unwrap();

        let answer = world.nodes[node].receive();
        assert_eq!(answer, Datagram::new((REMOTE, PORT), (pod, 5_000), b"answer"));
    }
}

fn a_remote_reaches_a_mapped_address(world: &mut World) {
    // Milan's name for 10.70.0.2, which is the API server of Rome.
    let mapped: SocketAddr = "10.68.0.2:443".parse().unwrap();
    world.milan_pod.send_to(b"question", mapped).unwrap();

    let asked = world.nodes[0].receive();
    assert_eq!(asked, Datagram::new((REMOTE, PORT), ("10.96.0.1", 443), b"question"));
    world.nodes[0].send(&Datagram::new(("10.96.0.1", 443), (REMOTE, PORT), b"answer"));
    world.assert_at_milan(("10.68.0.2", 443), b"answer");
}

/// Both nodes choose the same port.
fn unknown_sources_of_two_nodes_are_told_apart(world: &mut World) {
    let mut seen = Vec::new();
    for (node, payload) in world.nodes.iter().zip([b"first ", b"second"]) {
        node.send(&Datagram::new((UNKNOWN, 6_000), (REMOTE, PORT), payload));
        let (from, received) = world.receive_at_milan();
        assert_eq!(
            (from.ip().to_string().as_str(), &received[..]),
            (UNKNOWN_IN_MILAN, &payload[..])
        );
        seen.push(from);
    }
    assert_ne!(seen[0], seen[1]);

    for (node, from) in [1, 0].map(|node| (node, seen[node])) {
        world.milan_pod.send_to(b"answer", from).unwrap();
        let answer = world.nodes[node].receive();
        assert_eq!(answer, Datagram::new((REMOTE, PORT), (UNKNOWN, 6_000), b"answer"));
    }
    // Of no flow.
    let to_none = SocketAddr::new(UNKNOWN_IN_MILAN.parse().unwrap(), 9);
    world.milan_pod.send_to(b"?", to_none).unwrap();
    for node in &mut world.nodes {
        node.assert_silent();
    }
}

/// Nothing learned is lost by that: the flow of before goes on.
fn rules_of_users_are_executed(world: &mut World) {
    let before = world.handshakes();
    let to_port = |port: u16| json!({"op": "eq", "proto": {"value": "udp"}, "port": {"position": "dst", "value": port.to_string()}});
    let rule = |action: &str, matches: &[Value]| json!({"name": action, "action": action, "counter": true, "match": matches});
    let of_node = json!({"op": "eq", "dev": {"position": "in", "value": "liqo.*"}});
    let chain =
        filter("forward", &[rule("drop", &[to_port(7)]), rule("reject", &[to_port(8), of_node])]);
    world.apply_firewall("users-own", chain);
    world.wait_for_condition("users-own", "True");

    let node = &mut world.nodes[0];
    node.send(&Datagram::new((PODS[0], 5_000), (REMOTE, 7), b"dropped"));
    let rejected = Datagram::new((PODS[0], 5_000), (REMOTE, 8), b"rejected");
    node.send(&rejected);
    let (code, to, quoted) = unreachable(&node.receive_packet(PATIENCE).unwrap());
    assert_eq!((code, to.to_string().as_str()), (0, PODS[0]));
    assert!(quoted.ends_with(b"rejected"));
    // A source that nodes share gets the error too.
    node.send(&Datagram::new((UNKNOWN, 5_001), (REMOTE, 8), b"rejected"));
    let (_, to, _) = unreachable(&node.receive_packet(PATIENCE).unwrap());
    assert_eq!(to.to_string(), UNKNOWN);

    node.send(&Datagram::new((PODS[0], 5_000), (REMOTE, PORT), b"accepted"));
    world.assert_at_milan(("10.71.1.5", 5_000), b"accepted");
    assert_eq!(world.handshakes(), before);
    let metrics = world.rome.get("/metrics");
    for (reason, count) in [("filtered", 1), ("rejected", 2)] {
        let sample = metrics.lines().find(|line| {
            line.contains("drop")
                && line.contains("outbound")
                && line.contains(&format!("\"{reason}\""))
        });
        assert!(sample.is_some_and(|sample| sample.ends_with(&format!(" {count}"))), "{sample:?}");
    }
}

fn a_rule_that_cannot_be_executed_is_refused(world: &World) {
    let masquerade = json!({"name": "hide", "natType": "masquerade", "match": []});
    let chain = json!({
        "name": "leave", "hook": "postrouting", "policy": "accept", "priority": 100, "type": "nat",
        "rules": {"natRules": [masquerade]},
    });
    world.apply_firewall("users-nat", chain);
    world.wait_for_condition("users-nat", "False");

    let event = world.rome.ask(|client| async move {
        let events = Api::<Event>::namespaced(client, NAMESPACE).list(&ListParams::default()).await;
        let mut events = events.unwrap().items.into_iter();
        events.find(|event| event.involved_object.name.as_deref() == Some("users-nat"))
    });
    let event = event.expect("an Event");
    assert_eq!(event.reason.as_deref(), Some("FirewallConfigurationUpdate"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let message = event.message.unwrap();
    assert!(message.starts_with("FirewallConfiguration Applied: False: "), "{message}");
    assert!(message.contains("chain leave, rule 0: it translates addresses"), "{message}");
    let log = world.rome.log("gateway");
    assert!(!log.contains("not written"), "of a kind that is not there: {log}");
    // What Liqo's controllers wrote is executed.
    for (namespace, name) in
        [("liqo", "gw-mss-clamping"), ("liqo-tenant-milan", "milan-remap-podcidr")]
    {
        world.wait_for_condition_in::<FirewallConfiguration>(namespace, name, "True");
    }
    world.wait_for_condition_in::<RouteConfiguration>("liqo", "rome-n2-gw-node", "True");
}

/// In a cluster of a newer release.
fn bindings_have_the_cause(world: &World) {
    let found = |name: &str| world.binding(name);
    wait_until("the bindings are there", PATIENCE, || {
        Ok(found("users-nat")
            .is_some_and(|binding| binding.pointer("/status/conditions/0").is_some())
            && found("users-own")
                .is_some_and(|binding| binding.pointer("/status/conditions/0").is_some()))
    })
    .unwrap();

    let binding = found("users-nat").unwrap();
    assert_eq!(binding["spec"]["firewallConfigurationRef"], json!({"name": "users-nat"}));
    let target =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "gw-milan-0", "namespace": NAMESPACE});
    assert_eq!(binding["spec"]["targetRef"], target);
    assert_eq!(binding["status"]["tableName"], "users-nat");
    let condition = &binding["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Applied"), &json!("False")));
    assert!(condition["message"].as_str().unwrap().contains("it translates addresses"));
    let condition = found("users-own").unwrap()["status"]["conditions"][0].clone();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("ApplySucceeded"))
    );
}

/// As nodes of a newer release do.
fn nodes_check_their_tunnels(world: &mut World) {
    const PORT: u16 = 54_321;
    let gateway = INNER_GATEWAY.to_string();
    let ping = json!({
        "clusterID": "milan-rome-n1", "msgType": "PING", "timeStamp": "2026-08-24T10:00:00Z",
    });
    let pong = ping.to_string().replace("PING", "PONG");
    let labels = format!(
        r#"{{internal_fabric="milan",internal_node="rome-n1",namespace="{NAMESPACE}",remote_cluster_id="milan"}}"#
    );
    let [received_before, sent_before] = world.tunnel_bytes(&labels);
    for (node, inner) in world.nodes.iter_mut().zip(INNER) {
        let inner = inner.to_string();
        let asked = (&*inner, PORT);
        node.send(&Datagram::new(asked, (&gateway, PORT), ping.to_string().as_bytes()));
        let answer = node.receive();
        assert_eq!(answer, Datagram::new((&gateway, PORT), asked, &answer.payload));
        let payload: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(payload, serde_json::from_str::<Value>(&pong).unwrap());
        // Nothing else is served there, and nothing of it reaches the tunnel.
        node.send(&Datagram::new(asked, (&gateway, PORT + 1), ping.to_string().as_bytes()));
        node.send(&Datagram::new(asked, (&gateway, PORT), b"no message"));
        node.assert_silent();
    }

    // Both packets of the first node that had the PING, and the one that was no message; with headers of IP and UDP.
    let ping_bytes = u64::try_from(ping.to_string().len()).unwrap() + 28;
    let [received, sent] = world.tunnel_bytes(&labels);
    assert_eq!(received - received_before, 2 * ping_bytes + 38);
    assert_eq!(sent - sent_before, ping_bytes);
    for (value, latency, is_connected) in [("Connected", "850μs", 1), ("Error", "N/A", 0)] {
        world.rome.ask(move |client| async move {
            objects::put_check(&client, value, latency).await;
        });
        let connected = format!("liqo_geneve_is_connected{labels} {is_connected}");
        wait_until("the gateway reports the check", PATIENCE, || {
            Ok(world.rome.get("/metrics").lines().any(|line| line == connected))
        })
        .unwrap();
        let latency = format!("liqo_geneve_latency_us{labels} 850.0");
        let metrics = world.rome.get("/metrics");
        assert_eq!(metrics.lines().any(|line| line == latency), is_connected == 1, "{metrics}");
    }
}

/// A chain of filter rules.
fn filter(hook: &str, rules: &[Value]) -> Value {
    json!({
        "name": hook, "hook": hook, "policy": "accept", "priority": 0, "type": "filter",
        "rules": {"filterRules": rules},
    })
}
