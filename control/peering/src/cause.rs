//! Finds the cause of a failure of a gateway in the Events of its objects.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::Api;
use kube::api::ListParams;
use strait_plan::conditions::shortened;
use tokio::time::{Instant, timeout_at};

use super::CommandError;
use super::context::PeeringSide;

/// An error is reported without a cause if the Events are not listed within this time.
const CALL: Duration = Duration::from_secs(3);

/// The reason of the Event that ends the Warnings of the operator before it.
const IS_OVER: &str = "Reconciled";

/// The kinds of a gateway itself, on which the operator reports.
const GATEWAYS: [&str; 4] =
    ["GatewayServer", "GatewayClient", "WgGatewayServer", "WgGatewayClient"];

/// A Warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// The kind of its object.
    pub(super) kind: String,
    /// The name of its object.
    pub(super) name: String,
    /// The reason of the Event.
    pub(super) reason: String,
    /// The message of the Event.
    pub(super) message: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, reason, message } = self;

        write!(f, "{kind} {name} says {reason}: {message}")
    }
}

/// Adds the cause, as far as it is known, to an error of waiting for `gateway`.
pub(super) async fn explained<T>(
    end: &PeeringSide<'_>,
    gateway: &str,
    outcome: Result<T, CommandError>,
) -> Result<T, CommandError> {
    let mut error = match outcome {
        Err(CommandError::Timeout(error)) => error,
        outcome => return outcome,
    };
    // The deadline has passed.
    let until = Instant::now() + CALL;
    let cause = find_until(end, &end.namespace, gateway, until).await;
    error.cause = cause.map(|cause| cause.to_string());

    Err(CommandError::Timeout(error))
}

/// The cause of the failure of `gateway` in `namespace`, if an Event has it and can be read before the deadline.
pub(super) async fn find(end: &PeeringSide<'_>, namespace: &str, gateway: &str) -> Option<Cause> {
    let until = (Instant::now() + CALL).min(end.session.deadline.at);

    find_until(end, namespace, gateway, until).await
}

async fn find_until(
    end: &PeeringSide<'_>,
    namespace: &str,
    gateway: &str,
    until: Instant,
) -> Option<Cause> {
    let events = Api::<Event>::namespaced(end.client.clone(), namespace);
    let all = ListParams::default();
    let events = timeout_at(until, events.list(&all)).await.ok()?.ok()?;

    of_gateway(&events.items, gateway)
}

/// The last Warning of the gateway called `gateway`, or else of its Deployment, Service and pods, unless an
/// Event of the same object has ended it.
fn of_gateway(events: &[Event], gateway: &str) -> Option<Cause> {
    let of_gateway = events.iter().filter(|event| is_gateway(&event.involved_object, gateway));
    let of_parts = events.iter().filter(|event| is_part(&event.involved_object, gateway));

    last_warning(of_gateway).or_else(|| last_warning(of_parts))
}

fn last_warning<'a>(events: impl Iterator<Item = &'a Event> + Clone) -> Option<Cause> {
    let is_over = |warning: &&Event| {
        events.clone().any(|event| {
            event.reason.as_deref() == Some(IS_OVER)
                && event.involved_object.uid == warning.involved_object.uid
                && when(event) >= when(warning)
        })
    };
    let warnings = events.clone().filter(|event| event.type_.as_deref() == Some("Warning"));
    let last = warnings.filter(|warning| !is_over(warning)).max_by_key(|event| when(event))?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let object = &last.involved_object;

    Some(Cause {
        kind: text(&object.kind),
        name: text(&object.name),
        reason: text(&last.reason),
        message: shortened(&text(&last.message)),
    })
}

fn is_gateway(object: &ObjectReference, gateway: &str) -> bool {
    let is_kind = |kind: &str| GATEWAYS.contains(&kind);

    object.kind.as_deref().is_some_and(is_kind) && object.name.as_deref() == Some(gateway)
}

/// Whether it is the Deployment, the Service, a ReplicaSet or a pod of the gateway.
fn is_part(object: &ObjectReference, gateway: &str) -> bool {
    let name = object.name.as_deref().unwrap_or_default();
    let rest = name.strip_prefix("gw-").and_then(|name| name.strip_prefix(gateway));
    let kind = object.kind.as_deref().unwrap_or_default();

    match (kind, rest) {
        ("Deployment" | "Service" | "Secret", Some("")) => true,
        ("ReplicaSet" | "Pod", Some(rest)) => rest.starts_with('-'),
        _ => false,
    }
}

/// When it happened last.
fn when(event: &Event) -> Option<Timestamp> {
    let last = event.last_timestamp.as_ref().map(|Time(at)| *at);
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let series = series.or(event.event_time.as_ref()).map(|MicroTime(at)| *at);
    let made = event.metadata.creation_timestamp.as_ref().map(|Time(at)| *at);

    last.max(series).or(made)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(object: [&str; 2], type_: &str, reason: &str, second: u8) -> Event {
        let [kind, name] = object;
        serde_json::from_value(json!({
            "metadata": {},
            "involvedObject": {"kind": kind, "name": name, "uid": name},
            "type": type_, "reason": reason, "message": format!("why {reason}"),
            "lastTimestamp": Some(at(second)).filter(|_| second.is_multiple_of(2)),
            "eventTime": Some(at(second)).filter(|_| !second.is_multiple_of(2)),
        }))
        .unwrap()
    }

    /// Clients before and after `events.k8s.io` have it in different fields.
    fn at(second: u8) -> String {
        let fraction = if second.is_multiple_of(2) { "" } else { ".000000" };

        format!("2026-01-01T00:00:{second:02}{fraction}Z")
    }

    fn reason(events: &[Event]) -> Option<String> {
        of_gateway(events, "rome").map(|cause| cause.reason)
    }

    #[test]
    fn the_last_open_warning_is_the_cause() {
        let server = ["GatewayServer", "rome"];
        let mut events = vec![
            event(["GatewayServer", "milan"], "Warning", "OfAnother", 9),
            event(["Pod", "gw-romeo-1"], "Warning", "OfAnother", 9),
            event(["Pod", "gw-rome-7d9f-x"], "Normal", "Pulling", 9),
        ];
        assert_eq!(reason(&events), None);

        events.push(event(["Pod", "gw-rome-7d9f-x"], "Warning", "Failed", 8));
        assert_eq!(reason(&events).as_deref(), Some("Failed"));

        // A Warning of the operator on the gateway takes precedence.
        events.push(event(server, "Warning", "TemplateMissing", 1));
        events.push(event(["WgGatewayServer", "rome"], "Warning", "Refused", 2));
        assert_eq!(reason(&events).as_deref(), Some("Refused"));
        events.push(event(server, "Warning", "TemplateUnusable", 3));
        assert_eq!(reason(&events).as_deref(), Some("TemplateUnusable"));

        events.push(event(server, "Normal", IS_OVER, 4));
        assert_eq!(reason(&events).as_deref(), Some("Failed"));
        events.push(event(server, "Warning", "TemplateMissing", 5));
        assert_eq!(reason(&events).as_deref(), Some("TemplateMissing"));
    }
}
