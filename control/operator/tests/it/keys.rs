//! The secrets with the keys of gateways.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{GatewayServer, WgGatewayServer};
use strait_control_lab::create;

use crate::world::{World, addresses, object, server};

/// The operator's default name, and that of an existing one; the reference to the template is of an older document.
#[tokio::test]
async fn a_template_gets_the_name_of_the_secret() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    let mut template: Value =
        serde_saphyr::from_str(include_str!("../../../../deploy/standalone/server.yaml"))
            .expect("YAML");
    let made = &mut template["spec"]["template"];
    made["metadata"]["annotations"] = json!({"secret": "{{ .SecretName }}"});
    made["spec"]["?extraConfig"] = json!("{{ .Spec.ExtraConfig }}");
    world.apply(&template.to_string()).await;
    let mut requested = server("wireguard-server");
    let reference = requested.spec.server_template_ref.as_mut().expect("a reference");
    reference.api_version = Some("networking.liqo.io/v1alpha1".to_owned());
    create(world.api(), &requested).await;

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
    world.event_note_containing("KeysSecretCheckFailed", "found multiple secrets").await;

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

    // Or deletes the other.
    name(json!(null)).await;
    world.api::<Secret>().delete("gw-milan", &DeleteParams::default()).await.expect("gone");
    world.until("milan", names("own-keys")).await;
}

#[tokio::test]
async fn mismatched_keys_make_no_gateway() {
    let Some(mut world) = World::new().await else { return };
    world.start_operator();
    world.apply(include_str!("../../../../deploy/liqo/server.yaml")).await;
    let own = json!({
        "metadata": {"name": "own-keys"},
        "stringData": {"privateKey": "p".repeat(32), "publicKey": "p".repeat(32)},
    });
    create(world.api(), &object::<Secret>(own)).await;
    let mut requested = server("strait-server");
    requested.spec.secret_ref = object(json!({"name": "own-keys"}));
    create(world.api(), &requested).await;

    let note = world.event_note("KeysSecretCheckFailed").await;
    assert!(
        note.starts_with("in secret \"own-keys\" publicKey is not that of privateKey"),
        "{note}"
    );
    assert!(!note.contains("pp"), "{note}");
    assert!(world.api::<Deployment>().get_opt("gw-milan").await.expect("an answer").is_none());
    let found: GatewayServer = world.api().get("milan").await.expect("it");
    assert_eq!(found.status.and_then(|status| status.secret_ref), None);

    let right = Patch::Merge(json!({"stringData": {"publicKey": "q".repeat(32)}}));
    world.api::<Secret>().patch("own-keys", &PatchParams::default(), &right).await.expect("a key");
    let made = world.until("milan", |server: &GatewayServer| !addresses(server).is_empty()).await;
    let secret = made.status.and_then(|status| status.secret_ref?.name);
    assert_eq!(secret.as_deref(), Some("own-keys"));
}
