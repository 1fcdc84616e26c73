//! Where each gateway says whether it forwards, and what it has said.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use serde::Deserialize;

/// The page of a gateway pod that says whether the gateway forwards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Namespace and name of the pod.
    pub pod: String,
    /// An address of the pod, and the port of its readiness probe.
    pub address: SocketAddr,
}

/// What a gateway says of itself. Fields that are not known are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct GatewayState {
    /// Whether packets that are given to it reach the other end.
    pub forwards: bool,
    /// The prefixes, by their local names, that no other gateway of the peering may carry.
    #[serde(default)]
    pub own_destinations: Vec<String>,
}

/// What gateways say, as far as it is known.
pub type Forwarding = BTreeMap<Endpoint, GatewayState>;

impl Endpoint {
    /// That of `pod`; `None` without an address, or without a readiness probe by HTTP.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let address: IpAddr = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
        let containers = &pod.spec.as_ref()?.containers;
        let port = containers.iter().find_map(readiness_port)?;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let pod = format!("{namespace}/{}", pod.name_any());

        Some(Self { pod, address: SocketAddr::new(address, port) })
    }
}

/// The port of the readiness probe, which may be the name of a port of the container.
fn readiness_port(container: &Container) -> Option<u16> {
    let port = match &container.readiness_probe.as_ref()?.http_get.as_ref()?.port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let ports = container.ports.as_deref().unwrap_or_default();
            ports.iter().find(|port| port.name.as_ref() == Some(name))?.container_port
        }
    };

    u16::try_from(port).ok().filter(|port| *port != 0)
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.pod, self.address)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoint(container: &Value, ip: Option<&str>) -> Option<String> {
        let pod = json!({
            "metadata": {"name": "gw", "namespace": "tenant"},
            "spec": {"containers": [{"name": "other"}, container]},
            "status": {"podIP": ip},
        });

        Endpoint::of(&serde_json::from_value(pod).unwrap()).map(|found| found.to_string())
    }

    #[test]
    fn the_readiness_probe_has_the_port() {
        let container = |port: Value| {
            json!({
                "name": "strait", "readinessProbe": {"httpGet": {"path": "/readyz", "port": port}},
                "ports": [
                    {"name": "metrics", "containerPort": 8084}, {"name": "healthz", "containerPort": 8085},
                ],
            })
        };
        for (port, ip, address) in [
            (json!(9000), Some("10.244.1.9"), Some("tenant/gw at 10.244.1.9:9000")),
            (json!("healthz"), Some("10.244.1.9"), Some("tenant/gw at 10.244.1.9:8085")),
            (json!("healthz"), Some("fd00::9"), Some("tenant/gw at [fd00::9]:8085")),
            (json!("absent"), Some("10.244.1.9"), None),
            (json!(0), Some("10.244.1.9"), None),
            (json!(65_536), Some("10.244.1.9"), None),
            (json!(9000), None, None),
        ] {
            assert_eq!(endpoint(&container(port), ip).as_deref(), address);
        }
        assert_eq!(endpoint(&json!({"name": "strait"}), Some("10.244.1.9")), None);
    }

    #[test]
    fn unknown_fields_of_a_line_are_ignored() {
        let read = |line: &str| serde_json::from_str::<GatewayState>(line).ok();
        let own_destinations = vec!["10.81.0.1/32".to_owned()];

        assert_eq!(
            read(r#"{"forwards":true,"own_destinations":["10.81.0.1/32"],"later":{"a":[1]}}"#),
            Some(GatewayState { forwards: true, own_destinations })
        );
        assert_eq!(read(r#"{"forwards":false}"#), Some(GatewayState::default()));
        assert_eq!(read(r#"{"own_destinations":[]}"#), None);
        assert_eq!(read(r#"{"forwards":1}"#), None);
    }
}
