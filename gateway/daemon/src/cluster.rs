//! A gateway that is configured by an API server: objects become peers, and the gateway's findings become a
//! `Connection`.
//!
//! Everything here may wait for the API server; the packet threads never do.

mod applied;
mod bindings;
mod check_socket;
pub mod condition_writer;
pub mod connection;
mod connectivity;
mod event_history;
mod fabric;
pub mod flags;
mod leader_tasks;
mod leadership;
mod node_check;
pub mod object_watch;
mod observed;
mod origins;
mod overlay_nodes;
mod own_packets;
mod path_watch;
mod probe;
mod report;
mod settings;
mod state;
pub mod status_reporter;
mod status_task;
mod watches;
mod within;

use std::future::ready;
use std::net::IpAddr;
use std::time::Duration;

use kube::Client;
use remap::Prefix;
use strait_api::identity::Identity;
use strait_io::overlay::HostSockets;
use strait_io::{PeerStatus, overlay};
use strait_kube::election::{self, ProbedPathMtu};
use strait_plan::Desired;
use strait_plan::conditions::{self, Verdict};
use strait_plan::objects::{Objects, Requested, Scope};
use strait_wg::PrivateKey;
use tokio::select;
use tokio::sync::watch;
use tracing::{info, warn};

use super::config::{Endpoint, Origin};
use super::device_state::MissingPrefix;
use super::own_key::OwnKey;

use applied::Applied;
use connectivity::ConnectivityEvents;
use fabric::Fabric;
use leader_tasks::LeaderTasks;
use leadership::{LeaderTerm, LeadershipTask};
use settings::{Check, Leadership};
use state::StateFile;
use watches::{Change, Watches};

pub(crate) use connectivity::ConnectivityEvent;
pub(crate) use observed::NodeTunnels;
pub use observed::Observed;
pub(crate) use path_watch::PathWatch;
pub(crate) use probe::TrafficSource;
pub use settings::Settings;
pub(crate) use within::within;

/// An event for the control loop of a gateway in a cluster.
pub(crate) enum ClusterEvent {
    /// The desired peers have changed, or those from before the restart are known.
    Peers {
        /// All desired peers, and the prefixes of this cluster.
        desired: Box<Desired>,
        /// Whether they come from the current objects.
        is_listed: bool,
        /// Date new handshake initiations after this time (since 1970), until which the previous leader may have
        /// started sessions.
        continue_after: Option<Duration>,
        /// The nodes of the overlay, if they change together with the peers.
        nodes: Option<Vec<overlay::Node>>,
    },
    /// The remote gateway may have moved.
    Connectivity(ConnectivityEvent),
    /// The nodes of the overlay have changed.
    Nodes(Vec<overlay::Node>),
    /// This replica leads, and the one at this address still has the session of the peer.
    Predecessor(IpAddr),
}

/// Watches the objects of a gateway in a cluster, and reports on them.
pub struct ClusterSource {
    watches: Watches,
    scope: Scope,
    identity: Identity,
    own_key: OwnKey,
    connectivity_events: ConnectivityEvents,
    /// What objects requested before a restart, if it was saved.
    saved: Option<Requested>,
    /// The objects, after the first complete list.
    found: Option<Objects>,
    /// Rules, routes and nodes, after the first complete list.
    fabric: Option<Fabric>,
    /// The desired state, from objects or from before a restart; `None` if neither is known.
    desired: Option<Desired>,
    /// Whether the desired state must be computed again.
    is_outdated: bool,
    state_file: Option<StateFile>,
    /// The refusals that were logged last.
    refused: Vec<String>,
    observed: Observed,
    /// Whether verdicts must be reported once they are applied.
    has_unreported_verdicts: bool,
    /// Addresses and routes that the kernel refused.
    missing: Vec<MissingPrefix>,
    leader_tasks: LeaderTasks,
    /// The prefixes, as this cluster sees them, that only this gateway may carry.
    own_destinations: watch::Sender<Vec<Prefix>>,
    checks_connection: bool,
    grows_mtu: bool,
    /// Until there are peers.
    inherited_path_mtu: Option<ProbedPathMtu>,
    /// The current term, while this replica is the leader.
    term: watch::Receiver<Option<LeaderTerm>>,
    leadership: LeadershipTask,
    /// The Lease, as the origin of the endpoint that the previous leader recorded.
    lease: Origin,
}

