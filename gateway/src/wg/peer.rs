//! One peer: its protocol state, and what was learned about it.
//!
//! A `Peer` outlives generations. Applying a configuration never touches its endpoint, session or
//! counters; if the keys themselves change, the session alone begins anew.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::tunnel::{PeerKeys, Tunnel};
use crate::counters::Counter;

/// Bytes and packets of one direction. Bytes are those of UDP payloads, as `wg show` counts them.
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
    /// What the tunnel was made from.
    pub keys: PeerKeys,
    /// Its place in receiver indices.
    pub slot: u32,
    /// Its protocol state.
    pub tunnel: Box<dyn Tunnel>,
    /// Received from the peer: authentic datagrams only.
    pub receive: Traffic,
    /// Sent to the peer.
    pub transmit: Traffic,
    endpoint: ArcSwapOption<SocketAddr>,
}

impl Peer {
    /// A peer nothing is known about yet.
    #[must_use]
    pub fn new(keys: PeerKeys, slot: u32, tunnel: Box<dyn Tunnel>) -> Self {
        Self {
            keys,
            slot,
            tunnel,
            receive: Traffic::default(),
            transmit: Traffic::default(),
            endpoint: ArcSwapOption::empty(),
        }
    }

    /// The same peer with other keys of its own: a new session, but what was learned stays.
    #[must_use]
    pub fn succeed(self, before: &Self) -> Self {
        for (new, old) in [(&self.receive, &before.receive), (&self.transmit, &before.transmit)] {
            new.bytes.add(old.bytes.get());
            new.packets.add(old.packets.get());
        }
        if let Some(endpoint) = before.endpoint() {
            self.set_endpoint(endpoint);
        }

        self
    }

    /// Where to send to.
    #[must_use]
    #[inline]
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint.load().as_deref().copied()
    }

    /// Sends to `endpoint` from now on. Reached only with an authenticated source (roaming), or from
    /// a configuration that names a new one.
    #[inline]
    pub fn set_endpoint(&self, endpoint: SocketAddr) {
        if self.endpoint() != Some(endpoint) {
            self.endpoint.store(Some(Arc::new(endpoint)));
        }
    }
}
