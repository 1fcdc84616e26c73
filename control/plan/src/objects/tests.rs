mod gateways;

use k8s_openapi::ByteString;
use proptest::prelude::*;
use serde_json::{Value, json};
use strait_api::public_key::PublicKeySpec;

use super::*;

fn scope() -> Scope {
    Scope { peer_address: Some([169, 254, 18, 1].into()), ..Scope::default() }
}

/// Created in second `age` of 1970.
fn metadata(name: &str, cluster: &str, age: i64) -> Value {
    let created = jiff::Timestamp::from_second(age).unwrap();

    json!({
        "name": name, "namespace": "tenant", "generation": 7, "creationTimestamp": created,
        "labels": {REMOTE_CLUSTER_ID: cluster},
    })
}

fn public_key(name: &str, cluster: &str, age: i64, key: &[u8]) -> Listed<PublicKey> {
    let object = PublicKey {
        metadata: serde_json::from_value(metadata(name, cluster, age)).unwrap(),
        spec: PublicKeySpec { public_key: Some(ByteString(key.to_vec())) },
    };

    Arc::new(DeserializeGuard(Ok(object)))
}

fn configuration(cluster: &str, remote: &Value, local: &Value) -> Listed<Configuration> {
    let object = json!({
        "apiVersion": "networking.liqo.io/v1beta1",
        "kind": "Configuration",
        "metadata": metadata(cluster, cluster, 1),
        "spec": {"remote": {"cidr": remote}},
        "status": {"remote": {"cidr": local}},
    });

    Arc::new(serde_json::from_value(object).unwrap())
}

fn read(
    scope: &Scope,
    public_keys: &[Listed<PublicKey>],
    configurations: &[Listed<Configuration>],
) -> Requested {
    let (public_keys, configurations) = (public_keys.to_vec(), configurations.to_vec());

    super::read(scope, &Objects { public_keys, configurations })
}

fn texts(requested: &Requested) -> Vec<String> {
    requested.refused.iter().map(ToString::to_string).collect()
}

fn prefixes(texts: &[&str]) -> Vec<Prefix> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_peer_has_its_key_and_remapped_prefixes() {
    let keys = [public_key("milan", "milan", 1, &[7; 32])];
    let configurations = [configuration(
        "milan",
        &json!({"pod": ["10.244.0.0/16", "10.9.0.0/16", "10.8.0.0/16"], "external": "10.70.0.0/16"}),
        &json!({"pod": ["10.71.0.0/16", "", "10.8.0.0/16"], "external": ["10.72.0.0/16"]}),
    )];

    let requested = read(&scope(), &keys, &configurations);

    let [peer] = requested.peers.as_slice() else { panic!("{requested:?}") };
    assert_eq!(texts(&requested), [""; 0]);
    assert_eq!((peer.name.as_str(), peer.keys), ("milan", [7; 32]));
    assert_eq!(
        *peer.allowed_ips,
        prefixes(&["169.254.18.1/32", "10.244.0.0/16", "10.8.0.0/16", "10.70.0.0/16"])
    );
    let rules: Vec<_> = peer.remaps.iter().map(|rule| (rule.remote(), rule.local())).collect();
    let pairs = |pairs: [(&str, &str); 2]| {
        pairs.map(|(remote, local)| (remote.parse().unwrap(), local.parse().unwrap())).to_vec()
    };
    assert_eq!(rules, pairs([("10.244.0.0/16", "10.71.0.0/16"), ("10.70.0.0/16", "10.72.0.0/16")]));
}

#[test]
fn a_peer_names_its_objects() {
    let keys = [public_key("old", "milan", 1, &[7; 32]), public_key("new", "milan", 2, &[8; 32])];
    let configurations = [configuration("milan", &json!({}), &json!({}))];
    let object = |kind: &str, name: &str| Origin::Object {
        kind: kind.to_owned(),
        namespace: "tenant".to_owned(),
        name: name.to_owned(),
    };

    let whole = &read(&scope(), &keys, &configurations).peers[0].origins;
    let bare = &read(&scope(), &keys, &[]).peers[0].origins;

    assert_eq!(whole.of("public_key"), object("PublicKey", "new"));
    assert_eq!(whole.of("allowed_ips"), object("Configuration", "milan"));
    assert_eq!(bare.of("public_key"), whole.of("public_key"));
    assert_eq!(bare.of("allowed_ips"), Origin::Default);
}

