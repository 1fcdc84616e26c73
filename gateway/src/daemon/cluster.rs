//! A gateway that is fed by an API server: what objects ask for becomes peers, what the gateway finds
//! becomes a `Connection`.
//!
//! Everything here may wait for the API server; the packet threads never do.

mod announce;
pub(crate) mod flags;
mod observed;
mod origins;
mod probe;
mod report;
mod settings;
mod state;
mod trouble;
mod turn;

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use control::active::ActivePod;
use control::announce::Announcer;
use control::conditions::{self, Verdict};
use control::conncheck::{Report, State};
use control::connection::Connections;
use control::election::Election;
use control::identity::Identity;
use control::objects::{self, AskedPeer, Objects, Scope};
use control::plan::{Wanted, WantedPeer, without_rejected};
use control::watch::{Update, Watch};
use jiff::Timestamp;
use kube::Client;
use strait_gateway::io::PeerStatus;
use strait_gateway::wg::{PrivateKey, PublicKey};
use tokio::select;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::args::UsageError;
use super::config::{Endpoint, Origin, Origins, Peer};
use super::own_key::OwnKey;

use report::Reporter;
use settings::{Check, Turn};
use state::StateFile;

pub(crate) use observed::Observed;
pub(crate) use settings::Settings;
pub(crate) use trouble::Trouble;
use trouble::Troubles;

/// How long the end of a replica waits until another can take its place.
const YIELD_DEADLINE: Duration = Duration::from_secs(2);

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

/// What a gateway in a cluster is told while it runs.
pub(crate) enum News {
    /// The peers that objects ask for have changed, or those of before the restart are known.
    Peers {
        /// All of them.
        peers: Vec<Peer>,
        /// Whether that is what objects ask for now.
        is_listed: bool,
    },
    /// The gateway at the other end may not be where it was.
    Trouble(Trouble),
}

/// What feeds a gateway in a cluster.
pub(crate) struct Cluster {
    watch: Watch,
    scope: Scope,
    endpoints: Vec<Endpoint>,
    endpoint_origin: Origin,
    own_key: OwnKey,
    troubles: Troubles,
    /// What objects ask for, or asked for before a restart; `None` if neither is known.
    wanted: Option<Vec<Peer>>,
    has_listed: bool,
    state_file: Option<StateFile>,
    /// What was said of objects and of what they ask for.
    refused: Vec<String>,
    is_reachable: bool,
    observed: Observed,
    /// What became of objects, until that is in force.
    judged: Option<Vec<Verdict>>,
    duties: Duties,
    is_active: watch::Receiver<bool>,
    turn: TurnTask,
}

/// What decides whose turn it is, and how to end it in order.
#[derive(Default)]
struct TurnTask {
    /// Empty if there is nothing to decide.
    task: JoinSet<()>,
    end: Option<oneshot::Sender<()>>,
}

/// What the active replica does besides forwarding: it checks and reports.
struct Duties {
    client: Client,
    identity: Identity,
    check: Check,
    report_interval: Duration,
    is_a_peer: watch::Sender<bool>,
    reports: watch::Sender<Report>,
    /// What became of objects.
    verdicts: watch::Sender<Vec<Verdict>>,
    /// They end with this.
    tasks: JoinSet<()>,
}

