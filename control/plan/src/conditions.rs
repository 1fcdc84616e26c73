//! What became of each object, in the form in which its `status.conditions` and Events say it. Pure.
//!
//! Only a `Configuration` has conditions; of a `PublicKey` Events alone can tell.
//!
//! # Invariants
//!
//! - One condition an object, of the type [`IN_FORCE`]; conditions of other types stay as they are,
//!   `NetworkCIDRsConfigured` of Liqo's manager above all.
//! - Everything that was refused or rejected is in the verdict on its object.
//! - The same objects make the same verdicts: nothing is written again for the time alone.
//!
//! # Not here
//!
//! What is refused and why (see [`crate::objects`] and [`crate::plan`]), what is worth an Event (see
//! `strait_daemon::cluster`).

mod causes;
mod reason;
#[cfg(test)]
mod tests;
mod text;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::Value;

pub(crate) use causes::verdicts;
pub use reason::of_problem as reason_of;
pub use text::{MESSAGE_BYTES_MAX, list, shortened};

/// The type of the condition: whether all that the object asks for is in force in this gateway.
pub const IN_FORCE: &str = "strait.io/InForce";

/// What became of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Which one.
    pub object: ObjectReference,
    /// The generation that was judged.
    pub generation: Option<i64>,
    /// The version that was judged, which the status belongs to as well.
    pub resource_version: Option<String>,
    /// What became of it.
    pub outcome: Outcome,
    /// The condition that it has already.
    pub known: Option<Condition>,
}

/// What can become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Outcome {
    /// All that it asks for is in force.
    InForce,
    /// Nothing is wrong with it, but something else has yet to come.
    Waiting { reason: &'static str, message: String },
    /// Something in it is wrong. What is right in it may be in force.
    Refused { reason: &'static str, message: String },
}

impl Outcome {
    /// As a condition says it: `True` or `False`.
    #[must_use]
    pub const fn status(&self) -> &'static str {
        match self {
            Self::InForce => "True",
            Self::Waiting { .. } | Self::Refused { .. } => "False",
        }
    }

    /// One word, which stays the same from release to release.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::InForce => reason::IN_FORCE,
            Self::Waiting { reason, .. } | Self::Refused { reason, .. } => reason,
        }
    }

    /// For the operator; at most [`MESSAGE_BYTES_MAX`] bytes.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::InForce => "all that it asks for is in force",
            Self::Waiting { message, .. } | Self::Refused { message, .. } => message,
        }
    }
}

impl Verdict {
    /// The same, but for routes that the device of the gateway cannot have: with the cause of each.
    #[must_use]
    pub fn without_routes(mut self, causes: Vec<String>) -> Self {
        if causes.is_empty() {
            return self;
        }
        let (reason, known) = match self.outcome {
            Outcome::Refused { reason, message } => (reason, Some(message)),
            Outcome::InForce | Outcome::Waiting { .. } => (reason::ROUTE, None),
        };
        let message = list(known.into_iter().chain(causes));
        self.outcome = Outcome::Refused { reason, message };

        self
    }

    /// Whether the object has this kind, namespace and name.
    #[must_use]
    pub fn is_about(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let object = &self.object;

        [&object.kind, &object.namespace, &object.name].map(Option::as_deref)
            == [kind, namespace, name].map(Some)
    }

    /// Whether `condition` says all of this.
    pub fn is_said_by(&self, condition: &Condition) -> bool {
        let said = (condition.status.as_str(), condition.reason.as_str(), &*condition.message);

        said == (self.outcome.status(), self.outcome.reason(), self.outcome.message())
            && condition.observed_generation == self.generation
    }

    /// The condition that says this, in place of `former`.
    #[must_use]
    pub fn condition(&self, former: Option<&Condition>, now: Timestamp) -> Condition {
        let status = self.outcome.status().to_owned();
        let same = former.filter(|former| former.status == status);

        Condition {
            last_transition_time: same
                .map_or(Time(now), |former| former.last_transition_time.clone()),
            message: self.outcome.message().to_owned(),
            observed_generation: self.generation,
            reason: self.outcome.reason().to_owned(),
            status,
            type_: IN_FORCE.to_owned(),
        }
    }

    /// Tells an object from all others, also from one of its name that comes after it.
    pub fn key(&self) -> Key {
        let ObjectReference { kind, name, uid, .. } = self.object.clone();

        [kind, name, uid].map(Option::unwrap_or_default)
    }
}

/// The conditions without that of a gateway; `None` if it is not among them.
pub fn without_ours(conditions: &[Value]) -> Option<Vec<Value>> {
    let others: Vec<_> = conditions.iter().filter(|other| !is_ours(other)).cloned().collect();

    (others.len() < conditions.len()).then_some(others)
}

/// Kind, name and UID.
pub type Key = [String; 3];

/// Whether a condition of ours says that an object is wrong, not only that something is missing.
pub fn is_refusal(condition: &Condition) -> bool {
    condition.status == "False" && !reason::is_of_waiting(&condition.reason)
}

/// The conditions to write in place of `conditions`, if those do not say it already.
///
/// What others wrote is not even read: it stays as it is, garbage as well.
#[must_use]
pub fn merged(conditions: &[Value], verdict: &Verdict, now: Timestamp) -> Option<Vec<Value>> {
    let ours: Vec<&Value> = conditions.iter().filter(|condition| is_ours(condition)).collect();
    let former: Option<Condition> =
        ours.first().and_then(|&value| serde_json::from_value(value.clone()).ok());
    if ours.len() == 1 && former.as_ref().is_some_and(|former| verdict.is_said_by(former)) {
        return None;
    }

    let condition = verdict.condition(former.as_ref(), now);
    let others = conditions.iter().filter(|condition| !is_ours(condition)).cloned();

    Some(others.chain(serde_json::to_value(condition)).collect())
}

fn is_ours(condition: &Value) -> bool {
    condition.get("type").and_then(Value::as_str) == Some(IN_FORCE)
}
