//! The networking module of a `ForeignCluster`, computed from the objects of one remote cluster. Pure.
//!
//! Types, statuses, reasons and messages are those that Liqo's own controller writes: `liqoctl info` displays the
//! messages, and derives the health of the module from the statuses.

use std::borrow::Cow;

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
    message: Cow<'static, str>,
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
            message: Some(finding.message.into_owned()),
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
            message: "The network configuration of the peer cluster is present".into(),
        }
    } else {
        Finding {
            type_,
            status: "NotReady",
            reason: "NetworkConfigurationMissing",
            message:
                "The network configuration for the connection with the foreign cluster is missing"
                    .into(),
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
            message: "There is a gateway connecting to the foreign cluster".into(),
        }
    } else {
        Finding {
            type_,
            status: "NotReady",
            reason: "GatewayMissing",
            message: "The gateway resource connecting to the foreign cluster is missing".into(),
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
    let lacks_some =
        |deployment: &_| lacks_all(deployment) || replicas(deployment, "unavailableReplicas") > 0;

    Some(if deployments.iter().all(lacks_all) {
        Finding {
            type_,
            status: "NotReady",
            reason: "GatewaysNotReady",
            message: "All gateway replicas are not ready".into(),
        }
    } else if deployments.iter().any(lacks_some) {
        Finding {
            type_,
            status: "SomeNotReady",
            reason: "GatewaysSomeNotReady",
            message: "Some gateway replicas are not ready".into(),
        }
    } else {
        Finding {
            type_,
            status: "Ready",
            reason: "GatewaysReady",
            message: "All gateway replicas are ready".into(),
        }
    })
}

/// The worst of the connections. If another one of them is established, the message says so.
fn connection(connections: &[DynamicObject]) -> Finding {
    let type_ = "NetworkConnectionStatus";
    let value = |connection: &DynamicObject| {
        let value = connection.data.pointer("/status/value").and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let all = |permitted: &[&str]| {
        connections.iter().all(|connection| permitted.contains(&value(connection).as_str()))
    };

    let established =
        connections.iter().filter(|connection| value(connection) == "Connected").count();
    let unless_partial = |message: &'static str| match established {
        0 => message.into(),
        _ => Cow::from(format!(
            "{established} of {} network connections with the foreign cluster are established",
            connections.len()
        )),
    };

    if connections.is_empty() {
        Finding {
            type_,
            status: "NotReady",
            reason: "ConnectionMissing",
            message: "There is no network connection with the foreign cluster".into(),
        }
    } else if all(&["Connected"]) {
        Finding {
            type_,
            status: "Established",
            reason: "ConnectionEstablished",
            message: "The network connection with the foreign cluster is established".into(),
        }
    } else if all(&["Connected", "Connecting"]) {
        Finding {
            type_,
            status: "Pending",
            reason: "ConnectionPending",
            message: unless_partial(
                "The network connection with the foreign cluster is connecting",
            ),
        }
    } else {
        Finding {
            type_,
            status: "Error",
            reason: "ConnectionError",
            message: unless_partial("The network connection with the foreign cluster is in error"),
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
    fn a_partial_state_counts_the_connections() {
        let message = |values: &[&str]| {
            let connections = values.iter().map(|value| object(&json!({"value": value})));
            let objects = Objects { connections: connections.collect(), ..Objects::default() };
            let module = module(&objects, &Module::default(), NOW);
            let connection = module.conditions.into_iter().next_back().unwrap();
            (connection.status, connection.message.unwrap())
        };
        let of = |status: &str, message: &str| (status.to_owned(), message.to_owned());

        assert_eq!(
            message(&["Connected", "Error"]),
            of("Error", "1 of 2 network connections with the foreign cluster are established")
        );
        assert_eq!(
            message(&["Connecting", "Connected", "Connected"]),
            of("Pending", "2 of 3 network connections with the foreign cluster are established")
        );
        let none = "The network connection with the foreign cluster is in error";
        assert_eq!(message(&["Error", "Connecting"]), of("Error", none));
    }

    #[test]
    fn a_ready_gateway_beside_another_is_partial() {
        let [ready, missing] = [json!({"readyReplicas": 1}), json!({"unavailableReplicas": 1})];
        let servers = [&ready, &missing].map(|status| Some(object(status)));
        let objects = Objects { servers: servers.to_vec(), ..Objects::default() };

        assert_eq!(status(&objects, "NetworkGatewayServerStatus").unwrap(), "SomeNotReady");
        let unmade = Objects { servers: vec![Some(object(&ready)), None], ..Objects::default() };
        assert_eq!(status(&unmade, "NetworkGatewayServerStatus").unwrap(), "SomeNotReady");
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
