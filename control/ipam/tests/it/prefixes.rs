//! IPAM in a real cluster, with its shipped role.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::{Configuration, IP, Network};
use strait_control_lab::create;
use strait_ipam::JOURNAL;

use crate::world::{
    INSTALLED, TENANT, World, assert_no_two_owners, condition, configuration, is_configured, names,
    operate, until,
};

#[tokio::test]
async fn choices_are_those_of_liqo() {
    let Some(world) = World::new().await else { return };
    let _operator = world.operator().await;
    let vectors: [(&str, &str, &str, &[[&str; 2]]); 3] = [
        (
            "10.244.0.0/16",
            "10.96.0.0/12",
            "10.80.0.0/16",
            &[
                ["10.71.0.0/16", "10.68.0.0/16"],
                ["10.69.0.0/16", "10.64.0.0/16"],
                ["10.65.0.0/16", "10.66.0.0/16"],
            ],
        ),
        ("10.42.0.0/16", "10.43.0.0/16", "10.80.0.0/16", &[["10.40.0.0/16", "10.41.0.0/16"]]),
        ("10.200.0.0/16", "10.80.0.0/12", "10.71.0.0/16", &[["10.68.0.0/16", "10.69.0.0/16"]]),
    ];

    for (pods, services, internal, peers) in vectors {
        world.install(pods, services).await;
        for (number, chosen) in peers.iter().enumerate() {
            let name = format!("leaf-{number}");
            world.peer(&name, &[pods], &["10.70.0.0/16"]).await;
            assert_eq!(world.names(&name).await, chosen.map(|name| vec![name.to_owned()]));
            let leaf = world.api::<Configuration>(TENANT).get(&name).await.unwrap();
            let local = serde_json::to_value(leaf.spec.local).unwrap();
            assert_eq!(local, json!({"cidr": {"pod": [pods], "external": ["10.70.0.0/16"]}}));
        }
        assert_eq!(world.network(INSTALLED, "internal-cidr").await.as_deref(), Some(internal));

        // The next case starts without them.
        for number in 0..peers.len() {
            world.delete_peer(&format!("leaf-{number}")).await;
        }
        for name in ["pod-cidr", "service-cidr", "external-cidr", "internal-cidr"] {
            world.delete::<Network>(INSTALLED, name).await;
        }
        world.entries(0).await;
    }
}

/// Both are stopped in the middle of it, one comes back, and a third one joins.
#[tokio::test]
async fn racing_operators_never_share_an_allocation() {
    const PEERS: usize = 100;
    let Some(world) = World::new().await else { return };
    let client = world.operator_client().await;
    world.install("10.244.0.0/16", "10.96.0.0/12").await;
    let first = operate(&client);
    let second = operate(&world.server.client().await);
    let (api, networks) = (world.api(TENANT), Api::<Network>::all(world.admin.clone()));

    let start = Instant::now();
    let peers: Vec<_> = (0..PEERS)
        .map(|number| {
            configuration(&format!("peer-{number}"), &["10.244.0.0/16"], &["10.70.0.0/16"])
        })
        .collect();
    futures_util::future::join_all(peers.iter().map(|peer| create(api.clone(), peer))).await;
    eprintln!("{PEERS} Configurations are made after {:?}", start.elapsed());
    let settled = async |count: usize| {
        let peers = api.list(&ListParams::default()).await.expect("all");
        peers.iter().filter(|peer| is_configured(peer)).count() >= count
    };
    until(async || settled(PEERS / 10).await).await;
    drop(first);
    let third = operate(&client);
    until(async || settled(PEERS / 2).await).await;
    drop(second);
    until(async || settled(PEERS).await).await;
    eprintln!("{PEERS} Configurations are settled after {:?}", start.elapsed());

    let all = networks.list(&ListParams::default()).await.expect("all").items;
    assert_eq!(all.len(), 4 + 2 * PEERS);
    assert_no_two_owners(&all);
    world.entries(all.len()).await;
    let journal = world.journal().await.expect("it");
    for network in &all {
        let entry = journal.entry(&network.uid().expect("one")).expect("an entry");
        assert_eq!(
            (&*entry.name, Some(&*entry.namespace)),
            (&*network.name_any(), network.namespace().as_deref())
        );
    }
    for peer in api.list(&ListParams::default()).await.expect("all") {
        let [pod, external] = names(&peer);
        let status_of = |network_type: &str| {
            let child = all.iter().find(|network| {
                let owners = network.owner_references();
                owners.iter().any(|owner| Some(&owner.uid) == peer.uid().as_ref())
                    && network.labels()["configuration.liqo.io/cidr-type"] == network_type
            });
            vec![child.and_then(|child| child.status.clone()?.cidr).expect("one")]
        };
        assert_eq!((pod, external), (status_of("pod"), status_of("external")));
    }

    // Everything is settled: nothing is written any more.
    let version = async || {
        let versions =
            (api.list(&ListParams::default()).await, networks.list(&ListParams::default()).await);
        let journal = world.api::<ConfigMap>(INSTALLED).get(JOURNAL).await.expect("it");
        let peers = versions
            .0
            .expect("all")
            .items
            .iter()
            .map(|p: &Configuration| p.resource_version())
            .collect::<Vec<_>>();
        let networks =
            versions.1.expect("all").items.iter().map(|n| n.resource_version()).collect::<Vec<_>>();
        (peers, networks, journal.resource_version())
    };
    let before = version().await;
    let fourth = operate(&client);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(version().await, before);
    drop((third, fourth));
}