#[test]
fn without_a_configuration_only_the_gateway_is_reached() {
    let requested = read(&scope(), &[public_key("milan", "milan", 1, &[7; 32])], &[]);

    assert_eq!(*requested.peers[0].allowed_ips, prefixes(&["169.254.18.1/32"]));
}

#[test]
fn with_external_remapping_every_address_is_allowed() {
    let scope = Scope { remapping: Remapping::External, ..scope() };

    let requested = read(&scope, &[public_key("milan", "milan", 1, &[7; 32])], &[]);

    assert_eq!(*requested.peers[0].allowed_ips, prefixes(&["0.0.0.0/0", "::/0"]));
    assert_eq!(requested.peers[0].remaps, []);
}

#[test]
fn a_gateway_for_one_cluster_ignores_others() {
    let scope = Scope { remote_cluster_id: Some("milan".to_owned()), ..scope() };
    let keys = [
        public_key("milan", "milan", 1, &[7; 32]),
        public_key("rome", "rome", 1, &[8; 32]),
        public_key("short", "rome", 1, &[8; 3]),
    ];

    let requested = read(&scope, &keys, &[]);

    assert_eq!(requested.peers.len(), 1);
    assert_eq!(texts(&requested), [""; 0]);
}

#[test]
fn a_problem_is_reported_and_refused_alone() {
    let keys = [
        public_key("milan", "milan", 1, &[7; 32]),
        public_key("younger", "milan", 2, &[8; 32]),
        public_key("youngest", "milan", 3, &[9; 31]),
        public_key("zero", "milan", 4, &[0; 32]),
        public_key("oslo", "oslo", 1, &[8; 32]),
        public_key("no-label", "", 1, &[4; 32]),
    ];
    let configurations = [configuration(
        "milan",
        &json!({
            "pod": ["10.244.0.0/16", "10.9.0.1/16", "pods", "10.5.0.0/16", "224.0.1.0/24", "10.6.0.0/24"],
        }),
        &json!({
            "pod": [
                "10.71.0.0/16",
                "10.72.0.0/16",
                "10.73.0.0/16",
                "10.74.0.0/24",
                "10.75.0.0/24",
                "127.0.1.0/24",
            ],
        }),
    )];

    let requested = read(&scope(), &keys, &configurations);

    let [peer] = requested.peers.as_slice() else { panic!("{requested:?}") };
    assert_eq!(peer.keys, [8; 32]);
    assert_eq!(*peer.allowed_ips, prefixes(&["169.254.18.1/32", "10.244.0.0/16"]));
    let expected = [
        ("Configuration tenant/milan: spec.remote.cidr.pod[1]", "write 10.9.0.0/16"),
        ("Configuration tenant/milan: spec.remote.cidr.pod[2]", "\"pods\" is no prefix"),
        (
            "Configuration tenant/milan: cidr.pod[3] of spec.remote and status.remote",
            "10.74.0.0/24",
        ),
        (
            "Configuration tenant/milan: spec.remote.cidr.pod[4]: 224.0.1.0/24 lies in 224.0.0.0/4",
            "RFC 6890",
        ),
        (
            "Configuration tenant/milan: status.remote.cidr.pod[5]: 127.0.1.0/24 lies in 127.0.0.0/8",
            "RFC 6890",
        ),
        ("PublicKey tenant/milan:", "younger is younger"),
        ("PublicKey tenant/no-label:", "liqo.io/remote-cluster-id is missing"),
        ("PublicKey tenant/oslo:", "that of cluster \"milan\" too"),
        ("PublicKey tenant/youngest:", "has 31 bytes, not 32"),
        ("PublicKey tenant/zero:", "spec.publicKey is zero or another point of low order"),
    ];
    let texts = texts(&requested);
    assert_eq!(texts.len(), expected.len(), "{texts:#?}");
    for (text, (object, problem)) in texts.iter().zip(expected) {
        assert!(text.starts_with(object) && text.contains(problem), "{text}");
    }
    assert!(requested.refused.iter().all(|refusal| refusal.generation == Some(7)));
}

