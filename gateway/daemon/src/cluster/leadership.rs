//! Decides when this replica is the leader.

mod guest;
mod lease;

use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube::Client;
use strait_api::identity::Identity;
use strait_kube::active::ActivePod;
use strait_kube::election::{Election, Elector, ProbedPathMtu};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use self::lease::PeerHeard;
use super::settings::Leadership;
use crate::election::Candidacy;

/// A period in which this replica is the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaderTerm {
    /// Where the previous leader heard the peer.
    pub(super) peer_endpoint: Option<SocketAddr>,
    /// What the previous leader found of the path to the peer by probes.
    pub(super) path_mtu: Option<ProbedPathMtu>,
    /// Until when (since 1970) the previous leader, or a former process of this pod, may have started sessions.
    pub(super) continue_after: Option<Duration>,
}

/// The task that decides on leadership, and how to end it in order.
pub(super) struct LeadershipTask {
    /// Empty if leadership is fixed. Returns whether another replica took over.
    task: JoinSet<bool>,
    /// Whether to wait for a successor.
    end: Option<oneshot::Sender<bool>>,
    heard: watch::Sender<Option<SocketAddr>>,
    path_mtu: watch::Sender<Option<ProbedPathMtu>>,
    is_peer_awaited: watch::Receiver<bool>,
    predecessor: watch::Receiver<Option<IpAddr>>,
}

impl LeadershipTask {
    /// Publishes in `term` whenever leadership begins or ends. A replica that `has_led` before its container restarted
    /// leads while the API server is away. Call it within the runtime.
    pub(super) fn start(
        leadership: &Leadership,
        client: &Client,
        identity: &Identity,
        has_led: bool,
        term: watch::Sender<Option<LeaderTerm>>,
    ) -> Self {
        let (heard, last_heard) = watch::channel(None);
        let (path_mtu, last_path_mtu) = watch::channel(None);
        let (awaits, is_peer_awaited) = watch::channel(false);
        let (predecessor, last_predecessor) = watch::channel(None);
        let mut task = JoinSet::new();
        let mut end = None;
        match leadership.clone() {
            Leadership::Always => {}
            Leadership::Lease(Candidacy { settings, times, pod }) => {
                let election = Election::new(client.clone(), identity, settings);
                let elector = Elector::new(election, times);
                let pod = ActivePod::new(client.clone(), identity, pod);
                let (sender, ended) = oneshot::channel();
                let peer_heard =
                    PeerHeard { heard: last_heard, path_mtu: last_path_mtu, awaits, predecessor };
                task.spawn(lease::run_election(elector, pod, has_led, term, peer_heard, ended));
                end = Some(sender);
            }
            Leadership::OtherContainer { socket, guest } => {
                task.spawn(async move {
                    guest::attend(&socket, &guest, term).await;
                    false
                });
            }
        }

        Self { task, end, heard, path_mtu, is_peer_awaited, predecessor: last_predecessor }
    }

    /// Records that there is a session with the peer, and its `endpoint` if the next leader needs to know.
    pub(super) fn handle_session(&self, endpoint: Option<SocketAddr>) {
        self.heard.send_replace(endpoint);
    }

    /// Records what probes found of the path to the peer, for the next leader.
    pub(super) fn handle_path_mtu(&self, found: ProbedPathMtu) {
        self.path_mtu.send_replace(Some(found));
    }

    /// Whether [`Self::handle_session`] should be called soon.
    pub(super) fn awaits_peer(&self) -> bool {
        *self.is_peer_awaited.borrow()
    }

    /// Waits for another pod to be found that has the session of the peer, and returns its address. Cancel safe.
    pub(super) async fn predecessor(&mut self) -> IpAddr {
        while self.predecessor.changed().await.is_ok() {
            if let Some(found) = *self.predecessor.borrow_and_update() {
                return found;
            }
        }

        pending().await
    }

    /// Gives leadership up, and waits for a successor if one is needed. Returns whether another replica took it.
    pub(super) async fn end(&mut self, needs_successor: bool) -> bool {
        let Some(end) = self.end.take() else { return false };
        // The task may have ended before.
        let _ = end.send(needs_successor);

        matches!(self.task.join_next().await, Some(Ok(true)))
    }
}
