//! A gateway that runs: applies configurations, follows names, keeps the routes, ends in order.
//!
//! One task on the control runtime owns all of it, so nothing here needs a lock. The packet threads
//! take no notice.

use std::collections::{BTreeSet, HashSet};
use std::future::{pending, ready};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use strait_host::netlink::{Changes, DeviceRoutes, Link, Netlink, RouteError};
use strait_host::signals::{SignalAction, Signals};
use strait_host::vmclock::VmClock;
use strait_io::{Gateway, Monitor, PeerStatus, trim_heap};
use strait_wg::key_rotation::GRACE;
use strait_wg::{PrivateKey, PublicKey};
use tokio::select;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, error, info, warn};

use super::admin::{AppliedConfig, StatusBoard};
use super::background_reader::{BackgroundReader, READ_MAX, ReadAgain, ReadOutcome};
use super::cluster::{ClusterEvent, ClusterSource, ConnectivityEvent, Observed};
use super::config::{Config, Findings};
use super::device_state::{DeviceState, MissingPrefix};
use super::peer_paths::PeerPaths;
use super::reload::Reload;
use super::resolver::Resolver;
use super::routes::Routes;
use super::socket::Serving;
use super::uapi;

/// How long to send what is under way before the process ends.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// For how long a replica goes on when another has its turn. In this time that one gets a session with the
/// peer, if it knows where that is, and nodes hear of where their packets go now.
const OVERLAP: Duration = Duration::from_secs(2);

/// How often peers and packet threads are looked at.
const TICK: Duration = Duration::from_secs(1);

/// How often one looks for a peer that is waited for.
const PEER_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Who says what a gateway is to do while it runs.
pub enum Source {
    /// A file, whenever SIGHUP comes.
    File(PathBuf),
    /// The objects of an API server, whenever they change.
    Cluster(Box<ClusterSource>),
}

impl Source {
    /// What there is to see of it from outside.
    pub fn observed(&self) -> Option<Observed> {
        match self {
            Self::File(_) => None,
            Self::Cluster(cluster) => Some(cluster.observed()),
        }
    }

    /// Other peers than before, or trouble with them. Cancel safe.
    async fn next(&mut self) -> ClusterEvent {
        match self {
            Self::File(_) => pending().await,
            Self::Cluster(cluster) => cluster.next().await,
        }
    }

    /// Another key of our own than that `in_force`, if there is one now.
    fn new_key(&mut self, in_force: &PrivateKey) -> Option<PrivateKey> {
        match self {
            // The file says when it is to be read.
            Self::File(_) => None,
            Self::Cluster(cluster) => cluster.new_key(in_force),
        }
    }

    /// Remembers where peers are, if that was asked for.
    fn handle_status(&mut self, status: &[PeerStatus]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.handle_status(status),
        }
    }

    /// Whether something waits for the first word of the peer. Not for long.
    fn awaits_peer(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Cluster(cluster) => cluster.awaits_peer(),
        }
    }

    /// Looks whether it was heard.
    fn report_peer(&self, status: &[PeerStatus]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.report_peer(status),
        }
    }

    /// The device cannot have these parts of what the source asks for.
    fn set_missing(&mut self, missing: &[MissingPrefix]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.set_missing(missing),
        }
    }

    /// Somebody else may take the place of this gateway. Says whether somebody has.
    async fn hand_over(&mut self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Cluster(cluster) => cluster.hand_over().await,
        }
    }
}

/// The sockets that are called after the device.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Where `strait explain` asks.
    pub admin: Option<Serving>,
    /// Where `wg show` asks.
    pub uapi: Option<Serving>,
}

/// A started gateway and everything that follows its configuration.
pub struct Service {
    source: Source,
    /// Of the file, if that is the source.
    reader: BackgroundReader<Result<Config, Findings>>,
    config: Arc<Config>,
    mtu_bytes: u16,
    generation: u64,
    gateway: Gateway,
    monitor: Monitor,
    netlink: Netlink,
    device: u32,
    changes: Changes,
    routes: DeviceRoutes,
    last_routes: Routes,
    /// The device as it was when it was looked at last.
    last_device: DeviceState,
    /// It is to be looked at with the next tick.
    is_device_sync_due: bool,
    sockets: Sockets,
    resolver: Resolver,
    paths: PeerPaths,
    vmclock: VmClock,
    board: StatusBoard,
}

