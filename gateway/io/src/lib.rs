//! The edges of the engine: the device, the sockets, the clock and the threads that drive it.
//!
//! [`Gateway`] is the interface: it is started once, and each configuration is applied to it.

mod clock;
mod edge;
mod gso_fallback;
pub mod handover;
mod handshakes;
mod inbound;
mod memory;
mod monitor;
mod outbound;
pub mod overlay;
mod pool;
mod settings;
mod start_error;
mod steering;
mod sys;
mod threads;
mod tun;
mod udp;
mod worker;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use remap::{Reader, Table};
use tokio::sync::Notify;

use clock::Calendar;
use edge::ClusterEdge;
use overlay::Overlay;
use strait_engine::{Control, Engine, Forwarding};
use strait_packet::buffer::TransmitBatch;
use strait_wg::Epoch;
use strait_wg::native::{Environment, Lanes};
use strait_wg::{PathMtu, PrivateKey, PublicKey, ReceiverIndices};
use threads::{Parts, Threads};
use tun::Tun;
use udp::Udp;
use worker::{Shared, Sink as _};

pub use memory::{set_mmap_threshold, trim_heap};
pub use monitor::{Monitor, PeerStatus, Status, Traffic};
pub use pool::Workers;
pub use settings::{EdgeSettings, Offload, Settings};
pub use start_error::StartError;
pub use strait_engine::PeerConfig;

/// The most bytes that padding and the header and tag of transport data add to a probe.
const PROBE_OVERHEAD_BYTES: usize = 48;

/// How often a draining gateway checks for staged packets.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// A running gateway. Dropping it stops its threads and removes the device.
#[derive(Debug)]
pub struct Gateway {
    control: Control,
    shared: Arc<Shared>,
    forwarding: Reader<Forwarding>,
    offload: Offload,
    mark: u32,
    engine: strait_wg::Engine,
    environment: Environment,
    settings: Settings,
    flow_seed: u64,
    threads: Threads,
    /// What the threads own while they run.
    paused: Option<Parts>,
    /// The nodes of the overlay.
    nodes: Vec<overlay::Node>,
    /// When the receive buffers get their usual size again, after a hand-over.
    narrow_at: Option<Instant>,
}

/// What a gateway is made of, new or handed over.
struct Foundation {
    udp: Arc<Udp>,
    edge: ClusterEdge,
    /// The clock to which the times of all sessions refer.
    epoch: Epoch,
    calendar: Calendar,
    flow_seed: u64,
}

impl Gateway {
    /// Creates the device or the overlay and the socket, and starts the threads, without peers. A device has no addresses
    /// and is down: the caller configures it.
    ///
    /// # Errors
    ///
    /// [`StartError`], which names the failed operation and the remedy. Nothing is left behind.
    pub fn start(settings: &Settings, private_key: &PrivateKey) -> Result<Self, StartError> {
        let udp = Udp::bind(settings.listen_port, settings.offload)?;
        let edge = open_edge(settings)?;
        let (epoch, calendar) = (clock::epoch(), Calendar::new());
        let foundation = Foundation { udp, edge, epoch, calendar, flow_seed: random() };
        let mut gateway = Self::on(foundation, settings, private_key)?;
        gateway.resume()?;

        Ok(gateway)
    }

