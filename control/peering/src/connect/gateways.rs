//! Steps 7 to 10: both gateways.

use std::fmt::Debug;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use strait_api::embedded::LocalReference;
use strait_api::endpoint::Endpoint;
use strait_api::gateway_server::GatewayServerStatus;
use strait_api::{Connection, GatewayClient, GatewayServer};

use super::super::context::{PeeringSide, PeeringSides};
use super::super::wait::{Progress, WaitTarget, named, until_of_gateway};
use super::super::write::{apply, delete, until_gone};
use super::super::{CommandError, builders};
use super::links::established;
use super::rollout::{Requested, until_exposed, until_rolled_out};
use super::{Connect, GatewayPair, Surplus};

/// The server of `pair`.
pub(in super::super) fn server_of(end: &PeeringSide<'_>, pair: &GatewayPair) -> GatewayServer {
    let GatewayPair { index, server_name: name, server, exposure, mtu, .. } = pair;
    let namespace = Some(end.namespace.as_str());
    let mut object = builders::gateway_server(name, namespace, &end.other, server, exposure, *mtu);
    object.spec.secret_ref = pair.server_secret.clone().map(reference);

    builders::with_index(object, *index)
}

/// The client of `pair`, which connects to `endpoint`.
pub(in super::super) fn client_of(
    end: &PeeringSide<'_>,
    pair: &GatewayPair,
    endpoint: Endpoint,
) -> GatewayClient {
    let GatewayPair { index, client_name: name, client, mtu, .. } = pair;
    let namespace = Some(end.namespace.as_str());
    let mut object = builders::gateway_client(name, namespace, &end.other, client, endpoint, *mtu);
    object.spec.secret_ref = pair.client_secret.clone().map(reference);

    builders::with_index(object, *index)
}

fn reference(secret: String) -> LocalReference {
    LocalReference { name: Some(secret) }
}

/// Steps 7 to 9; returns the server with its endpoint.
pub(super) async fn server(
    end: &PeeringSide<'_>,
    pair: &GatewayPair,
) -> Result<GatewayServer, CommandError> {
    let name = &pair.server_name;
    if let Some(difference) = &pair.replaced {
        // A client would get the address of the old Service, and node ports cannot be moved.
        delete::<GatewayServer>(end, name).await?;
        until_gone::<GatewayServer>(end, named(name)).await?;
        // The remains of the old one would look like the new one.
        until_gone::<Service>(end, named(&format!("gw-{name}"))).await?;
        until_gone::<Deployment>(end, named(&format!("gw-{name}"))).await?;
        end.done("Deleted existing gateway server");
        end.session.report.warn(end.side, &format!("its Service had {difference}"));
    }
    let requested = Requested::from(&apply(end, &server_of(end, pair)).await?);
    end.done("Gateway server correctly set up");
    until_pod_ready(end, &requested).await?;
    let server = until_addressed(end, &requested).await?;
    end.done("Gateway server Service created successfully");

    Ok(server)
}

/// Step 10; returns the client that connects to `server`.
pub(super) async fn client(
    end: &PeeringSide<'_>,
    wanted: &Connect,
    pair: &GatewayPair,
    server: &GatewayServer,
) -> Result<GatewayClient, CommandError> {
    let of_server = server.status.as_ref().and_then(|status| status.endpoint.clone());
    let former = pair.kept_endpoint.clone().or(of_server);
    let endpoint = endpoint(wanted, pair.index, former.unwrap_or_default());
    let client = apply(end, &client_of(end, pair, endpoint)).await?;
    end.done("Gateway client correctly set up");
    until_pod_ready(end, &Requested::from(&client)).await?;

    Ok(client)
}

/// Deletes the gateways that are not wanted any more. They forward until the other ones carry their packets.
pub(super) async fn remove(
    ends: &PeeringSides<'_>,
    surplus: &Surplus,
    waits: bool,
) -> Result<(), CommandError> {
    for name in &surplus.clients {
        remove_one::<GatewayClient>(&ends.local, name, waits).await?;
        ends.local.done(&format!("Gateway client {name} correctly deleted"));
    }
    for name in &surplus.servers {
        remove_one::<GatewayServer>(&ends.remote, name, waits).await?;
        ends.remote.done(&format!("Gateway server {name} correctly deleted"));
    }

    Ok(())
}

async fn remove_one<K>(end: &PeeringSide<'_>, name: &str, waits: bool) -> Result<(), CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    delete::<K>(end, name).await?;
    if !waits {
        return Ok(());
    }
    until_gone::<K>(end, named(name)).await?;

    until_gone::<Deployment>(end, named(&format!("gw-{name}"))).await
}

/// Whether the Connection of `client` is established.
pub(super) async fn is_connected(
    end: &PeeringSide<'_>,
    client: &GatewayClient,
) -> Result<bool, CommandError> {
    let (api, name) = (end.api::<Connection>(), format!("gw-{}", client.name_any()));
    let doing = format!("reading Connection {name} in namespace {}", end.namespace);
    let found = end.call(&doing, async || api.get_opt(&name).await).await?;

    Ok(found.is_some_and(|connection| established(&connection) == Progress::Done(())))
}