impl Sockets {
    /// Gives them the new name of the device.
    fn follow(&mut self, config: &Config) {
        let paths = [config.admin_socket_path(), Some(uapi::path(&config.interface))];
        for (socket, path) in [&mut self.admin, &mut self.uapi].into_iter().zip(paths) {
            if let (Some(socket), Some(path)) = (socket, path)
                && let Err(error) = socket.move_to(path.clone())
            {
                warn!(%error, path = %path.display(), "a socket keeps its name");
            }
        }
    }
}

impl Service {
    /// Takes over a gateway that was started with `config` on a device of `mtu_bytes`; `source` has
    /// what comes later.
    ///
    /// # Errors
    ///
    /// If the device is not there, or nobody would say that it changes.
    pub async fn new(
        source: Source,
        config: Config,
        mtu_bytes: u16,
        gateway: Gateway,
        netlink: Netlink,
        board: StatusBoard,
        sockets: Sockets,
    ) -> anyhow::Result<Self> {
        let device = netlink
            .interface_index(&config.interface)
            .await
            .with_context(|| format!("cannot find interface {:?}", config.interface))?;
        let changes = Changes::listen().context("cannot listen for changes of the network")?;

        Ok(Self {
            source,
            reader: BackgroundReader::new(READ_MAX),
            mtu_bytes,
            generation: 0,
            monitor: gateway.monitor(),
            gateway,
            routes: DeviceRoutes::new(netlink.clone(), device),
            netlink,
            device,
            changes,
            last_routes: Routes::default(),
            last_device: DeviceState::default(),
            is_device_sync_due: false,
            sockets,
            resolver: Resolver::new(config.dns_check_interval),
            config: Arc::new(config),
            paths: PeerPaths::default(),
            vmclock: VmClock::open(),
            board,
        })
    }

    /// Applies the first configuration, runs until told to end, and drains.
    ///
    /// # Errors
    ///
    /// If the device gets none of its routes at the start, or a packet thread ended.
    pub async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        self.netlink.prepare_tunnel(self.device).await;
        self.netlink.set_up(self.device).await.context("cannot bring the device up")?;
        self.apply();
        self.sync_device().await;
        let end =
            match self.last_device.missing.iter().find(|missing_prefix| missing_prefix.is_route) {
                Some(missing_prefix) if self.last_device.carries_nothing() => {
                    Err(anyhow!("{}", missing_prefix.cause))
                }
                Some(_) | None => {
                    // In a cluster it is not ready before it has heard who its peers are.
                    if matches!(self.source, Source::File(_)) {
                        self.board.set_knows_peers();
                    }
                    info!("the gateway runs");
                    self.serve(&mut signals).await
                }
            };

        self.board.set_draining();
        // Before another replica has its turn: its sessions are to be the newer ones.
        self.gateway.stop_initiating();
        if self.source.hand_over().await {
            info!(
                "another replica has its turn; what is on its way here is forwarded for a moment"
            );
            sleep(OVERLAP).await;
        } else {
            // What is staged may still find a session.
            self.gateway.resume_initiating();
        }
        self.routes.clear().await;
        self.gateway.drain(DRAIN_DEADLINE);
        info!("the gateway ended");