impl Cluster {
    /// Begins to watch, and waits for its turn. To be called within the runtime.
    pub(crate) fn start(settings: &Settings, client: Client) -> Self {
        let Settings {
            identity,
            scope,
            endpoints,
            endpoint_origin,
            key_file,
            check,
            report_interval,
            turn,
            state_file,
        } = settings;
        let state_file = state_file.clone().map(|path| StateFile::new(path, identity));
        let (sender, mut is_active) = watch::channel(*turn == Turn::Always);
        is_active.mark_changed();
        let turn = TurnTask::start(turn, &client, identity, sender);
        let reports = watch::Sender::new(Report::default());
        let observed = match check {
            Check::Nobody => Observed::unchecked(),
            Check::Own(_) | Check::Beside => {
                Observed::checked(identity.remote_cluster_id.clone(), reports.subscribe())
            }
        };

        Self {
            watch: Watch::new(&client, &identity.namespace, scope),
            scope: scope.clone(),
            endpoints: endpoints.clone(),
            endpoint_origin: endpoint_origin.clone(),
            own_key: OwnKey::new(key_file.clone()),
            troubles: Troubles::new(reports.subscribe()),
            wanted: state_file.as_ref().and_then(|file| file.load(endpoints)),
            has_listed: false,
            state_file,
            refused: Vec::new(),
            is_reachable: true,
            observed,
            judged: None,
            duties: Duties {
                client,
                identity: identity.clone(),
                check: check.clone(),
                report_interval: *report_interval,
                is_a_peer: watch::Sender::new(false),
                reports,
                verdicts: watch::Sender::new(Vec::new()),
                tasks: JoinSet::new(),
            },
            is_active,
            turn,
        }
    }

    /// What there is to see of it from outside.
    pub(crate) fn observed(&self) -> Observed {
        self.observed.clone()
    }

    /// Other peers than before, or trouble with them: the peers that objects ask for, if it is the
    /// turn of this replica, and none otherwise. Cancel safe.
    pub(crate) async fn next(&mut self) -> News {
        // Who asks for the next peers has done with the last.
        if let Some(judged) = self.judged.take() {
            self.duties.verdicts.send_if_modified(|verdicts| {
                let is_news = *verdicts != judged;
                *verdicts = judged;
                is_news
            });
        }
        loop {
            let has_news = select! {
                trouble = self.troubles.next() => return News::Trouble(trouble),
                update = self.watch.next() => self.note(update),
                Ok(()) = self.is_active.changed() => {
                    if *self.is_active.borrow_and_update() {
                        self.duties.begin();
                    } else {
                        self.duties.end();
                    }
                    true
                }
            };
            if let Some(wanted) = self.wanted.as_ref().filter(|_| has_news) {
                let is_active = *self.is_active.borrow();
                let peers = if is_active { wanted.clone() } else { Vec::new() };
                return News::Peers { peers, is_listed: self.has_listed };
            }
        }
    }

    /// Remembers what is wanted, and where peers are, if that was asked for.
    pub(crate) fn remember(&mut self, status: &[PeerStatus]) {
        if let (Some(file), Some(wanted), true) =
            (&mut self.state_file, &self.wanted, self.has_listed)
        {
            file.save(wanted, status);
        }
    }

    /// Our own key, if the mounted Secret has another one than that `in_force`.
    pub(crate) fn new_key(&mut self, in_force: &PrivateKey) -> Option<PrivateKey> {
        self.own_key.look(in_force)
    }

    /// Lets another replica have its turn.
    pub(crate) async fn end(&mut self) {
        let Some(end) = self.turn.end.take() else { return };
        // It may have ended by itself.
        let _ = end.send(());
        if timeout(YIELD_DEADLINE, self.turn.task.join_next()).await.is_err() {
            warn!("the API server does not answer; another replica begins when the Lease is over");
        }
    }

    /// Whether there are other objects.
    fn note(&mut self, update: Update) -> bool {
        match update {
            Update::Unreachable(error) => {
                if self.is_reachable {
                    warn!(%error, "the API server cannot be asked; what it said last stays in force");
                }
                self.is_reachable = false;
                false
            }
            Update::Objects(found) => {
                if !self.is_reachable {
                    info!("the API server answers again");
                }
                self.is_reachable = true;
                let peers = self.peers(&found);
                self.wanted = Some(peers);
                self.has_listed = true;
                true
            }
        }
    }

