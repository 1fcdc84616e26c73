//! The operator against a real API server, with the role that it is given. Deployments get their pods from a
//! stand-in for the kubelet.

#![expect(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test may panic, and says what it saw"
)]

// Under the name that it has in the other crates, whose tests share the harness.
extern crate strait_control as control;

#[path = "operator/bindings.rs"]
mod bindings;
#[path = "operator/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use control::api::{GatewayClient, GatewayServer, IP, WgGatewayClient, WgGatewayServer};
use control::objects::REMOTE_CLUSTER_ID;
use control::operator::cluster_id;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};
use strait_control_lab::create;
use strait_control_lab::kubelet::{self, NODE};
use strait_control_lab::tenant::NAMESPACE;
use tokio::time::{Instant, sleep};
use world::{NETWORKING, PATIENCE, World, addresses, object, server};

#[tokio::test]
async fn a_gateway_is_made_kept_found_and_taken_away() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    let start = Instant::now();
    world.ask_for_server().await;

    // All of it is there, and users read where.
    let made = world.until("milan", |server| !addresses(server).is_empty()).await;
    eprintln!("a gateway after {:?}", start.elapsed());
    let status = made.status.clone().expect("a status");
    assert_eq!(addresses(&made), ["172.18.0.3"]);
    assert_eq!(status.endpoint.and_then(|endpoint| endpoint.port), Some(30742));
    let secret = status.secret_ref.expect("a secret");
    assert_eq!(
        (secret.name.as_deref(), secret.namespace.as_deref()),
        (Some("gw-milan"), Some(NAMESPACE))
    );
    let place = status.internal_endpoint.expect("a place");
    assert_eq!((place.ip.as_deref(), place.node.as_deref()), (Some("10.244.1.9"), Some(NODE)));
    let child = status.server_ref.expect("a child");
    assert_eq!(
        (child.kind.as_deref(), child.name.as_deref()),
        (Some("WgGatewayServer"), Some("milan"))
    );

    let keys: Secret = world.api().get("gw-milan").await.expect("keys");
    let data = keys.data.clone().expect("data");
    assert_eq!((data["privateKey"].0.len(), data["publicKey"].0.len()), (32, 32));
    assert_eq!(keys.labels()["networking.liqo.io/gateway-resource"], "true");
    assert_eq!(keys.owner_references()[0].kind, "GatewayServer");
    assert_eq!(Some(&keys.owner_references()[0].uid), made.uid().as_ref());
    let deployment: Deployment = world.api().get("gw-milan").await.expect("a deployment");
    assert_eq!(deployment.owner_references()[0].kind, "WgGatewayServer");
    let pod = deployment.spec.clone().template.spec.expect("a pod");
    let volumes = pod.volumes.expect("volumes");
    let mounted = volumes.iter().find(|volume| volume.name == "wireguard-config").expect("one");
    let mounted = mounted.secret.as_ref().and_then(|secret| secret.secret_name.as_deref());
    assert_eq!(mounted, Some("gw-milan"));
    let service: Service = world.api().get("gw-milan").await.expect("a service");
    let port = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()?.first()).expect("a port");
    assert_eq!((port.port, port.node_port), (51840, Some(30742)));
    world.api::<ServiceAccount>().get("milan").await.expect("an account");
    let bindings: Api<ClusterRoleBinding> = Api::all(world.admin.clone());
    let binding = format!("liqo-gateway-{NAMESPACE}-milan");
    let bound = bindings.get(&binding).await.expect("a binding");
    assert_eq!(bound.labels()["networking.liqo.io/gateway-namespace"], NAMESPACE);

    // What others destroy or change is mended; what is right is not written again.
    world.api::<Deployment>().delete("gw-milan", &DeleteParams::background()).await.expect("gone");
    let again = world.until::<Deployment>("gw-milan", |_| true).await;
    assert_ne!(again.uid(), deployment.uid());
    let other = json!({"spec": {"type": "ClusterIP", "ports": null}});
    let _ = world
        .api::<Service>()
        .patch("gw-milan", &PatchParams::default(), &Patch::Merge(&other))
        .await;
    let type_ = |service: &Service| service.spec.clone().and_then(|spec| spec.type_);
    world
        .until("gw-milan", |service: &Service| type_(service).as_deref() == Some("NodePort"))
        .await;
    world.until("milan", |server: &GatewayServer| addresses(server) == ["172.18.0.3"]).await;

    // A node that moves is followed; without a pod the address stays known.
    kubelet::move_node(&world.admin, "172.18.0.4").await;
    world.until("milan", |server: &GatewayServer| addresses(server) == ["172.18.0.4"]).await;

    // Another wish reaches the service.
    let wish = json!({"spec": {"endpoint": {"nodePort": 30800}}});
    let servers = world.api::<GatewayServer>();
    servers.patch("milan", &PatchParams::default(), &Patch::Merge(&wish)).await.expect("a wish");
    let port =
        |server: &GatewayServer| server.status.clone().and_then(|status| status.endpoint?.port);
    let asked = world.until("milan", |server: &GatewayServer| port(server) == Some(30800)).await;

    // What was made says of which generation of the wish.
    let generation = asked.metadata.generation.expect("a generation").to_string();
    let deployment: Deployment = world.api().get("gw-milan").await.expect("a deployment");
    assert_eq!(deployment.annotations()["strait.io/generation"], generation);
    let service: Service = world.api().get("gw-milan").await.expect("a service");
    assert_eq!(service.annotations()["strait.io/generation"], generation);

    // With the gateway goes its binding, which nothing can own.
    world.api::<WgGatewayServer>().delete("milan", &DeleteParams::default()).await.expect("gone");
    let start = Instant::now();
    while bindings.get(&binding).await.is_ok_and(|found| found.uid() == bound.uid()) {
        assert!(start.elapsed() < PATIENCE, "the binding stays");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_condition_of_a_gateway_goes_with_it() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "Because", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        })
    };
    let said = json!({
        "apiVersion": NETWORKING, "kind": "Configuration",
        "metadata": {"name": "milan", "labels": {REMOTE_CLUSTER_ID: "milan"}},
        "status": {"conditions": [condition("strait.io/InForce"), condition("example.com/Other")]},
    });
    let configurations = world.of_kind(NETWORKING, "Configuration", NAMESPACE);
    let parameters = PatchParams::apply("strait-gateway").force();
    configurations.patch("milan", &parameters, &Patch::Apply(&said)).await.expect("it");
    configurations.patch_status("milan", &parameters, &Patch::Apply(&said)).await.expect("it");
    let types = async || -> Vec<String> {
        let found = configurations.get("milan").await.expect("it");
        let conditions = found.data["status"]["conditions"].as_array().cloned();
        let type_ = |condition: &Value| condition["type"].as_str().map(str::to_owned);
        conditions.iter().flatten().filter_map(type_).collect()
    };
    let ours = "strait.io/InForce".to_owned();
    sleep(Duration::from_secs(1)).await;
    assert!(types().await.contains(&ours), "its gateway is there");

    let now = DeleteParams::background();
    world.api::<GatewayServer>().delete("milan", &now).await.expect("gone");
    world.api::<WgGatewayServer>().delete("milan", &now).await.expect("going");
    sleep(Duration::from_secs(1)).await;
    assert!(types().await.contains(&ours), "a pod that runs may still write it");

    world.api::<Deployment>().delete("gw-milan", &now).await.expect("gone");
    let start = Instant::now();
    while types().await.contains(&ours) {
        assert!(start.elapsed() < PATIENCE, "the condition stays");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(types().await, ["example.com/Other"]);

    // What a gateway of which the operator knows nothing writes again is left to it.
    sleep(Duration::from_secs(1)).await;
    configurations.patch_status("milan", &parameters, &Patch::Apply(&said)).await.expect("it");
    sleep(Duration::from_secs(1)).await;
    assert!(types().await.contains(&ours), "it would be written again without end");
}

