//! Any objects from an API server: nothing panics, problems are reported on their object, and valid objects of the same
//! namespace are in force.
//!
//! The objects are generated from the schemas of the API: each field is valid, or garbage.

mod generate;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use generate::{CIDRS, object};
use jiff::Timestamp;
use kube::Resource;
use kube::core::DeserializeGuard;
use proptest::prelude::*;
use proptest::strategy::Union;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::labels::{
    FIREWALL_CATEGORY, FIREWALL_UNIQUE, GATEWAY, REMOTE_CLUSTER_ID, ROUTE_CATEGORY, ROUTE_UNIQUE,
};
use strait_api::{Configuration, PublicKey};
use strait_plan::Desired;
use strait_plan::Peer;
use strait_plan::conditions::{MESSAGE_BYTES_MAX, Outcome, Verdict, merged};
use strait_plan::geneve;
use strait_plan::lowering::{self, Lowered};
use strait_plan::objects::{Listed, Objects, Scope};

/// The name of a kind, and its reader.
type Kind = (&'static str, fn(&Value));

/// Every kind of the API.
const KINDS: [Kind; 16] = [
    ("Configuration", is_read::<Configuration>),
    ("Connection", is_read::<strait_api::Connection>),
    ("FirewallConfiguration", is_read::<strait_api::FirewallConfiguration>),
    ("GatewayClient", is_read::<strait_api::GatewayClient>),
    ("GatewayServer", is_read::<strait_api::GatewayServer>),
    ("GeneveTunnel", is_read::<strait_api::GeneveTunnel>),
    ("IP", is_read::<strait_api::IP>),
    ("InternalFabric", is_read::<strait_api::InternalFabric>),
    ("InternalNode", is_read::<strait_api::InternalNode>),
    ("Network", is_read::<strait_api::Network>),
    ("PublicKey", is_read::<PublicKey>),
    ("RouteConfiguration", is_read::<strait_api::RouteConfiguration>),
    ("WgGatewayClient", is_read::<strait_api::WgGatewayClient>),
    ("WgGatewayClientTemplate", is_read::<strait_api::WgGatewayClientTemplate>),
    ("WgGatewayServer", is_read::<strait_api::WgGatewayServer>),
    ("WgGatewayServerTemplate", is_read::<strait_api::WgGatewayServerTemplate>),
];

/// An object that cannot be read must at least have its metadata.
fn is_read<K: Resource<DynamicType = ()> + DeserializeOwned>(object: &Value) {
    let read = read::<K>(object);

    assert_eq!(read.meta().uid.as_deref(), Some("object"));
    if let Err(invalid) = read.0 {
        assert!(!invalid.error.is_empty());
    }
}

/// In the form in which they come from the API server.
fn read<K: Resource<DynamicType = ()> + DeserializeOwned>(object: &Value) -> DeserializeGuard<K> {
    let text = serde_json::to_vec(object).expect("JSON");

    serde_json::from_slice(&text).expect("an object, or why it is invalid")
}

fn listed<K: Resource<DynamicType = ()> + DeserializeOwned>(objects: &[Value]) -> Vec<Listed<K>> {
    objects.iter().map(|object| Arc::new(read(object))).collect()
}

/// A cluster without problems, and without a prefix that a generated object could have.
fn good() -> [Value; 2] {
    let metadata = |kind: &str| {
        json!({
            "name": "good", "namespace": "tenant", "uid": format!("good-{kind}"), "generation": 3,
            "labels": {REMOTE_CLUSTER_ID: "a-good-one"},
        })
    };

    [
        json!({
            "metadata": metadata("key"),
            "spec": {"publicKey": STANDARD.encode([200; 32])},
        }),
        json!({
            "metadata": metadata("configuration"),
            "spec": {"remote": {"cidr": {"pod": ["198.18.0.0/16"], "external": "198.51.100.0/24"}}},
            "status": {"remote": {"cidr": {"pod": ["192.0.0.0/16"], "external": "198.51.100.0/24"}}},
        }),
    ]
}

/// A remapping as Liqo writes it, in the order of names before all others.
fn good_remapping() -> Value {
    let chain =
        |hook: &str, priority: i32, type_: &str, to: &str, position: &str, of: &str, op: &str| {
            json!({
                "name": hook, "hook": hook, "priority": priority, "policy": "accept", "type": "nat",
                "rules": {"natRules": [{"natType": type_, "to": to, "match": [
                    {"op": "eq", "ip": {"position": position, "value": of}},
                    {"op": op, "dev": {"position": "in", "value": "liqo-tunnel"}},
                ]}]},
            })
        };
    let (remote, local) = ("10.244.0.0/16", "10.71.0.0/16");

    json!({
        "metadata": {
            "name": "a", "namespace": "tenant",
            "labels": {FIREWALL_CATEGORY: GATEWAY, FIREWALL_UNIQUE: "b"},
        },
        "spec": {"table": {"name": "t", "family": "IPV4", "chains": [
            chain("prerouting", -100, "dnat", remote, "dst", local, "neq"),
            chain("postrouting", 100, "snat", local, "src", remote, "eq"),
        ]}},
    })
}

/// Everything that a gateway does with objects before it acts.
fn judge(keys: &[Value], configurations: &[Value]) -> (Vec<Peer>, Vec<Verdict>) {
    let found = Objects {
        public_keys: listed::<PublicKey>(keys),
        configurations: listed::<Configuration>(configurations),
    };
    let Desired { peers, refused, verdicts, .. } = Desired::new(&Scope::default(), &found);
    for refusal in &refused {
        let (kind, name) = (Some(&refusal.kind), Some(&refusal.name));
        let verdict = verdicts
            .iter()
            .find(|verdict| {
                (verdict.object.kind.as_ref(), verdict.object.name.as_ref()) == (kind, name)
            })
            .unwrap_or_else(|| panic!("{refusal}: no verdict"));
        assert!(matches!(verdict.outcome, Outcome::Refused { .. }), "{refusal}: {verdict:?}");
    }

    (peers, verdicts)
}

fn verdict<'a>(verdicts: &'a [Verdict], object: &Value) -> &'a Verdict {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);

    verdicts.iter().find(|verdict| verdict.object.uid.as_deref() == uid).expect("a verdict")
}

