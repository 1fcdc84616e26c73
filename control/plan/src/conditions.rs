//! The outcome of each object as `status.conditions` and Events report it. Pure.
//!
//! Only a `Configuration` has conditions; for a `PublicKey` there are Events alone. Of several gateways to one remote cluster,
//! the first one writes the condition of the `Configuration`, and the others report in Events alone.
//!
//! # Invariants
//!
//! - One condition per object, of the type [`IN_FORCE`]; conditions of other types are kept, above all
//!   `NetworkCIDRsConfigured` of Liqo's manager.
//! - Every refusal and every rejection is in the verdict on its object.
//! - The same objects give the same verdicts: passing time alone causes no write.
//!
//! # Not here
//!
//! What is refused and why (see [`crate::objects`] and [`plan()`](crate::plan())), which changes become Events (see
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

/// The type of the condition: whether everything that the object specifies is in force in this gateway.
pub const IN_FORCE: &str = "strait.io/InForce";

/// The type of the condition that nodes write (`strait node`): whether none reports a problem on the way to the gateway.
pub const NODE_ROUTES: &str = "strait.io/NodeRoutes";

/// The outcome of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The object.
    pub object: ObjectReference,
    /// The generation that the verdict is about.
    pub generation: Option<i64>,
    /// The resource version that the verdict is about; it covers the status too.
    pub resource_version: Option<String>,
    /// The outcome.
    pub outcome: Outcome,
    /// Whether this gateway reports it in a condition too. A `PublicKey` has none, and a `Configuration` has one for all
    /// gateways to its remote cluster.
    pub has_condition: bool,
    /// The condition that the object has already.
    pub known: Option<Condition>,
}

/// The outcomes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Outcome {
    /// Everything that it specifies is in force.
    InForce,
    /// The object is right, but something it depends on is missing.
    Waiting { reason: &'static str, message: String },
    /// A part of the object is wrong. The other parts may be in force.
    Refused { reason: &'static str, message: String },
}

impl Outcome {
    /// The status of the condition: `True` or `False`.
    #[must_use]
    pub const fn status(&self) -> &'static str {
        match self {
            Self::InForce => "True",
            Self::Waiting { .. } | Self::Refused { .. } => "False",
        }
    }

    /// The reason of the condition, the same in every release.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::InForce => reason::IN_FORCE,
            Self::Waiting { reason, .. } | Self::Refused { reason, .. } => reason,
        }
    }

    /// The message of the condition; at most [`MESSAGE_BYTES_MAX`] bytes.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::InForce => "all that it asks for is in force",
            Self::Waiting { message, .. } | Self::Refused { message, .. } => message,
        }
    }
}

impl Verdict {
    /// The same verdict, with the cause of each route that the device of the gateway cannot have.
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

    /// Whether the verdict is on the object of this kind, namespace and name.
    #[must_use]
    pub fn is_about(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let object = &self.object;

        [&object.kind, &object.namespace, &object.name].map(Option::as_deref)
            == [kind, namespace, name].map(Some)
    }

    /// Whether `condition` reports this outcome.
    pub fn is_reported_by(&self, condition: &Condition) -> bool {
        let said = (condition.status.as_str(), condition.reason.as_str(), &*condition.message);

        said == (self.outcome.status(), self.outcome.reason(), self.outcome.message())
            && condition.observed_generation == self.generation
    }

    /// The condition that reports this outcome, in place of `former`.
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

    /// Identifies an object, also among objects of one name that follow one another.
    pub fn key(&self) -> Key {
        let ObjectReference { kind, name, uid, .. } = self.object.clone();

        [kind, name, uid].map(Option::unwrap_or_default)
    }
}

/// `conditions` without the one of a gateway; `None` if there is none.
pub fn without_ours(conditions: &[Value]) -> Option<Vec<Value>> {
    let others: Vec<_> = conditions.iter().filter(|other| !is_ours(other)).cloned().collect();

    (others.len() < conditions.len()).then_some(others)
}

/// Kind, name and UID.
pub type Key = [String; 3];

/// Whether a condition of ours reports that the object is wrong, rather than that something is missing.
pub fn is_refusal(condition: &Condition) -> bool {
    condition.status == "False" && !reason::is_of_waiting(&condition.reason)
}

/// The conditions to write in place of `conditions`, if those do not report this verdict already.
///
/// The conditions of others are not parsed: they are kept as they are, garbage as well.
#[must_use]
pub fn merged(conditions: &[Value], verdict: &Verdict, now: Timestamp) -> Option<Vec<Value>> {
    let ours: Vec<&Value> = conditions.iter().filter(|condition| is_ours(condition)).collect();
    let former: Option<Condition> =
        ours.first().and_then(|&value| serde_json::from_value(value.clone()).ok());
    if ours.len() == 1 && former.as_ref().is_some_and(|former| verdict.is_reported_by(former)) {
        return None;
    }

    let condition = verdict.condition(former.as_ref(), now);
    let others = conditions.iter().filter(|condition| !is_ours(condition)).cloned();

    Some(others.chain(serde_json::to_value(condition)).collect())
}

fn is_ours(condition: &Value) -> bool {
    condition.get("type").and_then(Value::as_str) == Some(IN_FORCE)
}
