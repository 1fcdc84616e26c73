//! Reports the outcome of each object to the cluster: conditions where the kind has them, Events on changes.
//!
//! Level-triggered: each round receives every verdict and writes those that are not yet written. Where the role of the
//! gateway forbids a write, the write is skipped, and that is no failure.

use std::fmt::Display;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client, Resource as _};
use strait_api::Connection;
use strait_api::identity::Identity;
use strait_kube::events::{Event, EventWriter};
use strait_plan::conditions::Verdict;
use strait_plan::conncheck::State;
use tokio::time::timeout;

use crate::cluster::condition_writer::{ConditionWriter, Written};
use crate::cluster::event_history::EventHistory;

/// Timeout of one call.
const CALL: Duration = Duration::from_secs(10);

/// When to retry a write that the role forbids. A role may be bound after its gateway has started.
const FORBIDDEN: SignedDuration = SignedDuration::from_mins(10);

/// When to look again for a `Connection` that does not exist yet, or for an object that others keep writing to.
const LOOK: SignedDuration = SignedDuration::from_secs(1);

/// The result of a round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// What could not be written and why, each failure once.
    pub failures: Vec<String>,
    /// When to run the next round even without a change.
    pub again: Option<Timestamp>,
}

impl Round {
    fn again_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |other| other.min(at)));
    }
}

/// The API server is unavailable. The next round may succeed.
#[derive(Debug, thiserror::Error)]
pub enum ServerAway {
    /// It accepted the call and did not answer.
    #[error("the API server does not answer")]
    Silent,
    /// It could not be reached, or could not serve the call.
    #[error("{0}")]
    Failed(kube::Error),
}

/// Reports the outcome of objects, and the state of the connection.
pub struct StatusReporter {
    connections: Api<Connection>,
    identity: Identity,
    conditions: ConditionWriter,
    events: EventWriter,
    history: EventHistory,
    may_write_conditions: Gate,
    may_write_events: Gate,
}

impl StatusReporter {
    /// Sends no request yet.
    #[must_use]
    pub fn new(client: &Client, identity: Identity, now: Timestamp) -> Self {
        Self {
            connections: Api::namespaced(client.clone(), &identity.namespace),
            conditions: ConditionWriter::new(client.clone()),
            events: EventWriter::new(client.clone(), identity.object_name()),
            history: EventHistory::new(now),
            may_write_conditions: Gate::default(),
            may_write_events: Gate::default(),
            identity,
        }
    }

    /// Writes what is new in `verdicts`, and in the state of the connection if it is checked.
    ///
    /// # Errors
    ///
    /// [`ServerAway`]. Nothing is lost: another round writes what is missing.
    pub async fn round(
        &mut self,
        verdicts: &[Verdict],
        connection: Option<State>,
        now: Timestamp,
    ) -> Result<Round, ServerAway> {
        let mut round = Round::default();
        self.history.update(verdicts);
        self.conditions.forget_others(verdicts);
        for verdict in verdicts {
            // The Event comes first: a condition that is written proves that its Event is, even if the gateway stops
            // here.
            if let Some(event) = self.history.of_verdict(verdict)
                && self.write_event(&event, now, &mut round).await?
            {
                self.history.set_reported(verdict);
            }
            self.write(verdict, now, &mut round).await?;
        }
        if let Some(state) = connection {
            self.report_connection(state, now, &mut round).await?;
        }

        Ok(round)
    }

    async fn write(
        &mut self,
        verdict: &Verdict,
        now: Timestamp,
        round: &mut Round,
    ) -> Result<(), ServerAway> {
        if !self.conditions.is_news(verdict) {
            return Ok(());
        }
        if let Some(until) = self.may_write_conditions.closed_until(now) {
            round.again_at(until);
            return Ok(());
        }
        match call(self.conditions.write(verdict, now)).await {
            Ok(Written::Settled) => {}
            Ok(Written::Contended) => round.again_at(now + LOOK),
            Ok(Written::NoPlace) => {
                let why = "this cluster's definition of configurations has none (Liqo before 1.2)";
                self.may_write_conditions.close("conditions", &why, now, round);
            }
            Err(Failure::Forbidden(error)) => {
                self.may_write_conditions.close("conditions", &error, now, round);
            }
            Err(Failure::Invalid(error)) => {
                let name = verdict.object.name.as_deref().unwrap_or_default();
                round.failures.push(format!("Configuration {name} gets no condition: {error}"));
                self.conditions.give_up(verdict);
            }
            Err(Failure::Away(away)) => return Err(away),
        }

        Ok(())
    }

    async fn report_connection(
        &mut self,
        state: State,
        now: Timestamp,
        round: &mut Round,
    ) -> Result<(), ServerAway> {
        let cluster = &self.identity.remote_cluster_id;
        let Some(mut event) = self.history.of_connection(state, cluster) else { return Ok(()) };
        let name = self.identity.object_name();
        match call(self.connections.get_metadata_opt(&name)).await {
            Ok(Some(connection)) => {
                event.object = connection.object_ref(&());
                if self.write_event(&event, now, round).await? {
                    self.history.set_connection_reported(state);
                }
            }
            Ok(None) => round.again_at(now + LOOK),
            Err(Failure::Forbidden(error) | Failure::Invalid(error)) => {
                self.may_write_events.close("Events", &error, now, round);
            }
            Err(Failure::Away(away)) => return Err(away),
        }

        Ok(())
    }

    /// Whether the Event was written, or never can be.
    async fn write_event(
        &mut self,
        event: &Event,
        now: Timestamp,
        round: &mut Round,
    ) -> Result<bool, ServerAway> {
        let room = self.history.room(now);
        if let Some(until) = self.may_write_events.closed_until(now).or(room.err()) {
            round.again_at(until);
            return Ok(false);
        }
        match call(self.events.write(event, now)).await {
            Ok(()) => {}
            Err(Failure::Forbidden(error)) => {
                self.may_write_events.close("Events", &error, now, round);
                return Ok(false);
            }
            Err(Failure::Invalid(error)) => {
                let name = event.object.name.as_deref().unwrap_or_default();
                round.failures.push(format!("{name} gets no Event {}: {error}", event.reason));
            }
            Err(Failure::Away(away)) => return Err(away),
        }
        self.history.take_room();

        Ok(true)
    }
}

/// Whether the role permits a kind of write.
#[derive(Debug, Default)]
struct Gate {
    closed_until: Option<Timestamp>,
    was_reported: bool,
}

impl Gate {
    fn closed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.closed_until.filter(|until| now < *until)
    }

    fn close(&mut self, what: &str, why: &dyn Display, now: Timestamp, round: &mut Round) {
        let until = now + FORBIDDEN;
        self.closed_until = Some(until);
        round.again_at(until);
        if !std::mem::replace(&mut self.was_reported, true) {
            round.failures.push(format!("{what} are not written, all else goes on: {why}"));
        }
    }
}

/// Why a call failed.
enum Failure {
    /// The role does not permit it.
    Forbidden(kube::Error),
    /// The API server rejects the object, and would again.
    Invalid(kube::Error),
    /// The next attempt may succeed.
    Away(ServerAway),
}

async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let error = match timeout(CALL, call).await {
        Err(_) => return Err(Failure::Away(ServerAway::Silent)),
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
    };
    let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };

    Err(match code {
        403 => Failure::Forbidden(error),
        400 | 413 | 415 | 422 => Failure::Invalid(error),
        _ => Failure::Away(ServerAway::Failed(error)),
    })
}
