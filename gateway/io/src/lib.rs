//! The edge: the device, the sockets, the clock and the threads that drive the engine.
//!
//! [`Gateway`] is the whole of it to the outside: started once, then given one configuration after
//! the other.

mod clock;
mod handshakes;
mod inbound;
mod memory;
mod monitor;
mod outbound;
mod pool;
mod singly;
mod steering;
mod sys;
mod tun;
mod udp;
mod worker;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use mio::Waker;
use remap::{Reader, Table, masquerade};
use tokio::sync::Notify;

use clock::Calendar;
use strait_engine::Control;
use strait_engine::Engine;
use strait_engine::Forwarding;
use strait_wg::PrivateKey;
use strait_wg::PublicKey;
use strait_wg::native::{Epoch, Lanes, Surroundings};
use tun::Tun;
use udp::Udp;
use worker::{Shared, Wait};

pub use memory::{set_mmap_threshold, trim_heap};
pub use monitor::{Monitor, PeerStatus, Status};
pub use pool::Workers;
pub use strait_engine::PeerConfig;

/// How often a draining gateway looks whether anything is left.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// What does not change while a gateway runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the TUN device to create, at most 15 bytes.
    pub interface: String,
    /// UDP port to listen on; 0 lets the kernel choose.
    pub listen_port: u16,
    /// MTU of the device in bytes.
    pub mtu_bytes: u16,
    /// Which offloads to use where the kernel has them.
    pub offload: Offload,
    /// How many threads may help with backlog.
    pub workers: Workers,
    /// How many masqueraded flows are kept.
    pub max_flows: u32,
    /// What encrypts.
    pub engine: strait_wg::Engine,
}

/// The offloads, one switch each. As a wish: `false` never uses it. As a state: `false` is off, by
/// wish or because the kernel refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "six independent kill switches")]
pub struct Offload {
    /// TCP segmentation offload on the TUN device (TSO4, TSO6).
    pub tun_tso: bool,
    /// UDP segmentation offload on the TUN device (USO4, USO6; Linux 6.2).
    pub tun_uso: bool,
    /// `UDP_SEGMENT` on sending.
    pub udp_gso: bool,
    /// `UDP_GRO` on receiving.
    pub udp_gro: bool,
    /// Handshakes come to a socket of their own (`SO_ATTACH_REUSEPORT_CBPF`).
    pub udp_steering: bool,
    /// Datagrams of one session are sealed and opened many at once (AVX-512 with IFMA and VBMI2, native engine).
    pub vector_aead: bool,
}

impl Default for Offload {
    fn default() -> Self {
        Self::ON
    }
}

impl Offload {
    /// Whatever there is.
    pub const ON: Self = Self::all(true);

    /// Nothing of it.
    pub const OFF: Self = Self::all(false);

    const fn all(is_on: bool) -> Self {
        Self {
            tun_tso: is_on,
            tun_uso: is_on,
            udp_gso: is_on,
            udp_gro: is_on,
            udp_steering: is_on,
            vector_aead: is_on,
        }
    }

