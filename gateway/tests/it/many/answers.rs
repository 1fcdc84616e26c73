//! How many handshakes one core answers, and how many it could if there were nothing but the curve.

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use remap::Table;
use strait_engine::PeerConfig;
use strait_lab::initiator::{environment, initiation};
use strait_lab::now as clock;
use strait_lab::thread_time;
use strait_packet::buffer::TransmitBatch;
use strait_wg::Engine;
use strait_wg::PrivateKey;
use strait_wg::message::RESPONSE_BYTES;
use strait_wg::tunnel::PeerKeys;
use x25519_dalek::{PublicKey, StaticSecret};

use crate::many::hub::other_key;

/// Handshakes between two looks at the clock, and far enough apart that the gateway is not under load:
/// it would rightly answer fewer.
const BURST: usize = 50;
const BURST_INTERVAL: Duration = Duration::from_secs(1);

/// Both per second of one core.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) answered: f64,
    pub(crate) curve: f64,
}

/// Has a gateway with `count` peers answer an initiation of each, in bursts, each beside the same number of
/// multiplications. The best of either counts: what else the machine does makes nothing faster.
pub(crate) fn measure(count: usize) -> Figures {
    let mut now = clock();
    let own = PrivateKey::generate();
    let keys: Vec<_> = (0..count).map(|_| PrivateKey::generate()).collect();
    let messages: Vec<_> = keys.iter().map(|key| initiation(key, own.public_key(), now)).collect();
    let identity = Engine::Native.identity(&own, &environment(now));
    let settings = strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start: now };
    let mut hub = strait_engine::Engine::new(identity, settings).unwrap();
    hub.control.apply(keys.iter().map(|key| peer(key.public_key())).collect(), Table::default());
    let curve = Curve::new();
    let mut out = TransmitBatch::default();
    let (mut answers, mut multiplications) = (Vec::new(), Vec::new());

    for burst in messages.chunks(BURST) {
        now += BURST_INTERVAL;
        let mut scan = hub.handshakes.handle_timeout(now);
        while scan.fill(&mut out) {
            out.clear();
        }
        out.clear();
        let start = clock();
        for (number, message) in (0_u16..).zip(burst) {
            let source = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 1024 + number);
            hub.handshakes.handle_message(message, source.into(), now, &mut out);
        }
        answers.push(per_second(burst.len(), start));
        let answered = out.datagrams_behind(0).filter(|(bytes, _)| bytes.len() == RESPONSE_BYTES);
        assert_eq!(answered.count(), burst.len(), "all are answered");

        let start = clock();
        for _ in burst {
            curve.respond();
        }
        multiplications.push(per_second(burst.len(), start));
    }

    Figures { answered: best(&answers), curve: best(&multiplications) }
}

/// How long a core takes to apply `count` peers that are there already, half of them under other names. The
/// shortest of a few times.
pub(crate) fn apply_again(count: u32) -> Duration {
    let now = clock();
    let identity = Engine::Boringtun.identity(&PrivateKey::generate(), &environment(now));
    let settings = strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start: now };
    let mut hub = strait_engine::Engine::new(identity, settings).unwrap();
    let peers = |epithet: &str| {
        let named = |number| PeerConfig {
            name: format!("{} {number}", if number % 2 == 0 { "peer" } else { epithet }),
            ..peer(other_key(number))
        };
        (0..count).map(named).collect::<Vec<_>>()
    };
    hub.control.apply(peers("one"), Table::default());
    let times = ["two", "three", "four"].map(|epithet| {
        let others = peers(epithet);
        let before = thread_time().unwrap();
        hub.control.apply(others, Table::default());
        thread_time().unwrap() - before
    });

    times.into_iter().min().unwrap()
}

/// What the responder of a handshake multiplies, and nothing else: whitepaper, section 5.4.2 (reading the
/// initiation: one, as the one with both static keys is known beforehand) and 5.4.3 (the ephemeral key, and two).
struct Curve {
    own: StaticSecret,
    points: [PublicKey; 2],
}

impl Curve {
    fn new() -> Self {
        let secret = |byte| StaticSecret::from([byte; 32]);

        Self { own: secret(1), points: [2, 3].map(|byte| PublicKey::from(&secret(byte))) }
    }

    fn respond(&self) {
        let [ephemeral, peer] = black_box(&self.points);
        black_box(self.own.diffie_hellman(ephemeral));
        let fresh = black_box(StaticSecret::from([4; 32]));
        black_box(PublicKey::from(&fresh));
        black_box(fresh.diffie_hellman(ephemeral));
        black_box(fresh.diffie_hellman(peer));
    }
}

fn peer(key: strait_wg::PublicKey) -> PeerConfig {
    PeerConfig {
        name: key.to_string(),
        keys: PeerKeys { public_key: key, preshared_key: None },
        endpoints: Vec::new(),
        allowed_ips: Arc::default(),
        clamp_mtu: None,
        persistent_keepalive: None,
    }
}

fn per_second(count: usize, start: Instant) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / start.elapsed().as_secs_f64()
}

fn best(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}
