//! The networking module of a `ForeignCluster`, computed from the objects of one remote cluster. Pure.
//!
//! Types, statuses, reasons and messages are those that Liqo's own controller writes: `liqoctl info` displays the
//! messages, and derives the health of the module from the statuses.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::DynamicObject;
use serde_json::Value;
use strait_api::foreign_cluster::{Module, ModuleCondition};

/// The objects of one remote cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) has_configuration: bool,
    /// The `Deployment` of each `GatewayServer`; `None` if it does not exist yet.
    pub(super) servers: Vec<Option<DynamicObject>>,
    /// The same of each `GatewayClient`.
    pub(super) clients: Vec<Option<DynamicObject>>,
    /// The `Connection`s.
    pub(super) connections: Vec<DynamicObject>,
}

/// A condition without its time.
struct Finding {
    type_: &'static str,
    status: &'static str,
    reason: &'static str,
    message: &'static str,
}

/// The module as it is `now`; `former` is as it was written last.
pub(super) fn module(objects: &Objects, former: &Module, now: Timestamp) -> Module {
    let server = gateways("NetworkGatewayServerStatus", &objects.servers);
    let client = gateways("NetworkGatewayClientStatus", &objects.clients);
    let has_gateway = server.is_some() || client.is_some();
    let findings = [configuration(objects.has_configuration), presence(has_gateway)]
        .into_iter()
        .chain(server)
        .chain(client)
        .chain([connection(&objects.connections)]);
    let dated = |finding: Finding| {
        let mut all = former.conditions.iter();
        let same = all.find(|one| one.type_ == finding.type_ && one.status == finding.status);
        let since = same.and_then(|one| one.last_transition_time.clone());

        ModuleCondition {
            last_transition_time: Some(since.unwrap_or(Time(now))),
            message: Some(finding.message.to_owned()),
            reason: Some(finding.reason.to_owned()),
            status: finding.status.to_owned(),
            type_: finding.type_.to_owned(),
        }
    };

    Module { conditions: findings.map(dated).collect(), enabled: true }
}

fn configuration(is_there: bool) -> Finding {
    let type_ = "NetworkConfigurationStatus";
    if is_there {
        Finding {
            type_,
            status: "Ready",
            reason: "NetworkConfigurationPresence",
            message: "The network configuration of the peer cluster is present",
        }
    } else {
        Finding {
            type_,
            status: "NotReady",
            reason: "NetworkConfigurationMissing",
            message: "The network configuration for the connection with the foreign cluster is missing",
        }
    }
}

fn presence(has_gateway: bool) -> Finding {
    let type_ = "NetworkGatewayPresence";
    if has_gateway {
        Finding {
            type_,
            status: "Ready",
            reason: "GatewayPresence",
            message: "There is a gateway connecting to the foreign cluster",
        }
    } else {
        Finding {
            type_,
            status: "NotReady",
            reason: "GatewayMissing",
            message: "The gateway resource connecting to the foreign cluster is missing",
        }
    }
}

/// Whether the replicas of all gateways of one end are ready; `None` if there is no such gateway.
fn gateways(type_: &'static str, deployments: &[Option<DynamicObject>]) -> Option<Finding> {
    if deployments.is_empty() {
        return None;
    }
    let replicas = |deployment: &Option<DynamicObject>, field: &str| {
        let status = deployment.as_ref().and_then(|deployment| deployment.data.get("status"));
        status.and_then(|status| status.get(field)).and_then(Value::as_i64).unwrap_or_default()
    };
    let lacks_all = |deployment: &_| replicas(deployment, "readyReplicas") == 0;
    let lacks_some = |deployment: &_| replicas(deployment, "unavailableReplicas") > 0;

    Some(if deployments.iter().any(lacks_all) {
        Finding {
            type_,
            status: "NotReady",
            reason: "GatewaysNotReady",
            message: "All gateway replicas are not ready",
        }
    } else if deployments.iter().any(lacks_some) {
        Finding {
            type_,
            status: "SomeNotReady",
            reason: "GatewaysSomeNotReady",
            message: "Some gateway replicas are not ready",
        }
    } else {
        Finding {
            type_,
            status: "Ready",
            reason: "GatewaysReady",
            message: "All gateway replicas are ready",
        }
    })
}