    /// Its threads do not run yet.
    fn on(
        foundation: Foundation,
        settings: &Settings,
        private_key: &PrivateKey,
    ) -> Result<Self, StartError> {
        let Foundation { udp, edge, epoch, calendar, flow_seed } = foundation;
        let mut environment = Environment::new(epoch, settings.mtu_bytes);
        if !settings.offload.vector_aead {
            environment.lanes = Lanes::none();
        }
        let identity = settings.engine.identity(private_key, &environment);
        let Engine { outbound, inbound, handshakes, control, forwarding, flows } = Engine::new(
            identity,
            strait_engine::Settings {
                max_flows: settings.max_flows,
                seed: flow_seed,
                index_seed: ReceiverIndices::seed_of(private_key),
                start: epoch.base(),
            },
        )?;

        control.set_port(udp.port());
        control.set_spare_port(udp.spare_port());

        let shared = Arc::new(Shared {
            edge,
            udp: ArcSwap::from(udp),
            accounts: control.accounts().clone(),
            forwarding: forwarding.clone(),
            flows,
            calendar,
            mtu_bytes: AtomicU16::new(settings.mtu_bytes),
            is_initiating: AtomicBool::new(true),
            runs_timers_now: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            is_alive: AtomicBool::new(true),
            end: Notify::new(),
        });

        Ok(Self {
            control,
            shared,
            forwarding,
            offload: settings.offload,
            mark: 0,
            engine: settings.engine,
            environment,
            settings: settings.clone(),
            flow_seed,
            threads: Threads::default(),
            paused: Some(Parts { outbound, inbound, handshakes }),
            nodes: initial_nodes(&settings.edge),
            narrow_at: None,
        })
    }

    /// Stops the packet threads after their current batch, without dropping a packet: what arrives waits in the kernel.
    ///
    /// # Errors
    ///
    /// [`StartError::System`] if a thread has failed before.
    pub fn pause(&mut self) -> Result<(), StartError> {
        if self.paused.is_none() {
            self.paused = Some(self.threads.stop(&self.shared)?);
        }

        Ok(())
    }

    /// Starts the packet threads, after [`Self::pause`] or [`Self::take_over`].
    ///
    /// # Errors
    ///
    /// [`StartError::System`] if a thread cannot be started.
    pub fn resume(&mut self) -> Result<(), StartError> {
        match self.paused.take() {
            Some(parts) => self.threads.start(&self.shared, parts, self.settings.workers.count()),
            None => Ok(()),
        }
    }

    /// Puts `peers` and `table` in force, from the next batch on.
    ///
    /// A peer of the previous configuration with the same public key, or else the same name, keeps its session, its
    /// learned endpoint and its counters.
    pub fn apply(&mut self, peers: Vec<PeerConfig>, table: Table) {
        self.control.apply(peers, table);
    }

    /// Sends a keepalive to every peer with a persistent keepalive.
    pub fn send_keepalives(&self) {
        self.control.keep_alive();
        self.run_timers();
    }

    /// Runs the timers of all peers without delay, so that what a change made due is sent at once.
    pub fn run_timers(&self) {
        self.shared.runs_timers_now.store(true, Ordering::Relaxed);
        // A thread that cannot be woken runs them at the next tick.
        let _ = self.threads.wake_handshakes();
    }

    /// Frees what is not needed any more: earlier configurations, and the memory of a hand-over. Call it regularly.
    pub fn free_retired(&mut self) {
        self.narrow_buffers();
        self.control.free_retired();
    }

    /// Rotates the static private key. The previous key stays valid for
    /// [`GRACE`](strait_wg::key_rotation::GRACE), then it is wiped; no session is lost.
    pub fn rotate_private_key(&mut self, private_key: &PrivateKey) {
        let identity = self.engine.identity(private_key, &self.environment);

        self.control.rotate_key(&identity);
    }

    /// Replaces the static private key. Nothing more is sent in sessions of the previous key. What peers
    /// still send in them is received for [`GRACE`](strait_wg::key_rotation::GRACE) at most.
    pub fn supersede_private_key(&mut self, private_key: &PrivateKey) {
        let identity = self.engine.identity(private_key, &self.environment);

        self.control.supersede_key(&identity);
    }

    /// Replaces the static private key, and wipes the previous key with every session.
    pub fn replace_private_key(&mut self, private_key: &PrivateKey) {
        let identity = self.engine.identity(private_key, &self.environment);

        self.control.replace_key(&identity);
    }