/// Where that is comes from the one that is going, with whatever is in front of it.
#[tokio::test]
async fn a_gateway_says_nothing_of_one_of_its_name_that_is_going() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    let before = world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;

    let hold = json!({"metadata": {"finalizers": ["example.com/archive"]}});
    let cloud = json!({"metadata": {"finalizers": ["example.com/balancer"]}});
    let merge = |wanted| (PatchParams::default(), Patch::Merge(wanted));
    let (parameters, hold) = merge(hold);
    let gateways = world.api::<WgGatewayServer>();
    gateways.patch("milan", &parameters, &hold).await.expect("held");
    let (parameters, cloud) = merge(cloud);
    let services = world.api::<Service>();
    services.patch("gw-milan", &parameters, &cloud).await.expect("held");
    let now = DeleteParams::default();
    world.api::<GatewayServer>().delete("milan", &now).await.expect("gone");
    gateways.delete("milan", &now).await.expect("going");
    services.delete("gw-milan", &now).await.expect("going");

    create(world.api(), &server("strait-server")).await;
    sleep(Duration::from_secs(1)).await;
    let made: GatewayServer = world.api().get("milan").await.expect("the new one");
    assert_ne!(made.uid(), before.uid());
    assert!(addresses(&made).is_empty(), "{:?}", made.status);

    let (parameters, free) = merge(json!({"metadata": {"finalizers": null}}));
    gateways.patch("milan", &parameters, &free).await.expect("free");
    let has_child = |server: &GatewayServer| {
        server.status.as_ref().is_some_and(|status| status.server_ref.is_some())
    };
    let made: GatewayServer = world.until("milan", has_child).await;
    sleep(Duration::from_secs(1)).await;
    assert!(addresses(&made).is_empty(), "of the service that is going: {:?}", made.status);

    let (parameters, free) = merge(json!({"metadata": {"finalizers": null}}));
    services.patch("gw-milan", &parameters, &free).await.expect("free");
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
}