    /// Each under its name in configuration and metrics.
    #[must_use]
    pub const fn named(self) -> [(&'static str, bool); 6] {
        let Self { tun_tso, tun_uso, udp_gso, udp_gro, udp_steering, vector_aead } = self;

        [
            ("tun_tso", tun_tso),
            ("tun_uso", tun_uso),
            ("udp_gso", udp_gso),
            ("udp_gro", udp_gro),
            ("udp_steering", udp_steering),
            ("vector_aead", vector_aead),
        ]
    }
}

/// A running gateway. Dropping it stops its threads and removes the device.
#[derive(Debug)]
pub struct Gateway {
    control: Control,
    shared: Arc<Shared>,
    forwarding: Reader<Forwarding>,
    offload: Offload,
    mark: u32,
    engine: strait_wg::Engine,
    surroundings: Surroundings,
    outbound: Option<Thread>,
    inbound: Option<Thread>,
    handshakes: Option<Thread>,
}

/// A thread and what wakes it.
#[derive(Debug)]
struct Thread {
    handle: JoinHandle<()>,
    waker: Arc<Waker>,
}

impl Gateway {
    /// Creates the device and the socket and starts the threads, at first without peers. The device has no
    /// addresses and is down: that is for the caller.
    ///
    /// # Errors
    ///
    /// [`StartError`], which names what could not be had and the remedy. Nothing is left behind.
    pub fn start(settings: &Settings, private_key: &PrivateKey) -> Result<Self, StartError> {
        let udp = Udp::bind(settings.listen_port, settings.offload)?;
        let tun = Tun::create(settings)?;
        let mut surroundings = Surroundings::new(clock::epoch(), settings.mtu_bytes);
        if !settings.offload.vector_aead {
            surroundings.lanes = Lanes::none();
        }
        let identity = settings.engine.identity(private_key, &surroundings);
        let Engine { outbound, inbound, handshakes, control, forwarding, flows } = Engine::new(
            identity,
            strait_engine::Settings {
                max_flows: settings.max_flows,
                seed: random(),
                start: clock::now(),
            },
        )?;

        control.set_port(udp.port());
        control.set_spare_port(udp.spare_port());

        let shared = Arc::new(Shared {
            tun,
            udp: ArcSwap::from(udp),
            accounts: control.accounts().clone(),
            forwarding: forwarding.clone(),
            flows,
            calendar: Calendar::new(),
            mtu_bytes: AtomicU16::new(settings.mtu_bytes),
            begins_sessions: AtomicBool::new(true),
            is_hurried: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            is_alive: AtomicBool::new(true),
            end: Notify::new(),
        });
        let mut gateway = Self {
            control,
            shared: Arc::clone(&shared),
            forwarding,
            offload: settings.offload,
            mark: 0,
            engine: settings.engine,
            surroundings,
            outbound: None,
            inbound: None,
            handshakes: None,
        };

        let udp = shared.udp.load_full();
        let (wait, waker) = wait_for(udp.handshakes())?;
        let (relay, queue) = handshakes::relay(&waker);
        gateway.handshakes = Some(gateway.spawn("handshakes", waker, {
            let udp = Arc::clone(&udp);
            move |shared| handshakes::run(&shared, handshakes, (udp, wait), queue)
        })?);
        let workers = settings.workers.count();
        let (wait, waker) = wait_for(udp.sockets())?;
        gateway.inbound = Some(gateway.spawn("inbound", waker, {
            let udp = Arc::clone(&udp);
            move |shared| inbound::run(&shared, inbound, (udp, wait), relay, workers)
        })?);
        let (wait, waker) = wait_for(Some(shared.tun.as_fd()))?;
        gateway.outbound = Some(gateway.spawn("outbound", waker, move |shared| {
            outbound::run(&shared, outbound, wait, workers);
        })?);

        Ok(gateway)
    }

    /// Makes `peers` and `table` the ones in force, from the next batch on.
    ///
    /// A peer that was there before, with the same public key or else the same name, keeps its
    /// session, its learned endpoint and its counters.
    pub fn apply(&mut self, peers: Vec<PeerConfig>, table: Table) {
        self.control.apply(peers, table);
    }

    /// Has every peer with a persistent keepalive sent one at once.
    pub fn keep_alive(&self) {
        self.control.keep_alive();
        self.hurry();
    }

    /// Has the timers of all peers looked at without delay: what peers are owed since a change is sent at once.
    pub fn hurry(&self) {
        self.shared.is_hurried.store(true, Ordering::Relaxed);
        // A thread that cannot be woken looks with the next tick.
        let _ = self.handshakes.as_ref().map(|thread| thread.waker.wake());
    }

    /// Frees earlier configurations that no packet thread holds any more. To be called now and then.
    pub fn free_retired(&mut self) {
        self.control.free_retired();
    }