/// Checks that the API accepts the condition of a verdict.
fn assert_takes(verdict: &Verdict) {
    let conditions =
        merged(&[json!("garbage")], verdict, Timestamp::UNIX_EPOCH).expect("something to write");
    let [other, ours] = &conditions[..] else { panic!("{conditions:?}") };
    assert_eq!(other, "garbage");
    let text = |field: &str| ours[field].as_str().expect(field);

    assert!(["True", "False"].contains(&text("status")));
    assert!(text("reason").bytes().all(|byte| byte.is_ascii_alphabetic()), "{ours}");
    assert!((1..=MESSAGE_BYTES_MAX).contains(&text("message").len()), "{ours}");
    assert_eq!(ours["observedGeneration"], 7);
    assert_eq!(merged(&conditions, verdict, Timestamp::now()), None);
}

/// The texts of a list in an object, read as leniently as the API once was.
fn texts(object: &Value, list: &str) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };

    match object.pointer(list) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => values.iter().map(text).collect(),
        Some(value) => vec![text(value)],
    }
}

/// Each prefix of the remote cluster in an object, and its local prefix.
fn pairs(object: &Value) -> Vec<(String, String)> {
    ["pod", "external"]
        .iter()
        .flat_map(|field| {
            let remotes = texts(object, &format!("/spec/remote/cidr/{field}"));
            let locals = texts(object, &format!("/status/remote/cidr/{field}"));
            let locals = locals.into_iter().chain(std::iter::repeat(String::new()));
            remotes.into_iter().zip(locals)
        })
        .filter(|(remote, _)| !remote.is_empty())
        .collect()
}

fn is_wrong_configuration(object: &Value) -> bool {
    let is_wrong = |text: &str| !text.is_empty() && !CIDRS.contains(&text);
    let is_object = |place: &str| object.pointer(place).is_some_and(Value::is_object);

    !is_object("/spec/remote/cidr")
        || pairs(object).iter().any(|(remote, local)| is_wrong(remote) || is_wrong(local))
}

fn is_wrong_key(object: &Value) -> bool {
    let key = object.pointer("/spec/publicKey").and_then(Value::as_str);

    key.and_then(|key| STANDARD.decode(key).ok()).is_none_or(|key| key.len() != 32)
}

