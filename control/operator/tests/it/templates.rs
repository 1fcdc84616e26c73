//! The objects that templates render for gateways.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{GatewayServer, WgGatewayServer};
use strait_control_lab::create;
use strait_control_lab::tenant::NAMESPACE;
use tokio::time::{Instant, sleep};

use crate::world::{NETWORKING, PATIENCE, World, addresses, object, server};

#[tokio::test]
async fn missing_objects_are_reported_and_awaited() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    create(world.api(), &server("strait-server")).await;

    let note = world.event_note("TemplateMissing").await;
    assert_eq!(
        note,
        "WgGatewayServerTemplate liqo/strait-server is not there: make it, or name another"
    );
    let own = json!({"spec": {"secretRef": {"name": "own-keys"}}});
    let servers = world.api::<GatewayServer>();
    servers.patch("milan", &PatchParams::default(), &Patch::Merge(&own)).await.expect("a change");
    world.apply(include_str!("../../../../deploy/liqo/server.yaml")).await;
    // On the user's object, though the template has made another object from it.
    let note = world.event_note_of("GatewayServer", "MissingSecretRef").await;
    assert_eq!(
        note,
        "spec.secretRef names secret \"own-keys\", which is not there: make it, or name none"
    );

    let secret = |public: usize| {
        object::<Secret>(json!({
            "metadata": {"name": "own-keys"},
            "stringData": {"privateKey": "p".repeat(32), "publicKey": "q".repeat(public)},
        }))
    };
    create(world.api(), &secret(31)).await;
    let note = world.event_note("KeysSecretCheckFailed").await;
    assert!(
        note.contains("needs publicKey with the 32 raw bytes of a key, has 31 bytes"),
        "{note}"
    );
    let right = Patch::Merge(json!({"stringData": {"publicKey": "q".repeat(32)}}));
    world.api::<Secret>().patch("own-keys", &PatchParams::default(), &right).await.expect("a key");

    let made = world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let secret = made.status.and_then(|status| status.secret_ref?.name);
    assert_eq!(secret.as_deref(), Some("own-keys"));
    assert_eq!(world.event_note("Reconciled").await, "the problem is solved");
    let labelled: Secret = world.api().get("own-keys").await.expect("it");
    assert_eq!(labelled.labels()[REMOTE_CLUSTER_ID], "milan");
}

/// Two kinds of others: one of templates, and one of gateways.
async fn install_other_kinds(world: &World) {
    for (kind, plural, labels) in [
        ("TubeTemplate", "tubetemplates", json!({"networking.liqo.io/gatewaytemplate": "true"})),
        ("Tube", "tubes", json!({})),
    ] {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.com"), "labels": labels},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
                }],
            },
        });
        let crd: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
            object(crd);
        create(Api::all(world.admin.clone()), &crd).await;
        kube::runtime::wait::await_condition(
            Api::all(world.admin.clone()),
            &crd.name_any(),
            kube::runtime::conditions::is_crd_established(),
        )
        .await
        .expect("it is served");
    }
}

