//! What is worth an Event.
//!
//! # Invariants
//!
//! - An Event tells of a change, never of the same thing twice in a row, not even after a restart if
//!   the object itself says what was told.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use strait_kube::events::{Event, Kind, Limit};
use strait_plan::conditions::{Key, Outcome, Verdict, is_refusal};
use strait_plan::conncheck::State;

/// Remembers what was told, and says what is worth telling.
#[derive(Debug)]
pub(super) struct EventHistory {
    /// The last refusal of each object, in the words of its Event; `None` if it was in force.
    told: BTreeMap<Key, Option<(String, String)>>,
    /// What was told of the connection.
    connection: State,
    limit: Limit,
}

impl EventHistory {
    /// Has told nothing.
    #[must_use]
    pub(super) fn new(now: Timestamp) -> Self {
        Self { told: BTreeMap::new(), connection: State::Connecting, limit: Limit::new(now) }
    }

    /// Takes note of objects that are new, and forgets about those that are no more.
    pub(super) fn see(&mut self, verdicts: &[Verdict]) {
        let mut former = std::mem::take(&mut self.told);
        let keys = verdicts.iter().map(|verdict| {
            let key = verdict.key();
            let told = former.remove(&key).unwrap_or_else(|| said(verdict));
            (key, told)
        });

        self.told = keys.collect();
    }

    /// What a verdict is worth that was [seen](Self::see).
    #[must_use]
    pub(super) fn of_verdict(&self, verdict: &Verdict) -> Option<Event> {
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
    pub(super) fn has_told(&mut self, verdict: &Verdict) {
        let refusal = match &verdict.outcome {
            Outcome::InForce => None,
            Outcome::Refused { reason, message } => Some(((*reason).to_owned(), message.clone())),
            // In force again it will be when it has what it waits for.
            Outcome::Waiting { .. } => return,
        };

        self.told.insert(verdict.key(), refusal);
    }

    /// What the state of the connection to a cluster is worth. Of which object is for the caller to say.
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
    pub(super) fn has_told_of_connection(&mut self, state: State) {
        self.connection = state;
    }

    /// Whether there is room for one Event.
    ///
    /// # Errors
    ///
    /// The time at which there will be some, if there is none.
    pub(super) fn room(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        self.limit.room(now)
    }

    /// An Event was written.
    pub(super) fn take_room(&mut self) {
        self.limit.take();
    }
}

/// The refusal that the object itself speaks of: who told that, told it in an Event as well.
fn said(verdict: &Verdict) -> Option<(String, String)> {
    let known = verdict.known.as_ref().filter(|known| is_refusal(known))?;

    Some((known.reason.clone(), known.message.clone()))
}
