//! The gateways of one peering are replaced one after another: while one is, the others carry its packets.
//!
//! A pod template that does not work stops at the first gateway.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{DynamicObject, ListParams};
use serde::de::DeserializeOwned;
use serde_json::Value;
use strait_api::labels::{COMPONENT, GATEWAY_NAME};
use strait_kube::within::is_within;

use super::context::Context;

/// What a rollout replaces.
const TEMPLATE: &str = "/spec/template";

/// The other gateway in `namespace` whose pods are being replaced, for which the change of the Deployment of `gateway` to
/// `wanted` has to wait. `None` if there is no such change, or if the gateway does not work: then nothing is lost.
///
/// To be called while nothing else changes Deployments, with what the API server has, not the cache: two gateways must not
/// take each other for complete.
pub(super) async fn waits_for(
    context: &Context,
    namespace: &str,
    gateway: &str,
    wanted: &Value,
) -> kube::Result<Option<String>> {
    let name = wanted.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let Some(found) = context.of::<Deployment>().get(name, Some(namespace)).await? else {
        return Ok(None);
    };
    let is_same = |wanted| found.data.pointer(TEMPLATE).is_some_and(|it| is_within(wanted, it));
    if wanted.pointer(TEMPLATE).is_none_or(is_same) {
        return Ok(None);
    }

    let (label, value) = COMPONENT;
    let gateways = ListParams::default().labels(&format!("{label}={value},{GATEWAY_NAME}"));
    let deployments = context.of::<Deployment>().api(Some(namespace)).list(&gateways).await?;
    let pods = context.of::<Pod>().api(Some(namespace)).list(&gateways).await?;

    Ok(in_rollout(gateway, &parsed(deployments.items), &parsed(pods.items)))
}

fn parsed<K>(objects: Vec<DynamicObject>) -> Vec<K>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    objects.into_iter().filter_map(|object| object.try_parse().ok()).collect()
}

/// A gateway in rollout other than `own`, if `own` itself is complete. The former pod of one has to be gone: it hands over
/// until then.
fn in_rollout(own: &str, deployments: &[Deployment], pods: &[Pod]) -> Option<String> {
    let incomplete = deployments.iter().filter(|deployment| !is_complete(deployment));
    let incomplete: BTreeSet<_> = incomplete.filter_map(gateway_of).collect();
    if incomplete.contains(own) {
        return None;
    }
    let ending = pods.iter().filter(|pod| pod.meta().deletion_timestamp.is_some());
    let ending = ending.filter_map(gateway_of).filter(|gateway| *gateway != own);

    incomplete.into_iter().chain(ending).min().map(str::to_owned)
}

fn gateway_of(object: &impl Resource) -> Option<&str> {
    object.meta().labels.as_ref()?.get(GATEWAY_NAME).map(String::as_str)
}

/// Whether all replicas are of the current template and ready.
fn is_complete(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let DeploymentStatus {
        observed_generation, replicas, updated_replicas, ready_replicas, ..
    } = status;

    observed_generation >= deployment.metadata.generation
        && [replicas, updated_replicas, ready_replicas].iter().all(|count| *count == Some(wanted))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Of `gateway`, with this many replicas, updated ones and ready ones.
    fn deployment(gateway: &str, [all, updated, ready]: [i32; 3]) -> Deployment {
        let deployment = json!({
            "metadata": {
                "name": format!("gw-{gateway}"), "generation": 2, "labels": {GATEWAY_NAME: gateway},
            },
            "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {
                "observedGeneration": 2, "replicas": all, "updatedReplicas": updated,
                "readyReplicas": ready,
            },
        });

        serde_json::from_value(deployment).unwrap()
    }

    fn ending_pod(gateway: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {
            "labels": {GATEWAY_NAME: gateway}, "deletionTimestamp": "2026-01-01T00:00:00Z",
        }}))
        .unwrap()
    }

    #[test]
    fn a_gateway_waits_for_one_in_rollout() {
        let complete = |gateway| deployment(gateway, [1, 1, 1]);
        for rolling in [[2, 1, 1], [2, 1, 2], [1, 0, 1], [1, 1, 0]] {
            let all = [deployment("milan", rolling), complete("milan-1"), complete("milan-2")];

            assert_eq!(in_rollout("milan-1", &all, &[]).as_deref(), Some("milan"), "{rolling:?}");
            assert_eq!(in_rollout("milan", &all, &[]), None, "its own rollout goes on");
        }
        let all = [complete("milan"), complete("milan-1")];
        assert_eq!(in_rollout("milan", &all, &[]), None);
        let unobserved = {
            let mut unobserved = complete("milan");
            unobserved.metadata.generation = Some(3);
            unobserved
        };
        assert!(in_rollout("milan-1", &[unobserved, complete("milan-1")], &[]).is_some());
    }

    #[test]
    fn a_gateway_waits_for_a_former_pod() {
        let all = ["milan", "milan-1"].map(|gateway| deployment(gateway, [1, 1, 1]));
        let pods = [ending_pod("milan")];

        assert_eq!(in_rollout("milan-1", &all, &pods).as_deref(), Some("milan"));
        assert_eq!(in_rollout("milan", &all, &pods), None);
    }

    #[test]
    fn gateways_that_do_not_work_wait_for_none() {
        let all = ["milan", "milan-1"].map(|gateway| deployment(gateway, [1, 1, 0]));

        assert_eq!(in_rollout("milan", &all, &[]), None);
        assert_eq!(in_rollout("milan-1", &all, &[]), None);
    }
}
