//! A gateway that is configured by an API server: objects become peers, and the gateway's findings become a
//! `Connection`.
//!
//! Everything here may wait for the API server; the packet threads never do.

pub mod condition_writer;
pub mod connection;
mod connectivity;
mod event_history;
pub mod flags;
mod leader_tasks;
mod leadership;
pub mod object_watch;
mod observed;
mod origins;
mod probe;
mod report;
mod settings;
mod state;
pub mod status_reporter;
mod status_task;

use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube::Client;
use remap::Prefix;
use strait_io::PeerStatus;
use strait_kube::election;
use strait_plan::Desired;
use strait_plan::conditions::{self, Verdict};
use strait_plan::objects::{Objects, RequestedPeer, Scope};
use strait_wg::{PrivateKey, PublicKey};
use tokio::select;
use tokio::sync::watch;
use tracing::{info, warn};

use super::config::{Config, Endpoint, Origin, Peer};
use super::device_state::MissingPrefix;
use super::own_key::OwnKey;

use connectivity::ConnectivityEvents;
use leader_tasks::LeaderTasks;
use leadership::{LeaderTerm, LeadershipTask};
use object_watch::{Update, Watch};
use settings::{Check, Leadership};
use state::StateFile;

pub(crate) use connectivity::ConnectivityEvent;
pub use observed::Observed;
pub use settings::Settings;

/// An event for the control loop of a gateway in a cluster.
pub(crate) enum ClusterEvent {
    /// The desired peers have changed, or those from before the restart are known.
    Peers {
        /// All desired peers, and the prefixes of this cluster.
        wanted: DesiredPeers,
        /// Whether they come from the current objects.
        is_listed: bool,
        /// Date new handshake initiations after this time (since 1970), until which the previous leader may have
        /// started sessions.
        continue_after: Option<Duration>,
    },
    /// The remote gateway may have moved.
    Connectivity(ConnectivityEvent),
}

/// The peers and the cluster settings that objects define.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredPeers {
    pub(crate) peers: Vec<Peer>,
    /// The prefixes and addresses of this cluster, as the peers know them.
    pub(crate) cluster: remap::Cluster,
}

impl DesiredPeers {
    /// Returns `config` with these peers and cluster settings.
    pub(crate) fn within(self, config: &Config) -> Config {
        let Self { peers, cluster } = self;
        let said_by = peers.first().map(|peer| peer.origins.of("allowed_ips")).unwrap_or_default();
        let origins = ["pod_cidrs", "masquerade"]
            .into_iter()
            .fold(config.origins.clone(), |origins, key| origins.with(key, said_by.clone()));

        Config { peers, cluster, origins, ..config.clone() }
    }

    /// Adds the endpoint at which another replica heard the only peer; `origin` is the origin of that value.
    fn with_learned_endpoint(mut self, endpoint: SocketAddr, origin: Origin) -> Self {
        if let [peer] = &mut self.peers[..]
            && !peer.endpoint_addresses().any(|address| address == endpoint)
        {
            peer.endpoints.insert(0, Endpoint::Learned(endpoint));
            peer.origins = peer.origins.clone().with("endpoint", origin);
        }

        self
    }
}

/// Watches the objects of a gateway in a cluster, and reports on them.
pub struct ClusterSource {
    watch: Watch,
    scope: Scope,
    /// Our address inside the tunnel.
    own_address: IpAddr,
    endpoints: Vec<Endpoint>,
    endpoint_origin: Origin,
    own_key: OwnKey,
    connectivity_events: ConnectivityEvents,
    /// The desired peers, from objects or from before a restart; `None` if neither is known.
    wanted: Option<DesiredPeers>,
    /// The objects, after the first complete list.
    found: Option<Objects>,
    /// Whether the objects were evaluated with an older key of ours.
    is_outdated: bool,
    state_file: Option<StateFile>,
    /// The refusals that were logged last.
    refused: Vec<String>,
    is_reachable: bool,
    observed: Observed,
    /// The verdicts on objects, without the state of the device.
    object_verdicts: Vec<Verdict>,
    /// Whether verdicts must be reported once they are applied.
    has_unreported_verdicts: bool,
    /// Addresses and routes that the kernel refused.
    missing: Vec<MissingPrefix>,
    leader_tasks: LeaderTasks,
    /// The current term, while this replica is the leader.
    term: watch::Receiver<Option<LeaderTerm>>,
    leadership: LeadershipTask,
    /// The Lease, as the origin of the endpoint that the previous leader recorded.
    lease: Origin,
}

