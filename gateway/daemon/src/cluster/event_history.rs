//! Decides which changes become Events.
//!
//! # Invariants
//!
//! - An Event reports a change, never the same state twice in a row, not even after a restart if the condition of the
//!   object has that state.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use strait_kube::events::{Event, Kind, Limit};
use strait_plan::conditions::{Key, Outcome, Verdict, is_refusal};
use strait_plan::conncheck::State;

/// Remembers what was reported, and decides what to report.
#[derive(Debug)]
pub(super) struct EventHistory {
    /// The last refusal of each object, as its Event worded it; `None` if it was in force.
    reported: BTreeMap<Key, Option<(String, String)>>,
    /// The state of the connection that was reported last.
    connection: State,
    limit: Limit,
}

impl EventHistory {
    /// Nothing is reported yet.
    #[must_use]
    pub(super) fn new(now: Timestamp) -> Self {
        Self { reported: BTreeMap::new(), connection: State::Connecting, limit: Limit::new(now) }
    }

    /// Records objects that are new, and forgets those that are deleted.
    pub(super) fn update(&mut self, verdicts: &[Verdict]) {
        let mut former = std::mem::take(&mut self.reported);
        let keys = verdicts.iter().map(|verdict| {
            let key = verdict.key();
            let reported = former.remove(&key).unwrap_or_else(|| refusal_in_condition(verdict));
            (key, reported)
        });

        self.reported = keys.collect();
    }

    /// The Event for a verdict that was [kept](Self::update), if one is due.
    #[must_use]
    pub(super) fn of_verdict(&self, verdict: &Verdict) -> Option<Event> {
        let former = self.reported.get(&verdict.key()).and_then(Option::as_ref);
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
    pub(super) fn set_reported(&mut self, verdict: &Verdict) {
        let refusal = match &verdict.outcome {
            Outcome::InForce => None,
            Outcome::Refused { reason, message } => Some(((*reason).to_owned(), message.clone())),
            // A waiting object becomes in force without an Event.
            Outcome::Waiting { .. } => return,
        };

        self.reported.insert(verdict.key(), refusal);
    }

    /// The Event for the state of the connection to a cluster, if one is due. The caller sets the object.
    #[must_use]
    pub(super) fn of_connection(&self, state: State, cluster: &str) -> Option<Event> {
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
    pub(super) fn set_connection_reported(&mut self, state: State) {
        self.connection = state;
    }

    /// Whether the limit permits one Event now.
    ///
    /// # Errors
    ///
    /// The time at which it will.
    pub(super) fn room(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        self.limit.room(now)
    }

    /// An Event was written.
    pub(super) fn take_room(&mut self) {
        self.limit.take();
    }
}

/// The refusal that the object's own condition shows: its writer has written an Event as well.
fn refusal_in_condition(verdict: &Verdict) -> Option<(String, String)> {
    let known = verdict.known.as_ref().filter(|known| is_refusal(known))?;

    Some((known.reason.clone(), known.message.clone()))
}