#[tokio::test]
async fn a_gateway_goes_whoever_has_held_it_back() {
    let Some(mut world) = World::new().await else { return };
    // As of a copy that was put back: nobody who applies has ever owned the finalizers.
    let finalizers = ["networking.liqo.io/clusterrolebinding", "example.com/archive"];
    let held = json!({
        "metadata": {"name": "milan", "finalizers": finalizers},
        "spec": {"deployment": {}, "service": {}},
    });
    create(world.api(), &object::<WgGatewayServer>(held)).await;
    world.api::<WgGatewayServer>().delete("milan", &DeleteParams::default()).await.expect("going");

    world.start_operator();

    let rest = |server: &WgGatewayServer| server.finalizers() == ["example.com/archive"];
    world.until("milan", rest).await;
}

#[tokio::test]
async fn nothing_is_written_that_is_right_already() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.ask_for_server().await;
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    sleep(Duration::from_secs(1)).await;

    let before = world.versions().await;
    assert!(before.len() >= 6, "{before:?}");
    // Every gateway is looked at again by whoever takes over.
    world.tasks.pop().expect("an operator").abort();
    world.start_operator();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.versions().await, before);
}

impl World {
    /// The version of everything that the operator writes.
    async fn versions(&self) -> BTreeMap<String, Option<String>> {
        let mut versions = BTreeMap::new();
        for (group, kind) in [
            (NETWORKING, "GatewayServer"),
            (NETWORKING, "WgGatewayServer"),
            ("apps/v1", "Deployment"),
        ] {
            let all = self.of_kind(group, kind, NAMESPACE).list(&ListParams::default()).await;
            for object in all.expect("a list") {
                versions.insert(format!("{kind} {}", object.name_any()), object.resource_version());
            }
        }
        macro_rules! of {
            ($($kind:ty),*) => {$(
                for object in self.api::<$kind>().list(&ListParams::default()).await.expect("a list") {
                    let kind = <$kind as Resource>::kind(&());
                    versions.insert(format!("{kind} {}", object.name_any()), object.resource_version());
                }
            )*};
        }
        of!(Secret, Service, ServiceAccount);

        versions
    }
}

