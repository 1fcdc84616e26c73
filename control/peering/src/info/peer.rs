//! The state of one peering, from its objects. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use serde::Serialize;
use strait_api::configuration::{Cluster, ClusterCidr};
use strait_api::endpoint::Endpoint;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer};

use super::super::connect::{configured, established, ready};
use super::super::wait::Progress;

/// The objects of one peering, as far as they exist.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Objects<'a> {
    pub(in super::super) configuration: Option<&'a Configuration>,
    /// The first one first.
    pub(in super::super) gateways: Vec<GatewayObjects<'a>>,
}

/// The objects of one gateway, as far as they exist.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct GatewayObjects<'a> {
    pub(in super::super) requested: Requested<'a>,
    pub(in super::super) connection: Option<&'a Connection>,
    pub(in super::super) deployment: Option<&'a Deployment>,
}

/// The object that requests a gateway.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Requested<'a> {
    /// This cluster has the server.
    Server(&'a GatewayServer),
    /// This cluster has the client.
    Client(&'a GatewayClient),
}

impl Requested<'_> {
    pub(in super::super) fn name(&self) -> String {
        match self {
            Self::Server(server) => server.name_any(),
            Self::Client(client) => client.name_any(),
        }
    }

    pub(in super::super) fn namespace(&self) -> Option<String> {
        match self {
            Self::Server(server) => server.namespace(),
            Self::Client(client) => client.namespace(),
        }
    }
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
    /// They pass through some of several gateways; alerts have the reason.
    Degraded,
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
            Self::Degraded => "Degraded",
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
    /// The gateway of the other cluster: of several, the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<PeerGateway>,
    /// The round trip that the gateway measured last: of several, the first one that has measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
    /// Each gateway, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayInfo>,
}

/// The state of one of several gateways of a peering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GatewayInfo {
    /// The name of its `GatewayServer` or `GatewayClient` in this cluster.
    pub name: String,
    /// Its state.
    pub status: Health,
    /// Its problems.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<String>,
    /// The gateway of the other cluster.
    #[serde(flatten)]
    pub gateway: PeerGateway,
    /// The round trip that it measured last.
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

impl PeerNetwork {
    /// Whether the gateway called `name` does not forward, so that Events may have the cause.
    pub(super) fn needs_cause(&self, name: &str) -> bool {
        match self.gateways.iter().find(|gateway| gateway.name == name) {
            Some(gateway) => !gateway.is_well(),
            None => self.status == Health::Unhealthy,
        }
    }
}

impl PeerInfo {
    /// The peering with cluster `id`, from `objects`. `causes` has what Events report of gateways, by the gateway's name.
    pub(in super::super) fn new(
        id: &str,
        Objects { configuration, gateways }: &Objects<'_>,
        causes: &BTreeMap<String, String>,
    ) -> Self {
        let mut gateways: Vec<_> = gateways.iter().map(GatewayInfo::new).collect();
        let alert = alert("Configuration", configuration.map(configured));
        let status = health(alert.is_none(), &gateways);
        let alerts = match gateways.as_mut_slice() {
            [] => Vec::new(),
            [only] => {
                let cause = causes.get(&only.name).cloned();
                cause.into_iter().chain(alert).chain(only.alerts.clone()).collect()
            }
            several => {
                for gateway in several.iter_mut() {
                    gateway.alerts.splice(0..0, causes.get(&gateway.name).cloned());
                }
                alert.into_iter().chain(unhealthy(several)).collect()
            }
        };
        let spec = configuration.and_then(|found| found.spec.remote.as_ref());
        let named = configuration
            .and_then(|found| found.status.as_ref())
            .and_then(|status| status.remote.as_ref());

        Self {
            cluster_id: id.to_owned(),
            network: PeerNetwork {
                status,
                alerts,
                cidr: PeerCidr { remote: pair(spec), remapped: pair(named) },
                gateway: gateways.first().map(|first| first.gateway.clone()),
                latency: gateways.iter().find_map(|gateway| gateway.latency.clone()),
                gateways: if gateways.len() > 1 { gateways } else { Vec::new() },
            },
        }
    }
}

impl GatewayInfo {
    fn new(objects: &GatewayObjects<'_>) -> Self {
        let GatewayObjects { requested, connection, deployment } = objects;
        let of_deployment = alert("Deployment of the gateway", deployment.map(ready));
        let of_connection = alert("Connection", connection.map(established));
        let alerts: Vec<_> = of_deployment.into_iter().chain(of_connection).collect();
        let latency = connection
            .and_then(|found| found.status.as_ref()?.latency.as_ref()?.value.clone())
            .filter(|_| deployment.is_some());

        Self {
            name: requested.name(),
            status: if alerts.is_empty() { Health::Healthy } else { Health::Unhealthy },
            alerts,
            gateway: gateway(requested),
            latency,
        }
    }

    /// Whether it forwards, as far as its own objects say.
    fn is_well(&self) -> bool {
        self.status == Health::Healthy
    }
}

/// The state of the network with these `gateways`.
fn health(is_configured: bool, gateways: &[GatewayInfo]) -> Health {
    if gateways.is_empty() {
        Health::Disabled
    } else if !is_configured || !gateways.iter().any(GatewayInfo::is_well) {
        Health::Unhealthy
    } else if gateways.iter().all(GatewayInfo::is_well) {
        Health::Healthy
    } else {
        Health::Degraded
    }
}

/// Names those of several gateways that are not healthy, if there are any.
fn unhealthy(gateways: &[GatewayInfo]) -> Option<String> {
    let names: Vec<_> =
        gateways.iter().filter(|it| !it.is_well()).map(|it| it.name.as_str()).collect();

    (!names.is_empty()).then(|| {
        format!("{} of {} gateways unhealthy: {}", names.len(), gateways.len(), names.join(", "))
    })
}

fn pair(cluster: Option<&Cluster>) -> CidrPair {
    let cidr = cluster.and_then(|cluster| cluster.cidr.clone());
    let ClusterCidr { external, pod } = cidr.unwrap_or_default();

    CidrPair { pod: pod.into(), external: external.into() }
}

fn gateway(requested: &Requested<'_>) -> PeerGateway {
    let (role, endpoint) = match requested {
        Requested::Server(server) => {
            let endpoint = server.status.as_ref().and_then(|status| status.endpoint.clone());
            ("Client", endpoint)
        }
        Requested::Client(client) => ("Server", client.spec.endpoint.clone()),
    };
    let Endpoint { addresses, port, ports, .. } = endpoint.unwrap_or_default();

    PeerGateway { role, address: addresses, port: port.or_else(|| ports.first().copied()) }
}

/// The problem with `what`, if it is missing or not done.
fn alert(what: &str, progress: Option<Progress<()>>) -> Option<String> {
    match progress {
        None => Some(format!("there is no {what}")),
        Some(Progress::Done(())) => None,
        Some(Progress::NotYet(found)) => Some(format!("{what}: {found}")),
    }
}
