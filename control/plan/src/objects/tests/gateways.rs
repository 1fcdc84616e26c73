//! Several gateways to one remote cluster.

use strait_api::labels::GATEWAY_INDEX;

use super::*;
use crate::desired::Desired;

/// The scope of the `GatewayServer` with this name.
fn scope_of(gateway: &str) -> Scope {
    let gateway = ObjectName {
        kind: "GatewayServer".to_owned(),
        namespace: "tenant".to_owned(),
        name: gateway.to_owned(),
    };

    Scope { remote_cluster_id: Some("milan".to_owned()), gateway: Some(gateway), ..scope() }
}

/// A key that this `GatewayServer` owns, with this number.
fn key_of(owner: &str, index: &str, age: i64, byte: u8) -> Listed<PublicKey> {
    let mut metadata = metadata(owner, "milan", age);
    metadata["labels"][GATEWAY_INDEX] = json!(index);
    metadata["ownerReferences"] = json!([{
        "apiVersion": "networking.liqo.io/v1beta1", "kind": "GatewayServer", "name": owner,
        "uid": format!("uid-of-{owner}"),
    }]);
    let object = json!({"metadata": metadata, "spec": {"publicKey": ByteString(vec![byte; 32])}});

    Arc::new(serde_json::from_value(object).unwrap())
}

fn peering() -> Listed<Configuration> {
    let object = json!({
        "metadata": metadata("milan", "milan", 1),
        "spec": {
            "local": {"cidr": {"pod": ["10.244.0.0/16"], "external": ["10.70.0.0/16"]}},
            "remote": {"cidr": {"pod": ["10.244.0.0/16"], "external": ["10.70.0.0/16"]}},
        },
        "status": {"remote": {"cidr": {"pod": ["10.80.0.0/16"], "external": ["10.81.0.0/16"]}}},
    });

    Arc::new(serde_json::from_value(object).unwrap())
}

fn keys(requested: &Requested) -> Vec<[u8; KEY_BYTES]> {
    requested.peers.iter().map(|peer| peer.keys).collect()
}

#[test]
fn each_gateway_takes_the_key_it_owns() {
    let all = [key_of("milan", "0", 1, 7), key_of("milan-1", "1", 2, 8)];

    for (gateway, key) in [("milan", 7), ("milan-1", 8)] {
        let requested = read(&scope_of(gateway), &all, &[peering()]);

        assert_eq!(keys(&requested), [[key; 32]], "{gateway}");
        assert_eq!(texts(&requested), [""; 0], "{gateway}");
    }
    let third = read(&scope_of("milan-2"), &all, &[peering()]);
    assert_eq!((keys(&third), texts(&third)), (vec![], vec![]));
}

#[test]
fn a_key_without_owner_concerns_every_gateway() {
    let shared = public_key("shared", "milan", 9, &[6; 32]);
    let owned = key_of("milan-1", "1", 2, 8);
    let requested = |gateway, keys: &[_]| read(&scope_of(gateway), keys, &[]);

    assert_eq!(keys(&requested("milan", &[shared.clone(), owned.clone()])), [[6; 32]]);
    let both = requested("milan-1", &[owned, shared]);
    assert_eq!(keys(&both), [[8; 32]]);
    assert_eq!(
        texts(&both),
        [
            "PublicKey tenant/shared: milan-1 is for the same remote cluster and belongs to this gateway, and is used instead: delete one of them"
        ]
    );
}

#[test]
fn the_key_numbers_its_gateway() {
    let all = [key_of("milan", "0", 1, 7), key_of("milan-1", "1", 2, 8)];

    for (gateway, masquerade, destination) in
        [("milan", "10.70.0.0", "10.81.0.0/32"), ("milan-1", "10.70.0.1", "10.81.0.1/32")]
    {
        let objects = Objects { public_keys: all.to_vec(), configurations: vec![peering()] };
        let desired = Desired::new(&scope_of(gateway), &objects);

        assert_eq!(desired.cluster.masquerade, [masquerade.parse::<IpAddr>().unwrap()]);
        assert_eq!(desired.own_destinations, prefixes(&[destination]));
    }
    let without_key = read(&scope_of("milan-2"), &all, &[peering()]);
    assert_eq!(without_key.own_destinations, []);
}

#[test]
fn a_wrong_number_is_refused() {
    for index in ["8", "-1", "01", "first", ""] {
        let requested = read(&scope_of("milan"), &[key_of("milan", index, 1, 7)], &[peering()]);

        assert_eq!(requested.peers, []);
        assert_eq!(
            texts(&requested),
            [format!(
                "PublicKey tenant/milan: label strait.io/gateway-index={index}: write the number of the gateway that the key is for, from 0 to 7, or remove it"
            )]
        );
    }
}

#[test]
fn only_the_first_gateway_writes_the_condition() {
    let all = [key_of("milan", "0", 1, 7), key_of("milan-1", "1", 2, 8)];
    let reports = |gateway: &str, public_keys: &[Listed<PublicKey>]| {
        let objects =
            Objects { public_keys: public_keys.to_vec(), configurations: vec![peering()] };
        let verdicts = Desired::new(&scope_of(gateway), &objects).verdicts;
        let of_configuration = |kind: &Option<String>| kind.as_deref() == Some("Configuration");
        let verdict = verdicts.iter().find(|verdict| of_configuration(&verdict.object.kind));
        verdict.unwrap().has_condition
    };

    assert!(reports("milan", &all));
    assert!(!reports("milan-1", &all));
    // The number of a gateway without a key is not known.
    assert!(!reports("milan-1", &all[..1]));
    assert!(!reports("milan", &all[1..]));
    assert!(reports("milan", &[]));
    let shared = [public_key("shared", "milan", 9, &[6; 32])];
    assert!(reports("milan", &shared));
}

#[test]
fn keys_of_other_gateways_have_no_verdict() {
    let all = [key_of("milan", "0", 1, 7), key_of("milan-1", "1", 2, 8)];
    let objects = Objects { public_keys: all.to_vec(), configurations: Vec::new() };

    let verdicts = Desired::new(&scope_of("milan-1"), &objects).verdicts;

    let names: Vec<_> = verdicts.iter().map(|verdict| verdict.object.name.as_deref()).collect();
    assert_eq!(names, [Some("milan-1")]);
}
