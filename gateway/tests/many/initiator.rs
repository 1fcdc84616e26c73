//! A peer that is nothing but an initiation.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strait_packet::buffer::TransmitBatch;
use strait_wg::Engine;
use strait_wg::PrivateKey;
use strait_wg::PublicKey;
use strait_wg::Slot;
use strait_wg::native::{Epoch, Surroundings};
use strait_wg::tunnel::PeerKeys;

/// What the owner of `key` sends to begin a handshake with the owner of `responder`.
pub(crate) fn initiation(key: &PrivateKey, responder: PublicKey, now: Instant) -> Vec<u8> {
    let keys = PeerKeys { public_key: responder, preshared_key: None };
    let tunnel = Engine::Native.identity(key, &surroundings(now)).tunnel(&keys, Slot::from(1));
    let mut out = TransmitBatch::with_capacity(1024);
    tunnel.initiate(SocketAddr::from(([192, 0, 2, 1], 1)).into(), &mut out, now);
    let message = out.datagrams_behind(0).next().map(|(message, _)| message.to_vec());

    message.unwrap()
}

/// The same day for all.
pub(crate) fn surroundings(now: Instant) -> Surroundings {
    Surroundings::new(Epoch::new(now, Duration::from_secs(1_700_000_000)), 1420)
}
