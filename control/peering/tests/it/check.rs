//! `check`, with an account that may only read.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use strait_api::{GatewayServer, PublicKey};
use strait_control_lab::peering::{Work, World};
use strait_peering::{
    Action, ClusterContext, Finding, Findings, Pair, Severity, Side, check, check_pair, connect,
    plan_connect,
};

use super::plan::{Seen, audit, change, reader};
use super::world::{RecordedReport, contact_of, desired, pair_of};

/// Reports the problems of joined clusters, and no more once they are solved.
pub(crate) async fn problems_are_found(world: &World) {
    let report = RecordedReport::default();
    let audited = audit(world, "auditor").await;
    world.set_work(Work::All).await;
    connect(&pair_of(world), &desired(), report.session()).await.expect("joined");

    let found =
        check_pair([&audited.local, &audited.remote], report.session()).await.expect("findings");
    // There is no operator here: stand-ins do its work.
    assert!(has(&found, Side::Local, "Namespace liqo", "OperatorMissing"), "{found}");
    assert!(!found.findings.iter().any(|finding| finding.reason == "MTUDiffers"), "{found}");
    assert!(!found.findings.iter().any(|finding| finding.reason == "KeyDiffers"), "{found}");

    a_key_of_no_gateway_would_be_replaced(world, &audited, &report).await;
    let servers = world.remote.api::<GatewayServer>("liqo-tenant-rome");
    let patch = Patch::Merge(json!({"spec": {"mtu": 1400}}));
    servers.patch("rome", &PatchParams::default(), &patch).await.expect("a server");
    let found =
        check_pair([&audited.local, &audited.remote], report.session()).await.expect("findings");
    assert!(
        has(&found, Side::Local, "GatewayClient liqo-tenant-milan/milan", "MTUDiffers"),
        "{found}"
    );
    let text = found.to_string();
    assert!(
        text.contains("error    (local) GatewayClient liqo-tenant-milan/milan: MTUDiffers: "),
        "{text}"
    );

    the_operator_may_do_what_it_must(world, &audited.local, &report).await;
    hidden_objects_are_not_reported_missing(world, &report).await;
    another_cluster_than_was_typed_is_refused(world, &report).await;
}

/// As far as the account may read keys.
async fn a_key_of_no_gateway_would_be_replaced(
    world: &World,
    audited: &Pair,
    report: &RecordedReport,
) {
    let (kind, name) = ("PublicKey", "milan");
    let as_it_is = plan_connect(audited, &desired(), None, report.session()).await.expect("a plan");
    assert!(change(&as_it_is, 0, kind, name).is_none(), "{as_it_is}");

    let keys = world.local.api::<PublicKey>("liqo-tenant-milan");
    let right = serde_json::to_value(keys.get(name).await.expect("a key").spec).expect("a spec");
    let wrong = json!({"publicKey": ByteString(vec![9; 32])});
    let parameters = PatchParams::default();
    let patch = Patch::Merge(json!({"spec": wrong}));
    keys.patch(name, &parameters, &patch).await.expect("a key");
    let predicted =
        plan_connect(audited, &desired(), None, report.session()).await.expect("a plan");
    let replaced = change(&predicted, 0, kind, name).expect("it would be replaced");
    let [field] = &replaced.fields[..] else { panic!("{predicted}") };
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
    let remote = ClusterContext { client, ..audited.remote.clone() };
    let half = Pair { remote, local: audited.local.clone() };
    let predicted = plan_connect(&half, &desired(), None, report.session()).await.expect("a plan");
    assert!(change(&predicted, 0, kind, name).is_none(), "{predicted}");
    let notes = &predicted.clusters[0].notes;
    assert!(
        notes.iter().any(|note| note.starts_with("the Secrets of cluster milan ")),
        "{notes:?}"
    );

    let patch = Patch::Merge(json!({"spec": right}));
    keys.patch(name, &parameters, &patch).await.expect("as it was");
}

/// An account that may read a part gets the findings on that part.
async fn hidden_objects_are_not_reported_missing(world: &World, report: &RecordedReport) {
    let admin = contact_of(&world.local, Side::Only);
    let found = check(&admin, report.session()).await.expect("findings");
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
    let half = ClusterContext { client: half, ..admin.clone() };
    let found_by_half = check(&half, report.session()).await.expect("findings");
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
        assert!(text.contains(&format!("it may not {may_not}, so ")), "{text}");
    }

    let client =
        world.local.server.client_with("liqo", &strait_control_lab::roles::no_rights()).await;
    let unprivileged = ClusterContext { client, ..admin };
    let found = check(&unprivileged, report.session()).await.expect("findings");
    assert!(found.findings[1..].iter().all(|finding| finding.reason == "NotAllowed"), "{found}");
    assert!(has(&found, Side::Only, "your account", "NothingSeen"), "{found}");
    assert_eq!((found.count(Severity::Error), found_by_half.count(Severity::Error) > 0), (1, true));
    assert!(found.to_string().contains("it may not list configmaps, "), "{found}");
}

/// As by every other verb.
async fn another_cluster_than_was_typed_is_refused(world: &World, report: &RecordedReport) {
    for (typed, says) in [
        ("paris", "(local) this is cluster \"rome\", not \"paris\""),
        ("Rome", "(local) \"Rome\" is no cluster id"),
    ] {
        let cluster_id = Some(typed.to_owned());
        let context = ClusterContext { cluster_id, ..contact_of(&world.local, Side::Local) };
        let error = check(&context, report.session()).await.expect_err("it is rome");
        assert!(error.is_usage() && error.to_string().starts_with(says), "{error}");
    }

    let twice = [Side::Local, Side::Remote].map(|side| contact_of(&world.local, side));
    let error = check_pair(twice.each_ref(), report.session()).await.expect_err("one cluster");
    assert!(error.is_usage(), "{error}");
    assert!(error.to_string().starts_with("both sides are cluster \"rome\""), "{error}");
}

/// As the API server answers, before its roles are bound and after.
async fn the_operator_may_do_what_it_must(
    world: &World,
    auditor: &ClusterContext,
    report: &RecordedReport,
) {
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

    let found = check(&admin, report.session()).await.expect("findings");
    assert!(has(&found, Side::Only, account, "RightsMissing"), "{found}");
    let text = found.to_string();
    assert!(text.contains("create configmaps, ") && text.contains("patch networks"), "{text}");
    assert!(has(&found, Side::Only, "Lease liqo/strait-operator", "NobodyLeads"), "{found}");
    let found = check(auditor, report.session()).await.expect("findings");
    assert!(has(&found, Side::Local, "your account", "NotAllowed"), "{found}");

    world.local.server.kubeconfig_of_operator().await;
    let is_bound = async {
        while has(
            &check(&admin, report.session()).await.expect("findings"),
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
