//! The gateways of a peering: how many there are to be, and what each is made from.
//!
//! A peering has a gateway, or several which share its packets. Each is a pair: a server on the remote side and a client on
//! the local one, which have the same index. What is not typed is kept where a gateway exists; a new one is made as the first
//! one is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt as _};
use strait_api::embedded::LocalReference;
use strait_api::endpoint::Endpoint;
use strait_api::gateway_server::ServerEndpoint;
use strait_api::identity::Mode;
use strait_api::labels::gateway_index;
use strait_api::{GatewayClient, GatewayServer};

use super::super::builders::{Exposure, NodePort, TemplateRef};
use super::super::context::{PeeringSide, PeeringSides};
use super::super::create::GATEWAY_NAME_MAX;
use super::super::{CommandError, Side, preflight};
use super::gateways::is_connected;
use super::{Connect, TypedExposure, service};

/// One gateway on both sides.
pub(in super::super) struct GatewayPair {
    /// From 0, the first one.
    pub(in super::super) index: u8,
    /// The name of the server.
    pub(in super::super) server_name: String,
    /// The name of the client.
    pub(in super::super) client_name: String,
    /// The existing server.
    pub(in super::super) former_server: Option<GatewayServer>,
    /// The existing client.
    pub(in super::super) former_client: Option<GatewayClient>,
    /// The template of the server.
    pub(in super::super) server: TemplateRef,
    /// The template of the client.
    pub(in super::super) client: TemplateRef,
    /// The Secret that the server names for its keys, if there are several servers.
    pub(in super::super) server_secret: Option<String>,
    /// The same of the client.
    pub(in super::super) client_secret: Option<String>,
    /// How the server is to be exposed.
    pub(in super::super) exposure: Exposure,
    /// The MTU of the tunnel, in bytes.
    pub(in super::super) mtu: u16,
    /// The difference of the server's Service that cannot be changed in place: the server is replaced.
    pub(in super::super) replaced: Option<String>,
    /// The endpoint of the client, if it is to stay as it is.
    pub(in super::super) kept_endpoint: Option<Endpoint>,
}

/// The names of gateways beyond those that are wanted, the last one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Surplus {
    pub(in super::super) servers: Vec<String>,
    pub(in super::super) clients: Vec<String>,
}

/// All gateways of a peering, by index.
struct Existing {
    servers: BTreeMap<u8, GatewayServer>,
    clients: BTreeMap<u8, GatewayClient>,
}

/// Reads the gateways of the peering.
pub(super) async fn read(
    ends: &PeeringSides<'_>,
    wanted: &Connect,
) -> Result<(Vec<GatewayPair>, Surplus), CommandError> {
    let PeeringSides { local, remote } = ends;
    let existing = Existing {
        servers: by_index(remote.side, remote.list().await?)?,
        clients: by_index(local.side, local.list().await?)?,
    };
    let count = wanted.gateways.unwrap_or_else(|| existing.count());
    check_addresses(wanted, count)?;

    let mut pairs = Vec::with_capacity(count.into());
    for index in 0..count {
        pairs.push(pair(ends, wanted, &existing, index, count).await?);
    }

    Ok((pairs, existing.surplus(count)))
}

/// Whether `count` gateways can have the addresses and ports that were typed.
fn check_addresses(wanted: &Connect, count: u8) -> Result<(), CommandError> {
    if count == 1 {
        return Ok(());
    }
    let address = wanted.exposure.load_balancer_ip.as_ref().filter(|address| !address.is_empty());
    if let Some(address) = address {
        return Err(CommandError::SharedAddress { address: address.clone(), gateways: count });
    }

    match (&wanted.client_address, wanted.client_port) {
        (None, None) => Ok(()),
        (Some(_), Some(first)) if first.checked_add((count - 1).into()).is_some() => Ok(()),
        (address, port) => Err(CommandError::ClientPorts {
            address: address.clone().unwrap_or_default(),
            port: port.unwrap_or_default(),
            gateways: count,
        }),
    }
}

