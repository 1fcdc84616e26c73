//! A gateway that runs: applies configurations, follows names, keeps the routes, ends in order.
//!
//! One task on the control runtime owns all of it, so nothing here needs a lock. The packet threads
//! take no notice.

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use strait_gateway::io::{Gateway, Monitor, PeerStatus};
use strait_gateway::wg::succession::GRACE;
use strait_gateway::wg::{PrivateKey, PublicKey};
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, error, info, warn};

use super::admin::{Board, InForce};
use super::cluster::{Cluster, News, Observed, Trouble};
use super::config::{Config, Findings};
use super::netlink::{DeviceRoutes, Links, Netlink, RouteError};
use super::reading::{Again, READ_MAX, Read, Reading};
use super::reload::Reload;
use super::resolver::Resolver;
use super::routes::Routes;
use super::vmclock::VmClock;
use super::ways::Ways;

/// How long to send what is under way before the process ends.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// For how long a replica goes on when another has its turn. In this time that one gets a session with the
/// peer, if it knows where that is, and nodes hear of where their packets go now.
const OVERLAP: Duration = Duration::from_secs(2);

/// The process ends so long after it was asked to, whatever it waits for. Less than Kubernetes gives it.
const END_MAX: Duration = Duration::from_secs(25);

/// How often peers and packet threads are looked at.
const TICK: Duration = Duration::from_secs(1);

/// How often one looks for a peer that is waited for.
const LOOK: Duration = Duration::from_millis(10);

/// The wishes of whoever runs the process.
#[derive(Debug)]
pub(crate) struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
}

enum Wish {
    Reload,
    End,
}

/// Ends the process after `limit`, if it has not ended by then.
fn end_within(limit: Duration) {
    let end = move || {
        thread::sleep(limit);
        error!(?limit, "the process did not end in order: it ends now");
        std::process::exit(1);
    };
    if let Err(error) = thread::Builder::new().name("end".to_owned()).spawn(end) {
        warn!(%error, "the process ends only in order");
    }
}

impl Signals {
    /// From here on SIGHUP, SIGTERM and SIGINT are wishes and no longer end the process.
    ///
    /// # Errors
    ///
    /// If a handler cannot be installed.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut end = Self::subscribe()?;
        tokio::spawn(async move {
            end.end().await;
            end_within(END_MAX);
        });

        Self::subscribe()
    }

    fn subscribe() -> io::Result<Self> {
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the wish to end. Whoever wants something read again is not heard. Cancel safe.
    pub(crate) async fn end(&mut self) {
        while let Wish::Reload = self.next().await {}
    }

    /// Cancel safe.
    async fn next(&mut self) -> Wish {
        select! {
            _ = self.reload.recv() => Wish::Reload,
            _ = self.terminate.recv() => Wish::End,
            _ = self.interrupt.recv() => Wish::End,
        }
    }
}

/// Who says what a gateway is to do while it runs.
pub(crate) enum Source {
    /// A file, whenever SIGHUP comes.
    File(PathBuf),
    /// The objects of an API server, whenever they change.
    Cluster(Box<Cluster>),
}

impl Source {
    /// What there is to see of it from outside.
    pub(crate) fn observed(&self) -> Option<Observed> {
        match self {
            Self::File(_) => None,
            Self::Cluster(cluster) => Some(cluster.observed()),
        }
    }

