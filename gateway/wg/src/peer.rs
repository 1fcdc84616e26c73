//! One peer: its protocol state, and what was learned about it.
//!
//! A `Peer` outlives generations. Applying a configuration never touches its endpoint, session or
//! counters; if the keys themselves change, the session before stays until there is a new one.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use super::Endpoints;
use super::Succession;
use super::endpoints::Moves;
use super::tunnel::{PeerKeys, Upkeep};
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

/// One peer.
#[derive(Debug)]
pub struct Peer {
    /// The keys it is to have.
    pub keys: PeerKeys,
    /// Its address realm, as the memory of flows knows it. Never given to another peer.
    pub realm: u32,
    /// Its protocol state, for these keys and those before.
    pub tunnel: Succession,
    /// Received from the peer: authentic datagrams only.
    pub receive: Arc<Traffic>,
    /// Sent to the peer.
    pub transmit: Arc<Traffic>,
    /// Where it may be and where it is.
    pub endpoints: Arc<Endpoints>,
    /// In bytes; 0 is unknown.
    device_mtu: AtomicU16,
    path_mtu: Arc<AtomicU16>,
    keepalive: Arc<Keepalive>,
}

/// The persistent keepalive of a peer.
#[derive(Debug, Default)]
struct Keepalive {
    /// 0 is off.
    seconds: AtomicU16,
    /// One is to be sent at once.
    is_owed: AtomicBool,
}

impl Peer {
    /// A peer nothing is known about yet, but that its `moves` are counted.
    #[must_use]
    pub fn new(keys: PeerKeys, realm: u32, tunnel: Succession, moves: Arc<Moves>) -> Self {
        Self {
            keys,
            realm,
            tunnel,
            receive: Arc::default(),
            transmit: Arc::default(),
            endpoints: Arc::new(Endpoints::new(moves)),
            device_mtu: AtomicU16::new(0),
            path_mtu: Arc::default(),
            keepalive: Arc::default(),
        }
    }

    /// The same peer with other keys, or other strands for them. They have in common what is known of it: a
    /// thread that has not seen the heir yet learns for both.
    #[must_use]
    pub fn heir(&self, keys: PeerKeys, tunnel: Succession) -> Self {
        Self {
            keys,
            realm: self.realm,
            tunnel: tunnel.after(&self.tunnel),
            receive: Arc::clone(&self.receive),
            transmit: Arc::clone(&self.transmit),
            endpoints: Arc::clone(&self.endpoints),
            device_mtu: AtomicU16::new(self.device_mtu.load(Ordering::Relaxed)),
            path_mtu: Arc::clone(&self.path_mtu),
            keepalive: Arc::clone(&self.keepalive),
        }
    }

    /// Where to send to, and from where.
    #[must_use]
    #[inline]
    pub fn path(&self) -> Option<Path> {
        self.endpoints.in_use()
    }

    /// Where to send to.
    #[must_use]
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.path().map(|path| path.remote)
    }

    /// Sends by `path` from now on. Reached only with one by which something authentic came (roaming), or
    /// to an endpoint that somebody with the right to configure names.
    #[inline]
    pub fn learn_path(&self, path: Path) {
        self.endpoints.learn(path);
    }

    /// Sends a keepalive whenever nothing has gone either way for `interval`, in seconds. If there was none before,
    /// the first is sent at once.
    pub fn set_persistent_keepalive(&self, interval: Option<NonZeroU16>) {
        let seconds = interval.map_or(0, NonZeroU16::get);
        if self.keepalive.seconds.swap(seconds, Ordering::Relaxed) == 0 && seconds > 0 {
            self.owe_keepalive();
        }
    }

    /// Has a keepalive sent at once, if the peer has a persistent keepalive.
    pub fn owe_keepalive(&self) {
        self.keepalive.is_owed.store(true, Ordering::Relaxed);
    }

    /// What the peer is owed as time passes, by `path`.
    #[must_use]
    pub fn upkeep(&self, path: Option<Path>) -> Upkeep {
        let Keepalive { seconds, is_owed } = &*self.keepalive;
        let seconds = seconds.load(Ordering::Relaxed);
        let is_owed = path.is_some() && is_owed.swap(false, Ordering::Relaxed);
        let interval = Duration::from_secs(if is_owed { 0 } else { seconds.into() });

        let persistent_keepalive = Some(interval).filter(|_| seconds > 0);
        Upkeep { path, persistent_keepalive, may_initiate: true }
    }

    /// Whether the passing of time has nothing to do for the peer, and it is not sought. See
    /// [`Tunnel::is_dormant`](super::tunnel::Tunnel::is_dormant).
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.keepalive.seconds.load(Ordering::Relaxed) == 0
            && !self.endpoints.is_sought()
            && self.tunnel.is_dormant()
    }

    /// The largest inner packet, in bytes, that TCP should be told of; `None` if it is to be told
    /// nothing.
    #[must_use]
    #[inline]
    pub fn clamp_mtu(&self) -> Option<u16> {
        let device = self.device_mtu.load(Ordering::Relaxed);
        let path = self.path_mtu.load(Ordering::Relaxed);

        match (device, path) {
            (0, _) => None,
            (device, 0) => Some(device),
            (device, path) => Some(device.min(path)),
        }
    }

    /// Tells TCP of packets of up to `mtu` bytes, or of none. The way to the peer may carry less:
    /// see [`Self::learn_path_mtu`].
    pub fn set_clamp_mtu(&self, mtu: Option<u16>) {
        self.device_mtu.store(mtu.unwrap_or(0), Ordering::Relaxed);
    }

    /// The largest inner packet, in bytes, that the way to the peer carries; `None` until it is known.
    #[must_use]
    pub fn path_mtu(&self) -> Option<u16> {
        match self.path_mtu.load(Ordering::Relaxed) {
            0 => None,
            bytes => Some(bytes),
        }
    }

    /// The way to the peer carries inner packets of up to `mtu` bytes.
    pub fn learn_path_mtu(&self, mtu: u16) {
        self.path_mtu.store(mtu, Ordering::Relaxed);
    }
}