async fn pair(
    PeeringSides { local, remote }: &PeeringSides<'_>,
    wanted: &Connect,
    existing: &Existing,
    index: u8,
    count: u8,
) -> Result<GatewayPair, CommandError> {
    let (server, client) = (existing.servers.get(&index), existing.clients.get(&index));
    let (first_server, first_client) = (existing.servers.get(&0), existing.clients.get(&0));
    let server_name = name(server, first_server, remote, index)?;
    let client_name = name(client, first_client, local, index)?;
    let like_server = server.or(first_server);
    let like_client = client.or(first_client);

    let is_checked = !wanted.skips_validation;
    let former = like_server.and_then(|server| server.spec.server_template_ref.as_ref());
    let template = wanted.server_template.or(former, Mode::Server);
    let (server_template, spec) =
        preflight::template(remote, &template.typed(Mode::Server), is_checked).await?;
    let former = like_client.and_then(|client| client.spec.client_template_ref.as_ref());
    let template = wanted.client_template.or(former, Mode::Client);
    let (client_template, _) =
        preflight::template(local, &template.typed(Mode::Client), is_checked).await?;

    let former = server.and_then(|server| server.spec.endpoint.as_ref());
    let first = first_server.and_then(|server| server.spec.endpoint.as_ref());
    let exposure = exposure(&wanted.exposure, former, first, index)?;
    if let Some(spec) = spec {
        preflight::check_fields(remote.side, &server_template.name, &spec, &exposure)?;
    }
    let service = service(remote, &server_name).await?;
    let difference = service.as_ref().map(|service| exposure.difference(service));
    // A port that the gateway has already cannot be requested a second time.
    if is_checked && difference != Some(None) {
        preflight::node_port(remote, &exposure).await?;
    }
    // A template may make another Service than the gateway requests.
    let is_other = former.is_none() || TypedExposure::default().or(former) != exposure;
    let replaced = difference.flatten().filter(|_| is_other);
    // A Connection may still report a server that was deleted or is to be replaced.
    let kept_endpoint = match client {
        Some(client) if !is_other && is_connected(local, client).await? => {
            client.spec.endpoint.clone()
        }
        Some(_) | None => None,
    };
    let secret_of_server = server.map(|server| {
        let found = server.status.as_ref().and_then(|status| status.secret_ref.as_ref());
        (server.spec.secret_ref.as_ref(), found)
    });
    let secret_of_client = client.map(|client| {
        let found = client.status.as_ref().and_then(|status| status.secret_ref.as_ref());
        (client.spec.secret_ref.as_ref(), found)
    });

    Ok(GatewayPair {
        index,
        server_secret: secret(secret_of_server, &server_name, count),
        client_secret: secret(secret_of_client, &client_name, count),
        server_name,
        client_name,
        former_server: server.cloned(),
        former_client: client.cloned(),
        server: server_template,
        client: client_template,
        exposure,
        mtu: wanted.mtu_or(like_server, like_client),
        replaced,
        kept_endpoint,
    })
}

/// The Secret that the gateway `name`, one of `count`, names in its spec: `former` has what its spec and its status name so
/// far. The operator does not choose among the Secrets of several gateways.
fn secret(
    former: Option<(Option<&LocalReference>, Option<&ObjectReference>)>,
    name: &str,
    count: u8,
) -> Option<String> {
    let (named, found) = former.unwrap_or_default();
    let named = named.and_then(|reference| reference.name.clone());
    let found = || found.and_then(|reference| reference.name.clone());
    let chosen = || found().unwrap_or_else(|| format!("gw-{name}"));

    named.or_else(|| (count > 1).then(chosen))
}

impl Existing {
    /// As many as the last one's index says.
    fn count(&self) -> u8 {
        let last = self.servers.keys().chain(self.clients.keys()).max();

        last.map_or(1, |last| last + 1)
    }

    fn surplus(&self, count: u8) -> Surplus {
        Surplus { servers: names(&self.servers, count), clients: names(&self.clients, count) }
    }
}

