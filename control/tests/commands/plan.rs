//! `plan` and `check`, with an account that may only read, against what is then done.

use std::collections::BTreeSet;
use std::time::Duration;

use control::api::{
    Configuration, Connection, GatewayClient, GatewayServer, IP, Network, PublicKey,
};
use control::commands::{
    Action, Change, Connect, Contact, Finding, Findings, Pair, Plan, Proposal, Severity, Side,
    check, check_pair, connect, disconnect, initialize, plan, plan_connect, plan_disconnect,
    plan_reset, reset,
};
use control::ipam;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use serde_json::{Value, json};

use strait_control_lab::peering::{Cluster, Work, World};

use super::world::{Ear, contact_of, pair_of, wanted};

/// API groups and resources of them.
type Seen<'a> = (&'a str, &'a [&'a str]);

/// One that may see these and do nothing.
fn reader(name: &str, seen: &[Seen<'_>]) -> ClusterRole {
    let rule = |(group, resources): &Seen<'_>| PolicyRule {
        api_groups: Some(vec![(*group).to_owned()]),
        resources: Some(resources.iter().map(|&resource| resource.to_owned()).collect()),
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    };
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };

    ClusterRole { metadata, rules: Some(seen.iter().map(rule).collect()), ..ClusterRole::default() }
}

/// One that may see everything of a peering but the keys.
fn without_secrets() -> ClusterRole {
    let seen: [Seen<'_>; 4] = [
        ("", &["configmaps", "namespaces", "serviceaccounts", "services"]),
        ("apps", &["deployments"]),
        ("networking.liqo.io", &["*"]),
        ("rbac.authorization.k8s.io", &["clusterrolebindings", "rolebindings"]),
    ];

    reader("without-secrets", &seen)
}

/// Both clusters, seen by somebody who may only read. The role is made under `name`.
async fn audit(world: &World, name: &str) -> Pair {
    let role = reader(name, &[("*", &["*"])]);
    let of = async |cluster: &Cluster, side| Contact {
        client: cluster.server.client_with("liqo", &role).await,
        ..contact_of(cluster, side)
    };

    Pair {
        local: of(&world.local, Side::Local).await,
        remote: of(&world.remote, Side::Remote).await,
    }
}

/// Gives prefixes in one cluster, as the operator does, until dropped.
struct Ipam(tokio::task::JoinHandle<()>);

impl Ipam {
    fn start(cluster: &Cluster) -> Self {
        let client = cluster.client.clone();

        Self(tokio::spawn(async move {
            ipam::run(client, ipam::Settings::default()).await;
        }))
    }
}

impl Drop for Ipam {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The value that a change gives to a field.
fn after<'a>(plan: &'a Plan, place: usize, kind: &str, name: &str, path: &str) -> &'a Value {
    let change = change(plan, place, kind, name).expect("a change");
    let field = change.fields.iter().find(|field| field.path == path).expect("a field");

    field.after.as_ref().expect("a value")
}

fn change<'a>(plan: &'a Plan, place: usize, kind: &str, name: &str) -> Option<&'a Change> {
    plan.clusters[place].changes.iter().find(|change| change.kind == kind && change.name == name)
}