#[tokio::test]
async fn a_changed_configuration_releases_former_prefixes() {
    let Some(world) = World::new().await else { return };
    let _operator = world.operator().await;
    world.install("10.244.0.0/16", "10.96.0.0/12").await;
    world.peer("milan", &["10.244.0.0/16", "172.20.0.0/16"], &["10.70.0.0/16"]).await;
    let chosen = |pod: &[&str], external: &[&str]| {
        [pod, external].map(|list| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(
        world.names("milan").await,
        chosen(&["10.71.0.0/16", "172.20.0.0/16"], &["10.68.0.0/16"])
    );
    let network = world.api::<Network>(TENANT).get("milan-pod-10-244-0-0-16").await.unwrap();
    let owner = &network.owner_references()[0];
    assert_eq!(
        (&*owner.kind, &*owner.name, owner.controller),
        ("Configuration", "milan", Some(true))
    );
    assert_eq!(network.labels()["liqo.io/remote-cluster-id"], "milan");
    assert_eq!(network.finalizers(), ["network.ipam.liqo.io/finalizer"]);
    world.entries(7).await;

    let api = world.api::<Configuration>(TENANT);
    let change = async |pod: &[&str]| {
        let patch = json!({"spec": {"remote": {"cidr": {"pod": pod}}}});
        api.patch("milan", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("it");
    };
    // The first is removed, another one comes before the one that stays.
    change(&["172.24.0.0/16", "172.20.0.0/16"]).await;
    assert_eq!(
        world.names("milan").await,
        chosen(&["172.24.0.0/16", "172.20.0.0/16"], &["10.68.0.0/16"])
    );
    assert_eq!(world.network(TENANT, "milan-pod-10-244-0-0-16").await, None);
    world.entries(7).await;
    // The orphan's prefix is free by the time of the overlapping request.
    change(&["172.24.128.0/17", "172.24.128.0/17"]).await;
    assert_eq!(
        world.names("milan").await,
        chosen(&["172.24.128.0/17", "172.24.128.0/17"], &["10.68.0.0/16"])
    );
    // The next peer gets the released prefixes.
    world.peer("turin", &["10.244.0.0/16"], &["172.20.0.0/16"]).await;
    assert_eq!(world.names("turin").await, chosen(&["10.69.0.0/16"], &["172.20.0.0/16"]));

    change(&[]).await;
    assert_eq!(world.names("milan").await, chosen(&[], &["10.68.0.0/16"]));

    for name in ["milan", "turin"] {
        world.delete_peer(name).await;
    }
    world.entries(4).await;
}

#[tokio::test]
async fn a_denial_is_reported_while_it_lasts() {
    let Some(world) = World::new().await else { return };
    let _operator = world.operator().await;
    world.install("10.244.0.0/16", "10.96.0.0/12").await;
    // No prefix of one size is left, and another prefix is invalid.
    world.peer("milan", &["10.244.0.0/16", "10.0.0.0/8", "10.9.0.1/16"], &["10.70.0.0/16"]).await;
    let api = world.api::<Configuration>(TENANT);
    let is_denied = async || {
        let peer = api.get("milan").await.expect("it");
        condition(&peer).is_some_and(|(_, reason, ..)| reason == "PoolsExhausted")
            && names(&peer)[1] == ["10.68.0.0/16"]
    };
    until(is_denied).await;
    let milan = api.get("milan").await.unwrap();
    let (status, _, message, is_current) = condition(&milan).unwrap();
    assert_eq!((&*status, is_current), ("False", true));
    assert!(message.contains("spec.remote.cidr.pod[1]: no /8 is left in any pool"), "{message}");
    assert!(
        message.contains("spec.remote.cidr.pod[2]: 10.9.0.1/16 has host bits set"),
        "{message}"
    );
    assert_eq!(names(&milan)[0], ["10.71.0.0/16"]);
    assert!(!milan.labels().contains_key("configuration.liqo.io/configured"));
    let is_reported = async || {
        let events = world.events("Configuration", "milan").await;
        events.iter().any(|(reason, note)| reason == "PoolsExhausted" && *note == message)
    };
    until(is_reported).await;
    let network = "milan-pod-10-0-0-0-8";
    until(async || !world.events("Network", network).await.is_empty()).await;
    assert_eq!(world.events("Network", network).await[0].0, "PoolsExhausted");

    // Another network overlaps an immutable one.
    let mut immutable: Network = serde_json::from_value(json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
        "metadata": {"name": "office", "labels": {"ipam.liqo.io/network-not-remapped": "true"}},
        "spec": {"cidr": "10.50.0.0/16"},
    }))
    .unwrap();
    let obstacle = Network {
        metadata: ObjectMeta { name: Some("obstacle".to_owned()), ..ObjectMeta::default() },
        ..immutable.clone()
    };
    create(world.api(TENANT), &obstacle).await;
    until(async || world.network(TENANT, "obstacle").await.as_deref() == Some("10.50.0.0/16"))
        .await;
    immutable.metadata.namespace = Some(TENANT.to_owned());
    create(world.api(TENANT), &immutable).await;
    until(async || !world.events("Network", "office").await.is_empty()).await;
    let (reason, note) = world.events("Network", "office").await.remove(0);
    assert_eq!(reason, "CIDRTaken");
    assert!(note.starts_with("10.50.0.0/16 overlaps 10.50.0.0/16, which is taken"), "{note}");
    assert_eq!(world.network(TENANT, "office").await, None);
    world.delete::<Network>(TENANT, "obstacle").await;
    until(async || world.network(TENANT, "office").await.as_deref() == Some("10.50.0.0/16")).await;

    let patch = json!({"spec": {"remote": {"cidr": {"pod": ["10.244.0.0/16"]}}}});
    api.patch("milan", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    assert_eq!(
        world.names("milan").await,
        [["10.71.0.0/16"], ["10.68.0.0/16"]].map(|list| list.map(str::to_owned).to_vec())
    );
}

#[tokio::test]
async fn addresses_are_allocated_in_order_and_released() {
    let Some(world) = World::new().await else { return };
    let _operator = world.operator().await;
    let api = world.api::<IP>(TENANT);
    let ask = async |name: &str, network: Value| {
        let mut object = json!({
            "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "IP",
            "metadata": {"name": name}, "spec": {"ip": "192.0.2.7"},
        });
        if !network.is_null() {
            object["spec"]["networkRef"] = network;
        }
        create(api.clone(), &serde_json::from_value::<IP>(object).expect("an IP")).await;
    };
    let allocated = async |name: &str| {
        until(async || api.get(name).await.expect("it").status.is_some()).await;
        let status = api.get(name).await.expect("it").status.expect("it");
        [status.ip, status.cidr].map(Option::unwrap_or_default)
    };

    // There is no Network to take one from yet.
    ask("early", Value::Null).await;
    until(async || !world.events("IP", "early").await.is_empty()).await;
    assert_eq!(world.events("IP", "early").await[0].0, "NetworkMissing");
    world.install("10.244.0.0/16", "10.96.0.0/12").await;
    // The first eight masquerade unknown sources.
    assert_eq!(allocated("early").await, ["10.70.0.8", "10.70.0.0/16"]);
    let early = api.get("early").await.unwrap();
    assert_eq!(early.finalizers(), ["ip.ipam.liqo.io/finalizer"]);
    assert_eq!(early.labels()["ipam.liqo.io/network-namespace"], INSTALLED);
    assert_eq!(early.labels()["ipam.liqo.io/network-name"], "external-cidr");

    // Released addresses are not allocated again at once.
    ask("second", Value::Null).await;
    assert_eq!(allocated("second").await[0], "10.70.0.9");
    world.delete::<IP>(TENANT, "early").await;
    ask("third", Value::Null).await;
    assert_eq!(allocated("third").await[0], "10.70.0.10");

    // Once round, and then there is none left.
    let small: Network = serde_json::from_value(json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network", "metadata": {"name": "small"},
        "spec": {"cidr": "10.7.0.0/30", "preAllocated": 2},
    }))
    .unwrap();
    create(world.api(TENANT), &small).await;
    let small = json!({"name": "small", "namespace": TENANT});
    for (name, expected) in [("a", "10.7.0.2"), ("b", "10.7.0.3")] {
        ask(name, small.clone()).await;
        assert_eq!(allocated(name).await, [expected, "10.7.0.0/30"]);
    }
    ask("c", small).await;
    until(async || !world.events("IP", "c").await.is_empty()).await;
    assert_eq!(world.events("IP", "c").await[0].0, "NetworkExhausted");
    world.delete::<IP>(TENANT, "a").await;
    assert_eq!(allocated("c").await[0], "10.7.0.2");

    for name in ["second", "third", "b", "c"] {
        world.delete::<IP>(TENANT, name).await;
    }
    world.delete::<Network>(TENANT, "small").await;
    world.entries(4).await;
}

