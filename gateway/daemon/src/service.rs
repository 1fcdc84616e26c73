//! The control loop of a gateway: applies configurations, resolves names, maintains routes, and shuts down in order.
//!
//! One task on the control runtime owns the state, so there are no locks. The packet threads are not affected.

mod connectivity;
mod edge;
mod handover;
mod reconfiguration;
mod replacement;
mod sockets;
mod source;

use std::collections::{BTreeSet, HashSet};
use std::future::{pending, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use strait_host::netlink::{Changes, Link, Netlink};
use strait_host::signals::{SignalAction, Signals};
use strait_host::vmclock::VmClock;
use strait_io::handover::TakenOver;
use strait_io::{Gateway, Monitor};
use strait_wg::PublicKey;
use tokio::select;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{error, info};

use super::admin::{AppliedConfig, StatusBoard};
use super::background_reader::{BackgroundReader, READ_MAX};
use super::cluster::{self, ClusterEvent};
use super::config::{Config, Findings, peer_config};
use super::device_state::DeviceState;
use super::forwarding;
use super::path_probes::PathProbes;
use super::peer_paths::PeerPaths;
use super::resolver::Resolver;

use edge::{Edge, Synced};

pub use replacement::{CHECK, Replacement, answer as successor_answer};
pub use sockets::Sockets;
pub use source::Source;

/// How long to send packets in progress before the process ends.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// How long a replica forwards after another one took over. Meanwhile the new leader gets a session with the peer, for
/// which kube-proxy may need a second to learn of it, and nodes learn the new target of their packets.
const OVERLAP: Duration = Duration::from_secs(3);

/// How long to relay to the former leader: until that has ended.
const RELAY: Duration = Duration::from_secs(5);

/// How long to forward after the gateway has said that it ends. On an idle machine the agents of both clusters have other
/// routes within 60 ms; the rest is for a busy one.
const FAREWELL: Duration = Duration::from_millis(500);

/// Interval at which peers and packet threads are checked.
const TICK: Duration = Duration::from_secs(1);

/// Ticks after which nodes are asked again: a node that was set up again has another station, and may have nothing to send.
const TICKS_UNTIL_ASKED: u32 = 10;

/// Interval of polling for an awaited peer.
const PEER_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running gateway and the state of its control loop.
pub struct Service {
    source: Source,
    /// Reads the file, if that is the source.
    reader: BackgroundReader<Result<Config, Findings>>,
    config: Arc<Config>,
    mtu_bytes: u16,
    /// The MTU that this process gave the device when a probe was answered, in bytes.
    grown_mtu: Option<u16>,
    generation: u64,
    gateway: Gateway,
    monitor: Monitor,
    netlink: Netlink,
    edge: Edge,
    changes: Changes,
    /// The last observed state of the device.
    last_device: DeviceState,
    /// Whether the edge must be synced with the next tick.
    is_sync_due: bool,
    sockets: Sockets,
    resolver: Resolver,
    paths: PeerPaths,
    path_probes: PathProbes,
    vmclock: VmClock,
    board: StatusBoard,
    replacement: Replacement,
    /// What was taken over from the predecessor of this process, until the packet threads run.
    taken_over: Option<TakenOver>,
}

impl Service {
    /// Takes over a gateway that was started with `config` on a device with `mtu_bytes`; later changes come from
    /// `source`.
    ///
    /// # Errors
    ///
    /// If the device does not exist, or its changes cannot be watched.
    pub async fn new(
        mut source: Source,
        config: Config,
        mtu_bytes: u16,
        gateway: Gateway,
        netlink: Netlink,
        board: StatusBoard,
        sockets: Sockets,
    ) -> anyhow::Result<Self> {
        let edge = Edge::of(&config, &netlink, matches!(source, Source::Cluster(_))).await?;
        let changes = Changes::listen().context("cannot listen for changes of the network")?;
        source.set_monitor(gateway.monitor());
        let host = gateway.host_sockets().context("cannot open a socket of the overlay")?;
        if let Some(sockets) = host {
            source.set_host_sockets(sockets);
        }

        Ok(Self {
            reader: BackgroundReader::new(READ_MAX),
            mtu_bytes,
            grown_mtu: None,
            generation: 0,
            monitor: gateway.monitor(),
            gateway,
            netlink,
            edge,
            changes,
            last_device: DeviceState::default(),
            is_sync_due: false,
            sockets,
            resolver: Resolver::new(config.dns_check_interval),
            config: Arc::new(config),
            paths: PeerPaths::default(),
            path_probes: PathProbes::default(),
            vmclock: VmClock::open(),
            source,
            board,
            replacement: Replacement::new(Vec::new()),
            taken_over: None,
        })
    }

    /// Is replaced with `replacement` on SIGUSR2.
    #[must_use]
    pub fn replaced_with(self, replacement: Replacement) -> Self {
        Self { replacement, ..self }
    }

    /// Goes on with what was `taken_over` with the gateway, whose packet threads do not run yet.
    #[must_use]
    pub fn taking_over(mut self, taken_over: Option<TakenOver>) -> Self {
        if let Some(device) = taken_over.as_ref().and_then(|taken_over| taken_over.device.as_ref())
        {
            self.take_over_mtu(device);
        }
        self.taken_over = taken_over;

        self
    }

    /// Applies the first configuration, runs until a signal, and drains.
    ///
    /// # Errors
    ///
    /// If none of the routes can be installed at the start, or a packet thread ended.
    pub async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        let (monitor, path, board) =
            (self.monitor.clone(), self.source.path_watch(), self.board.clone());
        tokio::spawn(forwarding::run(monitor, path, board));
        // After a hand-over packets wait, and the device is up.
        self.take_over_peers().await;
        self.apply();
        self.start_forwarding()?;
        self.edge.bring_up().await?;
        self.sync_edge().await;
        let end =
            match self.last_device.missing.iter().find(|missing_prefix| missing_prefix.is_route) {
                Some(missing_prefix) if self.last_device.carries_nothing() => {
                    Err(anyhow!("{}", missing_prefix.cause))
                }
                Some(_) | None => {
                    // In a cluster it is ready after the first list of objects.
                    if matches!(self.source, Source::File(_)) {
                        self.handle_peers_known();
                    }
                    info!("the gateway runs");
                    self.serve(&mut signals).await
                }
            };

        // Without agents the process ends as soon as it can.
        let is_followed = end.is_ok() && self.board.forwarding().is_followed();
        let farewell_until = is_followed.then(|| now() + FAREWELL);
        self.board.set_draining();
        self.source.set_draining();
        // Before the hand-over, so that the successor's sessions are newer.
        self.gateway.stop_initiating();
        if self.source.hand_over().await {
            info!(
                "another replica has taken over; packets that still arrive here are forwarded briefly"
            );
            sleep(OVERLAP).await;
        } else {
            // Staged packets may still get a session.
            self.gateway.resume_initiating();
        }
        if let Some(until) = farewell_until {
            sleep_until(until.into()).await;
        }
        self.edge.clear_routes().await;
        self.gateway.drain(DRAIN_DEADLINE);
        info!("the gateway ended");

        end
    }

    async fn serve(&mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick_count = 0_u32;
        loop {
            select! {
                action = signals.next() => match action {
                    SignalAction::Reload => self.reload(),
                    SignalAction::Replace => self.start_replacement(),
                    SignalAction::End => return Ok(()),
                },
                checked = self.replacement.checked() => self.replace(checked)?,
                read = self.reader.next() => self.handle_read(read).await,
                event = self.source.next() => match event {
                    ClusterEvent::Peers { desired, nodes, is_listed, continue_after } => {
                        if let Some(date) = continue_after {
                            self.gateway.date_initiations_after(date);
                        }
                        self.reconfigure(cluster::within(*desired, nodes, &self.config)).await;
                        if is_listed {
                            self.handle_peers_known();
                        }
                    }
                    ClusterEvent::Connectivity(event) => self.handle_connectivity(event).await,
                    ClusterEvent::Nodes(nodes) => {
                        let mut wanted = Config::clone(&self.config);
                        if let Some(overlay) = &mut wanted.overlay {
                            overlay.nodes = nodes;
                        }
                        self.reconfigure(wanted).await;
                    }
                    ClusterEvent::Predecessor(address) => {
                        info!(%address, "datagrams of former sessions are relayed to the former leader");
                        // All replicas listen on the same port.
                        let predecessor = SocketAddr::new(address, self.config.listen_port);
                        self.gateway.relay(predecessor, RELAY);
                    }
                },
                answer = self.resolver.next_answer() => {
                    let changed = self.resolver.handle_answer(answer, now());
                    if !changed.is_empty() {
                        self.set_endpoints(&changed).await;
                    }
                }
                changed = self.changes.next() => {
                    self.paths.handle_change(&changed);
                    if self.edge.is_concerned(&changed) {
                        self.sync_edge().await;
                    } else if !self.last_device.missing.is_empty() {
                        // A conflicting route may be gone without an event, as IPv4 routes are when their device is
                        // removed.
                        self.is_sync_due = true;
                    }
                }
                () = ready(()), if self.paths.is_due() => {
                    for change in self.paths.learn_due(&self.netlink, &self.monitor).await {
                        change.apply(&self.gateway);
                    }
                }
                () = until(self.path_probes.next_timeout(now())) => self.probe_paths(),
                () = sleep(PEER_POLL_INTERVAL), if self.source.awaits_peer() => {
                    self.source.report_peer(&self.monitor.status().peers);
                }
                _ = ticks.tick() => {
                    let peers = self.monitor.peers_with_endpoint();
                    if !self.monitor.is_alive() {
                        bail!("a packet thread ended: start the gateway again and report the log");
                    }
                    self.vmclock.check(|| self.gateway.renew_sessions());
                    self.gateway.free_retired();
                    tick_count += 1;
                    self.gateway.ask_nodes(tick_count.is_multiple_of(TICKS_UNTIL_ASKED));
                    if self.is_sync_due || self.changes.is_closed() {
                        self.sync_edge().await;
                    }
                    if let Some(private_key) = self.source.new_key(&self.config.private_key) {
                        self.reconfigure(Config { private_key, ..Config::clone(&self.config) }).await;
                    }
                    self.source.handle_status(&peers);
                    self.resolver.handle_status(&peers, now());
                    self.follow_probed_paths(&peers);
                    for change in self.paths.learn(&self.netlink, &peers, self.mtu_bytes).await {
                        change.apply(&self.gateway);
                    }
                }
            }
        }
    }

    /// Handles changes of the edge by others, and restores what is missing.
    async fn sync_edge(&mut self) {
        let found = self.found_endpoints();
        let Synced { link, state, is_due } = self.edge.sync(&self.config, &found).await;
        self.is_sync_due = is_due;
        if let Some(link) = link {
            self.handle_link(&link);
        }
        if let Some(state) = state {
            self.set_device(state);
        }
    }

    /// Handles changes of the device's name and MTU, which belong to the host.
    fn handle_link(&mut self, link: &Link) {
        let mtu_bytes = u16::try_from(link.mtu_bytes).unwrap_or(u16::MAX);
        if mtu_bytes != self.mtu_bytes {
            info!(before = self.mtu_bytes, mtu = mtu_bytes, "the device has another MTU");
            self.mtu_bytes = mtu_bytes;
            self.gateway.set_device_mtu(mtu_bytes);
            self.source.set_device_mtu(mtu_bytes);
            self.apply();
        }
        if link.name != self.config.interface {
            info!(before = self.config.interface, name = link.name, "the device has another name");
            let mut config = Config::clone(&self.config);
            config.interface.clone_from(&link.name);
            self.config = Arc::new(config);
            self.sockets.rename(&self.config);
            self.publish();
        }
    }

    /// Publishes the state of the device and logs what is missing, if it changed.
    fn set_device(&mut self, device: DeviceState) {
        if device == self.last_device {
            return;
        }
        let known: HashSet<_> = self.last_device.missing.iter().collect();
        for missing_prefix in
            device.missing.iter().filter(|missing_prefix| !known.contains(missing_prefix))
        {
            error!("{}", missing_prefix.cause);
        }
        self.source.set_missing(&device.missing);
        self.board.set_device(device.clone());
        self.last_device = device;
    }

    /// Passes peers and table to the packet threads.
    fn apply(&mut self) {
        self.generation += 1;
        self.resolver.configure(&self.config.peers, now());
        let clamp_mtu = self.config.mss_clamp.then_some(self.mtu_bytes);
        let peers = self
            .config
            .peers
            .iter()
            .map(|peer| {
                let endpoints = self.resolver.addresses(&peer.keys.public_key).to_vec();
                peer_config(peer, endpoints, clamp_mtu)
            })
            .collect();

        if let Some(overlay) = &self.config.overlay {
            self.gateway.set_nodes(&overlay.nodes);
            self.gateway.ask_nodes(false);
        }
        self.gateway.apply(peers, self.config.table.clone().with_generation(self.generation));
        self.publish();
    }

    /// Publishes the applied configuration.
    fn publish(&self) {
        let Self { config, mtu_bytes, generation, .. } = self;

        self.board.set_applied(AppliedConfig {
            config: Arc::clone(config),
            mtu_bytes: *mtu_bytes,
            generation: *generation,
        });
    }

    async fn set_endpoints(&mut self, peers: &[PublicKey]) {
        for peer in peers {
            self.gateway.set_endpoints(*peer, self.resolver.addresses(peer));
        }
        // Logs if the route to the new endpoint leads into the tunnel.
        self.sync_edge().await;
    }

    /// All resolved and learned endpoints.
    fn found_endpoints(&self) -> Vec<IpAddr> {
        let peers = self.config.peers.iter();
        let named =
            peers.flat_map(|peer| self.resolver.addresses(&peer.keys.public_key).iter().copied());
        let heard = self.monitor.endpoints().into_iter();

        named.chain(heard).map(|a| a.ip()).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Waits until `time`; never ends without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the control loop owns its clock; the engine has none"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