impl ClusterSource {
    /// Starts to watch and takes part in the leader election. Call it within the runtime.
    ///
    /// `source_state` is what the predecessor of this process has handed over: if that was the leader, this one is, with
    /// the same peers, until the API server says otherwise. It may be empty.
    pub fn start(settings: &Settings, client: Client, source_state: &str) -> Self {
        let identity = &settings.identity;
        let state_file = settings.state_file.clone().map(|path| StateFile::new(path, identity));
        let is_active = settings.leadership == Leadership::Always;
        let source_state = state::from_text(identity, source_state);
        let leads = is_active || source_state.is_some();
        let path_mtu = source_state
            .as_ref()
            .and_then(|source_state| source_state.path_mtu)
            .map(ProbedPathMtu::Bytes);
        let first_term = leads.then(|| LeaderTerm { path_mtu, ..LeaderTerm::default() });
        let (sender, mut term) = watch::channel(first_term);
        term.mark_changed();
        let saved = source_state
            .map(|source_state| source_state.requested)
            .or_else(|| state_file.as_ref().and_then(StateFile::load));
        let has_led = saved.as_ref().is_some_and(|saved| !saved.peers.is_empty());
        // Rules are not saved, and nothing is forwarded without them.
        let saved = saved.filter(|_| settings.rules.is_none());
        let leadership =
            LeadershipTask::start(&settings.leadership, &client, identity, has_led, sender);
        let watches = Watches::start(settings, &client);
        let leader_tasks = LeaderTasks::new(settings, client);
        let observed = match settings.check {
            Check::Off => Observed::unchecked(),
            Check::Own(_) | Check::OtherContainer => {
                Observed::checked(identity.remote_cluster_id.clone(), leader_tasks.reports())
            }
        };

        Self {
            watches,
            scope: settings.scope.clone(),
            identity: identity.clone(),
            own_key: OwnKey::new(settings.key_file.clone()),
            connectivity_events: ConnectivityEvents::new(leader_tasks.reports()),
            saved,
            found: None,
            fabric: None,
            desired: None,
            is_outdated: false,
            state_file,
            refused: Vec::new(),
            observed,
            has_unreported_verdicts: false,
            missing: Vec::new(),
            leader_tasks,
            own_destinations: watch::Sender::default(),
            checks_connection: matches!(settings.check, Check::Own(_)),
            grows_mtu: settings.grows_mtu,
            inherited_path_mtu: None,
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

    /// What is known of the way to the other end.
    pub(crate) fn path_watch(&self) -> PathWatch {
        PathWatch {
            term: self.term.clone(),
            reports: self.leader_tasks.reports(),
            own_destinations: self.own_destinations.subscribe(),
        }
    }

    /// Whether this process checks the connection itself.
    pub(crate) const fn checks_connection(&self) -> bool {
        self.checks_connection
    }

    /// The gateway is draining: tells the other end.
    pub(crate) fn set_draining(&self) {
        self.leader_tasks.set_draining();
    }

    /// Waits for the next event. Peers are the desired ones while this replica is the leader, and none otherwise.
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> ClusterEvent {
        // The previous update has been applied: report its verdicts.
        if std::mem::take(&mut self.has_unreported_verdicts) {
            self.leader_tasks.set_verdicts(self.verdicts());
            self.leader_tasks.set_applied(self.applied());
        }
        loop {
            select! {
                () = ready(()), if self.is_outdated => {
                    self.is_outdated = false;
                    if let Some(desired) = self.plan() {
                        self.inherit_path_mtu();
                        return self.peers_event(desired);
                    }
                }
                event = self.connectivity_events.next() => {
                    if let ConnectivityEvent::PathMtu { bytes, is_strait } = event {
                        // With a stock gateway the device does not grow, and a probe is as fast as the Lease.
                        let bytes = bytes.filter(|_| is_strait);
                        let found = bytes.map_or(ProbedPathMtu::Unknown, ProbedPathMtu::Bytes);
                        self.leadership.handle_path_mtu(found);
                    }
                    return ClusterEvent::Connectivity(event);
                }
                change = self.watches.next() => {
                    match change {
                        Change::Nodes(nodes) => return ClusterEvent::Nodes(nodes),
                        Change::Objects(found) => self.found = Some(found),
                        Change::Fabric(fabric) => {
                            self.observed.set_node_tunnels(NodeTunnels {
                                namespace: self.identity.namespace.clone(),
                                remote_cluster_id: self.identity.remote_cluster_id.clone(),
                                tunnels: fabric.tunnels.clone(),
                            });
                            self.fabric = Some(*fabric);
                        }
                    }
                    self.is_outdated = true;
                }
                predecessor = self.leadership.predecessor() => {
                    return ClusterEvent::Predecessor(predecessor);
                }
                Ok(()) = self.term.changed() => {
                    let term = *self.term.borrow_and_update();
                    if term.is_some() {
                        self.leader_tasks.begin();
                    } else {
                        self.leader_tasks.end();
                    }
                    self.inherited_path_mtu = term.and_then(|term| term.path_mtu);
                    self.is_outdated = true;
                }
            }
        }
    }

    /// The path is the one that the previous leader knew until a probe of this one is answered. Called once there are
    /// peers, whose endpoints show what the underlay has room for.
    fn inherit_path_mtu(&mut self) {
        if let Some(ProbedPathMtu::Bytes(bytes)) = self.inherited_path_mtu.take() {
            info!(path_mtu = bytes, "the previous leader knew the path MTU");
            self.connectivity_events.inherit(bytes);
        }
    }

    fn peers_event(&self, desired: Desired) -> ClusterEvent {
        let term = *self.term.borrow();
        self.own_destinations.send_if_modified(|former| {
            let is_new = *former != desired.own_destinations;
            former.clone_from(&desired.own_destinations);
            is_new
        });

        ClusterEvent::Peers {
            desired: Box::new(if term.is_some() { desired } else { Desired::default() }),
            is_listed: self.is_listed(),
            continue_after: term.and_then(|term| term.continue_after),
            nodes: self.fabric.as_ref().map(|fabric| fabric.nodes.clone()),
        }
    }

    /// Saves the peers in force and their endpoints if a state file is configured, and records for the election that
    /// there is a session.
    pub(crate) fn handle_status(&mut self, status: &[PeerStatus]) {
        if let (Some(file), Some(desired), Some(_)) =
            (&mut self.state_file, &self.desired, &self.found)
        {
            match *self.term.borrow() {
                Some(_) => file.save(desired, status),
                None => file.save(&Desired::default(), &[]),
            }
        }
        self.report_peer(status);
    }

    /// What a successor of this process needs to know before the API server answers, if this replica is the leader:
    /// otherwise nothing. `status` is that of the peers.
    pub(crate) fn source_state(&self, status: &[PeerStatus]) -> String {
        let desired = self.desired.as_ref().filter(|_| self.term.borrow().is_some());

        desired.and_then(|it| state::to_text(&self.identity, it, status)).unwrap_or_default()
    }

    /// Whether peers from before a restart are known.
    pub(crate) fn remembers_peers(&self) -> bool {
        self.saved.as_ref().is_some_and(|saved| !saved.peers.is_empty())
    }

    /// Whether [`Self::report_peer`] should be called soon.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.leadership.awaits_peer()
    }

    /// Whether the device may get a larger MTU than the configured one.
    pub(crate) const fn grows_mtu(&self) -> bool {
        self.grows_mtu
    }

    /// Sets the sockets for packets to the gateway's own addresses, with an overlay.
    pub(crate) fn set_host_sockets(&mut self, sockets: HostSockets) {
        self.leader_tasks.set_host_sockets(sockets);
    }

    /// Sets the source of what the tunnel has carried. Call it before the first [`Self::next`].
    pub(crate) fn set_traffic(&mut self, traffic: TrafficSource) {
        self.leader_tasks.set_traffic(traffic);
    }

    /// The MTU of the device has changed to `mtu` bytes.
    pub(crate) fn set_device_mtu(&self, mtu: u16) {
        self.leader_tasks.set_device_mtu(mtu);
    }

    /// Records for the election that there is a session with the peer.
    pub(crate) fn report_peer(&self, status: &[PeerStatus]) {
        if let [PeerStatus { endpoint, last_handshake: Some(_), .. }] = status {
            // Only a gateway without configured endpoints needs that of its predecessor.
            self.leadership.handle_session(endpoint.filter(|_| self.scope.endpoints.is_empty()));
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
        let Some(Desired { peers, verdicts, .. }) = &self.desired else { return Vec::new() };
        let verdicts = verdicts.iter().cloned().map(|verdict| {
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

    /// Hands leadership over and waits for a successor, if there is a peer. Returns whether there is one.
    pub(crate) async fn hand_over(&mut self) -> bool {
        let has_peers = self.desired.as_ref().is_some_and(|desired| !desired.peers.is_empty());
        let has_successor = self.leadership.end(has_peers).await;
        if has_successor {
            // From now on the successor reports.
            self.leader_tasks.end();
        }

        has_successor
    }

    /// Whether every object that configures this gateway was listed.
    fn is_listed(&self) -> bool {
        self.found.is_some() && (!self.watches.has_fabric() || self.fabric.is_some())
    }

    /// What to report about rules and routes.
    fn applied(&self) -> Vec<Applied> {
        match (&self.fabric, &self.desired) {
            (Some(fabric), Some(desired)) => fabric.applied(&desired.outcomes),
            _ => Vec::new(),
        }
    }

    /// Computes the desired state from the listed objects, or from what was saved before a restart; `None` if there is
    /// neither.
    fn plan(&mut self) -> Option<Desired> {
        let scope = self.scope_of_term();
        let Some(found) = &self.found else {
            self.desired = self.saved.clone().map(|saved| Desired::of_requested(&scope, saved));
            return self.desired.clone();
        };
        let desired = match (self.watches.has_fabric(), &self.fabric) {
            (false, _) => Desired::new(&scope, found),
            (true, Some(fabric)) => Desired::with_rules(&scope, found, &fabric.lowered),
            // Nothing is forwarded before the rules are known.
            (true, None) => return None,
        };

        self.has_unreported_verdicts = true;
        let refused = desired.refused.iter().map(ToString::to_string);
        let refused: Vec<_> =
            refused.chain(desired.rejected.iter().map(ToString::to_string)).collect();
        for refusal in refused.iter().filter(|refusal| !self.refused.contains(refusal)) {
            warn!("{}", conditions::shortened(refusal));
        }
        let unapplied = desired.outcomes.iter().filter(|outcome| outcome.problem.is_some());
        self.observed.set_refused(refused.len() + unapplied.count());
        self.refused = refused;
        if !desired.peers.is_empty() {
            self.leader_tasks.set_has_peer();
        }
        self.desired = Some(desired);

        self.desired.clone()
    }

    /// The scope with the endpoint at which the previous leader heard the peer, if it recorded one.
    fn scope_of_term(&self) -> Scope {
        let mut scope = self.scope.clone();
        let learned = self.term.borrow().and_then(|term| term.peer_endpoint);
        if let Some(endpoint) = learned
            && !scope.endpoints.iter().any(|known| known.address() == Some(endpoint))
        {
            scope.endpoints.insert(0, Endpoint::Learned(endpoint));
            scope.endpoint_origin = self.lease.clone();
        }

        scope
    }
}
