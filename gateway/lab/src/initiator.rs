//! A peer that sends one handshake initiation.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strait_packet::buffer::TransmitBatch;
use strait_wg::native::Environment;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{Engine, Epoch, IndexSlot, PrivateKey, PublicKey};

/// The handshake initiation that the owner of `key` sends to the owner of `responder`.
#[must_use]
pub fn initiation(key: &PrivateKey, responder: PublicKey, now: Instant) -> Vec<u8> {
    let keys = PeerKeys { public_key: responder, preshared_key: None };
    let tunnel = Engine::Native.identity(key, &environment(now)).tunnel(&keys, IndexSlot::from(1));
    let mut out = TransmitBatch::with_capacity(1024);
    tunnel.initiate(SocketAddr::from(([192, 0, 2, 1], 1)).into(), &mut out, now);

    out.datagrams_behind(0).next().map(|(message, _)| message.to_vec()).unwrap_or_default()
}

/// An environment whose wall clock shows the same time at each `now`.
#[must_use]
pub fn environment(now: Instant) -> Environment {
    Environment::new(Epoch::new(now, Duration::from_secs(1_700_000_000)), 1420)
}