impl ClusterSource {
    /// Starts to watch and takes part in the leader election. Call it within the runtime.
    pub fn start(settings: &Settings, client: Client) -> Self {
        let identity = &settings.identity;
        let state_file = settings.state_file.clone().map(|path| StateFile::new(path, identity));
        let is_active = settings.leadership == Leadership::Always;
        let (sender, mut term) = watch::channel(is_active.then(LeaderTerm::default));
        term.mark_changed();
        let leadership = LeadershipTask::start(&settings.leadership, &client, identity, sender);
        let watch = Watch::new(&client, &identity.namespace, &settings.scope);
        let leader_tasks = LeaderTasks::new(settings, client);
        let observed = match settings.check {
            Check::Off => Observed::unchecked(),
            Check::Own(_) | Check::OtherContainer => {
                Observed::checked(identity.remote_cluster_id.clone(), leader_tasks.reports())
            }
        };

        Self {
            watch,
            scope: settings.scope.clone(),
            own_address: settings.own_address,
            endpoints: settings.endpoints.clone(),
            endpoint_origin: settings.endpoint_origin.clone(),
            own_key: OwnKey::new(settings.key_file.clone()),
            connectivity_events: ConnectivityEvents::new(leader_tasks.reports()),
            wanted: state_file.as_ref().and_then(|file| file.load(&settings.endpoints)),
            found: None,
            is_outdated: false,
            state_file,
            refused: Vec::new(),
            is_reachable: true,
            observed,
            object_verdicts: Vec::new(),
            has_unreported_verdicts: false,
            missing: Vec::new(),
            leader_tasks,
            term,
            leadership,
            lease: Origin::Object {
                kind: "Lease".to_owned(),
                namespace: identity.namespace.clone(),
                name: election::lease_name(identity),
            },
        }
    }

    /// The observable state, for metrics.
    pub(crate) fn observed(&self) -> Observed {
        self.observed.clone()
    }

    /// Waits for the next event. Peers are the desired ones while this replica is the leader, and none otherwise.
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> ClusterEvent {
        // The previous update has been applied: report its verdicts.
        if std::mem::take(&mut self.has_unreported_verdicts) {
            self.leader_tasks.set_verdicts(self.verdicts());
        }
        loop {
            let has_event = select! {
                () = ready(()), if self.is_outdated => self.evaluate(),
                event = self.connectivity_events.next() => return ClusterEvent::Connectivity(event),
                update = self.watch.next() => self.handle_update(update),
                Ok(()) = self.term.changed() => {
                    if self.term.borrow_and_update().is_some() {
                        self.leader_tasks.begin();
                    } else {
                        self.leader_tasks.end();
                    }
                    true
                }
            };
            if let Some(wanted) = self.wanted.as_ref().filter(|_| has_event) {
                let term = *self.term.borrow();
                let wanted = match term.map(|term| term.peer_endpoint) {
                    Some(Some(endpoint)) => {
                        wanted.clone().with_learned_endpoint(endpoint, self.lease.clone())
                    }
                    Some(None) => wanted.clone(),
                    None => DesiredPeers::default(),
                };
                return ClusterEvent::Peers {
                    wanted,
                    is_listed: self.found.is_some(),
                    continue_after: term.and_then(|term| term.continue_after),
                };
            }
        }
    }

    /// Saves the desired peers and their endpoints if a state file is configured, and records the peer's endpoint for
    /// the next leader.
    pub(crate) fn handle_status(&mut self, status: &[PeerStatus]) {
        if let (Some(file), Some(wanted), Some(_)) =
            (&mut self.state_file, &self.wanted, &self.found)
        {
            file.save(wanted, status);
        }
        self.report_peer(status);
    }