/// The names of those with an index from `count` on, the last one first.
fn names<K: Resource>(all: &BTreeMap<u8, K>, count: u8) -> Vec<String> {
    all.range(count..).rev().map(|(_, gateway)| gateway.name_any()).collect()
}

fn by_index<K>(side: Side, all: Vec<K>) -> Result<BTreeMap<u8, K>, CommandError>
where
    K: Resource<DynamicType = ()>,
{
    let mut found = BTreeMap::new();
    for gateway in all {
        found.entry(index_of(side, &gateway)?).or_insert(gateway);
    }

    Ok(found)
}

/// The index of `gateway` among those of its peering.
pub(in super::super) fn index_of<K>(side: Side, gateway: &K) -> Result<u8, CommandError>
where
    K: Resource<DynamicType = ()>,
{
    gateway_index(gateway).map_err(|found| CommandError::GatewayIndex {
        side,
        kind: K::kind(&()).into_owned(),
        name: gateway.name_any(),
        found: found.to_owned(),
    })
}

/// The name of a gateway: that of the existing one, or one that follows from that of the first one, for which Liqo uses the
/// id of the other cluster.
fn name<K: Resource<DynamicType = ()>>(
    existing: Option<&K>,
    first: Option<&K>,
    end: &PeeringSide<'_>,
    index: u8,
) -> Result<String, CommandError> {
    if let Some(existing) = existing {
        return Ok(existing.name_any());
    }
    let first = first.map_or_else(|| end.other.clone(), kube::ResourceExt::name_any);
    let (name, longest) = (numbered(&first, index), GATEWAY_NAME_MAX);
    if name.len() > longest {
        let kind = K::kind(&()).into_owned();
        return Err(CommandError::LongName { side: end.side, kind, name, longest });
    }

    Ok(name)
}

/// The name of the object with this index whose first one is `name`.
pub(in super::super) fn numbered(name: &str, index: u8) -> String {
    if index == 0 { name.to_owned() } else { format!("{name}-{index}") }
}

