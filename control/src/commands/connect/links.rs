//! Steps 11 and 12: the keys, and the connection.

use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::ResourceExt as _;
use kube::runtime::watcher;

use super::super::contact::{End, Ends};
use super::super::wait::{Awaited, Progress, is_left_over, named, until};
use super::super::write::apply;
use super::super::{CommandError, forge, keys};
use crate::api::{Connection, GatewayClient, GatewayServer};
use crate::identity::{Identity, Mode};
use crate::objects::KEY_BYTES;

/// Step 11: gives each gateway the public key of the other one.
pub(super) async fn exchange_keys(
    ends: &Ends<'_>,
    client: &GatewayClient,
    server: &GatewayServer,
) -> Result<(), CommandError> {
    let Ends { local, remote } = ends;
    let of_client = identity(local, Mode::Client, &client.name_any(), client.metadata.uid.as_ref());
    let of_server =
        identity(remote, Mode::Server, &server.name_any(), server.metadata.uid.as_ref());

    let key = key_of(remote, &of_server, "Gateway server Secret created successfully").await?;
    give_key(local, &of_client, key).await?;
    let key = key_of(local, &of_client, "Gateway client Secret created successfully").await?;
    give_key(remote, &of_server, key).await
}

fn identity(end: &End<'_>, mode: Mode, name: &str, uid: Option<&String>) -> Identity {
    Identity {
        name: name.to_owned(),
        namespace: end.namespace.clone(),
        remote_cluster_id: end.other.clone(),
        uid: uid.cloned().unwrap_or_default(),
        mode,
    }
}

/// The public key of the gateway `identity`, when there is one.
async fn key_of(
    end: &End<'_>,
    identity: &Identity,
    done: &str,
) -> Result<[u8; KEY_BYTES], CommandError> {
    let secret = until_keyed(end, identity).await?;
    let key = keys::public(end.side, &secret)?;
    end.done(done);

    Ok(key)
}

/// Tells the gateway `identity` the `key` of the other one. It goes with that gateway.
async fn give_key(
    end: &End<'_>,
    identity: &Identity,
    key: [u8; KEY_BYTES],
) -> Result<(), CommandError> {
    let namespace = Some(end.namespace.as_str());
    let owner = Some(identity.owner());
    let public_key = forge::public_key(&end.other, namespace, &end.other, key, owner);
    apply(end, &public_key).await?;
    end.done("Public key correctly created");

    Ok(())
}

/// Waits until the gateway has its keys.
async fn until_keyed(end: &End<'_>, identity: &Identity) -> Result<Secret, CommandError> {
    let Identity { name, namespace, mode, uid, .. } = identity;
    let kind = format!("Gateway{mode}");
    let awaited = Awaited {
        what: format!("{kind} {name} to have a Secret with its keys"),
        look_at: format!("kubectl describe {} {name} -n {namespace}", kind.to_lowercase()),
    };
    // The owner says which it is where there are several; by then it says so.
    let reference = secret_reference(end, identity).await?;
    let selector = keys::selector(&end.label_selector());
    let selection = watcher::Config::default().labels(&selector);

    until(end, end.api::<Secret>(), selection, &awaited, |secrets| {
        let secret = keys::of_gateway(end.side, name, Some(uid), secrets, reference.as_ref())?;
        Ok(match secret {
            Some(secret) => Progress::Done(secret.clone()),
            None => Progress::NotYet(format!(
                "no Secret with the labels {selector} in namespace {namespace}"
            )),
        })
    })
    .await
}

/// What the status of the gateway says of its Secret.
async fn secret_reference(
    end: &End<'_>,
    identity: &Identity,
) -> Result<Option<ObjectReference>, CommandError> {
    let Identity { name, mode, .. } = identity;
    let doing = format!("reading Gateway{mode} {name} in namespace {}", end.namespace);

    match mode {
        Mode::Server => {
            let api = end.api::<GatewayServer>();
            let found = end.call(&doing, async || api.get_opt(name).await).await?;
            Ok(found.and_then(|server| server.status?.secret_ref))
        }
        Mode::Client => {
            let api = end.api::<GatewayClient>();
            let found = end.call(&doing, async || api.get_opt(name).await).await?;
            Ok(found.and_then(|client| client.status?.secret_ref))
        }
    }
}

/// Step 12: waits until the gateways reach each other.
pub(super) async fn until_connected(
    ends: &Ends<'_>,
    client: &GatewayClient,
    server: &GatewayServer,
) -> Result<(), CommandError> {
    let of_client = (format!("gw-{}", client.name_any()), client.uid());
    let of_server = (format!("gw-{}", server.name_any()), server.uid());
    let Ends { local, remote } = ends;

    for (end, gateway) in [(remote, &of_server), (local, &of_client)] {
        until_link(end, gateway, "to be created", |_| Progress::Done(())).await?;
        end.done("Connection created successfully");
    }
    for (end, gateway) in [(local, &of_client), (remote, &of_server)] {
        until_link(end, gateway, "to be established", established).await?;
        end.done("Connection is established");
    }

    Ok(())
}

/// Waits until the Connection of a gateway, by its name and the UID of the gateway, is as `judge` wants
/// it.
async fn until_link(
    end: &End<'_>,
    (name, uid): &(String, Option<String>),
    state: &str,
    judge: impl Fn(&Connection) -> Progress<()>,
) -> Result<(), CommandError> {
    let namespace = &end.namespace;
    let awaited = Awaited {
        what: format!("Connection {name} {state}"),
        look_at: format!("kubectl logs deployment/{name} -n {namespace} --all-containers"),
    };

    until(end, end.api::<Connection>(), named(name), &awaited, |found| {
        let ours = found.iter().find(|connection| !is_left_over(**connection, uid.as_ref()));
        Ok(match ours {
            None => Progress::NotYet(format!("no Connection {name} in namespace {namespace}")),
            Some(connection) => judge(connection),
        })
    })
    .await
}

/// Whether the gateways reach each other.
pub(in super::super) fn established(connection: &Connection) -> Progress<()> {
    match connection.status.as_ref().and_then(|status| status.value.as_deref()) {
        Some("Connected") => Progress::Done(()),
        Some(value) => Progress::NotYet(format!(
            "{value}: does UDP pass from the client to the address of the server?"
        )),
        None => Progress::NotYet("no status.value yet".to_owned()),
    }
}