/// By the name that the operator gives it, and by that of the one that is there already; the reference to
/// the template is of an older document.
#[tokio::test]
async fn a_template_has_the_name_of_the_secret_in_use() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    let mut template: Value =
        serde_saphyr::from_str(include_str!("../../deploy/standalone/server.yaml")).expect("YAML");
    let made = &mut template["spec"]["template"];
    made["metadata"]["annotations"] = json!({"secret": "{{ .SecretName }}"});
    made["spec"]["?extraConfig"] = json!("{{ .Spec.ExtraConfig }}");
    world.apply(&template.to_string()).await;
    let mut asked = server("wireguard-server");
    let reference = asked.spec.server_template_ref.as_mut().expect("a reference");
    reference.api_version = Some("networking.liqo.io/v1alpha1".to_owned());
    create(world.api(), &asked).await;

    let names = |secret: &'static str| {
        move |gateway: &WgGatewayServer| {
            let named = gateway.spec.secret_ref.as_ref().and_then(|named| named.name.as_deref());
            let used = gateway
                .status
                .as_ref()
                .and_then(|status| status.secret_ref.as_ref()?.name.as_deref());
            named == Some(secret) && used == named && gateway.annotations()["secret"] == secret
        }
    };
    world.until("milan", names("gw-milan")).await;

    // Its keys are replaced by others, which the operator finds by their labels.
    let labels = json!({"networking.liqo.io/gateway-resource": "true", REMOTE_CLUSTER_ID: "milan"});
    let keys = json!({
        "metadata": {"name": "own-keys", "labels": labels},
        "stringData": {"privateKey": "p".repeat(32), "publicKey": "q".repeat(32)},
    });
    create(world.api(), &object::<Secret>(keys)).await;
    world.told_that("KeysSecretCheckFailed", "found multiple secrets").await;

    // The user names one of them, also the one that has the default name.
    let servers = world.api::<GatewayServer>();
    let name = async |secret: Value| {
        let named = Patch::Merge(json!({"spec": {"secretRef": secret}}));
        servers.patch("milan", &PatchParams::default(), &named).await.expect("a reference");
    };
    for secret in ["own-keys", "gw-milan"] {
        name(json!({"name": secret})).await;
        world.until("milan", names(secret)).await;
    }

    // Or leaves one.
    name(json!(null)).await;
    world.api::<Secret>().delete("gw-milan", &DeleteParams::default()).await.expect("gone");
    world.until("milan", names("own-keys")).await;
}

