//! Whether a gateway runs with its current spec, and not with a former one.
//!
//! ```text
//! GatewayServer, GatewayClient   generation N
//!   Deployment                   made from generation N, status observed, no former replica
//!     pod                        active, not terminating, its flags have the requested MTU
//!       Connection               written since that pod runs
//! ```
//!
//! The operator of Strait records N on the objects that it makes. That of Liqo does not: for its gateways the flags
//! show whether they are current.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt as _};
use strait_api::labels::GENERATION;
use strait_api::{GatewayClient, GatewayServer};
use strait_kube::active::is_active;

use super::super::CommandError;
use super::super::context::PeeringSide;
use super::super::flag_or_env::flag_or_env;
use super::super::wait::{Progress, WaitTarget, named, until_of_gateway};
use super::ready;

/// The requested state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Requested {
    /// The name of the gateway.
    pub(in super::super) name: String,
    generation: Option<i64>,
    mtu: Option<i64>,
    /// The port that a client connects to.
    port: Option<i32>,
}

impl From<&GatewayServer> for Requested {
    fn from(server: &GatewayServer) -> Self {
        let (name, generation) = (server.name_any(), server.metadata.generation);

        Self { name, generation, mtu: server.spec.mtu, port: None }
    }
}

impl From<&GatewayClient> for Requested {
    fn from(client: &GatewayClient) -> Self {
        let (name, generation) = (client.name_any(), client.metadata.generation);
        let port = client.spec.endpoint.as_ref().and_then(|endpoint| endpoint.port);

        Self { name, generation, mtu: client.spec.mtu, port }
    }
}

/// Waits until a current pod works for the gateway. Returns when its last container was started, if that is known.
pub(in super::super) async fn until_rolled_out(
    end: &PeeringSide<'_>,
    requested: &Requested,
) -> Result<Option<Timestamp>, CommandError> {
    let (gateway, namespace) = (requested.name.as_str(), &end.namespace);
    let name = format!("gw-{gateway}");
    let awaited = WaitTarget {
        what: format!("gateway pod {name} to be ready"),
        look_at: format!("kubectl describe deployment {name} -n {namespace}"),
    };
    let selected = (end.api::<Deployment>(), named(&name));
    let pods = until_of_gateway(end, gateway, selected, &awaited, |found| {
        Ok(match found.first() {
            None => Progress::NotYet(format!(
                "no Deployment {name} in namespace {namespace}: is the operator of this cluster running?"
            )),
            Some(deployment) => rolled_out(deployment, requested),
        })
    })
    .await?;

    let selected = (end.api::<Pod>(), watcher::Config::default().labels(&pods));
    until_of_gateway(end, gateway, selected, &awaited, |pods| Ok(running(pods, requested))).await
}

/// Waits until the Service of a server is current; returns its port for clients, if there is one.
pub(in super::super) async fn until_exposed(
    end: &PeeringSide<'_>,
    requested: &Requested,
) -> Result<Option<i32>, CommandError> {
    let (gateway, name) = (requested.name.as_str(), format!("gw-{}", requested.name));
    let awaited = WaitTarget {
        what: format!("Service {name} to be as it is asked for"),
        look_at: format!("kubectl get service {name} -n {} -o yaml", end.namespace),
    };
    let selected = (end.api::<Service>(), named(&name));

    until_of_gateway(end, gateway, selected, &awaited, |found| {
        let Some(service) = found.first() else { return Ok(Progress::Done(None)) };
        Ok(match made_of(*service, requested) {
            Progress::Done(()) => Progress::Done(port(service)),
            Progress::NotYet(found) => Progress::NotYet(found),
        })
    })
    .await
}

fn port(service: &Service) -> Option<i32> {
    let spec = service.spec.as_ref()?;
    let first = spec.ports.as_ref()?.first()?;

    if spec.type_.as_deref() == Some("NodePort") { first.node_port } else { Some(first.port) }
}

/// Whether `made` was made from the requested generation, or does not record one.
fn made_of<K: Resource<DynamicType = ()>>(made: &K, requested: &Requested) -> Progress<()> {
    let of = made.annotations().get(GENERATION).and_then(|text| text.parse::<i64>().ok());

    match (of, requested.generation) {
        (Some(of), Some(generation)) if of < generation => Progress::NotYet(format!(
            "{} {} made of generation {of} of the gateway, {generation} is asked for: is the operator of this cluster running?",
            K::kind(&()),
            made.name_any()
        )),
        _ => Progress::Done(()),
    }
}

/// Whether all replicas are current, and one of them is ready; returns their selector.
fn rolled_out(deployment: &Deployment, requested: &Requested) -> Progress<String> {
    if let Progress::NotYet(found) = made_of(deployment, requested) {
        return Progress::NotYet(found);
    }
    let name = deployment.name_any();
    let containers = deployment.spec.template.spec.iter().flat_map(|spec| &spec.containers);
    if let Some(former) = former(containers, requested) {
        return Progress::NotYet(format!("Deployment {name} with {former}"));
    }
    let status = deployment.status.clone().unwrap_or_default();
    if status.observed_generation < deployment.metadata.generation
        && status.observed_generation.is_some()
    {
        return Progress::NotYet(format!(
            "the status of Deployment {name} as of a former generation"
        ));
    }
    if let Progress::NotYet(found) = ready(deployment) {
        return Progress::NotYet(found);
    }
    let [replicas, updated] =
        [status.replicas, status.updated_replicas].map(Option::unwrap_or_default);
    if updated == 0 || updated < replicas {
        let former = replicas - updated;
        return Progress::NotYet(format!(
            "{former} of {replicas} replicas of Deployment {name} of a former generation"
        ));
    }
    let labels = deployment.spec.selector.match_labels.iter().flatten();
    let labels: Vec<_> = labels.map(|(label, value)| format!("{label}={value}")).collect();

    Progress::Done(labels.join(","))
}

