//! The state of clusters and peerings: `info`, `info peer` and `status`.

mod display;
mod peer;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use strait_api::labels::{EXTERNAL_CIDR, GATEWAYS_MAX, POD_CIDR, gateway_index};
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer, Network};
use strait_plan::objects::{cluster_id, of_cluster};

use super::context::{PeeringSide, own_id};
use super::{ClusterContext, CommandError, Session, cause, prefixes};

pub use peer::{CidrPair, GatewayInfo, Health, PeerCidr, PeerGateway, PeerInfo, PeerNetwork};
use peer::{GatewayObjects, Objects, Requested};

/// The state of a cluster. Its JSON form is public interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// The cluster id.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// The namespace in which Liqo or Strait is installed.
    pub namespace: String,
    /// Its prefixes.
    pub network: NetworkInfo,
}

/// The prefixes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkInfo {
    /// Pod prefixes.
    #[serde(rename = "podCIDRs")]
    pub pod: Vec<String>,
    /// Service prefixes.
    #[serde(rename = "serviceCIDR")]
    pub service: Vec<String>,
    /// For hosts without an address of the cluster.
    #[serde(rename = "externalCIDR")]
    pub external: Vec<String>,
    /// Between nodes and gateways.
    #[serde(rename = "internalCIDR")]
    pub internal: Vec<String>,
}

/// Reads the state of a cluster.
///
/// # Errors
///
/// [`CommandError`] if it does not answer.
pub async fn info(context: &ClusterContext, session: Session<'_>) -> Result<Info, CommandError> {
    let cluster_id = own_id(context, session).await?;
    let namespace = context.liqo_namespace.clone();
    let end = PeeringSide::alone(context, namespace.clone(), session);
    let networks = list::<Network>(&end, end.api()).await?;
    let of_type = |wanted| {
        let found = prefixes::of_type(&networks, wanted)
            .map_err(|cause| CommandError::Prefixes { side: end.side, cause })?;
        Ok::<_, CommandError>(found.iter().map(ToString::to_string).collect())
    };
    let network = NetworkInfo {
        pod: of_type(POD_CIDR)?,
        service: of_type("service-cidr")?,
        external: of_type(EXTERNAL_CIDR)?,
        internal: of_type("internal-cidr")?,
    };

    Ok(Info { cluster_id, namespace, network })
}

/// Reads the peerings of a cluster with `ids`, or all if there are none.
///
/// # Errors
///
/// [`CommandError`] if it does not answer, or if there is no peering with one of `ids`.
pub async fn peers(
    context: &ClusterContext,
    ids: &[String],
    session: Session<'_>,
) -> Result<Vec<PeerInfo>, CommandError> {
    let end = PeeringSide::alone(context, context.namespace.clone().unwrap_or_default(), session);
    let configurations = list::<Configuration>(&end, scope(&end, context)).await?;
    let servers = list::<GatewayServer>(&end, scope(&end, context)).await?;
    let clients = list::<GatewayClient>(&end, scope(&end, context)).await?;
    let connections = list::<Connection>(&end, scope(&end, context)).await?;
    let deployments = deployments(&end, &servers, &clients).await?;
    let known: BTreeSet<_> = configurations
        .iter()
        .filter_map(cluster_id)
        .chain(servers.iter().filter_map(cluster_id))
        .chain(clients.iter().filter_map(cluster_id))
        .collect();
    for id in ids {
        if !known.contains(id.as_str()) {
            let known: Vec<_> = known.iter().copied().collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(CommandError::NoPeer { side: end.side, id: id.clone(), known });
        }
    }
    let of_all: Vec<_> = known.iter().map(|id| (*id).to_owned()).collect();
    let requested = if ids.is_empty() { &of_all } else { ids };

    let mut found = Vec::with_capacity(requested.len());
    for id in requested {
        let of_servers = of_peering(&servers, id).into_iter().map(Requested::Server);
        let of_clients = of_peering(&clients, id).into_iter().map(Requested::Client);
        let mut gateways: Vec<_> = of_servers.collect();
        if gateways.is_empty() {
            gateways.extend(of_clients);
        }
        let is_alone = gateways.len() == 1;
        let gateways = gateways.into_iter().map(|requested| GatewayObjects {
            requested,
            connection: if is_alone {
                of_cluster(&connections, id)
            } else {
                connections.iter().find(|it| is_of(it, &requested))
            },
            deployment: deployments.get(&(requested.namespace(), requested.name())),
        });
        let objects = Objects {
            configuration: of_cluster(&configurations, id),
            gateways: gateways.collect(),
        };
        let peer = PeerInfo::new(id, &objects, &BTreeMap::new());
        let causes = causes(&end, &peer, &objects).await;
        found.push(if causes.is_empty() { peer } else { PeerInfo::new(id, &objects, &causes) });
    }

    Ok(found)
}