    /// Replaces the private key. What peers know us by until then stays good for
    /// [`GRACE`](strait_wg::succession::GRACE), then it is wiped; no session is lost.
    pub fn set_private_key(&mut self, private_key: &PrivateKey) {
        let identity = self.engine.identity(private_key, &self.surroundings);

        self.control.succeed(&identity);
    }

    /// We are whom `private_key` says from now on: nothing more is sent in sessions of the key before. What peers
    /// still send in them is received for [`GRACE`](strait_wg::succession::GRACE) at most.
    pub fn supersede_private_key(&mut self, private_key: &PrivateKey) {
        let identity = self.engine.identity(private_key, &self.surroundings);

        self.control.supersede(&identity);
    }

    /// We are whom `private_key` says from now on, and what peers knew us by until then is wiped, with
    /// every session.
    pub fn replace_private_key(&mut self, private_key: &PrivateKey) {
        let identity = self.engine.identity(private_key, &self.surroundings);

        self.control.replace(&identity);
    }

    /// Listens on UDP `port` from now on and sends from there; 0 lets the kernel choose. Sessions go on:
    /// peers follow with the next datagram that they get. What they sent to the port before until then is
    /// lost.
    ///
    /// # Errors
    ///
    /// [`StartError::Port`] if the port is taken; then the one before stays in use.
    pub fn listen(&self, port: u16) -> Result<(), StartError> {
        let udp = Udp::bind(port, self.offload)?;
        if self.mark != 0 {
            udp.set_mark(self.mark)
                .map_err(|source| StartError::System { operation: "mark what is sent", source })?;
        }

        let (port, spare_port) = (udp.port(), udp.spare_port());
        self.shared.udp.store(udp);
        self.control.set_port(port);
        self.control.set_spare_port(spare_port);
        for thread in [&self.inbound, &self.handshakes].into_iter().flatten() {
            thread
                .waker
                .wake()
                .map_err(|source| StartError::System { operation: "wake a thread", source })?;
        }

        Ok(())
    }

    /// Marks the datagrams that are sent from now on, for rules of the host (`SO_MARK`); 0 is no mark.
    ///
    /// # Errors
    ///
    /// [`StartError::System`] without CAP_NET_ADMIN; then the mark before stays in use.
    pub fn set_mark(&mut self, mark: u32) -> Result<(), StartError> {
        self.shared
            .udp
            .load()
            .set_mark(mark)
            .map_err(|source| StartError::System { operation: "mark what is sent", source })?;
        self.mark = mark;

        Ok(())
    }

    /// Ends every session and begins others with the same peers: somebody else may have a copy of those. What
    /// peers send until they have heard of it is lost.
    pub fn renew_sessions(&mut self) {
        self.control.renew_sessions();
    }

    /// Whoever was in our place before may have begun sessions until `since_1970`, of which it is that long by
    /// now: ours are dated later. The engine `boringtun` dates by the clock of the wall alone.
    pub fn continue_after(&self, since_1970: Duration) {
        self.control.continue_after(Epoch::new(clock::now(), since_1970));
    }

    /// Datagrams to the peer go to `endpoint` from now on, until it is heard from elsewhere. Does nothing
    /// if no peer has this key.
    pub fn move_peer(&self, peer: PublicKey, endpoint: SocketAddr) {
        self.control.move_peer(peer, endpoint);
    }

    /// The peer may be at `endpoints` from now on, as if the configuration had named them. Does nothing
    /// if no peer has this key.
    pub fn set_endpoints(&self, peer: PublicKey, endpoints: &[SocketAddr]) {
        self.control.set_endpoints(peer, endpoints);
    }

    /// Looks for every peer at all addresses where it may be: it does not seem to be where it was.
    pub fn seek_peers(&self) {
        self.control.seek_peers();
    }

    /// Somebody else has our key, or soon has, and the peers are to be his: from now on time begins and renews
    /// no session here, and those that there are serve what is on its way. A peer that asks is answered,
    /// wherever it thinks we are.
    pub fn begin_no_sessions(&self) {
        self.shared.begins_sessions.store(false, Ordering::Relaxed);
    }

