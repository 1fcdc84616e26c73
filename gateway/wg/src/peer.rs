//! One peer: its protocol state, and what was learned about it.
//!
//! A `Peer` outlives generations of the configuration. Applying one never changes its endpoint, session or counters;
//! if the keys change, the old session stays until there is a new one.

use std::mem;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::endpoints::EndpointEvents;
use super::path_mtu::{PathMtu, SharedPathMtu};
use super::tunnel::{PeerKeys, TimerPolicy};
use super::{Endpoints, KeyRotation};
use strait_packet::counters::Counter;
use strait_packet::path::Path;

/// Bytes and packets of one direction. Bytes are those of UDP payloads, as the kernel counts them for `wg show`:
/// handshakes and keepalives too, but no cookie replies.
#[derive(Debug, Default)]
pub struct Traffic {
    /// UDP payload bytes.
    pub bytes: Counter,
    /// Inner packets.
    pub packets: Counter,
}

/// The most answers to probes that are kept.
const MAX_ANSWERED_PROBES: usize = 64;

/// One peer.
#[derive(Debug)]
pub struct Peer {
    /// The keys in the configuration.
    pub keys: PeerKeys,
    /// The number of its address realm in the flow table. Never reused for another peer.
    pub realm: u32,
    /// Its protocol state, for these keys and the previous ones.
    pub tunnel: KeyRotation,
    /// Received from the peer: authentic datagrams only.
    pub receive: Arc<Traffic>,
    /// Sent to the peer.
    pub transmit: Arc<Traffic>,
    /// Datagrams for its sessions with a wrong tag: damaged on the path, or forged.
    pub damaged: Arc<Counter>,
    /// Its endpoint, and the candidates for it.
    pub endpoints: Arc<Endpoints>,
    /// In bytes; 0 is unknown.
    device_mtu: AtomicU16,
    path_mtu: Arc<SharedPathMtu>,
    /// The lengths of probes that were answered, in bytes.
    answered_probes: Arc<Mutex<Vec<u16>>>,
    keepalive: Arc<Keepalive>,
}

/// The persistent keepalive of a peer.
#[derive(Debug, Default)]
struct Keepalive {
    /// 0 is off.
    seconds: AtomicU16,
    /// One is sent at the next timeout.
    is_requested: AtomicBool,
}

impl Peer {
    /// A peer without a session or an endpoint. Its changes are counted in `events`.
    #[must_use]
    pub fn new(
        keys: PeerKeys,
        realm: u32,
        tunnel: KeyRotation,
        events: Arc<EndpointEvents>,
    ) -> Self {
        Self {
            keys,
            realm,
            tunnel,
            receive: Arc::default(),
            transmit: Arc::default(),
            damaged: Arc::default(),
            endpoints: Arc::new(Endpoints::new(events)),
            device_mtu: AtomicU16::new(0),
            path_mtu: Arc::default(),
            answered_probes: Arc::default(),
            keepalive: Arc::default(),
        }
    }

    /// The same peer with other keys, or other tunnels for them. Both values share what is learned: a thread that
    /// still uses the old one updates both.
    #[must_use]
    pub fn with_tunnel(&self, keys: PeerKeys, tunnel: KeyRotation) -> Self {
        Self {
            keys,
            realm: self.realm,
            tunnel: tunnel.with_last_handshake_of(&self.tunnel),
            receive: Arc::clone(&self.receive),
            transmit: Arc::clone(&self.transmit),
            damaged: Arc::clone(&self.damaged),
            endpoints: Arc::clone(&self.endpoints),
            device_mtu: AtomicU16::new(self.device_mtu.load(Ordering::Relaxed)),
            path_mtu: Arc::clone(&self.path_mtu),
            answered_probes: Arc::clone(&self.answered_probes),
            keepalive: Arc::clone(&self.keepalive),
        }
    }

