use std::sync::Arc;

use kube::Resource;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::desired::Desired;
use crate::objects::{Listed, Objects, Scope};

fn metadata(name: &str, cluster: &str, age: i64) -> Value {
    let created = Timestamp::from_second(age).unwrap();

    json!({
        "name": name, "namespace": "tenant", "uid": format!("uid-of-{name}"), "generation": 7,
        "resourceVersion": "12", "creationTimestamp": created,
        "labels": {strait_api::labels::REMOTE_CLUSTER_ID: cluster},
    })
}

fn key(cluster: &str, byte: u8) -> Value {
    json!({
        "metadata": metadata(cluster, cluster, 1),
        "spec": {"publicKey": k8s_openapi::ByteString(vec![byte; 32])},
    })
}

fn configuration(name: &str, cluster: &str, remote: &[&str], local: &[&str]) -> Value {
    json!({
        "metadata": metadata(name, cluster, 1),
        "spec": {"remote": {"cidr": {"pod": remote}}},
        "status": {"remote": {"cidr": {"pod": local}}},
    })
}

fn listed<K: Resource + serde::de::DeserializeOwned>(objects: &[Value]) -> Vec<Listed<K>> {
    let read = |object: &Value| Arc::new(serde_json::from_value(object.clone()).unwrap());

    objects.iter().map(read).collect()
}

/// Kind, name, reason and message of every verdict.
fn judge(keys: &[Value], configurations: &[Value]) -> Vec<String> {
    let found = Objects { public_keys: listed(keys), configurations: listed(configurations) };
    let Desired { verdicts, .. } = Desired::new(&Scope::default(), &found);

    assert!(verdicts.iter().all(|verdict| verdict.generation == Some(7)));
    let line = |verdict: &Verdict| {
        let Verdict { object, outcome, .. } = verdict;
        let [kind, name] = [&object.kind, &object.name].map(|text| text.as_deref().unwrap());
        format!("{kind} {name} {}: {}", outcome.reason(), outcome.message())
    };

    verdicts.iter().map(line).collect()
}

#[test]
fn an_object_without_problems_is_in_force() {
    let good = configuration("milan", "milan", &["10.9.0.0/16"], &["10.71.0.0/16"]);
    let unnamed = configuration("oslo", "oslo", &["10.9.0.0/16", "10.8.0.0/16"], &["10.72.0.0/16"]);
    let keyless = configuration("rome", "rome", &["10.9.0.0/16"], &["10.73.0.0/16"]);

    assert_eq!(
        judge(&[key("milan", 1), key("oslo", 2)], &[good, unnamed, keyless]),
        [
            "Configuration milan InForce: all that it asks for is in force",
            "Configuration oslo WaitingForLocalPrefix: 10.8.0.0/16 has no name here yet and is withheld: status.remote.cidr.pod[1] is empty",
            "Configuration rome WaitingForPublicKey: no usable PublicKey has the label liqo.io/remote-cluster-id=rome: nothing goes to a gateway without its key",
            "PublicKey milan InForce: all that it asks for is in force",
            "PublicKey oslo InForce: all that it asks for is in force",
        ]
    );
}

#[test]
fn a_verdict_has_every_problem_of_its_object() {
    let first = configuration("milan", "milan", &["10.9.0.0/16"], &["10.71.0.0/16"]);
    let second = configuration(
        "oslo",
        "oslo",
        &["10.9.0.0/16", "10.8.0.1/16", "10.7.0.0/16"],
        &["10.71.0.0/16", "10.72.0.0/16", "10.73.0.0/17"],
    );
    let older = configuration("a-twin", "oslo", &["10.9.0.0/16"], &["10.71.0.0/16"]);
    // Refused without a key too.
    let keyless = configuration("rome", "rome", &["10.9.0.0/16"], &["names"]);

    let lines = judge(&[key("milan", 1), key("oslo", 2)], &[first, second, older, keyless]);

    let [twin, milan, oslo, rome, ..] = &lines[..] else { panic!("{lines:?}") };
    assert!(twin.starts_with("Configuration a-twin Superseded: oslo is younger"), "{twin}");
    assert!(milan.starts_with("Configuration milan InForce"), "{milan}");
    assert!(oslo.starts_with("Configuration oslo RemoteCIDRInvalid: spec.remote.cidr.pod[1]: "));
    for part in [
        "10.8.0.1/16 has host bits set: write 10.8.0.0/16",
        "; cidr.pod[2] of spec.remote and status.remote: ",
        "; peer \"oslo\" (against peer \"milan\"): local 10.71.0.0/16 overlaps",
    ] {
        assert!(oslo.contains(part), "{oslo}");
    }
    assert!(rome.starts_with("Configuration rome LocalCIDRInvalid: status.remote.cidr.pod[0]"));
}