    /// Moves to UDP `port`; 0 lets the kernel choose. Sessions continue: a peer follows with the next datagram that it
    /// receives. What it sends to the previous port until then is lost.
    ///
    /// # Errors
    ///
    /// [`StartError::Port`] if the port is taken; then the previous one stays in use.
    pub fn listen(&self, port: u16) -> Result<(), StartError> {
        let udp = Udp::bind(port, self.offload)?;
        if self.mark != 0 {
            udp.set_mark(self.mark).map_err(|source| StartError::System {
                operation: "set the mark of the UDP socket",
                source,
            })?;
        }

        udp.set_gso(self.shared.udp.load().allows_gso());

        let (port, spare_port) = (udp.port(), udp.spare_port());
        self.shared.udp.store(udp);
        self.control.set_port(port);
        self.control.set_spare_port(spare_port);

        self.threads
            .wake_receivers()
            .map_err(|source| StartError::System { operation: "wake a thread", source })
    }

    /// Switches `UDP_SEGMENT` off, or on again if the settings and the kernel allow it: what the kernel segments may
    /// arrive damaged.
    pub fn set_gso(&self, is_on: bool) {
        self.shared.udp.load().set_gso(is_on);
    }

    /// Sets the mark of sent datagrams (`SO_MARK`), for rules of the host; 0 is no mark.
    ///
    /// # Errors
    ///
    /// [`StartError::System`] without CAP_NET_ADMIN; then the previous mark stays in use.
    pub fn set_mark(&mut self, mark: u32) -> Result<(), StartError> {
        self.shared.udp.load().set_mark(mark).map_err(|source| StartError::System {
            operation: "set the mark of the UDP socket",
            source,
        })?;
        self.mark = mark;

        Ok(())
    }

    /// Ends every session and starts new handshakes: another machine may have a copy of the sessions. What peers send
    /// in them from now on is lost.
    pub fn renew_sessions(&mut self) {
        self.control.renew_sessions();
    }

    /// Dates initiations after `since_1970`, a time of day that is reached now: a previous holder of the key may have
    /// dated initiations up to then. The engine `boringtun` dates by the wall clock alone.
    pub fn date_initiations_after(&self, since_1970: Duration) {
        self.control.continue_after(Epoch::new(clock::now(), since_1970));
    }

    /// Sends to `peer` at `endpoint` until a datagram from it arrives from another endpoint. Does nothing if no peer has
    /// this key.
    pub fn move_peer(&self, peer: PublicKey, endpoint: SocketAddr) {
        self.control.move_peer(peer, endpoint);
    }

    /// Relays datagrams between the only peer and `predecessor`, the gateway that led before this one, for `duration`.
    pub fn relay(&self, predecessor: SocketAddr, duration: Duration) {
        self.control.relay(predecessor, clock::now() + duration);
    }

    /// Sets the candidate endpoints of `peer`, as a configuration does. Does nothing if no peer has this key.
    pub fn set_endpoints(&self, peer: PublicKey, endpoints: &[SocketAddr]) {
        self.control.set_endpoints(peer, endpoints);
    }

    /// Starts a handshake with every peer at all of its candidate endpoints: the endpoints in use do not seem to work.
    pub fn try_all_endpoints(&self) {
        self.control.seek_peers();
    }

    /// Another replica takes over, or soon does: stops initiating handshakes. Existing sessions carry what is under way.
    /// An initiation of a peer is still answered.
    pub fn stop_initiating(&self) {
        self.shared.is_initiating.store(false, Ordering::Relaxed);
    }

    /// No other replica takes over: initiates handshakes again.
    pub fn resume_initiating(&self) {
        self.shared.is_initiating.store(true, Ordering::Relaxed);
    }

    /// Sockets for the packets of the gateway's own addresses. `None` with a device, which has the address in the tunnel,
    /// and without such an address.
    ///
    /// # Errors
    ///
    /// That of the system.
    pub fn host_sockets(&self) -> std::io::Result<Option<overlay::HostSockets>> {
        self.shared.edge.overlay().map_or(Ok(None), |overlay| overlay.host_sockets())
    }

    /// Puts `nodes` in force for the overlay, from the next batch on. Does nothing with a device.
    pub fn set_nodes(&mut self, nodes: &[overlay::Node]) {
        if let Some(overlay) = self.shared.edge.overlay() {
            overlay.set_nodes(nodes);
            self.nodes = nodes.to_vec();
        }
    }