/// How the server with this index is exposed, as `former` so far; the first one is exposed as `first`. A port on the nodes
/// counts for the first one, those of the others follow it.
fn exposure(
    wanted: &TypedExposure,
    former: Option<&ServerEndpoint>,
    first: Option<&ServerEndpoint>,
    index: u8,
) -> Result<Exposure, CommandError> {
    let mut exposure = wanted.or(former.or(first));
    let is_own_port = former.is_some() && wanted.node_port.is_none();
    if let NodePort::Exactly(port) = exposure.node_port
        && !is_own_port
    {
        let last = || CommandError::NodePorts { first: port, index };
        exposure.node_port = NodePort::Exactly(port.checked_add(index.into()).ok_or_else(last)?);
    }
    if former.is_none() && index > 0 {
        exposure.load_balancer_ip = None;
    }

    Ok(exposure)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ServiceType;

    fn server(name: &str, index: Option<&str>) -> GatewayServer {
        let labels = index.map(|index| json!({"strait.io/gateway-index": index}));

        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": {}}))
            .unwrap()
    }

    fn existing(names: &[(&str, Option<&str>)]) -> Existing {
        let servers = names.iter().map(|(name, index)| server(name, *index)).collect();

        Existing { servers: by_index(Side::Remote, servers).unwrap(), clients: BTreeMap::new() }
    }

    #[test]
    fn as_many_gateways_stay_as_there_are() {
        assert_eq!(existing(&[]).count(), 1);
        assert_eq!(existing(&[("rome", None)]).count(), 1);
        assert_eq!(existing(&[("rome", None), ("rome-2", Some("2"))]).count(), 3);
    }

    #[test]
    fn the_last_surplus_gateway_goes_first() {
        let all = existing(&[("rome", None), ("rome-1", Some("1")), ("rome-2", Some("2"))]);

        assert_eq!(all.surplus(1).servers, ["rome-2", "rome-1"]);
        assert_eq!(all.surplus(3), Surplus::default());
    }

    #[test]
    fn a_wrong_index_is_an_error() {
        for wrong in ["8", "01", "-1", "", "first"] {
            let error = by_index(Side::Remote, vec![server("rome", Some(wrong))]).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("rome") && error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn several_gateways_name_their_secrets() {
        let named = LocalReference { name: Some("named".to_owned()) };
        let found =
            ObjectReference { name: Some("found".to_owned()), ..ObjectReference::default() };
        let of = |spec, status, count| secret(Some((spec, status)), "milan", count);

        assert_eq!(secret(None, "milan", 1), None);
        assert_eq!(secret(None, "milan-1", 2).as_deref(), Some("gw-milan-1"));
        assert_eq!(of(None, Some(&found), 1), None);
        assert_eq!(of(None, Some(&found), 2).as_deref(), Some("found"));
        assert_eq!(of(None, None, 2).as_deref(), Some("gw-milan"));
        for count in [1, 2] {
            assert_eq!(of(Some(&named), Some(&found), count).as_deref(), Some("named"));
        }
    }

    #[test]
    fn node_ports_follow_that_of_the_first() {
        let typed = TypedExposure {
            service_type: Some(ServiceType::NodePort),
            node_port: Some(NodePort::Exactly(30_742)),
            ..TypedExposure::default()
        };
        let at = |port: i32| ServerEndpoint {
            service_type: Some("NodePort".to_owned()),
            node_port: Some(port),
            ..ServerEndpoint::default()
        };
        let port = |wanted: &TypedExposure, former: Option<i32>, first: Option<i32>, index| {
            let [former, first] = [former, first].map(|port| port.map(at));
            exposure(wanted, former.as_ref(), first.as_ref(), index).unwrap().node_port.number()
        };
        let none = TypedExposure::default();

        assert_eq!(port(&typed, None, None, 0), Some(30_742));
        assert_eq!(port(&typed, None, None, 2), Some(30_744));
        assert_eq!(port(&typed, Some(30_744), Some(30_742), 2), Some(30_744));
        // Its own stays, also one that Kubernetes has chosen.
        assert_eq!(port(&none, Some(31_999), Some(30_742), 1), Some(31_999));
        assert_eq!(port(&none, Some(0), Some(30_742), 1), None);
        assert_eq!(port(&none, None, Some(30_742), 1), Some(30_743));

        let typed = TypedExposure { node_port: Some(NodePort::Exactly(u16::MAX)), ..typed };
        let error = exposure(&typed, None, None, 1).unwrap_err().to_string();
        assert!(error.contains("65535"), "{error}");
    }

    #[test]
    fn typed_client_ports_count_up() {
        let check = |address: Option<&str>, port: Option<u16>, count| {
            let client_address = address.map(str::to_owned);
            let wanted = Connect { client_address, client_port: port, ..Connect::default() };
            check_addresses(&wanted, count)
        };

        assert!(check(Some("gate.example"), None, 1).is_ok());
        assert!(check(Some("gate.example"), Some(51_840), 8).is_ok());
        assert!(check(Some("gate.example"), Some(65_534), 2).is_ok());
        for (address, port) in [
            (Some("gate.example"), None),
            (None, Some(51_840)),
            (Some("gate.example"), Some(65_535)),
        ] {
            let error = check(address, port, 2).unwrap_err().to_string();
            assert!(error.contains("--gw-client-address") && error.contains('2'), "{error}");
        }
    }

    #[test]
    fn load_balancers_have_an_address_each() {
        let first = ServerEndpoint {
            service_type: Some("LoadBalancer".to_owned()),
            load_balancer_ip: Some("192.0.2.7".to_owned()),
            ..ServerEndpoint::default()
        };
        let wanted = TypedExposure::default();

        let second = exposure(&wanted, None, Some(&first), 1).unwrap();
        assert_eq!(
            (second.service_type, second.load_balancer_ip),
            (ServiceType::LoadBalancer, None)
        );
        let kept = exposure(&wanted, Some(&first), Some(&first), 1).unwrap();
        assert_eq!(kept.load_balancer_ip.as_deref(), Some("192.0.2.7"));
    }
}