#[test]
fn refused_routes_are_added_to_a_verdict() {
    let cause = "cannot add route fd00:71::/64: IPv6 is switched off".to_owned();

    let of_good = verdict(Outcome::InForce).without_routes(vec![cause.clone()]).outcome;
    let of_bad = refused("pod[1]: no prefix").without_routes(vec![cause.clone()]).outcome;
    let unchanged = verdict(Outcome::InForce).without_routes(Vec::new()).outcome;

    assert_eq!((of_good.status(), of_good.reason()), ("False", "RouteRefused"));
    assert_eq!(of_good.message(), cause);
    assert_eq!(of_bad.reason(), refused("").outcome.reason());
    assert_eq!(of_bad.message(), format!("pod[1]: no prefix; {cause}"));
    assert_eq!(unchanged, Outcome::InForce);
}

fn verdict(outcome: Outcome) -> Verdict {
    Verdict {
        object: ObjectReference::default(),
        generation: Some(7),
        resource_version: None,
        outcome,
        has_condition: true,
        known: None,
    }
}

fn refused(message: &str) -> Verdict {
    verdict(Outcome::Refused { reason: "KeyShared", message: message.to_owned() })
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_condition_keeps_its_last_transition_time() {
    let others = [json!({"type": "NetworkCIDRsConfigured", "status": "Maybe"}), json!("garbage")];
    let times = |conditions: &[Value]| {
        let last = conditions.last().unwrap();
        (last["status"].clone(), last["lastTransitionTime"].clone())
    };

    let first = merged(&others, &refused("a"), at(1)).unwrap();
    assert_eq!(times(&first), (json!("False"), json!("1970-01-01T00:00:01Z")));
    assert_eq!(merged(&first, &refused("a"), at(2)), None);
    let other_words = merged(&first, &refused("b"), at(3)).unwrap();
    assert_eq!(times(&other_words), (json!("False"), json!("1970-01-01T00:00:01Z")));
    let updated = merged(&other_words, &verdict(Outcome::InForce), at(4)).unwrap();
    assert_eq!(times(&updated), (json!("True"), json!("1970-01-01T00:00:04Z")));
    for conditions in [first, other_words, updated] {
        assert_eq!(conditions.len(), 3);
        assert_eq!(conditions[..2], others);
    }
}

#[test]
fn a_condition_about_another_generation_is_written_again() {
    let conditions = merged(&[], &refused("a"), at(1)).unwrap();
    let next = Verdict { generation: Some(8), ..refused("a") };

    let conditions = merged(&conditions, &next, at(2)).unwrap();

    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0]["observedGeneration"], 8);
    assert_eq!(conditions[0]["lastTransitionTime"], "1970-01-01T00:00:01Z");
}

proptest! {
    /// For any existing conditions: those of others are kept in their order, and ours is there once.
    #[test]
    fn conditions_of_others_stay(
        former in proptest::collection::vec(
            prop_oneof![
                Just(json!({"type": IN_FORCE})),
                Just(json!({"type": IN_FORCE, "status": "False", "lastTransitionTime": "never"})),
                Just(json!({"type": "NetworkCIDRsConfigured"})),
                Just(json!({"type": null})),
                Just(json!(7)),
            ],
            0..6,
        ),
    ) {
        let is_ours = |condition: &&Value| condition.get("type") == Some(&json!(IN_FORCE));

        let conditions = merged(&former, &refused("a"), at(1)).unwrap();

        prop_assert_eq!(conditions.iter().filter(is_ours).count(), 1);
        let others = |list: &[Value]| -> Vec<Value> {
            list.iter().filter(|condition| !is_ours(condition)).cloned().collect()
        };
        prop_assert_eq!(others(&conditions), others(&former));
        prop_assert_eq!(merged(&conditions, &refused("a"), at(2)), None);
    }
}