    /// Whether [`Self::report_peer`] should be called soon.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.leadership.awaits_peer()
    }

    /// Records where the peer was heard, for the next leader.
    pub(crate) fn report_peer(&self, status: &[PeerStatus]) {
        // Only a gateway without configured endpoints needs this.
        if let (true, [peer]) = (self.endpoints.is_empty(), status)
            && let (Some(endpoint), Some(_)) = (peer.endpoint, peer.last_handshake)
        {
            self.leadership.set_peer_endpoint(endpoint);
        }
    }

    /// Our private key, if the mounted Secret differs from the key `in_force`. The objects are then evaluated again,
    /// because they may name the old or the new key.
    pub(crate) fn new_key(&mut self, in_force: &PrivateKey) -> Option<PrivateKey> {
        let key = self.own_key.poll(in_force)?;
        self.scope.own_public_key = Some(*key.public_key().as_bytes());
        self.is_outdated = true;

        Some(key)
    }

    /// Sets the addresses and routes that the kernel refused.
    pub(crate) fn set_missing(&mut self, missing: &[MissingPrefix]) {
        self.missing = missing.to_vec();
        self.has_unreported_verdicts = self.found.is_some();
    }

    /// The verdict on each object, including missing routes.
    fn verdicts(&self) -> Vec<Verdict> {
        let peers = self.wanted.as_ref().map(|wanted| &*wanted.peers).unwrap_or_default();
        let verdicts = self.object_verdicts.iter().cloned().map(|verdict| {
            let causes = peers
                .iter()
                .filter(|peer| origins::is_subject_of(&peer.origins.of("allowed_ips"), &verdict))
                .flat_map(|peer| {
                    self.missing.iter().filter(|missing_prefix| missing_prefix.is_of(peer))
                })
                .map(|missing_prefix| missing_prefix.cause.clone());
            let causes = causes.collect();
            verdict.without_routes(causes)
        });

        verdicts.collect()
    }

    /// Hands leadership over and waits briefly for a successor. Returns whether there is one.
    pub(crate) async fn hand_over(&mut self) -> bool {
        let has_successor = self.leadership.end().await;
        if has_successor {
            // From now on the successor reports.
            self.leader_tasks.end();
        }

        has_successor
    }

    /// Handles an update of the watch. Returns whether there are new objects.
    fn handle_update(&mut self, update: Update) -> bool {
        match update {
            Update::Unreachable(error) => {
                if self.is_reachable {
                    warn!(%error, "cannot reach the API server; the last known objects stay in force");
                }
                self.is_reachable = false;
                false
            }
            Update::Objects(found) => {
                if !self.is_reachable {
                    info!("the API server answers again");
                }
                self.is_reachable = true;
                self.found = Some(found);
                self.evaluate()
            }
        }
    }

    /// Evaluates the listed objects. Returns whether there are any.
    fn evaluate(&mut self) -> bool {
        self.is_outdated = false;
        let Some(found) = self.found.clone() else { return false };
        self.wanted = Some(self.wanted(&found));

        true
    }

    fn wanted(&mut self, found: &Objects) -> DesiredPeers {
        let addresses = self.endpoints.iter().filter_map(Endpoint::address);
        let endpoints: Vec<_> = addresses.map(|address| address.ip()).collect();
        let Desired { peers, mut cluster, refused, rejected, verdicts } =
            Desired::new(&self.scope, found, &endpoints);
        self.object_verdicts = verdicts;
        self.has_unreported_verdicts = true;

        let refused = refused.iter().map(ToString::to_string);
        let refused: Vec<_> = refused.chain(rejected.iter().map(ToString::to_string)).collect();
        for refusal in refused.iter().filter(|refusal| !self.refused.contains(refusal)) {
            warn!("{}", conditions::shortened(refusal));
        }
        self.observed.set_refused(refused.len());
        self.refused = refused;
        if !peers.is_empty() {
            self.leader_tasks.set_has_peer();
        }

        if !cluster.masquerade.is_empty() {
            // The remote gateway knows our tunnel address, so it is not masqueraded.
            cluster.prefixes.push(Prefix::of_host(self.own_address));
        }

        DesiredPeers { peers: peers.into_iter().map(|peer| self.peer(peer)).collect(), cluster }
    }

    fn peer(&self, asked: RequestedPeer) -> Peer {
        let origins = origins::of_peer(&asked, self.endpoint_origin.clone());
        let RequestedPeer { public_key, desired: wanted, .. } = asked;

        Peer {
            name: wanted.name,
            public_key: PublicKey::from_bytes(public_key),
            preshared_key: None,
            endpoints: self.endpoints.clone(),
            persistent_keepalive: None,
            allowed_ips: wanted.allowed_ips.into(),
            remaps: wanted.remaps,
            origins,
        }
    }
}
