//! The endpoint of a gateway, outside its cluster and within.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Pod, Service, ServiceSpec};
use kube::ResourceExt;
use strait_api::endpoint::{Endpoint, InternalEndpoint};
use strait_api::labels::{ACTIVE, COMPONENT};
use strait_kube::active;

/// Types of addresses of a node, the preferred ones first: clients try them in this order. Internal names come last, as
/// few clients can resolve them.
const ADDRESSES: [&str; 4] = ["ExternalIP", "ExternalDNS", "InternalIP", "InternalDNS"];

/// A name that often cannot be resolved: used only where a node has no other address.
const HOSTNAME: &str = "Hostname";

/// The number of addresses of one gateway that a client accepts.
const ADDRESSES_MAX: usize = 8;

/// Why the endpoint of a gateway is not known. Each cause may pass by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// None is elected yet, or it does not run.
    #[error("no active gateway pods found: is one running, with the label {ACTIVE}?")]
    NoActivePod,
    /// The Service would send datagrams to all of them.
    #[error("multiple ({count}) active gateway pods found: one pod of a gateway may have {ACTIVE}")]
    SeveralActivePods {
        /// The number of them.
        count: usize,
    },
    /// It is not scheduled yet, or has no address yet.
    #[error("pod {pod} has no address or no node yet")]
    PodNotPlaced {
        /// The name of the pod.
        pod: String,
    },
    /// Pods on the node are not reachable.
    #[error("node {node} of the active gateway pod is not there, or not ready")]
    NodeNotReady {
        /// The name of the node.
        node: String,
    },
    /// Clients could not reach the node.
    #[error("node {node} has no address of the IP families of the service ({families})")]
    NodeWithoutAddress {
        /// The name of the node.
        node: String,
        /// The IP families of the service.
        families: String,
    },
    /// The load balancer is not ready, or there is none.
    #[error("service {service} has no address yet: is there a load balancer for type {kind}?")]
    NoAddress {
        /// The name of the service.
        service: String,
        /// Its type.
        kind: String,
    },
    /// The node port is not allocated yet.
    #[error("service {service} of type {kind} has no port yet")]
    NoPort {
        /// The name of the service.
        service: String,
        /// Its type.
        kind: String,
    },
    /// A service of this type is not reachable from outside.
    #[error("service {service} is of type {kind}: use ClusterIP, NodePort or LoadBalancer")]
    TypeUnusable {
        /// The name of the service.
        service: String,
        /// Its type.
        kind: String,
    },
}

/// The only one of the `pods` of a gateway that is active and runs.
///
/// # Errors
///
/// [`EndpointError`] if there is none, or more than one.
pub(crate) fn active_pod(pods: &[Pod]) -> Result<&Pod, EndpointError> {
    let is_gateway = |pod: &&Pod| {
        let (label, value) = COMPONENT;
        pod.labels().get(label).is_some_and(|found| found == value)
    };
    let is_running = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let gateways = pods.iter().filter(is_gateway).filter(is_running);
    let active: Vec<_> = gateways.filter(|pod| active::is_active(pod)).collect();

    match active[..] {
        [] => Err(EndpointError::NoActivePod),
        [pod] => Ok(pod),
        _ => Err(EndpointError::SeveralActivePods { count: active.len() }),
    }
}

/// The endpoint of the active pod among `pods` within its cluster.
///
/// # Errors
///
/// [`EndpointError`] if there is none, more than one, or it has no address yet.
pub fn internal_endpoint(pods: &[Pod]) -> Result<InternalEndpoint, EndpointError> {
    let pod = active_pod(pods)?;
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());

    match (ip, node) {
        (Some(ip), Some(node)) => Ok(InternalEndpoint { ip: Some(ip), node: Some(node) }),
        _ => Err(EndpointError::PodNotPlaced { pod: pod.name_any() }),
    }
}

/// The endpoint of the gateway that `service` exposes, the active one of `pods` on one of `nodes`, for clients.
///
/// # Errors
///
/// [`EndpointError`]; the caller should keep the former endpoint then.
pub fn endpoint(
    service: &Service,
    pods: &[Pod],
    nodes: &[Node],
) -> Result<Endpoint, EndpointError> {
    let spec = service.spec.clone().unwrap_or_default();
    let kind = spec.type_.clone().unwrap_or_else(|| "ClusterIP".to_owned());
    let name = service.name_any();
    let first = spec.ports.as_ref().and_then(|ports| ports.first());
    let (addresses, port) = match kind.as_str() {
        "ClusterIP" => (cluster_addresses(&spec), first.map(|port| port.port)),
        "NodePort" => (node_addresses(&spec, pods, nodes)?, first.and_then(|port| port.node_port)),
        "LoadBalancer" => (balancer_addresses(service), first.map(|port| port.port)),
        _ => return Err(EndpointError::TypeUnusable { service: name, kind }),
    };
    if addresses.is_empty() {
        return Err(EndpointError::NoAddress { service: name, kind });
    }
    let Some(port) = port else { return Err(EndpointError::NoPort { service: name, kind }) };
    let protocol = first.and_then(|port| port.protocol.clone());

    Ok(Endpoint { addresses, port: Some(port), ports: Vec::new(), protocol })
}

fn cluster_addresses(spec: &ServiceSpec) -> Vec<String> {
    let addresses = spec.cluster_ips.clone().unwrap_or_default();

    addresses.into_iter().filter(|address| !address.is_empty() && address != "None").collect()
}

/// IP addresses first: they need no resolution.
fn balancer_addresses(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|balancer| balancer.ingress.clone()).unwrap_or_default();
    let ips = ingress.iter().filter_map(|ingress| ingress.ip.clone());
    let names = ingress.iter().filter_map(|ingress| ingress.hostname.clone());

    ips.chain(names).filter(|address| !address.is_empty()).collect()
}

/// The addresses of the node with the active pod under which it serves `service`, the preferred ones first.
fn node_addresses(
    service: &ServiceSpec,
    pods: &[Pod],
    nodes: &[Node],
) -> Result<Vec<String>, EndpointError> {
    let pod = active_pod(pods)?;
    let Some(name) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
        return Err(EndpointError::PodNotPlaced { pod: pod.name_any() });
    };
    let node = nodes.iter().find(|node| node.name_any() == name && is_ready(node));
    let Some(status) = node.and_then(|node| node.status.as_ref()) else {
        return Err(EndpointError::NodeNotReady { node: name });
    };
    // A Service without families is of an API server that has not set any: all of them count.
    let families = service.ip_families.clone().unwrap_or_default();
    let all = status.addresses.clone().unwrap_or_default();
    let of_type = |type_: &'static str| {
        all.iter()
            .filter(move |found| found.type_ == type_ && !found.address.is_empty())
            .filter(|found| is_of(&families, &found.address))
            .map(|found| found.address.clone())
    };

    let mut addresses = Vec::new();
    for address in ADDRESSES.into_iter().flat_map(of_type) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        addresses.extend(of_type(HOSTNAME));
    }
    addresses.truncate(ADDRESSES_MAX);
    if addresses.is_empty() {
        let families = families.join(", ");
        return Err(EndpointError::NodeWithoutAddress { node: name, families });
    }

    Ok(addresses)
}

/// Whether `address` is of one of the IP `families`; a name may resolve to any.
fn is_of(families: &[String], address: &str) -> bool {
    let family = match address.parse() {
        Ok(IpAddr::V4(_)) => "IPv4",
        Ok(IpAddr::V6(_)) => "IPv6",
        Err(_) => return true,
    };

    families.is_empty() || families.iter().any(|found| found == family)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());

    conditions.is_some_and(|conditions| {
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}
