//! Watches the objects of one namespace, and says what all of them are after some have changed.
//!
//! Level-triggered: whoever listens is told what there is, not what happened. A change is told at once,
//! unless much was told lately: then what changes meanwhile is told together.
//!
//! # Invariants
//!
//! - Nothing is told before every kind was listed once: half of the objects would look like the
//!   deletion of the other half.
//! - While the API server is away, what was told last stays as it is.

mod pace;

use std::fmt::Debug;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::TryStreamExt as _;
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use kube::core::{DeserializeGuard, NamespaceResourceScope, Selector};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, ExponentialBackoff};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::api::{Configuration, PublicKey};
use crate::objects::{Objects, REMOTE_CLUSTER_ID, Remapping, Scope};

use pace::Pace;

/// How long a watch lasts, in seconds. A server that fell silent is noticed a little later.
pub(crate) const WATCH_SECONDS: u32 = 60;

/// Between attempts to reach an API server that is away, first and longest; jitter may double it.
pub(crate) const BACKOFF: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(4)];

/// HTTP 410: what was asked for is no longer known.
const GONE: u16 = 410;

/// What a watch has to say.
#[derive(Debug)]
pub enum Update {
    /// What there is now.
    Objects(Objects),
    /// The API server cannot be asked. The watch goes on by itself.
    Unreachable(watcher::Error),
}

/// Watches every kind that a gateway reads.
pub struct Watch {
    public_keys: Store<DeserializeGuard<PublicKey>>,
    configurations: Option<Store<DeserializeGuard<Configuration>>>,
    changes: BoxStream<'static, Result<Change, watcher::Error>>,
    /// Kinds that were not listed yet.
    unlisted: Vec<&'static str>,
    /// When to tell what has changed.
    due: Option<Instant>,
    pace: Pace,
}

/// That objects of a kind have changed.
#[derive(Clone, Copy, Debug)]
struct Change {
    kind: &'static str,
    is_listed: bool,
}

impl Watch {
    /// Begins to watch `namespace` for what concerns `scope`.
    #[must_use]
    pub fn new(client: &Client, namespace: &str, scope: &Scope) -> Self {
        let (public_keys, key_changes) = watched("PublicKey", client, namespace, scope);
        let mut changes = vec![key_changes];
        let mut unlisted = vec!["PublicKey"];
        let configurations = match scope.remapping {
            Remapping::Elsewhere => None,
            Remapping::Configurations => {
                let (store, more) = watched("Configuration", client, namespace, scope);
                changes.push(more);
                unlisted.push("Configuration");
                Some(store)
            }
        };

        let changes = stream::select_all(changes).boxed();

        Self { public_keys, configurations, changes, unlisted, due: None, pace: Pace::default() }
    }

    /// Waits until there is something to say. Cancel safe.
    pub async fn next(&mut self) -> Update {
        loop {
            let change = match self.due {
                None => self.changes.next().await,
                Some(due) => match timeout_at(due, self.changes.next()).await {
                    Ok(change) => change,
                    Err(_) => {
                        self.due = None;
                        if self.unlisted.is_empty() {
                            self.pace.told(Instant::now());
                            return Update::Objects(self.objects());
                        }
                        continue;
                    }
                },
            };
            match change {
                Some(Ok(change)) => self.note(change),
                Some(Err(error)) => return Update::Unreachable(error),
                // A watch has no end; if it had, there would be nothing more to say.
                None => std::future::pending().await,
            }
        }
    }

    fn note(&mut self, change: Change) {
        if change.is_listed {
            self.unlisted.retain(|kind| *kind != change.kind);
        }
        // From the first change on, so that a flood of them cannot put it off for ever.
        self.due.get_or_insert(self.pace.due(Instant::now()));
    }

    fn objects(&self) -> Objects {
        Objects {
            public_keys: self.public_keys.state(),
            configurations: self.configurations.as_ref().map(Store::state).unwrap_or_default(),
        }
    }
}

/// The objects of one kind, and a stream of their changes that keeps them up to date.
fn watched<K>(
    kind: &'static str,
    client: &Client,
    namespace: &str,
    scope: &Scope,
) -> (Store<DeserializeGuard<K>>, BoxStream<'static, Result<Change, watcher::Error>>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api = Api::<DeserializeGuard<K>>::namespaced(client.clone(), namespace);
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if let Some(id) = &scope.remote_cluster_id {
        config =
            config.labels_from(&Selector::from_iter([(REMOTE_CLUSTER_ID.to_owned(), id.clone())]));
    }

    let (store, writer) = reflector::store();
    let events = reflector::reflector(writer, unending(move || watch(api.clone(), config.clone())));
    let changes = events.map_ok(move |event| {
        let is_listed = matches!(event, watcher::Event::InitDone);
        Change { kind, is_listed }
    });

    (store, changes.boxed())
}

/// The events of the watches that `begin` begins, for ever. An error is told, and then all is listed anew.
pub(crate) fn unending<K, W>(
    begin: impl Fn() -> W + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Send,
    W: Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
{
    let events = never_stuck(begin).backoff(ExponentialBackoff::from(backoff()));

    // Of what is forgotten the list that comes next says all.
    events.filter(|event| ready(!event.as_ref().is_err_and(is_gone)))
}

/// Between attempts to reach an API server that is away.
pub(crate) fn backoff() -> ExponentialBuilder {
    let [first, longest] = BACKOFF;

    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(longest)
        .without_max_times()
        .with_jitter()
}

/// The events of a watch that lists everything anew after an error. kube's goes on from where it was:
/// then nobody learns that the server answers again until something changes, and if the past is gone
/// that it asks for, it asks for ever.
fn never_stuck<K, W>(
    begin: impl Fn() -> W + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Send,
    W: Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
{
    stream::unfold((Box::pin(begin()), begin), async |(mut events, begin)| {
        let event = events.next().await?;
        if event.is_err() {
            events.set(begin());
        }

        Some((event, (events, begin)))
    })
}

/// Whether the server has forgotten what happened since. A list asks for no past: one that fails like
/// this is worth a word as any other.
fn is_gone(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::WatchError(status) => Some(status),
        watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    };

    status.is_some_and(|status| status.code == GONE)
}