/// Everything that a plan says a cluster has afterwards, against the cluster.
async fn assert_true(plan: &Plan, place: usize, cluster: &Cluster) {
    for change in &plan.clusters[place].changes {
        let found = async || {
            let namespace = change.namespace.as_deref().unwrap_or_default();
            let found = match change.kind.as_str() {
                "Network" => value(cluster.api::<Network>(namespace).get_opt(&change.name).await),
                "IP" => value(cluster.api::<IP>(namespace).get_opt(&change.name).await),
                "Configuration" => {
                    value(cluster.api::<Configuration>(namespace).get_opt(&change.name).await)
                }
                // Made by others.
                _ => return None,
            };
            Some(found)
        };
        let Some(mut found_now) = found().await else { continue };
        // The collector has a moment of its own.
        for _ in 0..100 {
            if found_now.is_none() || change.action != Action::Delete {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            found_now = found().await.flatten();
        }
        assert_eq!(found_now.is_none(), change.action == Action::Delete, "{change:?}");
        for field in &change.fields {
            let path = field.path.replace(['.', '['], "/").replace(']', "");
            let value = found_now.as_ref().and_then(|found| found.pointer(&format!("/{path}")));
            assert_eq!(value, field.after.as_ref(), "{} {}", change.name, field.path);
        }
    }
}

fn value<K: serde::Serialize>(found: kube::Result<Option<K>>) -> Option<Value> {
    found.expect("an answer").map(|found| serde_json::to_value(found).expect("a value"))
}

/// Waits until nothing would be different from `plan` any more.
async fn settled(contact: &Contact, proposal: &Proposal, ear: &Ear) {
    let is_settled = async || {
        let now = plan(contact, proposal, None, ear.session()).await.expect("a plan");
        !now.has_changes()
    };
    let settled = async {
        while !is_settled().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(60), settled).await.expect("it settles");
}

/// Foretells what is then done, step by step; the clusters are joined in the end.
pub(crate) async fn foretells(world: &World) {
    let ear = Ear::default();
    let audited = audit(world, "foresight").await;
    world.let_work(Work::Nothing).await;
    let before = world.content().await;
    let wanted = Connect { waits: false, ..wanted() };

    let foretold = plan_connect(&audited, &wanted, None, ear.session()).await.expect("a plan");
    assert_eq!(world.content().await, before, "a plan writes");
    assert!(foretold.has_changes() && !foretold.has_conflicts(), "{foretold}");
    assert_eq!(
        after(&foretold, 0, "Configuration", "milan", "status.remote.cidr.pod[0]"),
        "10.71.0.0/16"
    );
    for (place, kind, name) in [
        (0, "Namespace", "liqo-tenant-milan"),
        (1, "Namespace", "liqo-tenant-rome"),
        (1, "GatewayServer", "rome"),
        (0, "GatewayClient", "milan"),
        (0, "PublicKey", "milan"),
        (1, "PublicKey", "rome"),
    ] {
        let change = change(&foretold, place, kind, name).expect("a change");
        assert_eq!(change.action, Action::Create, "{kind} {name}");
    }
    let client = change(&foretold, 0, "GatewayClient", "milan").expect("it");
    let address = client.fields.iter().find(|field| field.path == "spec.endpoint.addresses");
    assert!(address.expect("an address").known_later);
    let text = foretold.to_string();
    assert!(
        text.starts_with("(local) cluster rome\n+ Configuration liqo-tenant-milan/milan\n"),
        "{text}"
    );
    assert!(
        text.ends_with("to delete; 0 conflicts.\n") && text.contains("(known later)"),
        "{text}"
    );

    let operators = [Ipam::start(&world.local), Ipam::start(&world.remote)];
    initialize(&pair_of(world), ear.session()).await.expect("both know of each other");
    for (place, contact) in [(0, &audited.local), (1, &audited.remote)] {
        settled(contact, &Proposal::Apply { objects: Vec::new() }, &ear).await;
        let cluster = if place == 0 { &world.local } else { &world.remote };
        assert_true(&foretold, place, cluster).await;
    }
    let again = plan_connect(&audited, &wanted, None, ear.session()).await.expect("a plan");
    assert!(change(&again, 0, "Configuration", "milan").is_none(), "{again}");

    taking_apart(world, &audited, &ear).await;
    initialize(&pair_of(world), ear.session()).await.expect("both know of each other");
    for contact in [&audited.local, &audited.remote] {
        settled(contact, &Proposal::Apply { objects: Vec::new() }, &ear).await;
    }
    another_prefix(world, &audited, &ear).await;
    drop(operators);
}

/// What goes is what was foretold, and nothing else: gateways first, then the prefixes as well.
async fn taking_apart(world: &World, audited: &Pair, ear: &Ear) {
    gateways(world).await;
    let before = world.content().await;

    let foretold = plan_disconnect(audited, ear.session()).await.expect("a plan");
    assert_eq!(world.content().await, before, "a plan writes");
    assert!(foretold.has_changes() && !foretold.has_conflicts(), "{foretold}");
    assert!(change(&foretold, 0, "Secret", "gw-of-another").is_none(), "{foretold}");
    assert!(change(&foretold, 0, "Secret", "gw-milan").expect("it").fields.is_empty());
    let seen_by_few = Contact {
        client: world.local.server.client_with("liqo", &without_secrets()).await,
        ..contact_of(&world.local, Side::Local)
    };
    let pair = Pair { local: seen_by_few, ..audited.clone() };
    let in_part = plan_disconnect(&pair, ear.session()).await.expect("a plan");
    assert!(change(&in_part, 0, "Secret", "gw-milan").is_none(), "{in_part}");
    let note = "secrets may not be listed: those of the gateways would be gone as well";
    assert_eq!(in_part.clusters[0].notes[0], note);
    disconnect(&pair_of(world), true, ear.session()).await.expect("parted");
    assert_gone(world, &before, &foretold).await;
    let again = plan_disconnect(audited, ear.session()).await.expect("a plan");
    assert_eq!(again.to_string(), "No changes.\n");

    gateways(world).await;
    let before = world.content().await;
    let foretold = plan_reset(audited, None, ear.session()).await.expect("a plan");
    assert_eq!(world.content().await, before, "a plan writes");
    let names = |place: usize| {
        let of_configuration = change(&foretold, place, "Configuration", ["milan", "rome"][place]);
        let fields = &of_configuration.expect("it").fields;
        let names = fields.iter().filter(|field| field.path.starts_with("status.remote.cidr."));
        names.map(|field| field.before.clone().expect("a name")).collect::<Vec<_>>()
    };
    for (place, cluster) in [&world.local, &world.remote].into_iter().enumerate() {
        let mut notes = foretold.clusters[place].notes.iter();
        let note = notes.find(|note| note.starts_with("IPAM gets back 10."));
        let note = note.unwrap_or_else(|| panic!("{foretold}"));
        for name in names(place) {
            assert!(note.contains(name.as_str().expect("a prefix")), "{name}: {note}");
        }
        assert!(cluster.networks().await > INSTALLED, "names were given");
    }
    reset(&pair_of(world), true, ear.session()).await.expect("forgotten");
    assert_gone(world, &before, &foretold).await;
    for (place, contact) in [(0, &audited.local), (1, &audited.remote)] {
        settled(contact, &Proposal::Apply { objects: Vec::new() }, ear).await;
        let cluster = if place == 0 { &world.local } else { &world.remote };
        assert_true(&foretold, place, cluster).await;
        assert_eq!(cluster.networks().await, INSTALLED);
    }
    let again = plan_reset(audited, None, ear.session()).await.expect("a plan");
    assert_eq!(again.to_string(), "No changes.\n");
}

/// How many prefixes the installation has.
const INSTALLED: usize = 4;

/// Gateways on both sides, each with a part of what operators make of them, and a Secret that is not
/// theirs alone.
async fn gateways(world: &World) {
    let endpoint = json!({"addresses": ["172.18.0.3"], "port": 30742});
    let labels = |id: &str| json!({"liqo.io/remote-cluster-id": id});
    let client = json!({
        "metadata": {"labels": labels("milan")}, "spec": {"endpoint": endpoint, "mtu": 1340},
    });
    world.local.put::<GatewayClient>("liqo-tenant-milan", "milan", client).await;
    let server = json!({
        "metadata": {"labels": labels("rome")},
        "spec": {"endpoint": {"port": 51840, "serviceType": "NodePort"}, "mtu": 1340},
    });
    world.remote.put::<GatewayServer>("liqo-tenant-rome", "rome", server).await;

    let client = world.local.api::<GatewayClient>("liqo-tenant-milan").get("milan").await;
    belongings(&world.local, &client.expect("a client"), "milan").await;
    let server = world.remote.api::<GatewayServer>("liqo-tenant-rome").get("rome").await;
    belongings(&world.remote, &server.expect("a server"), "rome").await;
    let another = json!({"data": {"privateKey": ""}});
    world.local.put::<Secret>("liqo-tenant-milan", "gw-of-another", another).await;
}

async fn belongings(cluster: &Cluster, gateway: &impl Resource<DynamicType = ()>, id: &str) {
    let namespace = format!("liqo-tenant-{id}");
    let metadata = json!({
        "labels": {"liqo.io/remote-cluster-id": id}, "ownerReferences": [gateway.owner_ref(&())],
    });
    let name = format!("gw-{id}");
    cluster.put::<Secret>(&namespace, &name, json!({"metadata": metadata})).await;
    let connection = json!({"type": "Server", "gatewayRef": {"name": name}});
    let connection = json!({"metadata": metadata, "spec": connection});
    cluster.put::<Connection>(&namespace, &name, connection).await;
    let service = json!({"metadata": metadata, "spec": {"ports": [{"port": 51840}]}});
    cluster.put::<Service>(&namespace, &name, service).await;
    let key = json!({"metadata": metadata, "spec": {"publicKey": "AAAA"}});
    cluster.put::<PublicKey>(&namespace, id, key).await;
}

/// What was there `before` and is not any more is what the plan deletes, of all that `content` has.
async fn assert_gone(world: &World, before: &[String], plan: &Plan) {
    // Kind, namespace and name.
    let known = |line: &String| line.rsplit_once(' ').expect("a version").0.to_owned();
    let before: BTreeSet<_> = before.iter().map(known).collect();
    let changes = plan.clusters.iter().flat_map(|cluster| &cluster.changes);
    let foretold: BTreeSet<_> = changes
        .filter(|change| change.action == Action::Delete && change.kind != "Network")
        .map(|Change { kind, namespace, name, .. }| {
            format!("{kind} {}/{name}", namespace.as_deref().unwrap_or_default())
        })
        .collect();

    let gone = async || {
        let after: BTreeSet<_> = world.content().await.iter().map(known).collect();
        before.difference(&after).cloned().collect::<BTreeSet<_>>()
    };
    // The collector has a moment of its own.
    for _ in 0..100 {
        if gone().await == foretold {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(gone().await, foretold);
}

/// Remote pods move: another name is chosen for them, as it was foretold.
async fn another_prefix(world: &World, audited: &Pair, ear: &Ear) {
    let name = "milan";
    let namespace = "liqo-tenant-milan";
    let object = json!({
        "apiVersion": "networking.liqo.io/v1beta1", "kind": "Configuration",
        "metadata": {
            "name": name, "namespace": namespace, "labels": {"liqo.io/remote-cluster-id": "milan"},
        },
        "spec": {"remote": {"cidr": {"pod": ["10.240.0.0/14"], "external": ["10.80.0.0/16"]}}},
    });
    let proposal = Proposal::Apply { objects: vec![object.clone()] };
    let foretold = plan(&audited.local, &proposal, None, ear.session()).await.expect("a plan");
    let gone = "milan-pod-10-244-0-0-16";
    assert_eq!(change(&foretold, 0, "Network", gone).expect("it").action, Action::Delete);

    let api = world.local.api::<Configuration>(namespace);
    let parameters = PatchParams::apply("stand-in").force();
    api.patch(name, &parameters, &Patch::Apply(&object)).await.expect("a Configuration");
    settled(&audited.local, &proposal, ear).await;
    assert_true(&foretold, 0, &world.local).await;

    // What the installation has is taken by then: nobody else gets it.
    let given = after(&foretold, 0, "Configuration", name, "status.remote.cidr.pod[0]");
    let cidr = given.as_str().expect("a prefix").parse().expect("a prefix");
    let proposal = Proposal::Network { name: "external-cidr".to_owned(), cidr };
    let foretold = plan(&audited.local, &proposal, None, ear.session()).await.expect("a plan");
    let change = change(&foretold, 0, "Network", "external-cidr").expect("a change");
    assert_eq!(change.action, Action::Replace);
    let cidr = change.fields.iter().find(|field| field.path == "status.cidr").expect("a field");
    assert_ne!(cidr.after.as_ref(), Some(given), "somebody has that");
    assert!(foretold.clusters[0].notes.iter().any(|note| note.contains("cluster milan knows")));

    let nothing =
        Proposal::Network { name: "moon".to_owned(), cidr: "10.9.0.0/16".parse().expect("one") };
    let error = plan(&audited.local, &nothing, None, ear.session()).await.expect_err("no Network");
    assert!(error.is_usage() && error.to_string().contains("\"moon\""), "{error}");
    for (api_version, kind) in [("v1", "Pod"), ("config.openshift.io/v1", "Network")] {
        let metadata = json!({"name": "pod-cidr", "namespace": "liqo"});
        let wrong = json!({
            "apiVersion": api_version, "kind": kind, "metadata": metadata,
            "spec": {"cidr": "10.9.0.0/16"},
        });
        let wrong = Proposal::Apply { objects: vec![wrong] };
        let error =
            plan(&audited.local, &wrong, None, ear.session()).await.expect_err("none of ours");
        let says = format!("(local) {kind} of {api_version} is none of Network and IP of ");
        assert!(error.is_usage() && error.to_string().starts_with(&says), "{error}");
    }
    let immutable = json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
        "metadata": {"name": "pod-cidr", "namespace": "liqo"}, "spec": {"cidr": "10.9.0.0/16"},
    });
    let immutable = Proposal::Apply { objects: vec![immutable] };
    let foretold = plan(&audited.local, &immutable, None, ear.session()).await.expect("a plan");
    assert_eq!(foretold.clusters[0].conflicts[0].reason, "FieldImmutable");
    let nowhere = ["one", "two"].map(|name| {
        json!({
            "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
            "metadata": {"name": name, "namespace": "nowhere"}, "spec": {"cidr": "10.9.0.0/16"},
        })
    });
    let nowhere = Proposal::Apply { objects: nowhere.to_vec() };
    let foretold = plan(&audited.local, &nowhere, None, ear.session()).await.expect("a plan");
    let [conflict] = &foretold.clusters[0].conflicts[..] else { panic!("{foretold}") };
    assert_eq!((conflict.reason.as_str(), conflict.name.as_str()), ("NamespaceMissing", "nowhere"));
    // Nobody is installed here, so nobody says which pools there are.
    let notes = &foretold.clusters[0].notes;
    assert!(notes.iter().any(|note| note.starts_with("no operator of Strait is in ")), "{notes:?}");

    // As it was before.
    world
        .local
        .api::<Configuration>(namespace)
        .delete(name, &DeleteParams::default())
        .await
        .expect("it");
    for network in
        world.local.api::<Network>(namespace).list(&ListParams::default()).await.expect("all")
    {
        let api = world.local.api::<Network>(namespace);
        let _ = api.delete(&network.name_any(), &DeleteParams::default()).await;
    }
}

/// Says of joined clusters what is wrong with them, and no more once it is mended.
pub(crate) async fn finds_what_is_wrong(world: &World) {
    let ear = Ear::default();
    let audited = audit(world, "auditor").await;
    world.let_work(Work::All).await;
    connect(&pair_of(world), &wanted(), ear.session()).await.expect("joined");

    let found =
        check_pair([&audited.local, &audited.remote], ear.session()).await.expect("findings");
    // Nobody is installed here: others do the work.
    assert!(has(&found, Side::Local, "Namespace liqo", "OperatorMissing"), "{found}");
    assert!(!found.findings.iter().any(|finding| finding.reason == "MTUDiffers"), "{found}");
    assert!(!found.findings.iter().any(|finding| finding.reason == "KeyDiffers"), "{found}");

    a_key_of_nobody_would_be_replaced(world, &audited, &ear).await;
    let servers = world.remote.api::<GatewayServer>("liqo-tenant-rome");
    let patch = Patch::Merge(json!({"spec": {"mtu": 1400}}));
    servers.patch("rome", &PatchParams::default(), &patch).await.expect("a server");
    let found =
        check_pair([&audited.local, &audited.remote], ear.session()).await.expect("findings");
    assert!(
        has(&found, Side::Local, "GatewayClient liqo-tenant-milan/milan", "MTUDiffers"),
        "{found}"
    );
    let text = found.to_string();
    assert!(
        text.contains("error    (local) GatewayClient liqo-tenant-milan/milan: MTUDiffers: "),
        "{text}"
    );

    the_operator_may_do_what_it_must(world, &audited.local, &ear).await;
    what_may_not_be_seen_is_not_missing(world, &ear).await;
    another_cluster_than_was_typed_is_refused(world, &ear).await;
}

/// As far as whoever asks may see keys.
async fn a_key_of_nobody_would_be_replaced(world: &World, audited: &Pair, ear: &Ear) {
    let (kind, name) = ("PublicKey", "milan");
    let as_it_is = plan_connect(audited, &wanted(), None, ear.session()).await.expect("a plan");
    assert!(change(&as_it_is, 0, kind, name).is_none(), "{as_it_is}");

    let keys = world.local.api::<PublicKey>("liqo-tenant-milan");
    let right = serde_json::to_value(keys.get(name).await.expect("a key").spec).expect("a spec");
    let wrong = json!({"publicKey": ByteString(vec![9; 32])});
    let parameters = PatchParams::default();
    let patch = Patch::Merge(json!({"spec": wrong}));
    keys.patch(name, &parameters, &patch).await.expect("a key");
    let foretold = plan_connect(audited, &wanted(), None, ear.session()).await.expect("a plan");
    let replaced = change(&foretold, 0, kind, name).expect("it would be replaced");
    let [field] = &replaced.fields[..] else { panic!("{foretold}") };
    assert_eq!(replaced.action, Action::Update);
    assert_eq!(field.before.as_ref(), Some(&wrong["publicKey"]));
    assert_eq!(field.after.as_ref(), Some(&right["publicKey"]));

    let seen: [Seen<'_>; 4] = [
        ("", &["configmaps", "namespaces", "nodes", "services"]),
        ("apps", &["deployments"]),
        ("ipam.liqo.io", &["*"]),
        ("networking.liqo.io", &["*"]),
    ];
    let client = world.remote.server.client_with("liqo", &reader("no-secrets", &seen)).await;
    let remote = Contact { client, ..audited.remote.clone() };
    let half = Pair { remote, local: audited.local.clone() };
    let foretold = plan_connect(&half, &wanted(), None, ear.session()).await.expect("a plan");
    assert!(change(&foretold, 0, kind, name).is_none(), "{foretold}");
    let notes = &foretold.clusters[0].notes;
    assert!(
        notes.iter().any(|note| note.starts_with("the Secrets of cluster milan ")),
        "{notes:?}"
    );

    let patch = Patch::Merge(json!({"spec": right}));
    keys.patch(name, &parameters, &patch).await.expect("as it was");
}

/// Whoever may see a part is told of that part.
async fn what_may_not_be_seen_is_not_missing(world: &World, ear: &Ear) {
    let admin = contact_of(&world.local, Side::Only);
    let found = check(&admin, ear.session()).await.expect("findings");
    let gateway = "Deployment liqo-tenant-milan/gw-milan";
    assert!(has(&found, Side::Only, "Lease liqo/strait-operator", "NobodyLeads"), "{found}");
    assert!(has(&found, Side::Only, gateway, "NoActivePod"), "{found}");

    // All but pods and Leases.
    let seen: [Seen<'_>; 4] = [
        ("", &["configmaps", "nodes", "secrets", "services"]),
        ("apps", &["deployments"]),
        ("ipam.liqo.io", &["*"]),
        ("networking.liqo.io", &["*"]),
    ];
    let half = world.local.server.client_with("liqo", &reader("half", &seen)).await;
    let half = Contact { client: half, ..admin.clone() };
    let found_by_half = check(&half, ear.session()).await.expect("findings");
    let hidden = ["NobodyLeads", "NoActivePod", "RightsMissing"];
    let mut expected = all(&found).filter(|finding| !hidden.contains(&finding.reason));
    let messages = |findings: &mut dyn Iterator<Item = &Finding>| -> BTreeSet<String> {
        findings.map(|finding| format!("{}: {}", finding.object, finding.message)).collect()
    };
    let mut others = all(&found_by_half).filter(|finding| finding.reason != "NotAllowed");
    assert_eq!(messages(&mut others), messages(&mut expected));
    assert!(!has(&found_by_half, Side::Only, "your account", "NothingSeen"), "{found_by_half}");
    let text = found_by_half.to_string();
    for may_not in ["list pods", "get leases", "create subjectaccessreviews"] {
        assert!(text.contains(&format!("it may not {may_not}, so what")), "{text}");
    }

    let client = world.local.server.client_with("liqo", &strait_control_lab::roles::nobody()).await;
    let nobody = Contact { client, ..admin };
    let found = check(&nobody, ear.session()).await.expect("findings");
    assert!(found.findings[1..].iter().all(|finding| finding.reason == "NotAllowed"), "{found}");
    assert!(has(&found, Side::Only, "your account", "NothingSeen"), "{found}");
    assert_eq!((found.count(Severity::Error), found_by_half.count(Severity::Error) > 0), (1, true));
    assert!(found.to_string().contains("it may not list configmaps, "), "{found}");
}

/// As by every other verb.
async fn another_cluster_than_was_typed_is_refused(world: &World, ear: &Ear) {
    for (typed, says) in [
        ("paris", "(local) this is cluster \"rome\", not \"paris\""),
        ("Rome", "(local) \"Rome\" is no cluster id"),
    ] {
        let cluster_id = Some(typed.to_owned());
        let contact = Contact { cluster_id, ..contact_of(&world.local, Side::Local) };
        let error = check(&contact, ear.session()).await.expect_err("it is rome");
        assert!(error.is_usage() && error.to_string().starts_with(says), "{error}");
    }

    let twice = [Side::Local, Side::Remote].map(|side| contact_of(&world.local, side));
    let error = check_pair(twice.each_ref(), ear.session()).await.expect_err("one cluster");
    assert!(error.is_usage(), "{error}");
    assert!(error.to_string().starts_with("both sides are cluster \"rome\""), "{error}");
}

/// As the API server says it, before its roles are bound and after.
async fn the_operator_may_do_what_it_must(world: &World, auditor: &Contact, ear: &Ear) {
    let labels = json!({
        "app.kubernetes.io/component": "operator", "app.kubernetes.io/part-of": "strait",
    });
    let pod = json!({
        "serviceAccountName": "strait-operator",
        "containers": [{"name": "operator", "image": "none"}],
    });
    let operator = json!({
        "metadata": {"labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    });
    world.local.put::<Deployment>("liqo", "strait-operator", operator).await;
    let admin = contact_of(&world.local, Side::Only);
    let account = "ServiceAccount liqo/strait-operator";

    let found = check(&admin, ear.session()).await.expect("findings");
    assert!(has(&found, Side::Only, account, "RightsMissing"), "{found}");
    let text = found.to_string();
    assert!(text.contains("create configmaps, ") && text.contains("patch networks"), "{text}");
    assert!(has(&found, Side::Only, "Lease liqo/strait-operator", "NobodyLeads"), "{found}");
    let found = check(auditor, ear.session()).await.expect("findings");
    assert!(has(&found, Side::Local, "your account", "NotAllowed"), "{found}");

    world.local.server.kubeconfig_of_operator().await;
    let is_bound = async {
        while has(
            &check(&admin, ear.session()).await.expect("findings"),
            Side::Only,
            account,
            "RightsMissing",
        ) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), is_bound).await.expect("the rights come");
}

fn has(found: &Findings, side: Side, object: &str, reason: &str) -> bool {
    all(found).any(|finding| {
        (finding.side, finding.object.as_str(), finding.reason) == (side, object, reason)
    })
}

/// Causes and consequences.
fn all(found: &Findings) -> impl Iterator<Item = &Finding> {
    found.findings.iter().flat_map(|cause| std::iter::once(cause).chain(&cause.consequences))
}