/// The worst of the connections.
fn connection(connections: &[DynamicObject]) -> Finding {
    let type_ = "NetworkConnectionStatus";
    let value = |connection: &DynamicObject| {
        let value = connection.data.pointer("/status/value").and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let all = |permitted: &[&str]| {
        connections.iter().all(|connection| permitted.contains(&value(connection).as_str()))
    };

    if connections.is_empty() {
        Finding {
            type_,
            status: "NotReady",
            reason: "ConnectionMissing",
            message: "There is no network connection with the foreign cluster",
        }
    } else if all(&["Connected"]) {
        Finding {
            type_,
            status: "Established",
            reason: "ConnectionEstablished",
            message: "The network connection with the foreign cluster is established",
        }
    } else if all(&["Connected", "Connecting"]) {
        Finding {
            type_,
            status: "Pending",
            reason: "ConnectionPending",
            message: "The network connection with the foreign cluster is connecting",
        }
    } else {
        Finding {
            type_,
            status: "Error",
            reason: "ConnectionError",
            message: "The network connection with the foreign cluster is in error",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn object(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "gw-milan"}, "status": status})).unwrap()
    }

    fn status(objects: &Objects, type_: &str) -> Option<String> {
        let module = module(objects, &Module::default(), NOW);
        assert!(module.enabled);

        module.conditions.into_iter().find(|one| one.type_ == type_).map(|one| one.status)
    }

    #[test]
    fn missing_objects_are_reported() {
        let nothing = Objects::default();

        assert_eq!(status(&nothing, "NetworkConfigurationStatus").unwrap(), "NotReady");
        assert_eq!(status(&nothing, "NetworkGatewayPresence").unwrap(), "NotReady");
        assert_eq!(status(&nothing, "NetworkConnectionStatus").unwrap(), "NotReady");
        assert_eq!(status(&nothing, "NetworkGatewayServerStatus"), None);
        assert_eq!(status(&nothing, "NetworkGatewayClientStatus"), None);
    }

    #[test]
    fn replicas_are_counted_at_each_end() {
        for (replicas, expected) in [
            (json!({}), "NotReady"),
            (json!({"unavailableReplicas": 1}), "NotReady"),
            (json!({"readyReplicas": 1, "unavailableReplicas": 1}), "SomeNotReady"),
            (json!({"readyReplicas": 2}), "Ready"),
        ] {
            let deployments = vec![Some(object(&replicas))];
            let server = Objects { servers: deployments.clone(), ..Objects::default() };
            let client = Objects { clients: deployments, ..Objects::default() };

            assert_eq!(status(&server, "NetworkGatewayServerStatus").unwrap(), expected);
            assert_eq!(status(&server, "NetworkGatewayClientStatus"), None);
            assert_eq!(status(&server, "NetworkGatewayPresence").unwrap(), "Ready");
            assert_eq!(status(&client, "NetworkGatewayClientStatus").unwrap(), expected);
        }
        let unmade = Objects { servers: vec![None], ..Objects::default() };
        assert_eq!(status(&unmade, "NetworkGatewayServerStatus").unwrap(), "NotReady");
    }

    #[test]
    fn the_worst_connection_decides() {
        for (values, expected) in [
            (vec!["Connected"], "Established"),
            (vec!["Connected", "Connecting"], "Pending"),
            (vec!["Connecting", "Error", "Connected"], "Error"),
            (vec![""], "Error"),
        ] {
            let connections = values.iter().map(|value| object(&json!({"value": value})));
            let objects = Objects { connections: connections.collect(), ..Objects::default() };

            assert_eq!(
                status(&objects, "NetworkConnectionStatus").unwrap(),
                expected,
                "{values:?}"
            );
        }
    }

    #[test]
    fn only_another_status_is_a_transition() {
        let mut objects = Objects { has_configuration: true, ..Objects::default() };
        let first = module(&objects, &Module::default(), NOW);
        let later = NOW + jiff::SignedDuration::from_secs(60);
        assert_eq!(module(&objects, &first, later), first);

        objects.has_configuration = false;
        let second = module(&objects, &first, later);
        let time = |module: &Module| module.conditions[0].last_transition_time.clone();
        assert_eq!(time(&second), Some(Time(later)));
        assert_eq!(second.conditions[1..], first.conditions[1..]);
    }
}
