//! Writes Events; a repeated one becomes a higher count.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::{Event, Kind};
use crate::digest::digest;

/// The component, as `kubectl describe` shows it.
const COMPONENT: &str = "strait-gateway";

/// The longest part of an object's name in the name of an Event, which has at most 253 bytes.
const NAME_BYTES_MAX: usize = 200;

/// Writes Events.
pub struct EventWriter {
    client: Client,
    /// The name of the gateway.
    instance: String,
}

impl EventWriter {
    /// For the gateway `instance`; sends no request yet.
    #[must_use]
    pub const fn new(client: Client, instance: String) -> Self {
        Self { client, instance }
    }

    /// Increases the count of the Event if it exists, also from before a restart; creates it otherwise.
    ///
    /// # Errors
    ///
    /// The error of the API server.
    pub async fn write(&self, event: &Event, now: Timestamp) -> kube::Result<()> {
        let namespace = event.object.namespace.as_deref().unwrap_or("default");
        let api: Api<CoreEvent> = Api::namespaced(self.client.clone(), namespace);
        let name = name(event);

        if let Some(former) = api.get_opt(&name).await? {
            let count = former.count.unwrap_or(1).saturating_add(1);
            let patch = json!({
                "count": count, "lastTimestamp": Time(now), "message": event.message,
            });
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                // The Event has expired.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                counted => return counted.map(|_| ()),
            }
        }
        match api.create(&PostParams::default(), &self.made(event, name, now)).await {
            // Another replica has created it at the same moment.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            made => made.map(|_| ()),
        }
    }

    fn made(&self, event: &Event, name: String, now: Timestamp) -> CoreEvent {
        CoreEvent {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: event.object.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: event.object.clone(),
            type_: Some(type_of(event).to_owned()),
            reason: Some(event.reason.to_owned()),
            message: Some(event.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..CoreEvent::default()
        }
    }
}

const fn type_of(event: &Event) -> &'static str {
    match event.kind {
        Kind::Normal => "Normal",
        Kind::Warning => "Warning",
    }
}

/// The same for all Events that are counted together.
fn name(event: &Event) -> String {
    let [kind, uid] =
        [&event.object.kind, &event.object.uid].map(|text| text.as_deref().unwrap_or_default());
    let digest = digest(&[kind, uid, type_of(event), event.reason]);
    let object = event.object.name.as_deref().unwrap_or(COMPONENT);
    let object = object.get(..NAME_BYTES_MAX).unwrap_or(object);
    let object = object.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());

    format!("{object}.{digest}")
}
