//! Whose turn it is: makes this replica the active one, or takes that from it.

mod guest;
mod lease;

use control::active::ActivePod;
use control::election::Election;
use control::identity::Identity;
use kube::Client;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::settings::Turn;
use crate::daemon::election::Candidacy;

/// What decides whose turn it is, and how to end it in order.
#[derive(Default)]
pub(super) struct TurnTask {
    /// Empty if there is nothing to decide. Says whether another replica has the turn.
    task: JoinSet<bool>,
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
                task.spawn(async move {
                    guest::attend(&socket, &guest, is_active).await;
                    false
                });
            }
        }

        Self { task, end }
    }

    /// Lets another replica have its turn. Says whether one has, or nobody seems to want it.
    pub(super) async fn end(&mut self) -> bool {
        let Some(end) = self.end.take() else { return false };
        // It may have ended by itself.
        let _ = end.send(());

        matches!(self.task.join_next().await, Some(Ok(true)))
    }
}