#[tokio::test]
async fn labelled_templates_of_other_kinds_are_used() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;

    let refer = |kind: &str, name: &str| {
        Patch::Merge(json!({"spec": {"serverTemplateRef": {
            "apiVersion": "example.com/v1", "kind": kind, "name": name, "namespace": "liqo",
        }}}))
    };
    let servers = world.api::<GatewayServer>();
    let parameters = PatchParams::default();
    servers.patch("milan", &parameters, &refer("Tube", "t")).await.expect("a change");
    let note = world.event_note("TemplateMissing").await;
    assert!(
        note.contains("Tube of example.com/v1 is no kind of gateway template: label its"),
        "{note}"
    );
    // The former object stays.
    world.api::<WgGatewayServer>().get("milan").await.expect("it");

    install_other_kinds(&world).await;
    let allowed = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "tubes"},
        "rules": [{"apiGroups": ["example.com"], "resources": ["*"], "verbs": ["*"]}],
    });
    let allowed: k8s_openapi::api::rbac::v1::ClusterRole = object(allowed);
    create(Api::all(world.admin.clone()), &allowed).await;
    let bound = json!({
        "metadata": {"name": "tubes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tubes"},
        "subjects": [{"kind": "ServiceAccount", "name": "strait-operator", "namespace": "liqo"}],
    });
    create(Api::all(world.admin.clone()), &object::<ClusterRoleBinding>(bound)).await;
    world
        .apply(
            r#"{apiVersion: example.com/v1, kind: TubeTemplate, metadata: {name: t, namespace: liqo}, spec: {
                objectKind: {apiVersion: example.com/v1, kind: Tube},
                template: {metadata: {name: "tube-{{ .Name }}"}, spec: {width: "{{ .Spec.MTU }}"}}}}"#,
        )
        .await;
    servers.patch("milan", &parameters, &refer("TubeTemplate", "t")).await.expect("a change");

    let tubes = world.of_kind("example.com/v1", "Tube", NAMESPACE);
    let child =
        |server: &GatewayServer| server.status.clone().and_then(|status| status.server_ref?.kind);
    world.until("milan", |server: &GatewayServer| child(server).as_deref() == Some("Tube")).await;
    let tube = tubes.get("tube-milan").await.expect("a tube");
    assert_eq!(tube.data["spec"]["width"], 1340);
    // The former one is being deleted, or is gone.
    let start = Instant::now();
    while world.api::<WgGatewayServer>().get_opt("milan").await.expect("an answer").is_some() {
        assert!(start.elapsed() < PATIENCE, "the former gateway stays");
        sleep(Duration::from_millis(20)).await;
    }

    // The status of another kind is passed on as well.
    let status = json!({"status": {"endpoint": {"addresses": ["203.0.113.7"], "port": 7, "protocol": "UDP"}}});
    tubes.patch_status("tube-milan", &parameters, &Patch::Merge(&status)).await.expect("a status");
    world.until("milan", |server: &GatewayServer| addresses(server) == ["203.0.113.7"]).await;
    // And a changed template changes the object.
    let wider = json!({"spec": {"template": {"spec": {"width": "{{ .Spec.Endpoint.Port }}"}}}});
    let templates = world.of_kind("example.com/v1", "TubeTemplate", "liqo");
    templates.patch("t", &parameters, &Patch::Merge(&wider)).await.expect("a template");
    let start = Instant::now();
    while tubes.get("tube-milan").await.expect("a tube").data["spec"]["width"] != 51840 {
        assert!(start.elapsed() < PATIENCE, "the change is not seen");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_changed_template_replaces_its_objects() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let before: Deployment = world.api().get("gw-milan").await.expect("a deployment");
    let templates = world.of_kind(NETWORKING, "WgGatewayServerTemplate", "liqo");
    let change = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": {"template": {"spec": spec}}}));
        templates
            .patch("strait-server", &PatchParams::default(), &patch)
            .await
            .expect("a template");
    };

    // Selectors are immutable, so there is another deployment.
    let labels = json!({"example.com/zone": "north"});
    change(json!({"deployment": {"spec": {
        "selector": {"matchLabels": labels, "matchExpressions": []}, "template": {"metadata": {"labels": labels}},
    }}}))
    .await;
    let is_another = |found: &Deployment| found.uid() != before.uid();
    let after = world.until("gw-milan", is_another).await;
    let selected = after.spec.selector.match_labels.clone().expect("labels");
    assert_eq!(selected["example.com/zone"], "north");
    sleep(Duration::from_secs(1)).await;
    let later: Deployment = world.api().get("gw-milan").await.expect("a deployment");
    assert_eq!(later.uid(), after.uid(), "empty values in a selector make no difference");

    // Metrics are switched on and off.
    let port = json!([{"name": "metrics", "port": 8084}]);
    let metrics = json!({
        "enabled": true,
        "service": {"metadata": {"labels": {"team": "net"}}, "spec": {"ports": port}},
        "serviceMonitor": {"spec": {"endpoints": [{"port": "metrics"}]}},
    });
    change(json!({"metrics": metrics})).await;
    let service = world.until("milan-metrics", |_: &Service| true).await;
    assert_eq!(service.labels()["team"], "net");
    let note = world.event_note("MetricsEnforced").await;
    assert!(note.contains("install the Prometheus operator, or ask for none"), "{note}");
    change(json!({"metrics": {"enabled": false}})).await;
    let services = world.api::<Service>();
    let start = Instant::now();
    while services.get_opt("milan-metrics").await.expect("an answer").is_some() {
        assert!(start.elapsed() < PATIENCE, "the service stays");
        sleep(Duration::from_millis(20)).await;
    }
    world.api::<Service>().get("gw-milan").await.expect("the other one");
}
