//! The state of one peering, from its objects. Pure.

use k8s_openapi::api::apps::v1::Deployment;
use serde::Serialize;
use strait_api::configuration::{Cluster, ClusterCidr};
use strait_api::endpoint::Endpoint;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer};

use super::super::connect::{configured, established, ready};
use super::super::wait::Progress;

/// The objects of one peering, as far as they exist.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Objects<'a> {
    pub(in super::super) configuration: Option<&'a Configuration>,
    pub(in super::super) server: Option<&'a GatewayServer>,
    pub(in super::super) client: Option<&'a GatewayClient>,
    pub(in super::super) connection: Option<&'a Connection>,
    pub(in super::super) deployment: Option<&'a Deployment>,
}

/// A peering with one cluster. Its JSON form is public interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerInfo {
    /// The id of the other cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// Its network.
    pub network: PeerNetwork,
}

/// The state of the network to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Health {
    /// Packets pass.
    Healthy,
    /// They do not; alerts have the reason.
    Unhealthy,
    /// There is no gateway, and so no traffic is requested.
    Disabled,
}

impl Health {
    /// The label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Disabled => "Disabled",
        }
    }
}

/// The network of a peering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerNetwork {
    /// The state.
    pub status: Health,
    /// The problems.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
    /// The prefixes.
    pub cidr: PeerCidr,
    /// The gateway of the other cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<PeerGateway>,
    /// The round trip that the gateway measured last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
}

/// The prefixes of a peering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerCidr {
    /// In the addresses of the other cluster.
    pub remote: CidrPair,
    /// The local prefixes; one that is not chosen yet is empty.
    pub remapped: CidrPair,
}

/// Prefixes by purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CidrPair {
    /// Pod prefixes.
    #[serde(rename = "podCIDR")]
    pub pod: Vec<String>,
    /// For hosts without an address of the cluster.
    #[serde(rename = "externalCIDR")]
    pub external: Vec<String>,
}

/// The gateways of a peering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerGateway {
    /// The end that the other cluster is: `Server` or `Client`.
    pub role: &'static str,
    /// The addresses of the server, on either side.
    pub address: Vec<String>,
    /// The UDP port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

impl PeerInfo {
    /// The peering with cluster `id`, from `objects`.
    pub(in super::super) fn new(id: &str, objects: &Objects<'_>) -> Self {
        let Objects { configuration, server, client, connection, deployment } = objects;
        let gateway = gateway(*server, *client);
        let alerts = match &gateway {
            None => Vec::new(),
            Some(_) => alerts(objects),
        };
        let status = match (&gateway, alerts.is_empty()) {
            (None, _) => Health::Disabled,
            (Some(_), true) => Health::Healthy,
            (Some(_), false) => Health::Unhealthy,
        };
        let spec = configuration.and_then(|found| found.spec.remote.as_ref());
        let named = configuration
            .and_then(|found| found.status.as_ref())
            .and_then(|status| status.remote.as_ref());
        let latency = connection
            .and_then(|found| found.status.as_ref()?.latency.as_ref()?.value.clone())
            .filter(|_| deployment.is_some());

        Self {
            cluster_id: id.to_owned(),
            network: PeerNetwork {
                status,
                alerts,
                cidr: PeerCidr { remote: pair(spec), remapped: pair(named) },
                gateway,
                latency,
            },
        }
    }
}

fn pair(cluster: Option<&Cluster>) -> CidrPair {
    let cidr = cluster.and_then(|cluster| cluster.cidr.clone());
    let ClusterCidr { external, pod } = cidr.unwrap_or_default();

    CidrPair { pod: pod.into(), external: external.into() }
}

fn gateway(server: Option<&GatewayServer>, client: Option<&GatewayClient>) -> Option<PeerGateway> {
    let (role, endpoint) = match (server, client) {
        (Some(server), _) => {
            let endpoint = server.status.as_ref().and_then(|status| status.endpoint.clone());
            ("Client", endpoint)
        }
        (None, Some(client)) => ("Server", client.spec.endpoint.clone()),
        (None, None) => return None,
    };
    let Endpoint { addresses, port, ports, .. } = endpoint.unwrap_or_default();

    Some(PeerGateway { role, address: addresses, port: port.or_else(|| ports.first().copied()) })
}

/// The problems that keep packets from passing.
fn alerts(objects: &Objects<'_>) -> Vec<String> {
    let Objects { configuration, connection, deployment, .. } = objects;
    let of = |what: &str, progress: Option<Progress<()>>| match progress {
        None => Some(format!("there is no {what}")),
        Some(Progress::Done(())) => None,
        Some(Progress::NotYet(found)) => Some(format!("{what}: {found}")),
    };

    [
        of("Configuration", configuration.map(configured)),
        of("Deployment of the gateway", deployment.map(ready)),
        of("Connection", connection.map(established)),
    ]
    .into_iter()
    .flatten()
    .collect()
}
