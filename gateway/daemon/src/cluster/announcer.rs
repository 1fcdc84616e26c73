//! Tells a cluster what became of its objects: conditions where there is a place for them, Events where
//! something has changed.
//!
//! Level-triggered like everything else: a round is given all there is to say and says what was not
//! said yet. Where the role of the gateway forbids it, nothing is said, and that is no failure.

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

/// After this a server that took the call and says nothing counts as away.
const CALL: Duration = Duration::from_secs(10);

/// When to try again what the role forbids. A role may be bound after its gateway has started.
const FORBIDDEN: SignedDuration = SignedDuration::from_mins(10);

/// When to look again for a `Connection` that is not there yet, or at what others write to.
const LOOK: SignedDuration = SignedDuration::from_secs(1);

/// What a round leaves to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// What could not be said and why, each complaint once.
    pub complaints: Vec<String>,
    /// When to try again even if there is no news.
    pub again: Option<Timestamp>,
}

impl Round {
    fn again_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |other| other.min(at)));
    }
}

/// The API server cannot be told anything now. The next round may succeed.
#[derive(Debug, thiserror::Error)]
pub enum Away {
    /// It took a call and said nothing.
    #[error("the API server does not answer")]
    Silent,
    /// It could not be called, or could not serve.
    #[error("{0}")]
    Failed(kube::Error),
}

/// Tells what became of objects, and how the connection is.
pub struct Announcer {
    connections: Api<Connection>,
    identity: Identity,
    conditions: ConditionWriter,
    events: EventWriter,
    news: EventHistory,
    may_write_conditions: Gate,
    may_write_events: Gate,
}

impl Announcer {
    /// Asks nothing yet.
    #[must_use]
    pub fn new(client: &Client, identity: Identity, now: Timestamp) -> Self {
        Self {
            connections: Api::namespaced(client.clone(), &identity.namespace),
            conditions: ConditionWriter::new(client.clone()),
            events: EventWriter::new(client.clone(), identity.object_name()),
            news: EventHistory::new(now),
            may_write_conditions: Gate::default(),
            may_write_events: Gate::default(),
            identity,
        }
    }

    /// Says what is news in `verdicts`, and in the state of the connection if somebody checks it.
    ///
    /// # Errors
    ///
    /// [`Away`]. Nothing is lost: another round says what is news then.
    pub async fn round(
        &mut self,
        verdicts: &[Verdict],
        connection: Option<State>,
        now: Timestamp,
    ) -> Result<Round, Away> {
        let mut round = Round::default();
        self.news.see(verdicts);
        self.conditions.forget_others(verdicts);
        for verdict in verdicts {
            // The Event comes first: what a condition says was told, even if the gateway ends here.
            if let Some(event) = self.news.of_verdict(verdict)
                && self.tell(&event, now, &mut round).await?
            {
                self.news.has_told(verdict);
            }
            self.write(verdict, now, &mut round).await?;
        }
        if let Some(state) = connection {
            self.tell_of_connection(state, now, &mut round).await?;
        }

        Ok(round)
    }

    async fn write(
        &mut self,
        verdict: &Verdict,
        now: Timestamp,
        round: &mut Round,
    ) -> Result<(), Away> {
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
                round.complaints.push(format!("Configuration {name} gets no condition: {error}"));
                self.conditions.give_up(verdict);
            }
            Err(Failure::Away(away)) => return Err(away),
        }

        Ok(())
    }

    async fn tell_of_connection(
        &mut self,
        state: State,
        now: Timestamp,
        round: &mut Round,
    ) -> Result<(), Away> {
        let cluster = &self.identity.remote_cluster_id;
        let Some(mut event) = self.news.of_connection(state, cluster) else { return Ok(()) };
        let name = self.identity.object_name();
        match call(self.connections.get_metadata_opt(&name)).await {
            Ok(Some(connection)) => {
                event.object = connection.object_ref(&());
                if self.tell(&event, now, round).await? {
                    self.news.has_told_of_connection(state);
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

    /// Whether it was told, or never can be.
    async fn tell(
        &mut self,
        event: &Event,
        now: Timestamp,
        round: &mut Round,
    ) -> Result<bool, Away> {
        let room = self.news.room(now);
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
                round.complaints.push(format!("{name} gets no Event {}: {error}", event.reason));
            }
            Err(Failure::Away(away)) => return Err(away),
        }
        self.news.take_room();

        Ok(true)
    }
}

/// Whether the role allows something.
#[derive(Debug, Default)]
struct Gate {
    closed_until: Option<Timestamp>,
    was_said: bool,
}

impl Gate {
    fn closed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.closed_until.filter(|until| now < *until)
    }

    fn close(&mut self, what: &str, why: &dyn Display, now: Timestamp, round: &mut Round) {
        let until = now + FORBIDDEN;
        self.closed_until = Some(until);
        round.again_at(until);
        if !std::mem::replace(&mut self.was_said, true) {
            round.complaints.push(format!("{what} are not written, all else goes on: {why}"));
        }
    }
}

/// Why a call led to nothing.
enum Failure {
    /// The role does not allow it.
    Forbidden(kube::Error),
    /// The API server does not take it, and would not another time.
    Invalid(kube::Error),
    /// The next try may succeed.
    Away(Away),
}

async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let error = match timeout(CALL, call).await {
        Err(_) => return Err(Failure::Away(Away::Silent)),
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
    };
    let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };

    Err(match code {
        403 => Failure::Forbidden(error),
        400 | 413 | 415 | 422 => Failure::Invalid(error),
        _ => Failure::Away(Away::Failed(error)),
    })
}