    /// Nobody has taken the peers over: sessions are begun and renewed again.
    pub fn begin_sessions(&self) {
        self.shared.begins_sessions.store(true, Ordering::Relaxed);
    }

    /// The device has this MTU in bytes from now on: what packets are checked against, and contents padded up to.
    pub fn set_device_mtu(&self, bytes: u16) {
        self.shared.mtu_bytes.store(bytes, Ordering::Relaxed);
        self.surroundings.mtu.store(bytes, Ordering::Relaxed);
    }

    /// The way to `peer` carries inner packets of up to `mtu` bytes. Does nothing if no peer has this
    /// key.
    pub fn learn_path_mtu(&self, peer: PublicKey, mtu: u16) {
        if let Some(peer) = self.control.current().by_key(peer) {
            peer.learn_path_mtu(mtu);
        }
    }

    /// The route chooses the address that `peer` hears us from, until it is heard itself. Does nothing if
    /// no peer has this key.
    pub fn forget_local(&self, peer: PublicKey) {
        if let Some(peer) = self.control.current().by_key(peer)
            && let Some(path) = peer.path()
        {
            peer.endpoints.forget_local(path);
        }
    }

    /// Gives staged packets until `deadline` to find a session, then ends the threads. The device goes with it.
    pub fn drain(mut self, deadline: Duration) {
        let monitor = self.monitor();
        let until = clock::now() + deadline;
        while monitor.status().staged_packets > 0 && clock::now() < until {
            std::thread::sleep(DRAIN_POLL);
        }

        self.stop();
    }

    /// A handle that reads the state for metrics; cheap to clone, never in the way of a packet.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor {
            shared: Arc::clone(&self.shared),
            forwarding: self.forwarding.clone(),
            has_lanes: self.engine == strait_wg::Engine::Native
                && self.surroundings.lanes.is_some(),
        }
    }

    fn spawn(
        &self,
        name: &'static str,
        waker: Arc<Waker>,
        run: impl FnOnce(Arc<Shared>) + Send + 'static,
    ) -> Result<Thread, StartError> {
        let shared = Arc::clone(&self.shared);
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || run(shared))
            .map_err(|source| StartError::System { operation: "start a thread", source })?;

        Ok(Thread { handle, waker })
    }

    fn stop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let threads = [self.outbound.take(), self.inbound.take(), self.handshakes.take()];
        for thread in threads.into_iter().flatten() {
            // A thread that cannot be woken is not waited for.
            if thread.waker.wake().is_ok() {
                let _ = thread.handle.join();
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A number that nobody outside can foresee: the standard library seeds its hash maps with the
/// randomness of the system.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

fn wait_for<'a>(
    inputs: impl IntoIterator<Item = BorrowedFd<'a>>,
) -> Result<(Wait, Arc<Waker>), StartError> {
    let (wait, waker) = Wait::new(inputs)
        .map_err(|source| StartError::System { operation: "wait for packets", source })?;

    Ok((wait, Arc::new(waker)))
}

/// Why a gateway could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum StartError {
    /// There is no `/dev/net/tun`, or it may not be opened.
    #[error("cannot open /dev/net/tun: load the tun module, or give the container the device")]
    NoTun {
        #[source]
        source: std::io::Error,
    },
    /// The device exists or may not be created.
    #[error(
        "cannot create TUN device {interface:?}: run with CAP_NET_ADMIN, and use a name no other interface has"
    )]
    Device {
        interface: String,
        #[source]
        source: std::io::Error,
    },
    /// The port is taken.
    #[error(
        "cannot listen on UDP port {port}: another process uses it, choose another listen_port"
    )]
    Port {
        port: u16,
        #[source]
        source: std::io::Error,
    },
    /// So many flows cannot be remembered.
    #[error("cannot remember flows: choose another max_flows")]
    Flows {
        #[from]
        source: masquerade::LimitsError,
    },
    /// Another system call failed.
    #[error("cannot {operation}")]
    System {
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
}