        end
    }

    async fn serve(&mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            select! {
                action = signals.next() => match action {
                    SignalAction::Reload => self.reload(),
                    SignalAction::End => return Ok(()),
                },
                read = self.reader.next() => self.handle_read(read).await,
                event = self.source.next() => match event {
                    ClusterEvent::Peers { wanted, is_listed, continue_after } => {
                        if let Some(date) = continue_after {
                            self.gateway.date_initiations_after(date);
                        }
                        self.reconfigure(wanted.within(&self.config)).await;
                        if is_listed {
                            self.board.set_knows_peers();
                        }
                    }
                    ClusterEvent::Connectivity(event) => self.handle_connectivity(event),
                },
                answer = self.resolver.next_answer() => {
                    let changed = self.resolver.handle_answer(answer, now());
                    if !changed.is_empty() {
                        self.set_endpoints(&changed).await;
                    }
                }
                changed = self.changes.next() => {
                    self.paths.handle_change(&changed);
                    let wanted = &self.last_routes.wanted;
                    if changed.is_about(self.device, |prefix| wanted.contains_key(prefix)) {
                        self.sync_device().await;
                    } else if !self.last_device.missing.is_empty() {
                        // What takes its place may have gone without a word, as routes of IPv4 go with their device.
                        self.is_device_sync_due = true;
                    }
                }
                () = ready(()), if self.paths.is_due() => {
                    for change in self.paths.learn_due(&self.netlink, &self.monitor).await {
                        change.apply(&self.gateway);
                    }
                }
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
                    if self.is_device_sync_due || self.changes.is_closed() {
                        self.sync_device().await;
                    }
                    if let Some(private_key) = self.source.new_key(&self.config.private_key) {
                        self.reconfigure(Config { private_key, ..Config::clone(&self.config) }).await;
                    }
                    self.source.handle_status(&peers);
                    self.resolver.handle_status(&peers, now());
                    for change in self.paths.learn(&self.netlink, &peers, self.mtu_bytes).await {
                        change.apply(&self.gateway);
                    }
                }
            }
        }
    }

    /// Follows what others do to the device, and gives it back what they took: when it goes down the kernel takes
    /// its routes away, and its addresses of IPv6.
    async fn sync_device(&mut self) {
        self.is_device_sync_due = false;
        let link = match self.netlink.link(self.device).await {
            Ok(Some(link)) => link,
            // It is gone: so are the packet threads in a moment.
            Ok(None) => return self.set_device(DeviceState::default()),
            Err(error) => {
                debug!(%error, "cannot look at the device");
                self.is_device_sync_due = true;
                return;
            }
        };
        self.follow(&link);
        let mut device = DeviceState { name: link.name, is_up: link.is_up, ..Default::default() };
        if link.is_up {
            match self.netlink.sync_addresses(self.device, &self.config.addresses).await {
                Ok(errors) => device.missing.extend(errors.into_iter().map(MissingPrefix::from)),
                Err(error) => {
                    error!(%error, "cannot read the addresses of the device");
                    self.is_device_sync_due = true;
                }
            }
            let errors = self.sync_routes().await;
            device.wanted_routes = self.last_routes.wanted.len();
            for error in errors {
                match MissingPrefix::of_route(error) {
                    Ok(missing_prefix) => device.missing.push(missing_prefix),
                    Err(error) => {
                        error!("{:#}", anyhow::Error::from(error));
                        self.is_device_sync_due = true;
                    }
                }
            }
        }
        self.set_device(device);
    }

    /// The name and the MTU of the device belong to this host and may change while the gateway runs.
    fn follow(&mut self, link: &Link) {
        let mtu_bytes = u16::try_from(link.mtu_bytes).unwrap_or(u16::MAX);
        if mtu_bytes != self.mtu_bytes {
            info!(before = self.mtu_bytes, mtu = mtu_bytes, "the device has another MTU");
            self.mtu_bytes = mtu_bytes;
            self.gateway.set_device_mtu(mtu_bytes);
            self.apply();
        }
        if link.name != self.config.interface {
            info!(before = self.config.interface, name = link.name, "the device has another name");
            let mut config = Config::clone(&self.config);
            config.interface.clone_from(&link.name);
            self.config = Arc::new(config);
            self.sockets.follow(&self.config);
            self.show();
        }
    }

    /// Shows what the device is now, and reports what it lacks, unless it is unchanged.
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

    /// Begins to read the file again.
    fn reload(&mut self) {
        let Source::File(file) = &self.source else {
            info!("nothing to reload: the API server says what changes, when it changes");
            return;
        };
        let path = file.clone();
        // What a large file takes to be read is as much as the gateway has, and is not needed any more.
        let load = move || {
            let loaded = Config::load(&path);
            trim_heap();
            loaded
        };
        if let Err(error) = self.reader.start(load) {
            error!(%error, file = %file.display(), "configuration not reloaded; the one before stays in force");
        }
    }

    /// Applies what was read. A file that is wrong changes nothing.
    async fn handle_read(&mut self, read: ReadOutcome<Result<Config, Findings>>) {
        let again = match read {
            // What is out of date is still newer than what is in force.
            ReadOutcome::Done(Ok(wanted), again) => {
                self.reconfigure(wanted).await;
                trim_heap();
                again
            }
            ReadOutcome::Done(Err(findings), again) => {
                for finding in findings.lines() {
                    error!("{finding}");
                }
                error!("configuration not reloaded; the one before stays in force");
                again
            }
            ReadOutcome::TimedOut => {
                return error!(
                    limit = ?READ_MAX,
                    "the configuration, or a key file that it names, cannot be read in time; the one before stays in force"
                );
            }
            ReadOutcome::Panicked => {
                return error!(
                    "configuration not reloaded: its read panicked; the one before stays in force"
                );
            }
        };
        if again == ReadAgain::Yes {
            self.reload();
        }
    }

    /// Applies what differs from the configuration in force.
    async fn reconfigure(&mut self, wanted: Config) {
        let reload = Reload::between(&self.config, wanted);
        for setting in &reload.needs_restart {
            warn!("{setting}");
        }
        let is_unchanged = reload.is_unchanged();
        self.config = Arc::new(reload.config);
        if is_unchanged {
            // What is in force may be somebody else's word now.
            self.show();
            match &self.source {
                Source::File(_) => info!("configuration reloaded; nothing to apply"),
                // Objects also change by what is reported in them.
                Source::Cluster(_) => debug!("objects changed; nothing to apply"),
            }
            return;
        }

        if reload.has_new_key {
            let public_key = self.config.private_key.public_key();
            self.gateway.rotate_private_key(&self.config.private_key);
            info!(%public_key, grace = ?GRACE, "our key changed; the one before stays good for a while");
        }
        self.apply();
        self.sync_device().await;
        let changes = reload.peers;
        info!(
            added = ?changes.added,
            removed = ?changes.removed,
            changed = ?changes.changed,
            generation = self.generation,
            "configuration reloaded"
        );
    }

    /// Hands peers and table to the packet threads.
    fn apply(&mut self) {
        self.generation += 1;
        self.resolver.configure(&self.config.peers, now());
        let clamp_mtu = self.config.mss_clamp.then_some(self.mtu_bytes);
        let peers = self
            .config
            .peers
            .iter()
            .map(|peer| {
                peer.to_peer_config(self.resolver.addresses(&peer.public_key).to_vec(), clamp_mtu)
            })
            .collect();

        self.gateway.apply(peers, self.config.plan(self.generation).table);
        self.show();
    }

    /// Shows what is in force.
    fn show(&self) {
        let Self { config, mtu_bytes, generation, .. } = self;

        self.board.set_applied(AppliedConfig {
            config: Arc::clone(config),
            mtu_bytes: *mtu_bytes,
            generation: *generation,
        });
    }

    /// Probes are not answered: is the peer elsewhere by now?
    fn handle_connectivity(&mut self, event: ConnectivityEvent) {
        match event {
            ConnectivityEvent::MissedProbe => self.resolver.look_up_now(now()),
            ConnectivityEvent::Silence => self.gateway.try_all_endpoints(),
        }
    }

    async fn set_endpoints(&mut self, peers: &[PublicKey]) {
        for peer in peers {
            self.gateway.set_endpoints(*peer, self.resolver.addresses(peer));
        }
        // It says so if the route to the endpoint itself leads into the tunnel now.
        self.sync_device().await;
    }

    async fn sync_routes(&mut self) -> Vec<RouteError> {
        let own = match self.netlink.addresses(Some(self.device)).await {
            Ok(addresses) => addresses,
            Err(error) => {
                warn!(%error, "cannot read the addresses of this host; routes may cover them");
                Vec::new()
            }
        };
        let routes = Routes::new(&self.config, &self.found_endpoints(), &own);
        let known: BTreeSet<_> = self.last_routes.skipped.iter().collect();
        for skipped in routes.skipped.iter().filter(|skipped| !known.contains(skipped)) {
            warn!("{skipped}");
        }
        let known: BTreeSet<_> = self.last_routes.covering.iter().collect();
        for covering in routes.covering.iter().filter(|covering| !known.contains(covering)) {
            warn!("{covering}");
        }

        let errors = self.routes.sync(&routes.prefixes()).await;
        self.last_routes = routes;

        errors
    }

    /// Every address that names lead to or that peers were heard from.
    fn found_endpoints(&self) -> Vec<IpAddr> {
        let peers = self.config.peers.iter();
        let named =
            peers.flat_map(|peer| self.resolver.addresses(&peer.public_key).iter().copied());
        let heard = self.monitor.endpoints().into_iter();

        named.chain(heard).map(|a| a.ip()).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the control loop owns its clock; the engine has none"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