    /// Other peers than before, or trouble with them. Cancel safe.
    async fn next(&mut self) -> News {
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
    fn remember(&mut self, status: &[PeerStatus]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.remember(status),
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
    fn listen(&self, status: &[PeerStatus]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.listen(status),
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

/// A started gateway and everything that follows its configuration.
pub(crate) struct Service {
    source: Source,
    /// Of the file, if that is the source.
    reading: Reading<Result<Config, Findings>>,
    config: Arc<Config>,
    mtu_bytes: u16,
    generation: u64,
    gateway: Gateway,
    monitor: Monitor,
    netlink: Netlink,
    device: u32,
    /// That the device has changed.
    links: Links,
    routes: DeviceRoutes,
    last_routes: Routes,
    resolver: Resolver,
    ways: Ways,
    vmclock: VmClock,
    board: Board,
}

impl Service {
    /// Takes over a gateway that was started with `config` on a device of `mtu_bytes`; `source` has
    /// what comes later.
    ///
    /// # Errors
    ///
    /// If the device is not there, or nobody would say that it changes.
    pub(crate) async fn new(
        source: Source,
        config: Config,
        mtu_bytes: u16,
        gateway: Gateway,
        netlink: Netlink,
        board: Board,
    ) -> anyhow::Result<Self> {
        let device = netlink
            .interface_index(&config.interface)
            .await
            .with_context(|| format!("cannot find interface {:?}", config.interface))?;
        let links = Links::listen(Some(device)).context("cannot listen for changes of devices")?;

        Ok(Self {
            source,
            reading: Reading::new(READ_MAX),
            mtu_bytes,
            generation: 0,
            monitor: gateway.monitor(),
            gateway,
            routes: DeviceRoutes::new(netlink.clone(), device),
            netlink,
            device,
            links,
            last_routes: Routes::default(),
            resolver: Resolver::new(config.dns_check_interval),
            config: Arc::new(config),
            ways: Ways::default(),
            vmclock: VmClock::open(),
            board,
        })
    }

    /// Applies the first configuration, runs until told to end, and drains.
    ///
    /// # Errors
    ///
    /// If a route cannot be had at the start, or a packet thread ended.
    pub(crate) async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        self.apply();
        let first = self.sync_routes().await.into_iter().next();
        let end = match first {
            Some(error) => Err(error.into()),
            None => {
                self.look_at_device().await;
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
        self.gateway.begin_no_sessions();
        if self.source.hand_over().await {
            info!(
                "another replica has its turn; what is on its way here is forwarded for a moment"
            );
            sleep(OVERLAP).await;
        } else {
            // What is staged may still find a session.
            self.gateway.begin_sessions();
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
                wish = signals.next() => match wish {
                    Wish::Reload => self.reload(),
                    Wish::End => return Ok(()),
                },
                read = self.reading.next() => self.handle_read(read).await,
                news = self.source.next() => match news {
                    News::Peers { wanted, is_listed, continue_after } => {
                        if let Some(date) = continue_after {
                            self.gateway.continue_after(date);
                        }
                        self.reconfigure(wanted.within(&self.config)).await;
                        if is_listed {
                            self.board.set_knows_peers();
                        }
                    }
                    News::Trouble(trouble) => self.handle_trouble(trouble),
                },
                answer = self.resolver.next_answer() => {
                    let changed = self.resolver.handle_answer(answer, now());
                    if !changed.is_empty() {
                        self.set_endpoints(&changed).await;
                    }
                }
                () = self.links.next() => self.handle_link().await,
                () = sleep(LOOK), if self.source.awaits_peer() => {
                    self.source.listen(&self.monitor.status().peers);
                }
                _ = ticks.tick() => {
                    let status = self.monitor.status();
                    if !status.is_alive {
                        bail!("a packet thread ended: start the gateway again and report the log");
                    }
                    if self.vmclock.is_restored() {
                        info!("this machine was restored from a snapshot: all sessions begin anew");
                        self.gateway.renew_sessions();
                    }
                    self.gateway.free_retired();
                    if self.links.are_silent() {
                        self.look_at_device().await;
                    }
                    if let Some(private_key) = self.source.new_key(&self.config.private_key) {
                        self.reconfigure(Config { private_key, ..Config::clone(&self.config) }).await;
                    }
                    self.source.remember(&status.peers);
                    self.resolver.handle_status(&status.peers, now());
                    let netlink = self.netlink.of_tunnel(0, self.device);
                    for change in self.ways.learn(&netlink, &status.peers).await {
                        change.apply(&self.gateway);
                    }
                }
            }
        }
    }

    /// Somebody else may take the device down and up again.
    async fn look_at_device(&self) {
        match self.netlink.is_up(self.device).await {
            Ok(is_up) => self.board.set_device_up(is_up),
            Err(error) => debug!(%error, "cannot look at the device"),
        }
    }

    /// When a device goes down the kernel takes its routes away, and its addresses of IPv6. Traffic follows the
    /// default route until they are back.
    async fn handle_link(&mut self) {
        let addresses = &self.config.addresses;
        if let Err(error) = self.netlink.restore_addresses(self.device, addresses).await {
            error!(%error, ?addresses, "the device does not have all of its addresses");
        }
        for error in self.sync_routes().await {
            error!("{:#}", anyhow::Error::from(error));
        }
        self.look_at_device().await;
    }

    /// Begins to read the file again.
    fn reload(&mut self) {
        let Source::File(file) = &self.source else {
            info!("nothing to reload: the API server says what changes, when it changes");
            return;
        };
        let path = file.clone();
        if let Err(error) = self.reading.start(move || Config::load(&path)) {
            error!(%error, file = %file.display(), "configuration not reloaded; the one before stays in force");
        }
    }

    /// Applies what was read. A file that is wrong changes nothing.
    async fn handle_read(&mut self, read: Read<Result<Config, Findings>>) {
        let wanted = match read {
            Read::Done(_, Again::Yes) => return self.reload(),
            Read::Done(Ok(wanted), Again::No) => wanted,
            Read::TimedOut => {
                error!(
                    limit = ?READ_MAX,
                    "the configuration, or a key file that it names, cannot be read in time; the one before stays in force"
                );
                return;
            }
            Read::Done(Err(findings), Again::No) => {
                for finding in findings.lines() {
                    error!("{finding}");
                }
                error!("configuration not reloaded; the one before stays in force");
                return;
            }
        };

        self.reconfigure(wanted).await;
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
            self.gateway.set_private_key(&self.config.private_key);
            info!(%public_key, grace = ?GRACE, "our key changed; the one before stays good for a while");
        }
        self.apply();
        for error in self.sync_routes().await {
            error!("{:#}", anyhow::Error::from(error));
        }
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

        self.board.set_in_force(InForce {
            config: Arc::clone(config),
            mtu_bytes: *mtu_bytes,
            generation: *generation,
        });
    }

    /// Probes are not answered: is the peer elsewhere by now?
    fn handle_trouble(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::MissedProbe => self.resolver.hurry(now()),
            Trouble::Silence => self.gateway.seek_peers(),
        }
    }

    async fn set_endpoints(&mut self, peers: &[PublicKey]) {
        for peer in peers {
            self.gateway.set_endpoints(*peer, self.resolver.addresses(peer));
        }
        // It says so if the route to the endpoint itself leads into the tunnel now.
        for error in self.sync_routes().await {
            error!("{:#}", anyhow::Error::from(error));
        }
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