/// Liqo's allocator was there before, and the journal is deleted later.
#[tokio::test]
async fn statuses_survive_the_loss_of_the_journal() {
    let Some(world) = World::new().await else { return };
    let tell = async |namespace: &str, name: &str, cidr: &str| {
        let status = json!({"status": {"cidr": cidr}});
        let api = world.api::<Network>(namespace);
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.expect("it");
    };
    world.install("10.244.0.0/16", "10.96.0.0/12").await;
    tell(INSTALLED, "external-cidr", "10.66.0.0/16").await;
    let name = "old";
    let ip = json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "IP",
        "metadata": {"name": name}, "spec": {"ip": "192.0.2.7"},
    });
    create(world.api(TENANT), &serde_json::from_value::<IP>(ip).unwrap()).await;
    let status = json!({"status": {"ip": "10.66.0.9", "cidr": "10.66.0.0/16"}});
    let api = world.api::<IP>(TENANT);
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();

    let operator = world.operator().await;
    world.entries(5).await;
    assert_eq!(world.network(INSTALLED, "external-cidr").await.as_deref(), Some("10.66.0.0/16"));
    world.peer("milan", &["10.244.0.0/16"], &["10.66.0.0/16"]).await;
    let before = world.names("milan").await;
    let journal = world.journal().await;

    world.api::<ConfigMap>(INSTALLED).delete(JOURNAL, &DeleteParams::default()).await.unwrap();
    world.peer("turin", &["10.244.0.0/16"], &["10.66.0.0/16"]).await;
    world.names("turin").await;
    assert_eq!(world.names("milan").await, before);
    world.entries(9).await;
    let rebuilt = world.journal().await.unwrap();
    for (uid, entry) in journal.unwrap().iter() {
        assert_eq!(rebuilt.entry(uid), Some(entry));
    }
    assert_no_two_owners(
        &Api::<Network>::all(world.admin.clone()).list(&ListParams::default()).await.unwrap().items,
    );

    // A resource that is deleted while no operator runs is released as well.
    drop(operator);
    world.delete::<Network>(INSTALLED, "internal-cidr").await;
    let _operator = operate(&world.server.client().await);
    world.entries(8).await;
}
