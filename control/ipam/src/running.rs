//! Runs rounds without end: one soon after each change, and one periodically.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use backon::BackoffBuilder as _;
use futures_util::future::select;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use futures_util::{FutureExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, watcher as watch};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use strait_api::{Configuration, IP, Network};
use strait_kube::events;
use strait_kube::repeated_failure::RepeatedFailure;
use strait_kube::watch::{BACKOFF, WATCH_SECONDS, backoff, unending};
use tokio::sync::watch as channel;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::Settings;
use super::cluster::{Cluster, Failure, KubeCluster};
use super::object::Denial;
use super::resources::Objects;
use super::round::{Allocator, Round};

/// The shortest time between the starts of two rounds.
const GAP: Duration = Duration::from_millis(50);

/// The period of rounds without a change, for changes that the watch missed.
const RESYNC: Duration = Duration::from_secs(120);

/// The number of failures that are remembered, to log each once.
const FAILURES_MAX: usize = 1_000;

/// Allocates prefixes and addresses until it is dropped, which may be at any time.
///
/// Several may run at once, on one machine or on many. An API server that is away is waited for; that it cannot be
/// watched, or written to, is logged once.
pub async fn run(client: Client, settings: Settings) -> Infallible {
    let (networks, of_networks) = watched::<Network>(&client, 0);
    let (ips, of_ips) = watched::<IP>(&client, 1);
    let (configurations, of_configurations) = watched::<Configuration>(&client, 2);
    let seen = || Objects {
        networks: networks.state(),
        ips: ips.state(),
        configurations: configurations.state(),
    };

    let (tell, listed) = channel::channel([false; KINDS]);
    let changes = stream::select_all([of_networks, of_ips, of_configurations]).boxed();
    let cluster = KubeCluster::new(client, settings.namespace.clone());
    let rounds = Rounds::new(Allocator::new(cluster, settings));
    let follow = follow(changes, tell).boxed();
    let allocation = rounds.run(seen, listed).boxed();

    select(follow, allocation).await.factor_first().0
}

/// The number of kinds that are watched.
const KINDS: usize = 3;

/// An object of the kind of this number was seen.
#[derive(Clone, Copy, Debug)]
struct Change {
    kind: usize,
    is_listed: bool,
}

/// The objects of one kind in all namespaces, and the stream that keeps them up to date.
fn watched<K>(
    client: &Client,
    kind: usize,
) -> (Store<DeserializeGuard<K>>, BoxStream<'static, Result<Change, watcher::Error>>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api = Api::<DeserializeGuard<K>>::all(client.clone());
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let (store, writer) = reflector::store();
    let events = unending(move || watch(api.clone(), config.clone()));
    let changes = reflector::reflector(writer, events).map_ok(move |event| {
        let is_listed = matches!(event, watcher::Event::InitDone);
        Change { kind, is_listed }
    });

    (store, changes.boxed())
}

/// Keeps the objects up to date, and publishes which kinds were listed.
async fn follow(
    mut changes: BoxStream<'static, Result<Change, watcher::Error>>,
    tell: channel::Sender<[bool; KINDS]>,
) -> Infallible {
    let mut failure = RepeatedFailure::about("watch Networks, IPs and Configurations");
    while let Some(change) = changes.next().await {
        failure.log(&change);
        if let Ok(Change { kind, is_listed }) = change {
            tell.send_modify(|listed| {
                if let Some(listed) = listed.get_mut(kind) {
                    *listed |= is_listed;
                }
            });
        }
    }

    // A watch never ends; if one did, there would be no more changes.
    std::future::pending().await
}

/// Runs rounds, and reports their problems.
struct Rounds<C> {
    allocator: Allocator<C>,
    failures: BTreeSet<String>,
    /// By UID: the last report on a resource without an allocation.
    reported: BTreeMap<String, String>,
    limit: events::Limit,
}

impl<C: Cluster> Rounds<C> {
    fn new(allocator: Allocator<C>) -> Self {
        let limit = events::Limit::new(Timestamp::now());

        Self { allocator, failures: BTreeSet::new(), reported: BTreeMap::new(), limit }
    }

    async fn run(
        mut self,
        seen: impl Fn() -> Objects,
        mut listed: channel::Receiver<[bool; KINDS]>,
    ) -> Infallible {
        let mut failure = RepeatedFailure::about("allocate prefixes and addresses");
        let mut delays = backoff().build();
        let mut resync = Instant::now();
        let mut is_unfinished = false;
        // A part of the objects would look like the deletion of the others.
        if listed.wait_for(|listed| listed.iter().all(|is_listed| *is_listed)).await.is_err() {
            return std::future::pending().await;
        }
        loop {
            let is_due = Instant::now() >= resync;
            if !is_unfinished && !is_due && timeout_at(resync, listed.changed()).await.is_err() {
                continue;
            }
            if is_due {
                self.allocator.look_again();
                resync = Instant::now() + RESYNC;
            }
            let start = Instant::now();
            listed.mark_unchanged();
            let round = self.round(&seen()).await;
            failure.log(&round);
            match round {
                Ok(again) => {
                    is_unfinished = again;
                    delays = backoff().build();
                    sleep_until(start + GAP).await;
                }
                Err(_) => {
                    is_unfinished = true;
                    let [_, longest] = BACKOFF;
                    sleep(delays.next().unwrap_or(longest)).await;
                }
            }
        }
    }

    /// Whether there may be more to do even without a change.
    async fn round(&mut self, objects: &Objects) -> Result<bool, Failure> {
        let now = Timestamp::now();
        let Round { is_unfinished, failures: complaints, denials } =
            self.allocator.round(objects, now).await?;
        if self.failures.len() > FAILURES_MAX {
            self.failures.clear();
        }
        for failure in complaints {
            if self.failures.insert(failure.clone()) {
                tracing::warn!("{failure}");
            }
        }
        if !is_unfinished {
            self.report(denials, now).await?;
        }

        Ok(is_unfinished)
    }

    /// Reports resources without an allocation, each once while that lasts.
    async fn report(&mut self, denials: Vec<Denial>, now: Timestamp) -> Result<(), Failure> {
        let mut former = std::mem::take(&mut self.reported);
        for denial in denials {
            let uid = denial.object.uid.clone().unwrap_or_default();
            let is_reported_before = former.remove(&uid).as_ref() == Some(&denial.message);
            if !is_reported_before && !denial.is_reported {
                if self.limit.room(now).is_err() {
                    continue;
                }
                self.limit.take();
                let Denial { object, message, .. } = &denial;
                let [kind, namespace, name] = [&object.kind, &object.namespace, &object.name]
                    .map(|text| text.as_deref().unwrap_or_default());
                tracing::warn!("{kind} {namespace}/{name} gets no allocation: {message}");
                match self.allocator.cluster().report(&denial).await {
                    Ok(()) | Err(Failure::Conflict | Failure::Gone) => {}
                    Err(Failure::Refused(error)) => {
                        let failure = format!("Events cannot be written: {error}");
                        if self.failures.insert(failure.clone()) {
                            tracing::warn!("{failure}");
                        }
                    }
                    Err(error @ Failure::Away(_)) => return Err(error),
                }
            }
            self.reported.insert(uid, denial.message);
        }

        Ok(())
    }
}