#[tokio::test]
async fn a_cluster_without_an_id_gets_one_that_stays() {
    let Some(world) = World::new().await else { return };
    let maps = Api::<ConfigMap>::namespaced(world.admin.clone(), "liqo");
    let ensure = async || cluster_id::ensure(world.operator.clone(), "liqo".to_owned()).await;
    let name = "liqo-clusterid-configmap";

    ensure().await;
    let made = maps.get(name).await.expect("it");
    let system = Api::<Namespace>::all(world.admin.clone()).get("kube-system").await.expect("it");
    assert_eq!(made.data.clone().expect("data")["CLUSTER_ID"], system.uid().expect("a UID"));
    assert_eq!(made.labels()["app.kubernetes.io/name"], "clusterid-configmap");
    assert_eq!(made.annotations()["strait.io/generated"], "true");
    let other = Patch::Merge(json!({"data": {"CLUSTER_ID": "rome"}}));
    let error = maps.patch(name, &PatchParams::default(), &other).await.expect_err("a refusal");
    assert!(error.to_string().contains("field is immutable"), "{error}");
    ensure().await;
    assert_eq!(maps.get(name).await.expect("it").resource_version(), made.resource_version());

    // One without an id is waited for to go.
    let deletion = DeleteParams::default();
    maps.delete(name, &deletion).await.expect("gone");
    let empty = json!({"metadata": {"name": name}, "data": {"CLUSTER_ID": ""}});
    create(maps.clone(), &object::<ConfigMap>(empty)).await;
    let removal = async {
        sleep(Duration::from_secs(1)).await;
        maps.delete(name, &deletion).await.expect("gone");
    };
    tokio::join!(ensure(), removal);
    assert_eq!(maps.get(name).await.expect("it").annotations()["strait.io/generated"], "true");

    // One that users name is theirs, and none is generated for those who know another one.
    maps.delete(name, &deletion).await.expect("gone");
    let own = json!({"metadata": {"name": "clusterid-configmap"}, "data": {"CLUSTER_ID": "rome"}});
    create(maps.clone(), &object::<ConfigMap>(own)).await;
    ensure().await;
    assert_eq!(maps.get_opt(name).await.expect("an answer"), None);
    maps.delete("clusterid-configmap", &deletion).await.expect("gone");
    create(world.api(), &server("strait-server")).await;
    ensure().await;
    assert_eq!(maps.get_opt(name).await.expect("an answer"), None);
}

#[tokio::test]
async fn what_is_missing_is_told_and_waited_for() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    create(world.api(), &server("strait-server")).await;

    let note = world.told("TemplateMissing").await;
    assert_eq!(
        note,
        "WgGatewayServerTemplate liqo/strait-server is not there: make it, or name another"
    );
    let own = json!({"spec": {"secretRef": {"name": "own-keys"}}});
    let servers = world.api::<GatewayServer>();
    servers.patch("milan", &PatchParams::default(), &Patch::Merge(&own)).await.expect("a wish");
    world.apply(include_str!("../../deploy/liqo/server.yaml")).await;
    // Of what the user has made, though the template has made something else of it.
    let note = world.told_of("GatewayServer", "MissingSecretRef").await;
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
    let note = world.told("KeysSecretCheckFailed").await;
    assert!(
        note.contains("needs publicKey with the 32 raw bytes of a key, has 31 bytes"),
        "{note}"
    );
    let right = Patch::Merge(json!({"stringData": {"publicKey": "q".repeat(32)}}));
    world.api::<Secret>().patch("own-keys", &PatchParams::default(), &right).await.expect("a key");

    let made = world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let secret = made.status.and_then(|status| status.secret_ref?.name);
    assert_eq!(secret.as_deref(), Some("own-keys"));
    assert_eq!(world.told("Reconciled").await, "nothing is in the way any more");
    let labelled: Secret = world.api().get("own-keys").await.expect("it");
    assert_eq!(labelled.labels()[REMOTE_CLUSTER_ID], "milan");
}

