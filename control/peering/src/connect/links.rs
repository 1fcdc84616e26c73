//! Steps 11 and 12: the keys, and the connection.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use kube::runtime::watcher;
use strait_api::embedded::LocalReference;
use strait_api::identity::{Identity, Mode};
use strait_api::public_key::KEY_BYTES;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer};
use strait_plan::conditions::IN_FORCE;
use strait_plan::objects::of_cluster;

use super::super::context::{PeeringSide, PeeringSides};
use super::super::wait::{Progress, WaitTarget, is_stale, named, until_of_gateway};
use super::super::write::apply;
use super::super::{CommandError, builders, keys};
use super::numbered;
use super::rollout::{Requested, until_rolled_out};

/// Step 11: gives each gateway the public key of the other one.
pub(super) async fn exchange_keys(
    ends: &PeeringSides<'_>,
    index: u8,
    client: &GatewayClient,
    server: &GatewayServer,
) -> Result<(), CommandError> {
    let PeeringSides { local, remote } = ends;
    let of_client = identity(local, Mode::Client, &client.name_any(), client.metadata.uid.as_ref());
    let of_server =
        identity(remote, Mode::Server, &server.name_any(), server.metadata.uid.as_ref());

    let key = key_of(remote, &of_server, "Gateway server Secret created successfully").await?;
    give_key(local, &of_client, index, key).await?;
    let key = key_of(local, &of_client, "Gateway client Secret created successfully").await?;
    give_key(remote, &of_server, index, key).await
}

fn identity(end: &PeeringSide<'_>, mode: Mode, name: &str, uid: Option<&String>) -> Identity {
    Identity {
        name: name.to_owned(),
        namespace: end.namespace.clone(),
        remote_cluster_id: end.other.clone(),
        uid: uid.cloned().unwrap_or_default(),
        mode,
    }
}

/// The public key of the gateway `identity`, once there is one.
async fn key_of(
    end: &PeeringSide<'_>,
    identity: &Identity,
    done: &str,
) -> Result<[u8; KEY_BYTES], CommandError> {
    let secret = until_keyed(end, identity).await?;
    let key = keys::public(end.side, &secret)?;
    end.done(done);

    Ok(key)
}

/// Gives the gateway `identity` the `key` of the other one, as an object that it owns.
async fn give_key(
    end: &PeeringSide<'_>,
    identity: &Identity,
    index: u8,
    key: [u8; KEY_BYTES],
) -> Result<(), CommandError> {
    let (name, namespace) = (numbered(&end.other, index), Some(end.namespace.as_str()));
    let owner = Some(identity.owner());
    let public_key = builders::public_key(&name, namespace, &end.other, key, owner);
    apply(end, &builders::with_index(public_key, index)).await?;
    end.done("Public key correctly created");

    Ok(())
}

