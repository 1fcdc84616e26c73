//! What the engine keeps for a peer, counted by the allocator: little while nothing happens, more with a
//! session, and as little as before when the session has ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remap::Table;
use strait_engine::Engine;
use strait_engine::PeerConfig;
use strait_lab::initiator::{environment, initiation};
use strait_packet::buffer::TransmitBatch;
use strait_wg::PrivateKey;
use strait_wg::tunnel::PeerKeys;

use crate::Count;

const PEERS: usize = 500;

/// Of a peer without a session, in bytes. Half of it is keys and what follows from them, and cache lines
/// that two threads must not share.
const IDLE_BYTES: usize = 3072;

/// Initiations of one burst: a gateway under load would ask for cookies.
const BURST: usize = 100;

#[test]
fn a_peer_frees_the_memory_of_its_session() {
    let _count = Count::start();
    let mut now = start();
    let keys: Vec<_> = (0..PEERS).map(|_| PrivateKey::generate()).collect();
    let own = PrivateKey::generate();
    let mut out = TransmitBatch::default();
    let messages: Vec<_> = keys.iter().map(|key| initiation(key, own.public_key(), now)).collect();

    let mut hub = engine(&own, now);
    let empty = bytes();
    hub.control.apply(keys.iter().map(peer).collect(), Table::default());
    tick(&mut hub, now, &mut out);
    let idle = bytes() - empty;
    for burst in messages.chunks(BURST) {
        now += Duration::from_secs(1);
        tick(&mut hub, now, &mut out);
        for message in burst {
            hub.handshakes.handle_message(message, source().into(), now, &mut out);
        }
        out.clear();
    }
    let busy = bytes() - empty;
    for _ in 0..3 {
        now += Duration::from_secs(100);
        tick(&mut hub, now, &mut out);
    }
    let after = bytes() - empty;

    let [idle, busy, after] = [idle, busy, after].map(|bytes| bytes / PEERS);
    eprintln!("bytes of one peer: {idle} idle, {busy} with a session, {after} when it has ended");
    dhat::assert!(idle <= IDLE_BYTES, "{idle}");
    dhat::assert!(busy >= idle + 1024, "there is no session in {busy} bytes");
    // Where it was heard is remembered.
    dhat::assert!(after <= idle + 128, "{after}");
}

fn engine(own: &PrivateKey, now: Instant) -> Engine {
    let identity: Arc<_> = strait_wg::Engine::Native.identity(own, &environment(now));

    Engine::new(
        identity,
        strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start: now },
    )
    .unwrap()
}

fn peer(key: &PrivateKey) -> PeerConfig {
    PeerConfig {
        name: "a peer of a hub".to_owned(),
        keys: PeerKeys { public_key: key.public_key(), preshared_key: None },
        endpoints: Vec::new(),
        allowed_ips: Arc::default(),
        clamp_mtu: None,
        persistent_keepalive: None,
    }
}

fn tick(hub: &mut Engine, now: Instant, out: &mut TransmitBatch) {
    let mut scan = hub.handshakes.handle_timeout(now);
    while scan.fill(out) {
        out.clear();
    }
    out.clear();
}

fn source() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 51840))
}

fn bytes() -> usize {
    dhat::HeapStats::get().curr_bytes
}

#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
fn start() -> Instant {
    Instant::now()
}