/// Those of `all` for cluster `id`, by their index. One with an invalid index is last.
fn of_peering<'a, K>(all: &'a [K], id: &str) -> Vec<&'a K>
where
    K: Resource<DynamicType = ()>,
{
    let mut found: Vec<_> = all.iter().filter(|it| cluster_id(*it) == Some(id)).collect();
    found.sort_by_key(|it| {
        (gateway_index(*it).unwrap_or(GATEWAYS_MAX), it.namespace(), it.name_any())
    });

    found
}

/// Whether the gateway `requested` reports by `connection`.
fn is_of(connection: &Connection, requested: &Requested<'_>) -> bool {
    connection.namespace() == requested.namespace()
        && connection.name_any() == format!("gw-{}", requested.name())
}

/// The causes that Events report, by the name of the gateway, of those gateways that do not forward.
async fn causes(
    end: &PeeringSide<'_>,
    peer: &PeerInfo,
    objects: &Objects<'_>,
) -> BTreeMap<String, String> {
    let mut causes = BTreeMap::new();
    for GatewayObjects { requested, .. } in &objects.gateways {
        let name = requested.name();
        if peer.network.needs_cause(&name)
            && let Some(namespace) = requested.namespace()
            && let Some(cause) = cause::find(end, &namespace, &name).await
        {
            causes.insert(name, cause.to_string());
        }
    }

    causes
}

/// The namespace that was named, or all.
fn scope<K>(end: &PeeringSide<'_>, context: &ClusterContext) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match &context.namespace {
        Some(namespace) => Api::namespaced(end.client.clone(), namespace),
        None => Api::all(end.client.clone()),
    }
}

async fn list<K>(end: &PeeringSide<'_>, api: Api<K>) -> Result<Vec<K>, CommandError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let doing = format!("listing {}", K::plural(&()));
    let parameters = ListParams::default();

    end.call(&doing, async || api.list(&parameters).await.map(|list| list.items)).await
}

/// The Deployments of all gateways, by namespace and name of the gateway.
async fn deployments(
    end: &PeeringSide<'_>,
    servers: &[GatewayServer],
    clients: &[GatewayClient],
) -> Result<BTreeMap<(Option<String>, String), Deployment>, CommandError> {
    let of_servers = servers.iter().map(|server| (server.namespace(), server.name_any()));
    let of_clients = clients.iter().map(|client| (client.namespace(), client.name_any()));
    let mut found = BTreeMap::new();
    for (namespace, gateway) in of_servers.chain(of_clients) {
        let name = format!("gw-{gateway}");
        let api: Api<Deployment> =
            Api::namespaced(end.client.clone(), namespace.as_deref().unwrap_or_default());
        let doing = format!("reading Deployment {name}");
        if let Some(deployment) = end.call(&doing, async || api.get_opt(&name).await).await? {
            found.insert((namespace, gateway), deployment);
        }
    }

    Ok(found)
}

/// The part of `value` at `path`: names of fields with dots between them, in any case, and numbers for elements.
#[must_use]
pub fn select<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let mut steps = path.split('.').filter(|step| !step.is_empty());

    steps.try_fold(value, |value, step| match value {
        Value::Object(map) => {
            let (_, value) = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(step))?;
            Some(value)
        }
        Value::Array(list) => list.get(step.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}