#[test]
fn our_own_key_is_refused() {
    let scope = Scope { own_public_key: Some([9; 32]), ..scope() };
    let alone = [public_key("milan", "milan", 1, &[9; 32])];
    let beside_another =
        [public_key("milan", "milan", 1, &[7; 32]), public_key("younger", "milan", 2, &[9; 32])];

    let refused = read(&scope, &alone, &[]);
    let read_beside = read(&scope, &beside_another, &[]);

    let own = "spec.publicKey is our own public key: copy publicKey from the Secret of the remote's gateway";
    assert_eq!(refused.peers, []);
    assert_eq!(texts(&refused), [format!("PublicKey tenant/milan: {own}")]);
    assert_eq!(read_beside.peers[0].keys, [7; 32]);
    assert_eq!(texts(&read_beside), [format!("PublicKey tenant/younger: {own}")]);
}

#[test]
fn a_former_own_key_is_accepted() {
    let keys = [public_key("milan", "milan", 1, &[9; 32])];

    for own_public_key in [Some([8; 32]), None] {
        let requested = read(&Scope { own_public_key, ..scope() }, &keys, &[]);

        assert_eq!(requested.peers[0].keys, [9; 32]);
        assert_eq!(texts(&requested), [""; 0]);
    }
}

#[test]
fn an_unreadable_object_is_refused_alone() {
    let object = json!({
        "metadata": metadata("broken", "oslo", 1),
        "spec": {"publicKey": {"not": "a string"}},
    });
    let broken = Arc::new(serde_json::from_value(object).unwrap());

    let requested = read(&scope(), &[broken, public_key("milan", "milan", 1, &[7; 32])], &[]);

    assert_eq!(requested.peers.len(), 1);
    let texts = texts(&requested);
    assert_eq!(texts.len(), 1);
    assert!(texts[0].starts_with("PublicKey tenant/broken: it cannot be read"), "{texts:?}");
}

proptest! {
    /// The result does not depend on the order in which objects came.
    #[test]
    fn the_order_of_objects_has_no_effect(
        objects in proptest::collection::vec((0_u8..3, 0_i64..3, 0_u8..3, 30_usize..34), 0..8)
            .prop_flat_map(|objects| {
                (Just(objects.clone()), Just(objects).prop_shuffle())
            }),
    ) {
        let named = |objects: &[(u8, i64, u8, usize)]| -> Vec<_> {
            let mut names = BTreeMap::<_, u32>::new();
            let mut objects = objects.iter().map(|object| {
                let (cluster, age, key, bytes) = object;
                let twins = names.entry(*object).or_default();
                *twins += 1;
                let name = format!("{cluster}-{age}-{key}-{bytes}-{twins}");
                public_key(&name, &format!("cluster-{cluster}"), *age, &vec![*key; *bytes])
            }).collect::<Vec<_>>();
            objects.truncate(8);
            objects
        };

        prop_assert_eq!(
            read(&scope(), &named(&objects.0), &[]),
            read(&scope(), &named(&objects.1), &[])
        );
    }

    /// A field of any text is a prefix or a refusal, without a panic.
    #[test]
    fn garbage_is_refused(remote in ".{0,24}", local in "[0-9./:a-f]{0,24}") {
        let keys = [public_key("milan", "milan", 1, &[7; 32])];
        let configurations =
            [configuration("milan", &json!({"pod": [&remote]}), &json!({"pod": [&local]}))];

        let requested = read(&scope(), &keys, &configurations);

        let is_used = requested.peers[0].allowed_ips.len() == 2;
        let is_empty = remote.is_empty() || local.is_empty();
        prop_assert!(is_used || is_empty || !requested.refused.is_empty(), "{:?}", requested);
    }
}