/// The endpoint for the client with this index: `found`, or the one that the user names, whose port is that of the first one.
pub(in super::super) fn endpoint(wanted: &Connect, index: u8, found: Endpoint) -> Endpoint {
    let Connect { client_address, client_port, .. } = wanted;
    let addresses = client_address.clone().map_or(found.addresses, |address| vec![address]);
    let protocol = found.protocol.or_else(|| Some("UDP".to_owned()));

    match client_port {
        Some(port) => {
            let port = Some(i32::from(*port) + i32::from(index));
            Endpoint { addresses, port, ports: Vec::new(), protocol }
        }
        None => Endpoint { addresses, port: found.port, ports: found.ports, protocol },
    }
}

/// Waits until a pod of the gateway works as `requested`.
async fn until_pod_ready(end: &PeeringSide<'_>, requested: &Requested) -> Result<(), CommandError> {
    until_rolled_out(end, requested).await?;
    end.done(&format!("Gateway pod gw-{} is ready", requested.name));

    Ok(())
}

/// Whether one of its pods is ready.
pub(in super::super) fn ready(deployment: &Deployment) -> Progress<()> {
    let status = deployment.status.clone().unwrap_or_default();
    let ready = status.ready_replicas.unwrap_or_default();
    let wanted = deployment.spec.replicas.unwrap_or(1);
    if ready > 0 {
        return Progress::Done(());
    }
    let conditions = status.conditions.unwrap_or_default();
    let trouble = conditions
        .iter()
        .filter(|condition| condition.status.as_deref() != Some("True"))
        .filter_map(|condition| condition.message.as_deref())
        .find(|message| !message.is_empty());

    Progress::NotYet(format!(
        "0 of {wanted} replicas of Deployment {} ready{}",
        deployment.name_any(),
        trouble.map(|message| format!(" ({message})")).unwrap_or_default()
    ))
}

/// Waits until the server has an address for clients, and it is the current one.
pub(in super::super) async fn until_addressed(
    end: &PeeringSide<'_>,
    requested: &Requested,
) -> Result<GatewayServer, CommandError> {
    let (name, namespace) = (requested.name.as_str(), &end.namespace);
    let awaited = WaitTarget {
        what: format!("GatewayServer {name} to have an address"),
        look_at: format!("kubectl describe gatewayserver {name} -n {namespace}"),
    };
    let addressed = async |port: Option<i32>| {
        let selected = (end.api::<GatewayServer>(), named(name));
        until_of_gateway(end, name, selected, &awaited, |found| {
            Ok(match found.first() {
                None => {
                    Progress::NotYet(format!("no GatewayServer {name} in namespace {namespace}"))
                }
                Some(server) => match is_addressed(server, port) {
                    Progress::Done(()) => Progress::Done((*server).clone()),
                    Progress::NotYet(found) => Progress::NotYet(found),
                },
            })
        })
        .await
    };

    addressed(None).await?;
    addressed(until_exposed(end, requested).await?).await
}

/// Whether the server has an address, with this port if it is known.
fn is_addressed(server: &GatewayServer, port: Option<i32>) -> Progress<()> {
    let status = server.status.as_ref();
    if !has_address(status) {
        return Progress::NotYet(
            "no status.endpoint.addresses: has its Service an address?".to_owned(),
        );
    }
    let found = status.and_then(|status| status.endpoint.as_ref()?.port);

    match (found, port) {
        (Some(found), Some(port)) if found != port => {
            Progress::NotYet(format!("port {found} in status.endpoint, its Service has {port} now"))
        }
        _ => Progress::Done(()),
    }
}

pub(super) fn has_address(status: Option<&GatewayServerStatus>) -> bool {
    let endpoint = status.and_then(|status| status.endpoint.as_ref());

    endpoint.is_some_and(|endpoint| !endpoint.addresses.is_empty())
}

/// Whether the server has everything that clients need, and its child.
pub(in super::super) fn is_server_ready(server: &GatewayServer) -> Progress<()> {
    let status = server.status.as_ref();
    let child = status.and_then(|status| status.server_ref.as_ref());

    match (has_address(status), child) {
        (true, Some(_)) => Progress::Done(()),
        (true, None) => Progress::NotYet("no status.serverRef in it".to_owned()),
        (false, _) => Progress::NotYet("no status.endpoint.addresses in it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_with_the_former_port_is_ignored() {
        let server = |endpoint| -> GatewayServer {
            serde_json::from_value(json!({
                "metadata": {}, "spec": {}, "status": {"endpoint": endpoint},
            }))
            .unwrap()
        };
        let at = |port: u16| server(json!({"addresses": ["172.18.0.3"], "port": port}));

        assert_eq!(is_addressed(&at(30742), Some(30742)), Progress::Done(()));
        assert_eq!(is_addressed(&at(30742), None), Progress::Done(()));
        assert!(matches!(is_addressed(&at(30741), Some(30742)), Progress::NotYet(_)));
        assert!(matches!(is_addressed(&server(json!(null)), None), Progress::NotYet(_)));
    }
}
