//! What gives the pods of a gateway their rights.

use control::api::GatewayServer;
use control::operator::Settings;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::world::{World, addresses, object, settings};
use strait_control_lab::create;
use strait_control_lab::tenant::NAMESPACE;

#[tokio::test]
async fn a_gateway_has_one_binding_whichever_role_it_had() {
    let Some(mut world) = World::new().await else { return };
    let bindings: Api<ClusterRoleBinding> = Api::all(world.admin.clone());
    let binding = |role: &str, gateway: &str| -> ClusterRoleBinding {
        object(json!({
            "metadata": {"name": format!("{role}-{NAMESPACE}-{gateway}"), "labels": {
                "networking.liqo.io/gateway-name": gateway,
                "networking.liqo.io/gateway-namespace": NAMESPACE,
            }},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": gateway, "namespace": NAMESPACE}],
        }))
    };
    for gateway in ["milan", "rome"] {
        create(bindings.clone(), &binding("broad", gateway)).await;
    }
    world.start_operator();
    world.ask_for_server().await;
    world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    create(bindings.clone(), &binding("broader", "milan")).await;

    let wanted = ["broad", "liqo-gateway"].into_iter().zip(["rome", "milan"]);
    let wanted: Vec<_> = wanted.map(|(role, name)| format!("{role}-{NAMESPACE}-{name}")).collect();
    world.until_bound([&wanted, &[]]).await;
}

/// Whoever takes over a pod of it must not have the pods of all others.
#[tokio::test]
async fn a_gateway_of_ours_has_its_rights_in_its_namespace_alone() {
    let Some(mut world) = World::new().await else { return };
    let role = "strait-gateway";
    let own = format!("{role}-{NAMESPACE}-milan");
    // As versions before this one made it.
    let former: ClusterRoleBinding = object(json!({
        "metadata": {"name": own, "labels": {
            "networking.liqo.io/gateway-name": "milan",
            "networking.liqo.io/gateway-namespace": NAMESPACE,
        }},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "milan", "namespace": NAMESPACE}],
    }));
    create(Api::all(world.admin.clone()), &former).await;
    // Who may make bindings in its namespace has taken the name, and has one of his own that looks like ours.
    let to_view = |name: &str, labels: Value| -> RoleBinding {
        object(json!({
            "metadata": {"name": name, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        }))
    };
    create(world.api(), &to_view(&own, json!({}))).await;
    create(world.api(), &to_view("another", json!(former.metadata.labels))).await;
    let ours = || Settings { server_role: role.to_owned(), ..settings() };
    world.start_operator_with(ours());
    world.ask_for_server().await;

    let within = ["another".to_owned(), own.clone()];
    world.until_bound([&[], &within]).await;
    let binding = world.api::<RoleBinding>().get(&own).await.expect("a binding");
    assert_eq!(binding.role_ref.name, role);
    let subject = &binding.subjects.as_ref().expect("a subject")[0];
    assert_eq!((&*subject.name, subject.namespace.as_deref()), ("milan", Some(NAMESPACE)));
    assert_eq!(binding.owner_references()[0].kind, "WgGatewayServer", "it goes with the gateway");
    world.api::<RoleBinding>().delete(&own, &DeleteParams::default()).await.expect("gone");
    world.until_bound([&[], &within]).await;

    // Another role, that of the gateways of Liqo.
    world.tasks.pop().expect("the operator").abort();
    world.start_operator();
    let all = format!("liqo-gateway-{NAMESPACE}-milan");
    world.until_bound([&[all], &within[..1]]).await;
}
