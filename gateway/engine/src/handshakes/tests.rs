use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use remap::{Cluster, Table};

use super::timer_scan::HANDSHAKES_PER_SCAN;
use super::*;
use crate::{Engine, PeerConfig, Settings};
use strait_packet::ecn::Ecn;
use strait_packet::path::LocalPort;
use strait_wg::initiation_copies::COPY_INTERVAL;
use strait_wg::key_rotation::GRACE;
use strait_wg::native::Environment;
use strait_wg::tunnel::{Identity, PeerKeys};
use strait_wg::{IndexSlot, PresharedKey, PrivateKey};

const TICK: Duration = Duration::from_millis(100);

#[test]
fn first_handshakes_are_spread_over_scans() {
    for keepalive in [None, Some(25)] {
        let mut hub = Hub::new(5 * HANDSHAKES_PER_SCAN, keepalive);

        for turn in 1..=5 {
            let targets = hub.tick(TICK);
            assert_eq!(targets.len(), HANDSHAKES_PER_SCAN, "{keepalive:?}, {turn}");
        }

        assert_eq!(hub.initiations.len(), 5 * HANDSHAKES_PER_SCAN, "each of them");
        assert_eq!(hub.tick(TICK), [], "no retry is due yet");
    }
}

#[test]
fn unreachable_peers_are_retried_equally_often() {
    let mut hub = Hub::new(5 * HANDSHAKES_PER_SCAN, Some(25));

    // Retries of all are due every five seconds, which is twice the limit.
    for _ in 0..40 {
        assert_eq!(hub.tick(Duration::from_secs(2)).len(), HANDSHAKES_PER_SCAN);
    }

    assert!(hub.initiations.values().all(|count| *count == 8), "{:?}", hub.initiations);
}

#[test]
fn unanswered_initiations_alternate_between_ports() {
    for candidates in [1, 2] {
        let mut hub = Hub::new(0, Some(25));
        hub.candidates = candidates;
        hub.apply(1, 1);
        let mut runs: Vec<(LocalPort, Duration)> = Vec::new();
        let start = hub.now;

        while runs.len() < 4 {
            for path in hub.initiation_paths(TICK) {
                if runs.last().is_none_or(|(port, _)| *port != path.port) {
                    runs.push((path.port, hub.now - start));
                }
            }
        }

        let [listen, spare] = [LocalPort::Listen, LocalPort::Spare];
        assert_eq!([0, 1, 2, 3].map(|run| runs[run].0), [listen, spare, listen, spare]);
        for run in 1..3 {
            let lasted = runs[run + 1].1 - runs[run].1;
            assert!(lasted >= Duration::from_secs(120), "{runs:?}");
            assert!(lasted <= Duration::from_secs(240), "{runs:?}");
        }
    }
}

#[test]
fn sought_peer_gets_initiation_in_next_scan() {
    let mut hub = Hub::new(8, None);
    hub.initiations_within(Duration::from_secs(200));
    let forwarding = hub.engine.control.current();

    for peer in forwarding.peers() {
        hub.initiations_within(Duration::from_secs(200));
        peer.endpoints.request_candidate_handshakes();
        assert_eq!(hub.tick(TICK).len(), 1);
    }
}

#[test]
fn spare_port_in_use_is_kept_for_handshakes() {
    let mut hub = Hub::new(1, None);
    let forwarding = hub.engine.control.current();
    let endpoints = &forwarding.peers()[0].endpoints;
    let heard = Path { port: LocalPort::Spare, ..endpoints.in_use().unwrap() };
    endpoints.learn(heard);
    endpoints.request_handshake();

    assert_eq!(hub.initiation_paths(TICK)[0].port, LocalPort::Spare);
}

#[test]
fn spare_port_session_is_renewed_from_listen_port() {
    let mut hub = Hub::new(0, Some(25));
    let peer = identity(hub.now);
    hub.connect(&peer, LocalPort::Spare);

    let mut sent = Vec::new();
    while sent.len() < 2 {
        for (datagram, path) in hub.sent(TICK) {
            match Message::classify(&datagram) {
                Some(Message::Initiation) => sent.push(path.port),
                _ => assert_eq!(path.port, LocalPort::Spare, "data of the session"),
            }
        }
    }

    assert_eq!(sent, [LocalPort::Listen, LocalPort::Spare], "the retry");
}

#[test]
fn new_generation_initiates_to_new_peers_only() {
    let mut hub = Hub::new(2 * HANDSHAKES_PER_SCAN, None);
    for _ in 0..2 {
        hub.tick(TICK);
    }

    hub.apply(2 * HANDSHAKES_PER_SCAN + 1, 2);

    assert_eq!(hub.tick(TICK).len(), 1);
}