/// Up to three objects per kind, of up to three clusters.
fn objects(kind: &'static str) -> BoxedStrategy<Vec<Value>> {
    proptest::collection::vec(object(kind), 0..4)
        .prop_map(move |objects| {
            let numbered = (0..).zip(objects).map(|(number, mut object)| {
                object["metadata"]["name"] = json!(format!("{kind}-{number}").to_lowercase());
                object["metadata"]["uid"] = json!(format!("{kind}-{number}"));
                object
            });
            numbered.collect()
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn problems_are_reported_and_valid_objects_are_applied(
        keys in objects("PublicKey"),
        configurations in objects("Configuration"),
    ) {
        let [good_key, good_configuration] = good();
        let all_keys = [&keys[..], std::slice::from_ref(&good_key)].concat();
        let all = [&configurations[..], std::slice::from_ref(&good_configuration)].concat();

        let (peers, verdicts) = judge(&all_keys, &all);

        let (alone, _) = judge(std::slice::from_ref(&good_key), std::slice::from_ref(&good_configuration));
        prop_assert_eq!(&peers[0], &alone[0]);
        prop_assert_eq!(peers[0].allowed_ips.len(), 2);
        for object in [&good_key, &good_configuration] {
            prop_assert_eq!(&verdict(&verdicts, object).outcome, &Outcome::InForce);
        }

        prop_assert_eq!(verdicts.len(), all_keys.len() + all.len());
        for object in &keys {
            let verdict = verdict(&verdicts, object);
            assert_takes(verdict);
            let is_refused = matches!(verdict.outcome, Outcome::Refused { .. });
            prop_assert!(is_refused || !is_wrong_key(object), "{object} {verdict:?}");
        }
        for object in &configurations {
            let verdict = verdict(&verdicts, object);
            assert_takes(verdict);
            let is_refused = matches!(verdict.outcome, Outcome::Refused { .. });
            let is_wrong = is_wrong_configuration(object);
            let is_waiting = matches!(verdict.outcome, Outcome::Waiting { .. });
            prop_assert!(is_refused || !is_wrong, "{object} {verdict:?}");
            if verdict.outcome == Outcome::InForce {
                let cluster = object["metadata"]["labels"][REMOTE_CLUSTER_ID].as_str();
                let peer = peers.iter().find(|peer| Some(peer.name.as_str()) == cluster);
                let peer = peer.expect("a peer");
                for (remote, local) in pairs(object) {
                    let prefix = remote.parse().expect("a prefix");
                    prop_assert!(peer.allowed_ips.contains(&prefix), "{object}");
                    let is_named = peer.remaps.iter().any(|rule| {
                        (rule.remote(), rule.local().to_string()) == (prefix, local.clone())
                    });
                    prop_assert!(is_named || remote == local, "{object}");
                }
            } else {
                prop_assert!(is_refused || is_waiting);
            }
        }
    }

    /// Each has one outcome, and a valid object beside them is in force.
    #[test]
    fn rules_and_routes_are_lowered_or_refused(
        firewalls in objects("FirewallConfiguration"),
        routes in objects("RouteConfiguration"),
        tracks_flows: bool,
    ) {
        let labelled = |mut objects: Vec<Value>, label: &str| {
            for object in &mut objects {
                object["metadata"]["labels"] = json!({label: GATEWAY, FIREWALL_UNIQUE: "b", ROUTE_UNIQUE: "b"});
            }
            objects
        };
        let mut firewalls = labelled(firewalls, FIREWALL_CATEGORY);
        firewalls.push(good_remapping());
        let routes = labelled(routes, ROUTE_CATEGORY);
        let count = firewalls.len() + routes.len();
        let objects = lowering::Objects {
            firewall_configurations: listed(&firewalls),
            route_configurations: listed(&routes),
        };
        let scope = lowering::Scope {
            remote_cluster_id: "b".to_owned(),
            node_name: None,
            peer_address: [169, 254, 18, 1].into(),
            tracks_flows,
        };

        let lowered = Lowered::new(&scope, &objects);
        let _ = lowered.policy();

        prop_assert!(tracks_flows || !lowered.ruleset.uses_flows());
        prop_assert_eq!(lowered.outcomes.len(), count);
        prop_assert_eq!(lowered.remaps.len(), 1);
        for outcome in &lowered.outcomes {
            let text = outcome.problem.as_ref().map(ToString::to_string);
            prop_assert!(text.is_none_or(|text| !text.is_empty()), "{outcome:?}");
        }
    }

    #[test]
    fn nodes_are_reached_or_named(
        tunnels in objects("GeneveTunnel"),
        fabrics in objects("InternalFabric"),
        nodes in objects("InternalNode"),
    ) {
        let objects = geneve::Objects {
            tunnels: listed(&tunnels),
            fabrics: listed(&fabrics),
            nodes: listed(&nodes),
        };

        let (found, unreached) = geneve::nodes(Some("b"), &objects, &Lowered::default());

        prop_assert!(found.len() + unreached.len() <= nodes.len());
        prop_assert!(found.iter().all(|node| node.vni < 1 << 24));
        prop_assert!(unreached.iter().all(|node| !node.to_string().is_empty()));
        prop_assert!(geneve::tunnels(Some("b"), &objects).len() <= tunnels.len());
    }

    /// An object of any kind may be invalid; reading it reports that.
    #[test]
    fn every_kind_is_read_or_refused(
        (read, object) in Union::new_weighted(
            KINDS
                .map(|(kind, read)| {
                    // Those with a whole pod in them take long and have few fields of their own.
                    let weight = if kind.starts_with("Wg") { 1 } else { 10 };
                    (weight, object(kind).prop_map(move |object| (read, object)))
                })
                .to_vec(),
        ),
    ) {
        read(&object);
    }
}
