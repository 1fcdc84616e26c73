//! All readers of a `Configuration` agree on it: the operator, a gateway, a node and `check`.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DeserializeGuard;
use proptest::prelude::*;
use proptest::sample::select;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::Configuration;
use strait_ipam::{CONFIGURED_CONDITION, DryRun, Snapshot};
use strait_node::plan as node;
use strait_plan::Desired;
use strait_plan::conditions::{Outcome, merged};
use strait_plan::objects::{Listed, Objects, Scope, parse};

use super::peering;
use super::read::Facts;

/// Valid prefixes.
const RIGHT: [&str; 7] = [
    "10.244.0.0/16",
    "10.243.0.0/16",
    "10.70.0.0/16",
    "172.16.0.0/16",
    "192.168.4.0/24",
    "10.9.9.9/32",
    "10.244.128.0/17",
];

/// Invalid ones that the schema accepts.
const ODD: [&str; 8] = [
    "10.243.0.1/16",
    "010.0.0.0/8",
    "10.0.0.0/8",
    "fd00::/64",
    "FD00:0::/48",
    "::ffff:10.0.0.0/112",
    "0.0.0.0/0",
    "::/0",
];

/// Whether the object is accepted, and the reason if not.
type Verdict = (bool, String);

/// The verdicts of the operator, a gateway, a node and `check`, once the operator has nothing to do.
struct Verdicts {
    all: [Verdict; 4],
    /// What is wrong with the object by itself.
    problems: Vec<String>,
}

fn verdicts(spec: &Value) -> Verdicts {
    let mut object = settled(spec);
    let listed = read::<Configuration>(&object);
    let configuration = listed.0.as_ref().expect("what the schema lets through can be read");
    let problems = parse(configuration).problems.iter().map(ToString::to_string).collect();

    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let conditions = conditions.cloned().unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition["type"] == CONFIGURED_CONDITION);
    let operator = condition.map(|condition| {
        (
            condition["status"] == "True",
            condition["message"].as_str().unwrap_or_default().to_owned(),
        )
    });

    let key = json!({
        "metadata": metadata("tenant"),
        "spec": {"publicKey": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="},
    });
    let objects =
        Objects { public_keys: vec![read(&key)], configurations: vec![Arc::clone(&listed)] };
    let verdicts = Desired::new(&Scope::default(), &objects).verdicts;
    let is_it = |kind: &Option<String>| kind.as_deref() == Some("Configuration");
    let verdict = verdicts.into_iter().find(|verdict| is_it(&verdict.object.kind)).expect("it");
    let gateway = match &verdict.outcome {
        Outcome::InForce => (true, String::new()),
        Outcome::Waiting { message, .. } | Outcome::Refused { message, .. } => {
            (false, message.clone())
        }
    };

    let node = json!({
        "metadata": {"name": "one"},
        "status": {"addresses": [{"type": "InternalIP", "address": "100.64.0.2"}]},
    });
    let node = node::Objects {
        configurations: vec![Arc::clone(&listed)],
        nodes: vec![Arc::new(serde_json::from_value(node).expect("a node"))],
        ..node::Objects::default()
    };
    let plan = node::plan("one", &node);
    let requested = parse(configuration).remote;
    let requested = requested.iter().flatten().flatten().collect::<BTreeSet<_>>().len();
    let node = (
        plan.problems.is_empty() && plan.hops.len() == requested,
        plan.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    );

    if let Some(conditions) = merged(&conditions, &verdict, Timestamp::UNIX_EPOCH) {
        object["status"]["conditions"] = json!(conditions);
    }
    let facts = Facts {
        configurations: Some(vec![serde_json::from_value(object).expect("a Configuration")]),
        ..Facts::default()
    };
    let findings = peering::findings(&facts);
    let messages: Vec<_> = findings.iter().map(|finding| finding.message.clone()).collect();
    let check = (messages.is_empty(), messages.join("; "));

    Verdicts { all: [operator.unwrap_or_default(), gateway, node, check], problems }
}

/// A `Configuration` with this spec after the operator has settled.
fn settled(spec: &Value) -> Value {
    let network = |name: &str, cidr: &str| {
        json!({
            "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
            "metadata": {
                "name": name, "namespace": "liqo", "uid": name,
                "labels": {
                    "ipam.liqo.io/network-type": name,
                    "ipam.liqo.io/network-not-remapped": "true",
                    "ipam.liqo.io/network-shared": "true",
                },
            },
            "spec": {"cidr": cidr},
        })
    };
    let configuration = json!({
        "apiVersion": "networking.liqo.io/v1beta1", "kind": "Configuration",
        "metadata": metadata("tenant"), "spec": spec,
    });
    let objects = vec![
        network("pod-cidr", "10.244.0.0/16"),
        network("external-cidr", "10.70.0.0/16"),
        configuration,
    ];
    let snapshot = Snapshot { objects, journal: None };
    let mut dry_run =
        DryRun::new(strait_ipam::Settings::default(), snapshot, Timestamp::UNIX_EPOCH);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(dry_run.run()).expect("the operator settles");

    let mut objects = dry_run.objects().into_iter();
    objects.find(|object| object["kind"] == "Configuration").expect("it is there")
}

fn metadata(namespace: &str) -> Value {
    json!({
        "name": "milan", "namespace": namespace, "uid": "milan", "generation": 1,
        "labels": {"liqo.io/remote-cluster-id": "milan"},
    })
}

fn read<K>(object: &Value) -> Listed<K>
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned,
{
    Arc::new(serde_json::from_value::<DeserializeGuard<K>>(object.clone()).expect("metadata"))
}

/// A list, one string, or nothing, each accepted by the schema.
fn list(right: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let text = prop_oneof![6 => select(right), 1 => select(&ODD[..])];
    let element = prop_oneof![
        20 => text.clone().prop_map(Value::from),
        1 => Just(json!(["10.0.0.0/8"])),
    ];

    prop_oneof![
        4 => proptest::collection::vec(element, 0..4).prop_map(Value::from),
        1 => text.prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn cluster(right: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => (list(right), list(right))
            .prop_map(|(pod, external)| json!({"cidr": {"pod": pod, "external": external}})),
        1 => Just(json!({"cidr": {}})),
        1 => Just(json!({})),
        1 => Just(Value::Null),
    ]
}

#[test]
fn all_readers_accept_one_valid_prefix() {
    let spec = json!({"remote": {"cidr": {"pod": "10.243.0.0/16"}}});

    let Verdicts { all, problems } = verdicts(&spec);

    assert!(all.iter().all(|(is_well, _)| *is_well), "{all:?}");
    assert_eq!(problems, [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn readers_of_one_object_agree(
        local in cluster(&["10.244.0.0/16", "10.70.0.0/16"]), remote in cluster(&RIGHT),
    ) {
        let spec = json!({"local": local, "remote": remote});

        let Verdicts { all, problems } = verdicts(&spec);

        for (is_well, _) in &all {
            prop_assert_eq!(*is_well, all[0].0, "{}: {:#?}", spec, all);
        }
        prop_assert!(problems.is_empty() || !all[0].0, "{}: {:?}", spec, problems);
        // A condition has no room for more.
        for problem in problems.iter().take(2) {
            for (_, message) in &all {
                prop_assert!(message.contains(problem.as_str()), "{}: {:?} in {:#?}", spec, problem, all);
            }
        }
    }
}