/// Two kinds of somebody else: one of templates, and one of gateways.
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
async fn templates_of_other_kinds_are_taken_if_they_are_marked_and_what_was_made_goes() {
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
    servers.patch("milan", &parameters, &refer("Tube", "t")).await.expect("a wish");
    let note = world.told("TemplateMissing").await;
    assert!(
        note.contains("Tube of example.com/v1 is no kind of gateway template: label its"),
        "{note}"
    );
    // What was made before stays.
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
    servers.patch("milan", &parameters, &refer("TubeTemplate", "t")).await.expect("a wish");

    let tubes = world.of_kind("example.com/v1", "Tube", NAMESPACE);
    let child =
        |server: &GatewayServer| server.status.clone().and_then(|status| status.server_ref?.kind);
    world.until("milan", |server: &GatewayServer| child(server).as_deref() == Some("Tube")).await;
    let tube = tubes.get("tube-milan").await.expect("a tube");
    assert_eq!(tube.data["spec"]["width"], 1340);
    // The former one is being deleted, or has gone.
    let start = Instant::now();
    while world.api::<WgGatewayServer>().get_opt("milan").await.expect("an answer").is_some() {
        assert!(start.elapsed() < PATIENCE, "the former gateway stays");
        sleep(Duration::from_millis(20)).await;
    }

    // What a kind of somebody else says is passed on as well.
    let said = json!({"status": {"endpoint": {"addresses": ["203.0.113.7"], "port": 7, "protocol": "UDP"}}});
    tubes.patch_status("tube-milan", &parameters, &Patch::Merge(&said)).await.expect("a status");
    world.until("milan", |server: &GatewayServer| addresses(server) == ["203.0.113.7"]).await;
    // And a template that changes makes another one.
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
async fn a_client_has_no_service_and_two_secrets_are_one_too_many() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.apply(include_str!("../../deploy/liqo/client.yaml")).await;
    for name in ["one", "two"] {
        let labels =
            json!({"networking.liqo.io/gateway-resource": "true", REMOTE_CLUSTER_ID: "milan"});
        let secret = json!({"metadata": {"name": name, "labels": labels}});
        create(world.api(), &object::<Secret>(secret)).await;
    }
    let client = json!({
        "metadata": {"name": "milan", "labels": {REMOTE_CLUSTER_ID: "milan"}},
        "spec": {
            "mtu": 1340,
            "endpoint": {"addresses": ["198.51.100.2"], "port": 30742, "protocol": "UDP"},
            "clientTemplateRef": {"name": "strait-client", "namespace": "liqo"},
        },
    });
    create(world.api(), &object::<GatewayClient>(client)).await;

    // Whoever has heard of one of them only may speak of that before.
    let note = world.told_that("KeysSecretCheckFailed", "found multiple secrets").await;
    assert!(note.ends_with("one, two: keep one, or name it in spec.secretRef"), "{note}");
    for name in ["one", "two"] {
        world.api::<Secret>().delete(name, &DeleteParams::default()).await.expect("gone");
    }
    let place =
        |client: &GatewayClient| client.status.clone().and_then(|status| status.internal_endpoint);
    let made = world.until("milan", |client: &GatewayClient| place(client).is_some()).await;
    assert_eq!(
        made.status.and_then(|status| status.client_ref?.kind).as_deref(),
        Some("WgGatewayClient")
    );
    let all = world.api::<Service>().list(&ListParams::default()).await.expect("a list");
    assert_eq!(all.items.len(), 0);
    world.api::<WgGatewayClient>().get("milan").await.expect("it");
    assert_eq!(world.api::<Pod>().list(&ListParams::default()).await.expect("pods").items.len(), 1);
}

