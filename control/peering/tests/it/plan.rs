//! `plan`, with a read-only account, against the real results.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Resource, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer, IP, Network, PublicKey};
use strait_control_lab::peering::{Cluster, Work, World};
use strait_peering::{
    Action, Change, ClusterContext, Connect, Pair, Plan, Proposal, Side, disconnect, initialize,
    plan, plan_connect, plan_disconnect, plan_reset, reset,
};

use super::world::{RecordedReport, contact_of, desired, pair_of};

/// API groups and resources of them.
pub(crate) type Seen<'a> = (&'a str, &'a [&'a str]);

/// A role that may read these and nothing else.
pub(crate) fn reader(name: &str, seen: &[Seen<'_>]) -> ClusterRole {
    let rule = |(group, resources): &Seen<'_>| PolicyRule {
        api_groups: Some(vec![(*group).to_owned()]),
        resources: Some(resources.iter().map(|&resource| resource.to_owned()).collect()),
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    };
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };

    ClusterRole { metadata, rules: Some(seen.iter().map(rule).collect()), ..ClusterRole::default() }
}

/// A role that may read everything of a peering but the keys.
pub(crate) fn without_secrets() -> ClusterRole {
    let seen: [Seen<'_>; 4] = [
        ("", &["configmaps", "namespaces", "serviceaccounts", "services"]),
        ("apps", &["deployments"]),
        ("networking.liqo.io", &["*"]),
        ("rbac.authorization.k8s.io", &["clusterrolebindings", "rolebindings"]),
    ];

    reader("without-secrets", &seen)
}

/// Both clusters, with a read-only account. The role is created under `name`.
pub(crate) async fn audit(world: &World, name: &str) -> Pair {
    let role = reader(name, &[("*", &["*"])]);
    let of = async |cluster: &Cluster, side| ClusterContext {
        client: cluster.server.client_with("liqo", &role).await,
        ..contact_of(cluster, side)
    };

    Pair {
        local: of(&world.local, Side::Local).await,
        remote: of(&world.remote, Side::Remote).await,
    }
}

/// Runs IPAM in one cluster, as the operator does, until dropped.
struct Ipam(tokio::task::JoinHandle<()>);