/// Whether there is a pod that works, the active one where one is marked; returns when its last container was started.
fn running(pods: &[&Pod], requested: &Requested) -> Progress<Option<Timestamp>> {
    let is_running = |pod: &&&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let running: Vec<_> = pods.iter().copied().filter(|pod| is_running(&pod)).collect();
    let marked: Vec<_> = running.iter().copied().filter(|pod| is_active(pod)).collect();
    let working = if marked.is_empty() { running } else { marked };
    if working.is_empty() {
        return Progress::NotYet(format!("no pod of gw-{} that runs", requested.name));
    }
    for pod in &working {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        if let Some(former) = former(containers, requested) {
            return Progress::NotYet(format!("pod {} with {former}", pod.name_any()));
        }
    }

    Progress::Done(working.into_iter().filter_map(started).max())
}

/// The flag of `containers` that differs from the request, in words.
fn former<'a>(
    containers: impl Iterator<Item = &'a Container> + Clone,
    requested: &Requested,
) -> Option<String> {
    let differs = |flag: &str, variable: &str, wanted: i64| {
        let mut values =
            containers.clone().filter_map(|container| flag_or_env(container, flag, variable));
        values.find_map(|value| value.trim().parse().ok().filter(|found: &i64| *found != wanted))
    };
    if let Some(mtu) = requested.mtu
        && let Some(found) = differs("--mtu", "STRAIT_MTU", mtu)
    {
        return Some(format!("an MTU of {found} bytes, {mtu} are asked for"));
    }
    let port = i64::from(requested.port?);
    let found = differs("--endpoint-ports", "STRAIT_ENDPOINT_PORTS", port)
        .or_else(|| differs("--endpoint-port", "STRAIT_ENDPOINT_PORTS", port))?;

    Some(format!("port {found} of the server, {port} is asked for"))
}

fn started(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let running = containers.filter_map(|container| container.state.as_ref()?.running.as_ref());
    let started = running.filter_map(|running| running.started_at.as_ref());

    started.chain(&status.start_time).map(|Time(at)| *at).max()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn requested() -> Requested {
        Requested {
            name: "rome".to_owned(),
            generation: Some(2),
            mtu: Some(1300),
            port: Some(30742),
        }
    }

    /// The Deployment when all of `requested` is in force.
    fn deployment() -> Value {
        json!({
            "metadata": {"name": "gw-rome", "generation": 3, "annotations": {GENERATION: "2"}},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "rome", "part": "gateway"}},
                "template": {"spec": {"containers": [container(1300, 30742)]}},
            },
            "status": {
                "observedGeneration": 3, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            },
        })
    }

    fn container(mtu: u16, port: u16) -> Value {
        let args = [format!("--mtu={mtu}"), format!("--endpoint-ports={port}")];

        json!({"name": "wireguard", "args": args})
    }

    fn pod(mtu: u16, change: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "gw-rome-1", "labels": {"networking.liqo.io/active": "true"}},
            "spec": {"containers": [container(mtu, 30742)]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:01Z", "containerStatuses": [{
                "name": "wireguard", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}},
            }]},
        });
        json_patch::merge(&mut pod, &change);

        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_deployment_is_done_when_all_is_current() {
        let judge = |change: Value| {
            let mut deployment = deployment();
            json_patch::merge(&mut deployment, &change);
            rolled_out(&serde_json::from_value(deployment).unwrap(), &requested())
        };
        assert_eq!(judge(json!({})), Progress::Done("app=rome,part=gateway".to_owned()));
        // Of an operator that does not record the generation.
        let silent = json!({"metadata": {"annotations": null}});
        assert!(matches!(judge(silent), Progress::Done(_)));

        for (change, says) in [
            (
                json!({"metadata": {"annotations": {GENERATION: "1"}}}),
                "Deployment gw-rome made of generation 1 of the gateway, 2 is asked for",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [container(1340, 30742)]}}}}),
                "Deployment gw-rome with an MTU of 1340 bytes, 1300 are asked for",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [container(1300, 30741)]}}}}),
                "Deployment gw-rome with port 30741 of the server, 30742 is asked for",
            ),
            (json!({"status": {"observedGeneration": 2}}), "the status of Deployment gw-rome as"),
            (
                json!({"status": {"replicas": 2}}),
                "1 of 2 replicas of Deployment gw-rome of a former",
            ),
            (
                json!({"status": {"readyReplicas": 0}}),
                "0 of 1 replicas of Deployment gw-rome ready",
            ),
        ] {
            let progress = judge(change);
            assert!(
                matches!(&progress, Progress::NotYet(found) if found.starts_with(says)),
                "{says}: {progress:?}"
            );
        }
    }

    #[test]
    fn the_active_pod_that_stays_counts() {
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:05Z"}});
        let standby = json!({"metadata": {"labels": null}});
        let [going, former, standby] = [pod(1340, going), pod(1340, json!({})), pod(1340, standby)];
        let now = pod(1300, json!({}));

        let at = Some("2026-01-01T00:00:03Z".parse().unwrap());
        assert_eq!(running(&[&going, &standby, &now], &requested()), Progress::Done(at));
        for pods in [&[&former][..], &[&standby], &[&former, &now]] {
            let progress = running(pods, &requested());
            assert!(matches!(&progress, Progress::NotYet(found) if found.contains("1340")));
        }
        assert!(matches!(running(&[&going], &requested()), Progress::NotYet(_)));
    }
}
