//! Whose turn it is: makes this replica the active one, or takes that from it.

mod guest;
mod lease;

use std::net::SocketAddr;
use std::time::Duration;

use control::active::ActivePod;
use control::election::Election;
use control::identity::Identity;
use kube::Client;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use self::lease::PeerHeard;
use super::settings::Leadership;
use crate::election::Candidacy;

/// The time in which this replica is the active one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaderTerm {
    /// Where the replica before it heard the peer.
    pub(super) peer_endpoint: Option<SocketAddr>,
    /// Until when that one may have begun sessions with it, since 1970.
    pub(super) continue_after: Option<Duration>,
}

/// What decides whose turn it is, and how to end it in order.
pub(super) struct LeadershipTask {
    /// Empty if there is nothing to decide. Says whether another replica has the turn.
    task: JoinSet<bool>,
    end: Option<oneshot::Sender<()>>,
    heard: watch::Sender<Option<SocketAddr>>,
    is_peer_awaited: watch::Receiver<bool>,
}

impl LeadershipTask {
    /// Says in `term` whenever it begins or ceases to be the turn of this replica. To be called within the
    /// runtime.
    pub(super) fn start(
        leadership: &Leadership,
        client: &Client,
        identity: &Identity,
        term: watch::Sender<Option<LeaderTerm>>,
    ) -> Self {
        let (heard, last_heard) = watch::channel(None);
        let (awaits, is_peer_awaited) = watch::channel(false);
        let mut task = JoinSet::new();
        let mut end = None;
        match leadership.clone() {
            Leadership::Always => {}
            Leadership::Lease(Candidacy { settings, times, pod }) => {
                let election = Election::new(client.clone(), identity, settings);
                let pod = ActivePod::new(client.clone(), identity, pod);
                let (sender, ended) = oneshot::channel();
                let peer_heard = PeerHeard { heard: last_heard, awaits };
                task.spawn(lease::stand(election, pod, times, term, peer_heard, ended));
                end = Some(sender);
            }
            Leadership::OtherContainer { socket, guest } => {
                task.spawn(async move {
                    guest::attend(&socket, &guest, term).await;
                    false
                });
            }
        }

        Self { task, end, heard, is_peer_awaited }
    }

    /// The peer was heard at `endpoint`, which whoever has the next turn is to know.
    pub(super) fn hear(&self, endpoint: SocketAddr) {
        self.heard.send_replace(Some(endpoint));
    }

    /// Whether it matters how soon [`Self::hear`] is called.
    pub(super) fn awaits_peer(&self) -> bool {
        *self.is_peer_awaited.borrow()
    }

    /// Lets another replica have its turn. Says whether one has, or nobody seems to want it.
    pub(super) async fn end(&mut self) -> bool {
        let Some(end) = self.end.take() else { return false };
        // It may have ended by itself.
        let _ = end.send(());

        matches!(self.task.join_next().await, Some(Ok(true)))
    }
}