/// As with the kernel: new keys take effect with the next packet.
#[test]
fn key_change_starts_no_handshake_with_idle_peers() {
    let mut hub = Hub::new(0, None);
    // As in a device: peers have one endpoint, and no first handshake.
    hub.candidates = 0;
    hub.apply(3, 0);
    let control = &hub.engine.control;
    for (peer, at) in control.current().peers().iter().zip(1..) {
        control.move_peer(peer.keys.public_key, ([192, 0, 2, at], 51840).into());
    }
    assert_eq!(hub.initiations_within(GRACE), 0);

    for key in [Some([1; 32]), Some([2; 32]), None] {
        hub.preshared_key = key.map(|key| PresharedKey::from_bytes(&key).unwrap());
        hub.apply(3, 0);
        assert_eq!(hub.initiations_within(GRACE / 2), 0, "{key:?}");
    }
    hub.engine.control.rotate_key(&identity(hub.now));
    assert_eq!(hub.initiations_within(GRACE), 0, "with a new key of ours");

    hub.keepalive = Some(25);
    hub.apply(3, 0);
    assert!(hub.initiations_within(GRACE) > 0, "persistent keepalives start a handshake");
    hub.keepalive = None;
    hub.apply(3, 0);
    // As with the kernel, a started handshake is retried until it times out.
    hub.initiations_within(Duration::from_secs(95));
    assert_eq!(hub.initiations_within(2 * GRACE), 0, "without persistent keepalives");
}

#[test]
fn data_of_a_former_process_starts_a_handshake() {
    let [source, other] = [4000, 4001].map(|port| SocketAddr::from(([203, 0, 113, 9], port)));

    // Of a slot that this process has, and of one that it does not have.
    for (slot, session) in [(0, 9), (200, 0)] {
        let mut hub = Hub::new(0, None);
        hub.candidates = 0;
        hub.apply(1, 1);
        for guess in 0..10_000_u32 {
            hub.receive_data(guess.wrapping_mul(0x9e37_79b9), source);
        }
        assert_eq!(hub.tick(TICK), [], "guessed indices");

        let index = IndexSlot::new(slot, ReceiverIndices::secret(hub.index_seed)).index(session);
        hub.receive_data(index, source);
        assert_eq!(hub.tick(TICK), [source]);
        for from in [source, other] {
            hub.receive_data(index, from);
            assert_eq!(hub.tick(TICK), [], "initiations keep their interval");
        }
    }
}

#[test]
fn data_of_a_former_process_repeats_the_initiation() {
    let source = SocketAddr::from(([203, 0, 113, 9], 4000));
    let mut hub = Hub::new(1, None);
    let first = hub.sent(TICK);
    assert_eq!(first.len(), 1);
    let index = IndexSlot::new(0, ReceiverIndices::secret(hub.index_seed)).index(9);

    hub.receive_data(index, source);
    let copy = hub.sent(TICK);
    assert_eq!(copy, [(first[0].0.clone(), source.into())]);
    hub.receive_data(index, source);
    assert_eq!(hub.sent(TICK), [], "one for each source");
}

#[test]
fn data_of_a_former_process_leaves_sessions_alone() {
    let mut hub = Hub::new(0, None);
    let peer = identity(hub.now);
    let path = hub.connect(&peer, LocalPort::Listen);

    let former = ReceiverIndices::secret(hub.index_seed);
    for slot in [0, 200] {
        hub.receive_data(IndexSlot::new(slot, former).index(9), path.remote);
        hub.now += Duration::from_secs(1);
    }

    let sent = hub.sent(TICK);
    let initiations = sent
        .iter()
        .filter(|(datagram, _)| Message::classify(datagram) == Some(Message::Initiation));
    assert_eq!(initiations.count(), 0);
}

#[test]
fn all_directly_received_datagrams_are_counted() {
    let mut hub = Hub::new(0, None);
    let mut out = TransmitBatch::default();
    let path = SocketAddr::from(([192, 0, 2, 1], 51840)).into();
    let kinds = [(1, 148), (2, 92), (3, 64), (4, 64), (9, 64)];
    for (kind, len) in kinds {
        let mut bytes = vec![0; len + 1];
        bytes[0] = kind;
        let received = Received { bytes: &bytes, stride: len, path, ecn: Ecn::NotEct };
        hub.engine.handshakes.handle_datagrams(received, hub.now, &mut out);
    }

    hub.engine.handshakes.handle_lost(7);

    let account = hub.engine.control.accounts().inbound.snapshot();
    assert_eq!(account.packets_in, 2 * 5 + 7);
    assert_eq!(account.bytes_in, 148 + 92 + 64 * 3 + 5);
    // The extra byte after each, the data message, and the unknown type.
    assert_eq!(account.drops(DropReason::Malformed), 5 + 2);
    assert_eq!(account.drops(DropReason::HandshakeQueueFull), 7);
    assert_eq!(account.balance(), 0);
}

/// A gateway whose peers are unreachable, each at an address of its own.
struct Hub {
    engine: Engine,
    keepalive: Option<u16>,
    preshared_key: Option<PresharedKey>,
    /// Endpoints of each peer.
    candidates: usize,
    now: Instant,
    index_seed: u64,
    /// How many initiations were sent to each.
    initiations: BTreeMap<SocketAddr, usize>,
}