    /// The path to send by: remote and local address.
    #[must_use]
    #[inline]
    pub fn path(&self) -> Option<Path> {
        self.endpoints.in_use()
    }

    /// The endpoint: where datagrams to the peer go.
    #[must_use]
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.path().map(|path| path.remote)
    }

    /// Sends by `path` from now on. Call it only with the path of an authentic datagram (roaming), or with a
    /// configured endpoint.
    #[inline]
    pub fn learn_path(&self, path: Path) {
        self.endpoints.learn(path);
    }

    /// Sets the persistent keepalive to `interval`, in seconds. If there was none, the first is sent at the next
    /// timeout.
    pub fn set_persistent_keepalive(&self, interval: Option<NonZeroU16>) {
        let seconds = interval.map_or(0, NonZeroU16::get);
        if self.keepalive.seconds.swap(seconds, Ordering::Relaxed) == 0 && seconds > 0 {
            self.request_keepalive();
        }
    }

    /// Sends a keepalive at the next timeout, if the peer has a persistent keepalive.
    pub fn request_keepalive(&self) {
        self.keepalive.is_requested.store(true, Ordering::Relaxed);
    }

    /// What the tunnel may send by `path` at this timeout.
    #[must_use]
    pub fn timer_policy(&self, path: Option<Path>) -> TimerPolicy {
        let Keepalive { seconds, is_requested } = &*self.keepalive;
        let seconds = seconds.load(Ordering::Relaxed);
        let is_requested = path.is_some() && is_requested.swap(false, Ordering::Relaxed);
        let interval = Duration::from_secs(if is_requested { 0 } else { seconds.into() });

        let persistent_keepalive = Some(interval).filter(|_| seconds > 0);
        TimerPolicy { path, persistent_keepalive, may_initiate: true }
    }

    /// Whether a timeout has nothing to do for the peer, and no handshake is requested. See
    /// [`Tunnel::is_dormant`](super::tunnel::Tunnel::is_dormant).
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.keepalive.seconds.load(Ordering::Relaxed) == 0
            && !self.endpoints.is_handshake_requested()
            && self.tunnel.is_dormant()
    }

    /// The MTU to clamp the MSS of TCP to, in bytes; `None` if the MSS is not clamped.
    #[must_use]
    #[inline]
    pub fn clamp_mtu(&self) -> Option<u16> {
        let device = self.device_mtu.load(Ordering::Relaxed);
        let path = self.path_mtu.bytes();

        match (device, path) {
            (0, _) => None,
            (device, 0) => Some(device),
            (device, path) => Some(device.min(path)),
        }
    }

    /// Clamps the MSS of TCP to `mtu` bytes, or to the path MTU if that is less; `None` switches it off.
    pub fn set_clamp_mtu(&self, mtu: Option<u16>) {
        self.device_mtu.store(mtu.unwrap_or(0), Ordering::Relaxed);
    }

    /// The path MTU: the largest inner packet in bytes; `None` until it is known.
    #[must_use]
    pub fn path_mtu_bytes(&self) -> Option<u16> {
        match self.path_mtu.bytes() {
            0 => None,
            bytes => Some(bytes),
        }
    }

    /// The path MTU with its source; `None` until it is known.
    #[must_use]
    pub fn path_mtu(&self) -> Option<PathMtu> {
        self.path_mtu.get()
    }

    /// Sets the path MTU.
    pub fn learn_path_mtu(&self, path_mtu: PathMtu) {
        self.path_mtu.set(path_mtu);
    }

    /// Notes that a probe of `bytes` was answered, unless too many answers wait already.
    pub fn add_answered_probe(&self, bytes: u16) {
        let mut answered = self.answered_probes.lock();
        if answered.len() < MAX_ANSWERED_PROBES {
            answered.push(bytes);
        }
    }

    /// The lengths of the probes in bytes that were answered since the last call.
    pub fn take_answered_probes(&self) -> Vec<u16> {
        mem::take(&mut self.answered_probes.lock())
    }
}