    fn peers(&mut self, found: &Objects) -> Vec<Peer> {
        let asked = objects::read(&self.scope, found);
        let addresses = self.endpoints.iter().filter_map(|endpoint| match endpoint {
            Endpoint::Address(address) => Some(address.ip()),
            Endpoint::Name(_) => None,
        });
        let endpoints: Vec<_> = addresses.collect();
        let of_peer = |peer: &AskedPeer| origins::of_peer(peer, self.endpoint_origin.clone());
        let (keys, peers): (Vec<_>, Vec<_>) = asked
            .peers
            .iter()
            .map(|peer| {
                let wanted = WantedPeer { endpoints: endpoints.clone(), ..peer.wanted.clone() };
                ((peer.public_key, of_peer(peer)), wanted)
            })
            .unzip();
        let (wanted, rejected) = without_rejected(Wanted { peers, ..Wanted::default() });
        self.judged = Some(conditions::verdicts(&self.scope, found, &asked, &rejected));

        let refused = asked.refused.iter().map(ToString::to_string);
        let refused: Vec<_> = refused.chain(rejected.iter().map(ToString::to_string)).collect();
        for refusal in refused.iter().filter(|refusal| !self.refused.contains(refusal)) {
            warn!("{}", conditions::shortened(refusal));
        }
        self.observed.set_refused(refused.len());
        self.refused = refused;
        let peers: Vec<_> = keys
            .into_iter()
            .zip(wanted.peers)
            .map(|((key, origins), peer)| self.peer(key, origins, peer))
            .collect();
        // Once there was one, its absence is for the check to find.
        self.duties.is_a_peer.send_if_modified(|is| {
            let is_news = !*is && !peers.is_empty();
            *is |= is_news;
            is_news
        });

        peers
    }

    fn peer(&self, public_key: [u8; 32], origins: Origins, wanted: WantedPeer) -> Peer {
        Peer {
            name: wanted.name,
            public_key: PublicKey::from_bytes(public_key),
            preshared_key: None,
            endpoints: self.endpoints.clone(),
            persistent_keepalive: None,
            allowed_ips: wanted.allowed_ips,
            remaps: wanted.remaps,
            origins,
        }
    }
}

impl TurnTask {
    fn start(
        turn: &Turn,
        client: &Client,
        identity: &Identity,
        is_active: watch::Sender<bool>,
    ) -> Self {
        let mut task = JoinSet::new();
        let mut end = None;
        match turn.clone() {
            Turn::Always => {}
            Turn::Lease { candidate, renew_deadline, pod } => {
                let times = [candidate.retry_period, renew_deadline];
                let election = Election::new(client.clone(), identity, candidate);
                let pod = ActivePod::new(client.clone(), identity, pod);
                let (sender, ended) = oneshot::channel();
                task.spawn(turn::stand(election, pod, times, is_active, ended));
                end = Some(sender);
            }
            Turn::Beside { socket, guest } => {
                task.spawn(async move { turn::attend(&socket, &guest, is_active).await });
            }
        }

        Self { task, end }
    }
}

impl Duties {
    fn begin(&mut self) {
        let Self { client, identity, check, report_interval, is_a_peer, reports, verdicts, tasks } =
            self;
        let (state, reporter) = match check {
            // What nobody checks counts as good.
            Check::Nobody => (State::Connected, Reporter::Own),
            Check::Own(_) => (State::Connecting, Reporter::Own),
            Check::Beside => (State::Connecting, Reporter::Beside),
        };
        reports.send_replace(Report { state, ..Report::default() });
        let connections = Connections::new(client.clone(), identity.clone());
        let has_peer = is_a_peer.subscribe();

        tasks.spawn(report::run(
            connections,
            reporter,
            reports.clone(),
            has_peer,
            *report_interval,
        ));
        let announcer = Announcer::new(client, identity.clone(), Timestamp::now());
        // What others have found is for them to announce.
        let checked = matches!(check, Check::Own(_)).then(|| reports.subscribe());
        tasks.spawn(announce::run(announcer, verdicts.subscribe(), checked));
        if let Check::Own(check) = check {
            tasks.spawn(probe::run(check.clone(), reports.clone()));
        }
    }

    fn end(&mut self) {
        self.tasks.abort_all();
    }
}

/// Nobody outside can foresee it: the standard library seeds its hash maps with the randomness of
/// the system.
fn random() -> u64 {
    RandomState::new().hash_one(())
}