impl Hub {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
    fn new(peers: usize, keepalive: Option<u16>) -> Self {
        let now = Instant::now();
        let index_seed = 7;
        let settings = Settings { max_flows: 1024, seed: 7, index_seed, start: now };
        let engine = Engine::new(identity(now), settings).unwrap();
        let mut hub = Self {
            engine,
            keepalive,
            preshared_key: None,
            candidates: 1,
            now,
            index_seed,
            initiations: BTreeMap::new(),
        };
        hub.apply(peers, 1);

        hub
    }

    fn apply(&mut self, peers: usize, generation: u64) {
        let peers = (0..u32::try_from(peers).unwrap()).map(|number| self.peer(number));
        let table = Table::build(generation, &Cluster::default(), []).0;
        let peers = peers.collect();

        self.engine.control.apply(peers, table);
    }

    fn peer(&self, number: u32) -> PeerConfig {
        let mut key = [0x55; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());

        PeerConfig {
            name: number.to_string(),
            keys: PeerKeys {
                public_key: PublicKey::from_bytes(key),
                preshared_key: self.preshared_key.clone(),
            },
            endpoints: vec![(number.to_be_bytes(), 51840).into(); self.candidates],
            allowed_ips: Arc::default(),
            clamp_mtu: None,
            persistent_keepalive: self.keepalive.and_then(NonZeroU16::new),
        }
    }

    /// Establishes a session with `peer` in place of all peers. Its response arrives at `port`.
    fn connect(&mut self, peer: &Arc<dyn Identity>, port: LocalPort) -> Path {
        let own = self.engine.control.keyring.keys().current.identity.public_key();
        let keys = PeerKeys { public_key: own, preshared_key: None };
        let tunnel = peer.tunnel(&keys, IndexSlot::from(1));
        let keys = PeerKeys { public_key: peer.public_key(), preshared_key: None };
        let config = PeerConfig { keys, ..self.peer(0) };
        self.engine.control.apply(vec![config], Table::build(1, &Cluster::default(), []).0);
        let (initiation, sent_by) = self.sent(TICK).remove(0);
        let mut answer = TransmitBatch::default();
        tunnel.handle_handshake(&initiation, sent_by, &mut answer, self.now).unwrap();
        let response = answer.datagrams_behind(0).next().unwrap().0;
        let path = Path { port, ..sent_by };
        let received = Received { bytes: response, stride: response.len(), path, ecn: Ecn::NotEct };
        self.engine.handshakes.handle_datagrams(received, self.now, &mut TransmitBatch::default());

        path
    }

    /// A transport data message that no session can open arrives.
    fn receive_data(&mut self, index: u32, source: SocketAddr) {
        let mut message = [0; 32];
        message[0] = 4;
        message[4..8].copy_from_slice(&index.to_le_bytes());
        let received =
            Received { bytes: &message, stride: 32, path: source.into(), ecn: Ecn::NotEct };
        let out = &mut TransmitBatch::default();

        self.engine.inbound.handle_datagrams(received, self.now, out, |_, _| false);
    }

    /// Advances time in ticks. Returns how many initiations were sent.
    fn initiations_within(&mut self, duration: Duration) -> usize {
        let ticks = duration.as_millis() / TICK.as_millis();

        (0..ticks).map(|_| self.tick(TICK).len()).sum()
    }

    /// Advances time. Returns the endpoints that initiations were sent to.
    fn tick(&mut self, by: Duration) -> Vec<SocketAddr> {
        let targets: Vec<_> = self.initiation_paths(by).iter().map(|path| path.remote).collect();
        for peer in &targets {
            *self.initiations.entry(*peer).or_default() += 1;
        }

        targets
    }

    /// Advances time. Returns the paths of the initiations that were sent.
    fn initiation_paths(&mut self, by: Duration) -> Vec<Path> {
        self.sent(by).into_iter().map(|(_, path)| path).collect()
    }

    /// Advances time. Returns what was sent until the first copy of each initiation, and by which path.
    fn sent(&mut self, by: Duration) -> Vec<(Vec<u8>, Path)> {
        self.now += by;
        let mut sent = Vec::new();
        let mut collect = |out: &mut TransmitBatch| {
            let datagrams = out.datagrams_behind(0);
            sent.extend(datagrams.map(|(datagram, path)| (datagram.to_vec(), path)));
            out.clear();
        };
        let mut out = TransmitBatch::default();
        let mut scan = self.engine.handshakes.handle_timeout(self.now);
        while scan.fill(&mut out) {
            collect(&mut out);
        }
        collect(&mut out);
        let copies_due = self.now + COPY_INTERVAL;
        while self.engine.handshakes.send_copies(copies_due, &mut out) {
            collect(&mut out);
        }
        collect(&mut out);

        sent
    }
}

fn identity(now: Instant) -> Arc<dyn Identity> {
    let epoch = Epoch::new(now, Duration::from_secs(1_700_000_000));

    strait_wg::Engine::Native.identity(&PrivateKey::generate(), &Environment::new(epoch, 1420))
}