    /// Asks the nodes of the overlay for their stations: those that were not heard yet, or with `asks_again` all without a
    /// configured one. Call it regularly. Does nothing with a device.
    pub fn ask_nodes(&self, asks_again: bool) {
        if let Some(overlay) = self.shared.edge.overlay() {
            overlay.ask_nodes(asks_again);
        }
    }

    /// Sets the MTU of the device or the overlay in bytes, which limits packets and the padding of transport data.
    pub fn set_device_mtu(&self, bytes: u16) {
        if let Some(overlay) = self.shared.edge.overlay() {
            overlay.set_mtu(bytes);
        }
        self.shared.mtu_bytes.store(bytes, Ordering::Relaxed);
        self.environment.mtu.store(bytes, Ordering::Relaxed);
    }

    /// Sets the path MTU towards `peer`. Does nothing if no peer has this key.
    pub fn learn_path_mtu(&self, peer: PublicKey, path_mtu: PathMtu) {
        if let Some(peer) = self.control.current().by_key(peer) {
            peer.learn_path_mtu(path_mtu);
        }
    }

    /// Sends probes of the path to `peer`, one for each of `lengths` in bytes. Does nothing without a session.
    pub fn probe_path(&self, peer: PublicKey, lengths: &[u16]) {
        let bytes = lengths.iter().map(|bytes| usize::from(*bytes) + PROBE_OVERHEAD_BYTES).sum();
        let mut batch = TransmitBatch::with_capacity(bytes);
        self.control.probe_path(peer, lengths, clock::now(), &mut batch);
        self.shared.send_all(&mut batch);
    }

    /// The lengths of the probes to `peer` in bytes that were answered since the last call.
    pub fn take_answered_probes(&self, peer: PublicKey) -> Vec<u16> {
        let forwarding = self.control.current();

        forwarding.by_key(peer).map_or_else(Vec::new, |peer| peer.take_answered_probes())
    }

    /// Forgets the source address used towards `peer`: the route chooses one until a datagram from `peer` arrives. Does
    /// nothing if no peer has this key.
    pub fn forget_local(&self, peer: PublicKey) {
        if let Some(peer) = self.control.current().by_key(peer)
            && let Some(path) = peer.path()
        {
            peer.endpoints.forget_local(path);
        }
    }

    /// Waits for at most `deadline` until no packets are staged, then ends the threads and removes the device.
    pub fn drain(mut self, deadline: Duration) {
        let monitor = self.monitor();
        let until = clock::now() + deadline;
        while monitor.status().staged_packets > 0 && clock::now() < until {
            std::thread::sleep(DRAIN_POLL);
        }

        self.stop();
    }

    /// A handle that reads the state for metrics. Cheap to clone, and never blocks a packet thread.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor {
            shared: Arc::clone(&self.shared),
            forwarding: self.forwarding.clone(),
            has_lanes: self.engine == strait_wg::Engine::Native && self.environment.lanes.is_some(),
        }
    }

    fn stop(&mut self) {
        // A thread that has failed has nothing left to stop.
        let _ = self.threads.stop(&self.shared);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An unpredictable number: the standard library seeds its hash maps from the randomness of the system.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// The nodes that an edge starts with.
fn initial_nodes(edge: &EdgeSettings) -> Vec<overlay::Node> {
    match edge {
        EdgeSettings::Device(_) => Vec::new(),
        EdgeSettings::Overlay(overlay) => overlay.nodes.clone(),
    }
}

fn open_edge(settings: &Settings) -> Result<ClusterEdge, StartError> {
    match &settings.edge {
        EdgeSettings::Device(interface) => {
            Ok(ClusterEdge::Device(Tun::create(interface, settings)?))
        }
        EdgeSettings::Overlay(overlay) => {
            let overlay = Overlay::bind(overlay, settings.mtu_bytes, settings.offload)?;
            Ok(ClusterEdge::Overlay(overlay))
        }
    }
}