#[tokio::test]
async fn a_template_that_changes_takes_with_it_what_it_made() {
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

    // What selects pods cannot be changed, so there is another deployment.
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
    assert_eq!(later.uid(), after.uid(), "what is empty in a selector makes no difference");

    // Metrics come and go.
    let port = json!([{"name": "metrics", "port": 8084}]);
    let metrics = json!({
        "enabled": true,
        "service": {"metadata": {"labels": {"team": "net"}}, "spec": {"ports": port}},
        "serviceMonitor": {"spec": {"endpoints": [{"port": "metrics"}]}},
    });
    change(json!({"metrics": metrics})).await;
    let service = world.until("milan-metrics", |_: &Service| true).await;
    assert_eq!(service.labels()["team"], "net");
    let note = world.told("MetricsEnforced").await;
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

#[tokio::test]
async fn an_address_has_a_service_in_front_of_it_as_long_as_that_is_asked_for() {
    let Some(mut world) = World::new().await else { return };
    let ip = |name: &str, template: Value| -> IP {
        object(json!({
            "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "IP", "metadata": {"name": name},
            "spec": {"ip": "192.0.2.7", "serviceTemplate": template},
        }))
    };
    let template = json!({
        "metadata": {"labels": {"team": "shop"}},
        "spec": {"ports": [{"port": 5432, "protocol": "TCP"}]},
    });
    let other = json!({"metadata": {"name": "taken"}, "spec": {"ports": [{"port": 1}]}});
    create(world.api(), &object::<Service>(other)).await;
    world.start_operator();
    create(world.api(), &ip("db", template.clone())).await;
    create(world.api(), &ip("taken", template)).await;

    let service = world.until::<Service>("db", |_| true).await;
    assert_eq!(service.labels().get("team").map(String::as_str), Some("shop"));
    let slice = world.until::<EndpointSlice>("db", |_| true).await;
    assert_eq!(slice.endpoints.expect("one")[0].addresses, ["192.0.2.7"]);
    assert_eq!(slice.ports.expect("one")[0].port, Some(5432));
    let services = world.api::<Service>();
    services.delete("db", &DeleteParams::default()).await.expect("a Service");
    world.until::<Service>("db", |other| other.uid() != service.uid()).await;
    for labels in [json!({"team": "harbour"}), json!({"ipam.strait.io/front": null})] {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        services.patch("db", &PatchParams::default(), &patch).await.expect("a Service");
        world.until("db", |other: &Service| other.labels() == service.labels()).await;
    }
    let told = world.told("NameTaken").await;
    assert!(told.contains("Service taken is there and belongs to somebody else"), "{told}");
    let kept = world.api::<Service>().get("taken").await.expect("it");
    assert!(kept.owner_references().is_empty());
    let astray = world.api::<EndpointSlice>().get_opt("taken").await.expect("an answer");
    assert!(astray.is_none(), "what is sent to somebody else's service goes there");

    let patch = Patch::Merge(json!({"spec": {"serviceTemplate": null}}));
    for name in ["db", "taken"] {
        let api = world.api::<IP>();
        api.patch(name, &PatchParams::default(), &patch).await.expect("an IP");
    }
    let gone = async {
        while world.api::<EndpointSlice>().get_opt("db").await.expect("an answer").is_some() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it goes");
    assert!(world.api::<Service>().get_opt("db").await.expect("an answer").is_none());
    assert!(world.api::<Service>().get_opt("taken").await.expect("an answer").is_some());
}

#[tokio::test]
async fn an_api_server_that_was_away_is_served_again() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.apply(include_str!("../../deploy/liqo/server.yaml")).await;
    world.server.restart().await;
    create(world.api(), &server("strait-server")).await;

    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
}

#[tokio::test]
async fn keys_that_do_not_belong_together_make_no_gateway_until_they_do() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.apply(include_str!("../../deploy/liqo/server.yaml")).await;
    let own = json!({
        "metadata": {"name": "own-keys"},
        "stringData": {"privateKey": "p".repeat(32), "publicKey": "p".repeat(32)},
    });
    create(world.api(), &object::<Secret>(own)).await;
    let mut asked = server("strait-server");
    asked.spec.secret_ref = object(json!({"name": "own-keys"}));
    create(world.api(), &asked).await;

    let note = world.told("KeysSecretCheckFailed").await;
    assert!(
        note.starts_with("in secret \"own-keys\" publicKey is not that of privateKey"),
        "{note}"
    );
    assert!(!note.contains("pp"), "{note}");
    assert!(world.api::<Deployment>().get_opt("gw-milan").await.expect("an answer").is_none());
    let told: GatewayServer = world.api().get("milan").await.expect("it");
    assert_eq!(told.status.and_then(|status| status.secret_ref), None);

    let right = Patch::Merge(json!({"stringData": {"publicKey": "q".repeat(32)}}));
    world.api::<Secret>().patch("own-keys", &PatchParams::default(), &right).await.expect("a key");
    let made = world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let secret = made.status.and_then(|status| status.secret_ref?.name);
    assert_eq!(secret.as_deref(), Some("own-keys"));
}
