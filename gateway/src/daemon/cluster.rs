//! A gateway that is fed by an API server: what objects ask for becomes peers, what the gateway finds
//! becomes a `Connection`.
//!
//! Everything here may wait for the API server; the packet threads never do.

mod announce;
pub(crate) mod flags;
mod probe;
mod report;
mod settings;

use control::announce::Announcer;
use control::conditions::{self, Verdict};
use control::conncheck::{Report, State};
use control::connection::Connections;
use control::objects::{self, Objects, Scope};
use control::plan::{Wanted, WantedPeer, without_rejected};
use control::watch::{Update, Watch};
use jiff::Timestamp;
use kube::Client;
use strait_gateway::wg::PublicKey;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::args::UsageError;
use super::config::{Endpoint, Peer};

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
    is_a_peer: watch::Sender<bool>,
    /// What was said of objects and of what they ask for.
    refused: Vec<String>,
    is_reachable: bool,
    /// What became of objects, once it is in force.
    verdicts: watch::Sender<Vec<Verdict>>,
    judged: Option<Vec<Verdict>>,
    /// The check and the reports; they end with this.
    _tasks: JoinSet<()>,
}

impl Cluster {
    /// Begins to watch, to check and to report. To be called within the runtime.
    pub(crate) fn start(settings: &Settings, client: Client) -> Self {
        let Settings { identity, scope, endpoint, probe, report_interval, .. } = settings;

        let watch = Watch::new(&client, &identity.namespace, scope);
        let (is_a_peer, has_peer) = watch::channel(false);
        // What nobody checks counts as good.
        let state = if probe.is_some() { State::Connecting } else { State::Connected };
        let reports = watch::Sender::new(Report { state, ..Report::default() });
        let verdicts = watch::Sender::new(Vec::new());
        let announcer = Announcer::new(&client, identity.clone(), Timestamp::now());
        let checked = probe.is_some().then(|| reports.subscribe());
        let connections = Connections::new(client, identity.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(announce::run(announcer, verdicts.subscribe(), checked));
        tasks.spawn(report::run(connections, reports.clone(), has_peer, *report_interval));
        if let Some(probe) = probe {
            tasks.spawn(probe::run(probe.clone(), reports));
        }

        Self {
            watch,
            scope: scope.clone(),
            endpoint: endpoint.clone(),
            is_a_peer,
            refused: Vec::new(),
            is_reachable: true,
            verdicts,
            judged: None,
            _tasks: tasks,
        }
    }

    /// The peers that objects ask for, whenever objects have changed. Cancel safe.
    pub(crate) async fn next(&mut self) -> Vec<Peer> {
        // Who asks for the next peers has done with the last.
        if let Some(judged) = self.judged.take() {
            self.verdicts.send_if_modified(|verdicts| {
                let is_news = *verdicts != judged;
                *verdicts = judged;
                is_news
            });
        }
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
                    return self.peers(&found);
                }
            }
        }
    }

    fn peers(&mut self, found: &Objects) -> Vec<Peer> {
        let asked = objects::read(&self.scope, found);
        let endpoint = match self.endpoint {
            Some(Endpoint::Address(address)) => Some(address.ip()),
            Some(Endpoint::Name(_)) | None => None,
        };
        let (keys, peers): (Vec<_>, Vec<_>) = asked
            .peers
            .iter()
            .map(|peer| (peer.public_key, WantedPeer { endpoint, ..peer.wanted.clone() }))
            .unzip();
        let (wanted, rejected) = without_rejected(Wanted { peers, ..Wanted::default() });
        self.judged = Some(conditions::verdicts(&self.scope, found, &asked, &rejected));

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
