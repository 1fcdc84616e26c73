//! Waits for a state of objects by watching them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use strait_kube::watch::WATCH_SECONDS;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::api_error::{api_error_text, is_permanent, pauses};
use super::context::PeeringSide;
use super::{CommandError, TimeoutError, api_error, cause};

/// Effectively without limit, and short enough for every clock.
const UNLIMITED: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The deadline of a verb.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    pub(super) at: Instant,
    pub(super) timeout: Duration,
}

impl Deadline {
    /// Starting now.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        let now = Instant::now();

        Self { at: now + timeout.min(UNLIMITED), timeout }
    }
}

/// The progress towards a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress<T> {
    /// It holds.
    Done(T),
    /// The present state.
    NotYet(String),
}

/// What is waited for, in words.
#[derive(Clone, Debug)]
pub(super) struct WaitTarget {
    /// After "waiting for".
    pub(super) what: String,
    /// A command that shows more.
    pub(super) look_at: String,
}

impl WaitTarget {
    fn missed(&self, end: &PeeringSide<'_>, found: String) -> CommandError {
        CommandError::Timeout(Box::new(TimeoutError {
            side: end.side,
            awaited: self.what.clone(),
            timeout: end.session.deadline.timeout,
            found,
            cause: None,
            look_at: self.look_at.clone(),
        }))
    }
}

/// Watches the objects of `selection` until `judge` accepts them.
pub(super) async fn until<K, T>(
    end: &PeeringSide<'_>,
    api: Api<K>,
    selection: watcher::Config,
    awaited: &WaitTarget,
    judge: impl Fn(&[&K]) -> Result<Progress<T>, CommandError>,
) -> Result<T, CommandError>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    end.session.report.waiting(end.side, &format!("Waiting for {}", awaited.what));
    let selection = selection.timeout(WATCH_SECONDS);
    let mut pauses = pauses();
    let mut found = "no answer of the API server".to_owned();
    loop {
        // A new watch after each error: one that resumes may request an expired version.
        let mut events = pin!(watcher(api.clone(), selection.clone()));
        let mut objects = BTreeMap::new();
        let mut is_listed = false;
        let error = loop {
            let Ok(event) = timeout_at(end.session.deadline.at, events.next()).await else {
                return Err(awaited.missed(end, found));
            };
            match event {
                None => break None,
                Some(Err(error)) => break Some(error),
                Some(Ok(Event::Init)) => {
                    objects.clear();
                    is_listed = false;
                }
                Some(Ok(Event::InitDone)) => is_listed = true,
                Some(Ok(Event::InitApply(object) | Event::Apply(object))) => {
                    objects.insert((object.namespace(), object.name_any()), object);
                }
                Some(Ok(Event::Delete(object))) => {
                    objects.remove(&(object.namespace(), object.name_any()));
                }
            }
            if is_listed {
                match judge(&objects.values().collect::<Vec<_>>())? {
                    Progress::Done(done) => return Ok(done),
                    Progress::NotYet(now) => found = now,
                }
                pauses = api_error::pauses();
            }
        };
        if let Some(error) = error {
            match cause(error) {
                Some(cause) if is_permanent(&cause) => {
                    return Err(end.failed(&format!("waiting for {}", awaited.what), &cause));
                }
                Some(cause) => found = format!("no API server: {}", api_error_text(&cause)),
                None => {}
            }
        }
        let pause = pauses.next().unwrap_or_default();
        sleep_until((Instant::now() + pause).min(end.session.deadline.at)).await;
        if Instant::now() >= end.session.deadline.at {
            return Err(awaited.missed(end, found));
        }
    }
}

/// The same for an object of the gateway called `gateway`: on a timeout, the error has the cause, as far as it is
/// known.
pub(super) async fn until_of_gateway<K, T>(
    end: &PeeringSide<'_>,
    gateway: &str,
    (api, selection): (Api<K>, watcher::Config),
    awaited: &WaitTarget,
    judge: impl Fn(&[&K]) -> Result<Progress<T>, CommandError>,
) -> Result<T, CommandError>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    cause::explained(end, gateway, until(end, api, selection, awaited, judge).await).await
}

/// Whether `object` is left of a former gateway, not of the one with this `uid`, and about to be deleted with it. An
/// object of a user belongs to no gateway.
pub(super) fn is_stale<K: Resource>(object: &K, uid: Option<&String>) -> bool {
    let is_gateway = |kind: &str| ["GatewayServer", "GatewayClient"].contains(&kind);
    let mut gateways =
        object.owner_references().iter().filter(|owner| is_gateway(&owner.kind)).peekable();

    gateways.peek().is_some() && gateways.all(|owner| Some(&owner.uid) != uid)
}

/// Selects the object of this name.
pub(super) fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// What error of a watch.
fn cause(error: watcher::Error) -> Option<kube::Error> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Some(error),
        watcher::Error::WatchError(status) => Some(kube::Error::Api(status)),
        watcher::Error::NoResourceVersion => None,
    }
}
