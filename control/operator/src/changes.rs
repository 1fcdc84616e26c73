//! Watches, as the objects that have changed.

use futures_util::future::ready;
use futures_util::stream::{Stream, StreamExt as _};
use kube::runtime::watcher;
use strait_kube::repeated_failure::RepeatedFailure;
use strait_kube::watch::WATCH_SECONDS;

/// The objects of the events. A failing watch is logged once.
pub(super) fn changed_objects<O>(
    kind: String,
    events: impl Stream<Item = watcher::Result<watcher::Event<O>>> + Send,
) -> impl Stream<Item = O> + Send
where
    O: Clone + Send,
{
    let mut failure = RepeatedFailure::about(format!("watch objects of kind {kind}"));

    events.filter_map(move |event| {
        failure.log(&event);
        ready(match event {
            Ok(
                watcher::Event::Apply(object)
                | watcher::Event::InitApply(object)
                | watcher::Event::Delete(object),
            ) => Some(object),
            Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => None,
        })
    })
}

/// Of watches, which last as long as all do.
pub(super) fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}