/// Waits until the gateway has its keys.
async fn until_keyed(end: &PeeringSide<'_>, identity: &Identity) -> Result<Secret, CommandError> {
    let Identity { name, namespace, mode, uid, .. } = identity;
    let kind = format!("Gateway{mode}");
    let awaited = WaitTarget {
        what: format!("{kind} {name} to have a Secret with its keys"),
        look_at: format!("kubectl describe {} {name} -n {namespace}", kind.to_lowercase()),
    };
    // With several, the status of the owner names the one in use; by then it is set.
    let reference = secret_reference(end, identity).await?;
    let selector = keys::selector(&end.label_selector());
    let selection = watcher::Config::default().labels(&selector);

    let selected = (end.api::<Secret>(), selection);
    until_of_gateway(end, name, selected, &awaited, |secrets| {
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

/// The reference to its Secret in the status of the gateway, else in its spec.
async fn secret_reference(
    end: &PeeringSide<'_>,
    identity: &Identity,
) -> Result<Option<ObjectReference>, CommandError> {
    let Identity { name, mode, .. } = identity;
    let doing = format!("reading Gateway{mode} {name} in namespace {}", end.namespace);

    match mode {
        Mode::Server => {
            let api = end.api::<GatewayServer>();
            let found = end.call(&doing, async || api.get_opt(name).await).await?;
            let named = found.as_ref().and_then(|server| server.spec.secret_ref.as_ref());
            let named = named.map(to_object);
            Ok(found.and_then(|server| server.status?.secret_ref).or(named))
        }
        Mode::Client => {
            let api = end.api::<GatewayClient>();
            let found = end.call(&doing, async || api.get_opt(name).await).await?;
            let named = found.as_ref().and_then(|client| client.spec.secret_ref.as_ref());
            let named = named.map(to_object);
            Ok(found.and_then(|client| client.status?.secret_ref).or(named))
        }
    }
}

/// Until the operator has written the status, the keys of another gateway must not count.
pub(in super::super) fn to_object(LocalReference { name }: &LocalReference) -> ObjectReference {
    ObjectReference { name: name.clone(), ..ObjectReference::default() }
}

/// Step 12: waits until the current gateways reach each other, and report that their configuration is in force.
pub(super) async fn until_connected(
    ends: &PeeringSides<'_>,
    client: &GatewayClient,
    server: &GatewayServer,
) -> Result<(), CommandError> {
    let of_client = (Requested::from(client), client.uid());
    let of_server = (Requested::from(server), server.uid());
    let PeeringSides { local, remote } = ends;

    for (end, gateway) in [(remote, &of_server), (local, &of_client)] {
        until_link(end, gateway, "to be created", |_| Progress::Done(())).await?;
        end.done("Connection created successfully");
    }
    for (end, gateway) in [(local, &of_client), (remote, &of_server)] {
        // The status of a former pod proves nothing about the current one.
        let since = until_rolled_out(end, &gateway.0).await?;
        let judge = |connection: &Connection| established_since(connection, since);
        until_link(end, gateway, "to be established", judge).await?;
        until_configuration_in_force(end, &gateway.0.name).await?;
        end.done("Connection is established");
    }

    Ok(())
}

/// Waits until the Connection of a gateway, which has this UID, satisfies `judge`.
async fn until_link(
    end: &PeeringSide<'_>,
    (requested, uid): &(Requested, Option<String>),
    state: &str,
    judge: impl Fn(&Connection) -> Progress<()>,
) -> Result<(), CommandError> {
    let (namespace, name) = (&end.namespace, format!("gw-{}", requested.name));
    let awaited = WaitTarget {
        what: format!("Connection {name} {state}"),
        look_at: format!("kubectl logs deployment/{name} -n {namespace} --all-containers"),
    };
    let selected = (end.api::<Connection>(), named(&name));

    until_of_gateway(end, &requested.name, selected, &awaited, |found| {
        let ours = found.iter().find(|connection| !is_stale(**connection, uid.as_ref()));
        Ok(match ours {
            None => Progress::NotYet(format!("no Connection {name} in namespace {namespace}")),
            Some(connection) => judge(connection),
        })
    })
    .await
}

/// Whether the gateways reach each other, as measured by a pod that was started at `since`.
fn established_since(connection: &Connection, since: Option<Timestamp>) -> Progress<()> {
    let latency = connection.status.as_ref().and_then(|status| status.latency.as_ref());
    let measured = latency.and_then(|latency| latency.timestamp.as_ref()).map(|Time(at)| *at);

    match (established(connection), measured, since) {
        // The API keeps whole seconds of both.
        (Progress::Done(()), Some(measured), Some(since)) if measured < since => {
            Progress::NotYet(format!("the status that a former pod has written, before {since}"))
        }
        (progress, ..) => progress,
    }
}

/// Waits until the gateway reports that the current prefixes are in force, if it reports on any. The gateways of Liqo
/// do not.
async fn until_configuration_in_force(
    end: &PeeringSide<'_>,
    gateway: &str,
) -> Result<(), CommandError> {
    let namespace = &end.namespace;
    let awaited = WaitTarget {
        what: format!("the prefixes of cluster {} to be in force", end.other),
        look_at: format!("kubectl get configurations -n {namespace} -o yaml"),
    };
    let selection = watcher::Config::default().labels(&end.label_selector());
    let selected = (end.api::<Configuration>(), selection);

    until_of_gateway(end, gateway, selected, &awaited, |found| Ok(in_force(found, &end.other)))
        .await
}

/// Whether the prefixes of `cluster` are in force. A gateway refuses all its Configurations but one.
fn in_force(found: &[&Configuration], cluster: &str) -> Progress<()> {
    let missing = of_cluster(found.iter().copied(), cluster).and_then(not_in_force);

    missing.map_or(Progress::Done(()), Progress::NotYet)
}

/// The condition of `configuration`, if it is not in force.
fn not_in_force(configuration: &Configuration) -> Option<String> {
    let mut conditions = configuration.status.iter().flat_map(|status| &status.conditions);
    let condition = conditions.find(|condition| condition.type_ == IN_FORCE)?;
    let name = configuration.name_any();
    if condition.observed_generation < configuration.metadata.generation {
        return Some(format!(
            "a condition {IN_FORCE} of Configuration {name} of a former generation"
        ));
    }
    let Condition { reason, message, .. } = condition;

    (condition.status != "True")
        .then(|| format!("{IN_FORCE} of Configuration {name} False, {reason}: {message}"))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_connection_counts_from_the_pods_start() {
        let connection = |value: &str, measured: Option<&str>| -> Connection {
            serde_json::from_value(json!({
                "metadata": {}, "spec": {"type": "Server", "gatewayRef": {}},
                "status": {"value": value, "latency": {"value": "1ms", "timestamp": measured}},
            }))
            .unwrap()
        };
        let since = Some("2026-01-01T00:00:10Z".parse().unwrap());
        let is_done = |value, measured| {
            established_since(&connection(value, measured), since) == Progress::Done(())
        };

        assert!(!is_done("Connected", Some("2026-01-01T00:00:09Z")));
        assert!(is_done("Connected", Some("2026-01-01T00:00:10Z")));
        assert!(!is_done("Connecting", Some("2026-01-01T00:00:11Z")));
        // Without a connection check there is no timestamp.
        assert!(is_done("Connected", None));
    }

    #[test]
    fn a_superseded_configuration_is_not_waited_for() {
        let found = |name: &str, second: u8, status: &str| -> Configuration {
            serde_json::from_value(json!({
                "metadata": {
                    "name": name, "generation": 1,
                    "labels": {"liqo.io/remote-cluster-id": "milan"},
                    "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
                },
                "spec": {},
                "status": {"conditions": [{
                    "type": IN_FORCE, "status": status, "reason": "Why", "message": "so",
                    "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]},
            }))
            .unwrap()
        };
        let (older, younger) = (found("a", 1, "False"), found("b", 2, "True"));

        assert_eq!(in_force(&[&older, &younger], "milan"), Progress::Done(()));
        let younger = found("b", 2, "False");
        assert!(matches!(in_force(&[&older, &younger], "milan"), Progress::NotYet(_)));
    }

    #[test]
    fn a_condition_counts_for_its_generation() {
        let found = |generation: i64, status: &str| {
            let configuration = json!({
                "metadata": {"name": "milan", "generation": 2}, "spec": {},
                "status": {"conditions": [{
                    "type": IN_FORCE, "status": status, "reason": "Why", "message": "so",
                    "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]},
            });
            not_in_force(&serde_json::from_value(configuration).unwrap())
        };

        assert_eq!(found(2, "True"), None);
        assert!(found(1, "True").unwrap().ends_with("of a former generation"));
        assert!(found(2, "False").unwrap().ends_with("False, Why: so"));
        assert_eq!(not_in_force(&Configuration::default()), None);
    }
}
