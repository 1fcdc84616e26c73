//! Watches that go on after errors, and several of them as one.
//!
//! Level-triggered: a [`Bundle`] reports that something has changed, not what. A change is reported at once; during a
//! flood of changes they are reported together.
//!
//! # Invariants
//!
//! - Nothing is reported before every kind was listed once: half of the objects would look like the deletion of the
//!   other half.

mod bundle;
mod pace;

use std::pin::Pin;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures_util::future::ready;
use futures_util::stream::{self, Stream, StreamExt as _};
use kube::core::Status;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource, ResourceExt as _};
use tokio::time::{Instant, sleep};

pub use bundle::{Bundle, Change, Changes, changes};

/// The timeout of a watch, in seconds. A server that no longer answers is noticed a little later.
pub const WATCH_SECONDS: u32 = 60;

/// The first and the longest pause between attempts to reach an unavailable API server; jitter may double it.
pub const BACKOFF: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(4)];

/// HTTP 410: the resource version has expired.
const GONE: u16 = 410;

/// HTTP 429, and the message of a server that has a definition but does not serve its objects yet.
const TOO_MANY_REQUESTS: u16 = 429;
const INITIALIZING: &str = "storage is (re)initializing";

/// The events of consecutive watches, each started by `begin`, without end. An error is reported, and then everything
/// is listed again. An expired version and a definition that is not served yet are no errors to report: a list with all
/// objects follows.
///
/// `managedFields` are left out: they are unused here, and often the larger half of an object.
pub fn unending<K, W>(
    begin: impl Fn() -> W + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Resource + Send,
    W: Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
{
    let events = restarting(begin).filter(|event| ready(!event.as_ref().is_err_and(is_passing)));

    events.modify(|object| object.managed_fields_mut().clear())
}

/// Between attempts to reach an API server that is away.
pub fn backoff() -> ExponentialBuilder {
    let [first, longest] = BACKOFF;

    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(longest)
        .without_max_times()
        .with_jitter()
}

/// The events of a watch that is replaced by a new one after an error, after a pause that grows with each error. kube's
/// own resumes at the last resource version: then no event shows that the server answers again until an object changes,
/// and an expired version is requested again without end. kube's back-off is reset by the `Init` of every attempt, so
/// that it never grows.
fn restarting<K, W>(
    begin: impl Fn() -> W + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Send,
    W: Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
{
    let attempt = Attempt { events: Box::pin(begin()), since: Instant::now(), pause: None };

    stream::unfold((attempt, backoff().build(), begin), async |(mut attempt, mut pauses, begin)| {
        if let Some(pause) = attempt.pause.take() {
            sleep(pause).await;
            attempt.events.set(begin());
            attempt.since = Instant::now();
        }
        let event = attempt.events.next().await?;
        if event.is_err() {
            let [_, longest] = BACKOFF;
            // Only a watch that has lasted resets the pause; a list alone does not.
            if attempt.since.elapsed() > longest {
                pauses = backoff().build();
            }
            attempt.pause = pauses.next();
        }

        Some((event, (attempt, pauses, begin)))
    })
}

/// One watch, until its first error.
struct Attempt<W> {
    events: Pin<Box<W>>,
    since: Instant,
    /// The pause before the next one, after an error.
    pause: Option<Duration>,
}

/// Whether the resource version has expired, or the server is about to serve the kind. A list asks for no version: one
/// that fails because of it is an error like others.
fn is_passing(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status)
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => {
            status.code == GONE || is_initializing(status)
        }
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => is_initializing(status),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}

fn is_initializing(status: &Status) -> bool {
    status.code == TOO_MANY_REQUESTS && status.message.contains(INITIALIZING)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::time::timeout;

    use super::*;

    type Event = watcher::Result<watcher::Event<ConfigMap>>;

    /// The number of watches that are started within `time`, if each has `events`, lasts as given, and then fails.
    async fn begun(time: Duration, events: fn() -> Vec<Event>, lasts: Duration) -> u32 {
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        let watch = unending(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            let end = async move {
                sleep(lasts).await;
                Err(watcher::Error::NoResourceVersion)
            };
            stream::iter(events()).chain(stream::once(end))
        });
        let _ = timeout(time, watch.for_each(|_| ready(()))).await;

        count.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_grows_while_watches_fail() {
        let unreachable: fn() -> Vec<Event> = Vec::new;
        let list_refused: fn() -> Vec<Event> = || vec![Ok(watcher::Event::Init)];
        let watch_refused: fn() -> Vec<Event> =
            || vec![Ok(watcher::Event::Init), Ok(watcher::Event::InitDone)];
        for events in [unreachable, list_refused, watch_refused] {
            let count = begun(Duration::from_secs(33), events, Duration::ZERO).await;

            // 0.2 + 0.4 + 0.8 + 1.6 + 3.2 + 4 + ... s, each up to twice as long with jitter.
            assert!((6..=13).contains(&count), "{count}");
        }
    }

    #[test]
    fn an_initializing_storage_is_no_failure() {
        let status = |code, message: &str| {
            Box::new(Status { code, message: message.to_owned(), ..Status::default() })
        };
        let refused = |code, message| kube::Error::Api(status(code, message));
        let list = |code, message| watcher::Error::InitialListFailed(refused(code, message));
        let watch = |code, message| watcher::Error::WatchStartFailed(refused(code, message));

        assert!(is_passing(&list(429, "storage is (re)initializing")));
        assert!(is_passing(&watch(429, "storage is (re)initializing")));
        assert!(!is_passing(&watch(429, "too many requests, please try again later")));
        assert!(is_passing(&watch(410, "too old resource version")));
        assert!(!is_passing(&list(410, "too old resource version")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_watch_resets_the_pause() {
        let lasts = Duration::from_secs(60);
        let count = begun(Duration::from_secs(6_060), Vec::new, lasts).await;

        // With the longest pause there would be 96 at most.
        assert!(count >= 100, "{count}");
    }
}
