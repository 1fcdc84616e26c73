//! Which changes become Events, and the Events themselves.
//!
//! Core Events (`v1`), not those of `events.k8s.io`, which the recorder of kube writes: Liqo's role for
//! gateways grants the former only. `kubectl` shows both alike.
//!
//! # Invariants
//!
//! - An Event reports a change, never the same state twice in a row, not even after a restart if the condition of the
//!   object shows what was reported.
//! - However often changes happen, there are at most [`BURST`] Events at once and one more each [`REFILL`]. What
//!   exceeds that is reported later, if it is still true.

mod limit;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::conditions::{Key, Outcome, Verdict, is_refusal};
use crate::conncheck::State;

pub use limit::{BURST, REFILL};
pub use writer::EventWriter;

use limit::Limit;

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All is well.
    Normal,
    /// An operator has to act.
    Warning,
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The object.
    pub object: ObjectReference,
    /// The type.
    pub kind: Kind,
    /// The reason, the same in every release.
    pub reason: &'static str,
    /// The message for the operator.
    pub message: String,
}

/// Remembers what was reported, and decides what to report.
#[derive(Debug)]
pub struct News {
    /// The last refusal of each object, as its Event worded it; `None` if it was in force.
    told: BTreeMap<Key, Option<(String, String)>>,
    /// The state of the connection that was reported last.
    connection: State,
    limit: Limit,
}

impl News {
    /// Nothing is reported yet.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { told: BTreeMap::new(), connection: State::Connecting, limit: Limit::new(now) }
    }

    /// Records objects that are new, and forgets those that are deleted.
    pub fn see(&mut self, verdicts: &[Verdict]) {
        let mut former = std::mem::take(&mut self.told);
        let keys = verdicts.iter().map(|verdict| {
            let key = verdict.key();
            let reported = former.remove(&key).unwrap_or_else(|| refusal_in_condition(verdict));
            (key, reported)
        });

        self.told = keys.collect();
    }

    /// The Event for a verdict that was [seen](Self::see), if one is due.
    #[must_use]
    pub fn of_verdict(&self, verdict: &Verdict) -> Option<Event> {
        let former = self.told.get(&verdict.key()).and_then(Option::as_ref);
        let (reason, message) = (verdict.outcome.reason(), verdict.outcome.message());
        let is_same = former.is_some_and(|(r, m)| (&**r, &**m) == (reason, message));
        let kind = match &verdict.outcome {
            Outcome::Refused { .. } if !is_same => Kind::Warning,
            Outcome::InForce if former.is_some() => Kind::Normal,
            Outcome::Refused { .. } | Outcome::InForce | Outcome::Waiting { .. } => return None,
        };

        Some(Event { object: verdict.object.clone(), kind, reason, message: message.to_owned() })
    }

    /// The Event of [`Self::of_verdict`] is written.
    pub fn has_told(&mut self, verdict: &Verdict) {
        let refusal = match &verdict.outcome {
            Outcome::InForce => None,
            Outcome::Refused { reason, message } => Some(((*reason).to_owned(), message.clone())),
            // A waiting object becomes in force without an Event.
            Outcome::Waiting { .. } => return,
        };

        self.told.insert(verdict.key(), refusal);
    }

    /// The Event for the state of the connection to a cluster, if one is due. The caller sets the object.
    #[must_use]
    pub fn of_connection(&self, state: State, cluster: &str) -> Option<Event> {
        let object = ObjectReference::default();
        match state {
            State::Connected if self.connection != state => Some(Event {
                object,
                kind: Kind::Normal,
                reason: "Connected",
                message: format!("the gateway of cluster {cluster} answers through the tunnel"),
            }),
            State::Lost if self.connection != state => Some(Event {
                object,
                kind: Kind::Warning,
                reason: "Lost",
                message: format!(
                    "the gateway of cluster {cluster} does not answer: see whether it runs, whether UDP reaches its endpoint, and whether both PublicKeys are right"
                ),
            }),
            State::Connecting | State::Connected | State::Lost => None,
        }
    }

    /// The Event of [`Self::of_connection`] is written.
    pub fn has_told_of_connection(&mut self, state: State) {
        self.connection = state;
    }

    /// Whether the limit permits one Event now.
    ///
    /// # Errors
    ///
    /// The time at which it will.
    pub fn room(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        self.limit.room(now)
    }

    /// An Event was written.
    pub fn take_room(&mut self) {
        self.limit.take();
    }
}

/// The refusal that the object's own condition shows: its writer has written an Event as well.
fn refusal_in_condition(verdict: &Verdict) -> Option<(String, String)> {
    let known = verdict.known.as_ref().filter(|known| is_refusal(known))?;

    Some((known.reason.clone(), known.message.clone()))
}