impl Ipam {
    fn start(cluster: &Cluster) -> Self {
        let client = cluster.client.clone();

        Self(tokio::spawn(async move {
            strait_ipam::run(client, strait_ipam::Settings::default()).await;
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

pub(crate) fn change<'a>(
    plan: &'a Plan,
    place: usize,
    kind: &str,
    name: &str,
) -> Option<&'a Change> {
    plan.clusters[place].changes.iter().find(|change| change.kind == kind && change.name == name)
}

/// Checks that the cluster is as the plan predicted.
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
                // Created by others.
                _ => return None,
            };
            Some(found)
        };
        let Some(mut found_now) = found().await else { continue };
        // The garbage collector works asynchronously.
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

/// Waits until nothing differs from `plan` any more.
pub(crate) async fn settled(
    context: &ClusterContext,
    proposal: &Proposal,
    report: &RecordedReport,
) {
    let is_settled = async || {
        let now = plan(context, proposal, None, report.session()).await.expect("a plan");
        !now.has_changes()
    };
    let settled = async {
        while !is_settled().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(60), settled).await.expect("it settles");
}

/// Predicts each step before it is done; the clusters are joined in the end.
pub(crate) async fn predictions(world: &World) {
    let report = RecordedReport::default();
    let audited = audit(world, "foresight").await;
    world.set_work(Work::Nothing).await;
    let before = world.content().await;
    let wanted = Connect { waits: false, ..desired() };

    let predicted = plan_connect(&audited, &wanted, None, report.session()).await.expect("a plan");
    assert_eq!(world.content().await, before, "a plan writes");
    assert!(predicted.has_changes() && !predicted.has_conflicts(), "{predicted}");
    assert_eq!(
        after(&predicted, 0, "Configuration", "milan", "status.remote.cidr.pod[0]"),
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
        let change = change(&predicted, place, kind, name).expect("a change");
        assert_eq!(change.action, Action::Create, "{kind} {name}");
    }
    let client = change(&predicted, 0, "GatewayClient", "milan").expect("it");
    let address = client.fields.iter().find(|field| field.path == "spec.endpoint.addresses");
    assert!(address.expect("an address").known_later);
    let text = predicted.to_string();
    assert!(
        text.starts_with("(local) cluster rome\n+ Configuration liqo-tenant-milan/milan\n"),
        "{text}"
    );
    assert!(
        text.ends_with("to delete; 0 conflicts.\n") && text.contains("(known later)"),
        "{text}"
    );

    let operators = [Ipam::start(&world.local), Ipam::start(&world.remote)];
    initialize(&pair_of(world), report.session()).await.expect("both know of each other");
    for (place, context) in [(0, &audited.local), (1, &audited.remote)] {
        settled(context, &Proposal::Apply { objects: Vec::new() }, &report).await;
        let cluster = if place == 0 { &world.local } else { &world.remote };
        assert_true(&predicted, place, cluster).await;
    }
    let again = plan_connect(&audited, &wanted, None, report.session()).await.expect("a plan");
    assert!(change(&again, 0, "Configuration", "milan").is_none(), "{again}");

    disconnection(world, &audited, &report).await;
    initialize(&pair_of(world), report.session()).await.expect("both know of each other");
    for context in [&audited.local, &audited.remote] {
        settled(context, &Proposal::Apply { objects: Vec::new() }, &report).await;
    }
    another_prefix(world, &audited, &report).await;
    drop(operators);
}

/// Exactly the predicted objects are deleted: first gateways, then the prefixes as well.
async fn disconnection(world: &World, audited: &Pair, report: &RecordedReport) {
    gateways(world).await;
    let before = world.content().await;

    let predicted = plan_disconnect(audited, report.session()).await.expect("a plan");
    assert_eq!(world.content().await, before, "a plan writes");
    assert!(predicted.has_changes() && !predicted.has_conflicts(), "{predicted}");
    assert!(change(&predicted, 0, "Secret", "gw-of-another").is_none(), "{predicted}");
    assert!(change(&predicted, 0, "Secret", "gw-milan").expect("it").fields.is_empty());
    for (place, kind, name) in [(0, "GatewayClient", "milan-1"), (1, "GatewayServer", "rome-1")] {
        let gone = change(&predicted, place, kind, name).expect("each gateway");
        assert_eq!(gone.action, Action::Delete);
    }
    let seen_by_few = ClusterContext {
        client: world.local.server.client_with("liqo", &without_secrets()).await,
        ..contact_of(&world.local, Side::Local)
    };
    let pair = Pair { local: seen_by_few, ..audited.clone() };
    let in_part = plan_disconnect(&pair, report.session()).await.expect("a plan");
    assert!(change(&in_part, 0, "Secret", "gw-milan").is_none(), "{in_part}");
    let note = "secrets may not be listed: those of the gateways would be gone as well";
    assert_eq!(in_part.clusters[0].notes[0], note);
    disconnect(&pair_of(world), true, report.session()).await.expect("parted");
    assert_gone(world, &before, &predicted).await;
    let again = plan_disconnect(audited, report.session()).await.expect("a plan");
    assert_eq!(again.to_string(), "No changes.\n");

    gateways(world).await;
    let before = world.content().await;
    let predicted = plan_reset(audited, None, report.session()).await.expect("a plan");
    assert_eq!(world.content().await, before, "a plan writes");
    let names = |place: usize| {
        let of_configuration = change(&predicted, place, "Configuration", ["milan", "rome"][place]);
        let fields = &of_configuration.expect("it").fields;
        let names = fields.iter().filter(|field| field.path.starts_with("status.remote.cidr."));
        names.map(|field| field.before.clone().expect("a name")).collect::<Vec<_>>()
    };
    for (place, cluster) in [&world.local, &world.remote].into_iter().enumerate() {
        let mut notes = predicted.clusters[place].notes.iter();
        let note = notes.find(|note| note.starts_with("IPAM gets back 10."));
        let note = note.unwrap_or_else(|| panic!("{predicted}"));
        for name in names(place) {
            assert!(note.contains(name.as_str().expect("a prefix")), "{name}: {note}");
        }
        assert!(cluster.networks().await > INSTALLED, "names were given");
    }
    reset(&pair_of(world), true, report.session()).await.expect("forgotten");
    assert_gone(world, &before, &predicted).await;
    for (place, context) in [(0, &audited.local), (1, &audited.remote)] {
        settled(context, &Proposal::Apply { objects: Vec::new() }, report).await;
        let cluster = if place == 0 { &world.local } else { &world.remote };
        assert_true(&predicted, place, cluster).await;
        assert_eq!(cluster.networks().await, INSTALLED);
    }
    let again = plan_reset(audited, None, report.session()).await.expect("a plan");
    assert_eq!(again.to_string(), "No changes.\n");
}

/// The number of prefixes of the installation.
const INSTALLED: usize = 4;

/// Two gateways on both sides, each with some of the objects that operators make, and a Secret that they share.
async fn gateways(world: &World) {
    for index in 0..2 {
        let name = |id: &str| if index == 0 { id.to_owned() } else { format!("{id}-{index}") };
        let (client_name, server_name) = (name("milan"), name("rome"));
        let index = index.to_string();
        let labels =
            |id: &str| json!({"liqo.io/remote-cluster-id": id, "strait.io/gateway-index": index});
        let endpoint = json!({"addresses": ["172.18.0.3"], "port": 30742});
        let client = json!({
            "metadata": {"labels": labels("milan")}, "spec": {"endpoint": endpoint, "mtu": 1340},
        });
        world.local.put::<GatewayClient>("liqo-tenant-milan", &client_name, client).await;
        let server = json!({
            "metadata": {"labels": labels("rome")},
            "spec": {"endpoint": {"port": 51840, "serviceType": "NodePort"}, "mtu": 1340},
        });
        world.remote.put::<GatewayServer>("liqo-tenant-rome", &server_name, server).await;

        let client = world.local.api::<GatewayClient>("liqo-tenant-milan").get(&client_name).await;
        belongings(&world.local, &client.expect("a client"), "milan").await;
        let server = world.remote.api::<GatewayServer>("liqo-tenant-rome").get(&server_name).await;
        belongings(&world.remote, &server.expect("a server"), "rome").await;
    }
    let another = json!({"data": {"privateKey": ""}});
    world.local.put::<Secret>("liqo-tenant-milan", "gw-of-another", another).await;
}

async fn belongings(cluster: &Cluster, gateway: &impl Resource<DynamicType = ()>, id: &str) {
    let namespace = format!("liqo-tenant-{id}");
    let metadata = json!({
        "labels": {"liqo.io/remote-cluster-id": id}, "ownerReferences": [gateway.owner_ref(&())],
    });
    let name = format!("gw-{}", gateway.name_any());
    cluster.put::<Secret>(&namespace, &name, json!({"metadata": metadata})).await;
    let connection = json!({"type": "Server", "gatewayRef": {"name": name}});
    let connection = json!({"metadata": metadata, "spec": connection});
    cluster.put::<Connection>(&namespace, &name, connection).await;
    let service = json!({"metadata": metadata, "spec": {"ports": [{"port": 51840}]}});
    cluster.put::<Service>(&namespace, &name, service).await;
    let key = json!({"metadata": metadata, "spec": {"publicKey": "AAAA"}});
    cluster.put::<PublicKey>(&namespace, &gateway.name_any(), key).await;
}

/// The objects that existed `before` and are gone are those that the plan deletes, of all that `content` has.
async fn assert_gone(world: &World, before: &[String], plan: &Plan) {
    // Kind, namespace and name.
    let known = |line: &String| line.rsplit_once(' ').expect("a version").0.to_owned();
    let before: BTreeSet<_> = before.iter().map(known).collect();
    let changes = plan.clusters.iter().flat_map(|cluster| &cluster.changes);
    let predicted: BTreeSet<_> = changes
        .filter(|change| change.action == Action::Delete && change.kind != "Network")
        .map(|Change { kind, namespace, name, .. }| {
            format!("{kind} {}/{name}", namespace.as_deref().unwrap_or_default())
        })
        .collect();

    let gone = async || {
        let after: BTreeSet<_> = world.content().await.iter().map(known).collect();
        before.difference(&after).cloned().collect::<BTreeSet<_>>()
    };
    // The garbage collector works asynchronously.
    for _ in 0..100 {
        if gone().await == predicted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(gone().await, predicted);
}

/// Remote pods move: another local prefix is allocated, as predicted.
async fn another_prefix(world: &World, audited: &Pair, report: &RecordedReport) {
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
    let predicted = plan(&audited.local, &proposal, None, report.session()).await.expect("a plan");
    let gone = "milan-pod-10-244-0-0-16";
    assert_eq!(change(&predicted, 0, "Network", gone).expect("it").action, Action::Delete);

    let api = world.local.api::<Configuration>(namespace);
    let parameters = PatchParams::apply("stand-in").force();
    api.patch(name, &parameters, &Patch::Apply(&object)).await.expect("a Configuration");
    settled(&audited.local, &proposal, report).await;
    assert_true(&predicted, 0, &world.local).await;

    // The prefixes of the installation are taken by then, and not allocated again.
    let allocated = after(&predicted, 0, "Configuration", name, "status.remote.cidr.pod[0]");
    let cidr = allocated.as_str().expect("a prefix").parse().expect("a prefix");
    let proposal = Proposal::Network { name: "external-cidr".to_owned(), cidr };
    let predicted = plan(&audited.local, &proposal, None, report.session()).await.expect("a plan");
    let change = change(&predicted, 0, "Network", "external-cidr").expect("a change");
    assert_eq!(change.action, Action::Replace);
    let cidr = change.fields.iter().find(|field| field.path == "status.cidr").expect("a field");
    assert_ne!(cidr.after.as_ref(), Some(allocated), "that is allocated");
    assert!(predicted.clusters[0].notes.iter().any(|note| note.contains("cluster milan knows")));

    let nothing =
        Proposal::Network { name: "moon".to_owned(), cidr: "10.9.0.0/16".parse().expect("one") };
    let error =
        plan(&audited.local, &nothing, None, report.session()).await.expect_err("no Network");
    assert!(error.is_usage() && error.to_string().contains("\"moon\""), "{error}");
    for (api_version, kind) in [("v1", "Pod"), ("config.openshift.io/v1", "Network")] {
        let metadata = json!({"name": "pod-cidr", "namespace": "liqo"});
        let wrong = json!({
            "apiVersion": api_version, "kind": kind, "metadata": metadata,
            "spec": {"cidr": "10.9.0.0/16"},
        });
        let wrong = Proposal::Apply { objects: vec![wrong] };
        let error =
            plan(&audited.local, &wrong, None, report.session()).await.expect_err("none of ours");
        let says = format!("(local) {kind} of {api_version} is none of Network and IP of ");
        assert!(error.is_usage() && error.to_string().starts_with(&says), "{error}");
    }
    let immutable = json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
        "metadata": {"name": "pod-cidr", "namespace": "liqo"}, "spec": {"cidr": "10.9.0.0/16"},
    });
    let immutable = Proposal::Apply { objects: vec![immutable] };
    let predicted = plan(&audited.local, &immutable, None, report.session()).await.expect("a plan");
    assert_eq!(predicted.clusters[0].conflicts[0].reason, "FieldImmutable");
    let missing = ["one", "two"].map(|name| {
        json!({
            "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
            "metadata": {"name": name, "namespace": "missing"}, "spec": {"cidr": "10.9.0.0/16"},
        })
    });
    let missing = Proposal::Apply { objects: missing.to_vec() };
    let predicted = plan(&audited.local, &missing, None, report.session()).await.expect("a plan");
    let [conflict] = &predicted.clusters[0].conflicts[..] else { panic!("{predicted}") };
    assert_eq!((conflict.reason.as_str(), conflict.name.as_str()), ("NamespaceMissing", "missing"));
    // There is no operator here, so its pools are not known.
    let notes = &predicted.clusters[0].notes;
    assert!(notes.iter().any(|note| note.starts_with("no operator of Strait is in ")), "{notes:?}");

    // Restores the former state.
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
