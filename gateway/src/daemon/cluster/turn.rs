//! Whose turn it is: makes this replica the active one, or takes that from it.

mod guest;
mod lease;

use std::time::Duration;

use control::active::ActivePod;
use control::election::Election;
use control::identity::Identity;
use kube::Client;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::settings::Turn;
use crate::daemon::election::Candidacy;

/// How long the end of a replica waits until another can take its place.
const YIELD_DEADLINE: Duration = Duration::from_secs(2);

/// What decides whose turn it is, and how to end it in order.
#[derive(Default)]
pub(super) struct TurnTask {
    /// Empty if there is nothing to decide.
    task: JoinSet<()>,
    end: Option<oneshot::Sender<()>>,
}

impl TurnTask {
    /// Says in `is_active` whenever it begins or ceases to be the turn of this replica. To be called
    /// within the runtime.
    pub(super) fn start(
        turn: &Turn,
        client: &Client,
        identity: &Identity,
        is_active: watch::Sender<bool>,
    ) -> Self {
        let mut task = JoinSet::new();
        let mut end = None;
        match turn.clone() {
            Turn::Always => {}
            Turn::Lease(Candidacy { settings, times, pod }) => {
                let election = Election::new(client.clone(), identity, settings);
                let pod = ActivePod::new(client.clone(), identity, pod);
                let (sender, ended) = oneshot::channel();
                task.spawn(lease::stand(election, pod, times, is_active, ended));
                end = Some(sender);
            }
            Turn::Beside { socket, guest } => {
                task.spawn(async move { guest::attend(&socket, &guest, is_active).await });
            }
        }

        Self { task, end }
    }

    /// Lets another replica have its turn.
    pub(super) async fn end(&mut self) {
        let Some(end) = self.end.take() else { return };
        // It may have ended by itself.
        let _ = end.send(());
        if timeout(YIELD_DEADLINE, self.task.join_next()).await.is_err() {
            warn!("the API server does not answer; another replica begins when the Lease is over");
        }
    }
}
