//! A gateway that is fed by an API server: what objects ask for becomes peers, what the gateway finds
//! becomes a `Connection`.
//!
//! Everything here may wait for the API server; the packet threads never do.

pub(crate) mod flags;
mod probe;
mod report;
mod settings;

use control::conncheck::{Report, State};
use control::connection::Connections;
use control::objects::{self, Asked, Scope};
use control::plan::{Wanted, WantedPeer, without_rejected};
use control::watch::{Update, Watch};
use kube::Client;
use strait_gateway::wg::{PrivateKey, PublicKey};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::args::UsageError;
use super::config::{Endpoint, Peer};
use super::own_key::OwnKey;

pub(crate) use settings::Settings;

/// A client of the API server that the pod's environment or `KUBECONFIG` names. Asks nobody. To be
/// called within the runtime.
///
/// # Errors
///
/// [`UsageError`] if neither names one.
pub(crate) async fn client() -> Result<Client, UsageError> {
    Client::try_default().await.map_err(|error| {
        UsageError::Wrong(format!(
            "nothing says where the API server is: run in a pod, or set KUBECONFIG ({error})"
        ))
    })
}

/// What feeds a gateway in a cluster.
pub(crate) struct Cluster {
    watch: Watch,
    scope: Scope,
    endpoint: Option<Endpoint>,
    own_key: OwnKey,
    is_a_peer: watch::Sender<bool>,
    /// What was said of objects and of what they ask for.
    refused: Vec<String>,
    is_reachable: bool,
    /// The check and the reports; they end with this.
    _tasks: JoinSet<()>,
}

impl Cluster {
    /// Begins to watch, to check and to report. To be called within the runtime.
    pub(crate) fn start(settings: &Settings, client: Client) -> Self {
        let Settings { identity, scope, endpoint, probe, report_interval, key_file } = settings;

        let watch = Watch::new(&client, &identity.namespace, scope);
        let (is_a_peer, has_peer) = watch::channel(false);
        // What nobody checks counts as good.
        let state = if probe.is_some() { State::Connecting } else { State::Connected };
        let reports = watch::Sender::new(Report { state, ..Report::default() });
        let connections = Connections::new(client, identity.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(report::run(connections, reports.clone(), has_peer, *report_interval));
        if let Some(probe) = probe {
            tasks.spawn(probe::run(probe.clone(), reports));
        }

        Self {
            watch,
            scope: scope.clone(),
            endpoint: endpoint.clone(),
            own_key: OwnKey::new(key_file.clone()),
            is_a_peer,
            refused: Vec::new(),
            is_reachable: true,
            _tasks: tasks,
        }
    }

    /// The peers that objects ask for, whenever objects have changed. Cancel safe.
    pub(crate) async fn next(&mut self) -> Vec<Peer> {
        loop {
            match self.watch.next().await {
                Update::Unreachable(error) => {
                    if self.is_reachable {
                        warn!(%error, "the API server cannot be asked; what it said last stays in force");
                    }
                    self.is_reachable = false;
                }
                Update::Objects(found) => {
                    if !self.is_reachable {
                        info!("the API server answers again");
                    }
                    self.is_reachable = true;
                    return self.peers(objects::read(&self.scope, &found));
                }
            }
        }
    }

    /// Our own key, if the mounted Secret has another one than that `in_force`.
    pub(crate) fn new_key(&mut self, in_force: &PrivateKey) -> Option<PrivateKey> {
        self.own_key.look(in_force)
    }

    fn peers(&mut self, asked: Asked) -> Vec<Peer> {
        let endpoint = match self.endpoint {
            Some(Endpoint::Address(address)) => Some(address.ip()),
            Some(Endpoint::Name(_)) | None => None,
        };
        let (keys, peers): (Vec<_>, Vec<_>) = asked
            .peers
            .into_iter()
            .map(|peer| (peer.public_key, WantedPeer { endpoint, ..peer.wanted }))
            .unzip();
        let (wanted, rejected) = without_rejected(Wanted { peers, ..Wanted::default() });

        let refused = asked.refused.iter().map(ToString::to_string);
        let refused: Vec<_> = refused.chain(rejected.iter().map(ToString::to_string)).collect();
        for refusal in refused.iter().filter(|refusal| !self.refused.contains(refusal)) {
            warn!("{refusal}");
        }
        self.refused = refused;
        let peers: Vec<_> =
            keys.into_iter().zip(wanted.peers).map(|(key, peer)| self.peer(key, peer)).collect();
        // Once there was one, its absence is for the check to find.
        self.is_a_peer.send_if_modified(|is| {
            let is_news = !*is && !peers.is_empty();
            *is |= is_news;
            is_news
        });

        peers
    }

    fn peer(&self, public_key: [u8; 32], wanted: WantedPeer) -> Peer {
        Peer {
            name: wanted.name,
            public_key: PublicKey::from_bytes(public_key),
            preshared_key: None,
            endpoint: self.endpoint.clone(),
            persistent_keepalive: None,
            allowed_ips: wanted.allowed_ips,
            remaps: wanted.remaps,
        }
    }
}
