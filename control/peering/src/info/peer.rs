//! One peering, from the objects about it. Pure.

use k8s_openapi::api::apps::v1::Deployment;
use serde::Serialize;
use strait_api::configuration::{Cluster, ClusterCidr};
use strait_api::endpoint::Endpoint;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer};

use super::super::connect::{configured, established, ready};
use super::super::wait::Progress;

/// The objects about one peering, as far as they are there.
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
    /// The other cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// How it is reached.
    pub network: PeerNetwork,
}

/// How the network to a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Health {
    /// Packets pass.
    Healthy,
    /// They do not; alerts say why.
    Unhealthy,
    /// Nobody wants them to: there is no gateway.
    Disabled,
}

impl Health {
    /// As it is written.
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
    /// How it is.
    pub status: Health,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
    /// The prefixes.
    pub cidr: PeerCidr,
    /// The gateway of the other cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<PeerGateway>,
    /// Round trip, as the gateway measured it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
}

/// The prefixes of a peering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerCidr {
    /// As the other cluster calls them.
    pub remote: CidrPair,
    /// As they are called here; one that has no name yet is empty.
    pub remapped: CidrPair,
}

/// Prefixes by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CidrPair {
    /// Of pods.
    #[serde(rename = "podCIDR")]
    pub pod: Vec<String>,
    /// For what has no address of the cluster's own.
    #[serde(rename = "externalCIDR")]
    pub external: Vec<String>,
}

/// The gateways of a peering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerGateway {
    /// Which end the other cluster is: `Server` or `Client`.
    pub role: &'static str,
    /// Where the server is, on whichever side it is.
    pub address: Vec<String>,
    /// UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

impl PeerInfo {
    /// What `objects` say of the peering with cluster `id`.
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

/// What keeps packets from passing.
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
