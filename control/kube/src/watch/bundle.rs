//! Several watches as one: reports a change in any of them, once all were listed.

use futures_util::TryStreamExt as _;
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use kube::runtime::watcher;
use tokio::time::{Instant, timeout_at};

use super::pace::Pace;

/// An event of a [`Bundle`]: objects of a kind have changed.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    kind: &'static str,
    is_listed: bool,
}

/// Changes of one kind.
pub type Changes = BoxStream<'static, Result<Change, watcher::Error>>;

/// Watches of several kinds. The caller keeps the objects, and learns when to read them.
pub struct Bundle {
    changes: Changes,
    /// Kinds that were not listed yet.
    unlisted: Vec<&'static str>,
    /// When to report the changes.
    due: Option<Instant>,
    pace: Pace,
}

impl Bundle {
    /// Of `kinds`, each with its changes.
    pub fn new(kinds: impl IntoIterator<Item = (&'static str, Changes)>) -> Self {
        let (unlisted, changes): (Vec<_>, Vec<_>) = kinds.into_iter().unzip();
        let changes = stream::select_all(changes).boxed();

        Self { changes, unlisted, due: None, pace: Pace::default() }
    }

    /// Waits until it is time to read all objects. Cancel safe.
    ///
    /// # Errors
    ///
    /// If the API server cannot be reached. The watches go on by themselves.
    pub async fn next(&mut self) -> Result<(), watcher::Error> {
        loop {
            let change = match self.due {
                None => self.changes.next().await,
                Some(due) => match timeout_at(due, self.changes.next()).await {
                    Ok(change) => change,
                    Err(_) => {
                        self.due = None;
                        if self.unlisted.is_empty() {
                            self.pace.record_report(Instant::now());
                            return Ok(());
                        }
                        continue;
                    }
                },
            };
            match change {
                Some(change) => self.note(change?),
                // A watch never ends; if one did, there would be no more changes.
                None => std::future::pending().await,
            }
        }
    }

    fn note(&mut self, change: Change) {
        if change.is_listed {
            self.unlisted.retain(|kind| *kind != change.kind);
        }
        // Counted from the first change on, so that a flood of them cannot delay the report without end.
        self.due.get_or_insert(self.pace.due(Instant::now()));
    }
}

/// The changes of `kind` in `events`.
pub fn changes<K>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
) -> (&'static str, Changes)
where
    K: 'static,
{
    let changes = events.try_filter_map(move |event| {
        let is_listed = match event {
            // `Init` precedes the list request: it does not prove that the server answers.
            watcher::Event::Init | watcher::Event::InitApply(_) => return ready(Ok(None)),
            watcher::Event::InitDone => true,
            watcher::Event::Apply(_) | watcher::Event::Delete(_) => false,
        };
        ready(Ok(Some(Change { kind, is_listed })))
    });

    (kind, changes.boxed())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::watcher::{Error, Event};
    use tokio::time::{sleep, timeout};

    use super::*;

    /// Of one kind, with one event each minute, and then none.
    fn bundle<const N: usize>(events: [watcher::Result<Event<Pod>>; N]) -> Bundle {
        let events = stream::iter(events).then(async |event| {
            sleep(Duration::from_secs(60)).await;
            event
        });

        Bundle::new([changes("Pod", events.chain(stream::pending()))])
    }

    /// The reports until there is none for an hour, and whether each is an error.
    async fn reports(mut bundle: Bundle) -> Vec<bool> {
        let mut reports = Vec::new();
        while let Ok(next) = timeout(Duration::from_secs(3600), bundle.next()).await {
            reports.push(next.is_err());
        }

        reports
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_list_is_no_answer() {
        let away = || Err(Error::NoResourceVersion);

        let (init, listed) = (|| Ok(Event::Init), Ok(Event::InitDone));

        let events = [init(), listed, away(), init(), away(), init(), away()];
        let reports = reports(bundle(events)).await;

        assert_eq!(reports, [false, true, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_reported_once() {
        let bundle = bundle([
            Ok(Event::Init),
            Ok(Event::InitApply(Pod::default())),
            Ok(Event::InitApply(Pod::default())),
            Ok(Event::InitDone),
        ]);

        assert_eq!(reports(bundle).await, [false]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_reported_before_all_kinds_are_listed() {
        let listed = [Ok(Event::Init), Ok(Event::InitDone)];
        let changed = [Ok(Event::Init), Ok(Event::Apply(Pod::default()))];
        let bundle = Bundle::new([
            changes::<Pod>("Pod", stream::iter(listed).chain(stream::pending())),
            changes("Service", stream::iter(changed).chain(stream::pending())),
        ]);

        assert!(reports(bundle).await.is_empty());
    }
}
