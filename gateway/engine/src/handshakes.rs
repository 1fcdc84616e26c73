//! Handshakes and timers, outside the packet path.

use std::iter::Chain;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use remap::Reader;
use remap::masquerade::Tick;

use super::idle_peers::IdlePeers;
use super::inbound::Received;
use super::keyring::Keyring;
use super::{Accounts, Flows, Forwarding, initiation_fanout};
use strait_packet::DropReason;
use strait_packet::buffer::TransmitBatch;
use strait_packet::counters::as_u64;
use strait_packet::path::Path;
use strait_wg::Epoch;
use strait_wg::endpoints::MAX_CANDIDATES;
use strait_wg::message::Message;
use strait_wg::tunnel::{EndpointUpdate, Identification};
use strait_wg::{Peer, PublicKey, ReceiverIndices};

/// The most bytes that one peer may append: a full-size staged packet.
const FULL_BELOW_BYTES: usize = 68 * 1024;

/// The most sends that one peer may append: all staged packets, and two initiations to every endpoint.
const SPARE_TRANSMITS: usize = 2 * (MAX_CANDIDATES + 1) + 256;

/// The most handshakes that one timer scan starts with peers that no packet waits for: two thousand a second, which
/// take about a tenth of a core for Curve25519. So a gateway that starts with thousands of peers, or whose peers are
/// all unreachable, sends no burst, and answers others in between.
const HANDSHAKES_PER_SCAN: usize = 200;

/// Answers handshakes and drives the timers of all peers. One thread owns it.
#[derive(Debug)]
pub struct Handshakes {
    forwarding: Reader<Forwarding>,
    indices: ReceiverIndices,
    flows: Arc<Flows>,
    keyring: Arc<Keyring>,
    accounts: Accounts,
    last_generation: u64,
    /// How many peers of the generation still get a first handshake, from `turn` on.
    initial_handshakes_left: usize,
    /// The index of the next peer to start a handshake with, as one scan may not reach all.
    turn: usize,
    idle_peers: IdlePeers,
    swept: Tick,
}

impl Handshakes {
    pub(super) fn new(
        mut forwarding: Reader<Forwarding>,
        indices: ReceiverIndices,
        flows: Arc<Flows>,
        keyring: Arc<Keyring>,
        accounts: Accounts,
    ) -> Self {
        // The first generation has no peers.
        let last_generation = forwarding.load().table().generation();

        Self {
            forwarding,
            indices,
            flows,
            keyring,
            accounts,
            last_generation,
            initial_handshakes_left: 0,
            turn: 0,
            idle_peers: IdlePeers::default(),
            swept: Tick::default(),
        }
    }

    /// Takes a handshake message or a cookie reply that came by `path`. Answers are sent by the same path; they, and
    /// packets that were staged for this handshake, are appended to `out`.
    pub fn handle_message(
        &mut self,
        message: &[u8],
        path: Path,
        now: Instant,
        out: &mut TransmitBatch,
    ) {
        let answered = self.answer(message, path, now, out);
        self.count(answered);
    }

    /// Takes and counts datagrams that the kernel delivered to the handshake thread; see [`Self::handle_message`]. Data
    /// is dropped as malformed: no correct sender has it delivered there.
    pub fn handle_datagrams(
        &mut self,
        received: Received<'_>,
        now: Instant,
        out: &mut TransmitBatch,
    ) {
        let Received { bytes, stride, path, .. } = received;
        let datagrams = bytes.chunks(stride.max(1));
        let account = &self.accounts.inbound;
        if bytes.is_empty() {
            account.packets_in.add(1);
            account.count_drops(DropReason::Malformed, 1);
        }
        account.packets_in.add(as_u64(datagrams.len()));
        account.bytes_in.add(as_u64(bytes.len()));

        for datagram in datagrams {
            self.handle_message(datagram, path, now, out);
        }
    }

    /// Counts `messages` that the kernel has dropped because the receive buffer was full.
    pub fn handle_lost(&self, messages: u32) {
        let account = &self.accounts.inbound;
        account.packets_in.add(messages.into());
        account.count_drops(DropReason::HandshakeQueueFull, messages.into());
    }

    /// Sets the wall clock time that dates our initiations. To be called periodically.
    pub fn handle_wall_clock(&self, epoch: Epoch) {
        self.keyring.handle_wall_clock(epoch);
    }

    /// Time has advanced to `now`. Calling early or twice is harmless; call it at least every 250 ms.
    ///
    /// A new generation starts a handshake with every peer that has an endpoint and never had a session, so that the
    /// first packet finds one. A configuration with an unchanged generation number, which may be that of the engine
    /// without peers, does not. An initiation that is a retry, or goes to a silent peer, is sent to all its endpoints.
    /// If many handshakes are due at once, those that no packet waits for are spread over several calls.
    ///
    /// The returned scan does the work: [`TimerScan::fill`] until it is complete.
    pub fn handle_timeout(&mut self, now: Instant) -> TimerScan<'_> {
        self.handle_passive_timeout(now);
        let forwarding = self.forwarding.load();
        let generation = forwarding.table().generation();
        let peers = forwarding.peers();
        if self.last_generation != generation {
            self.last_generation = generation;
            self.initial_handshakes_left = peers.len();
            self.idle_peers.reset(peers.len());
        }
        self.idle_peers.begin_scan(forwarding.count_sought(), now);
        let first = self.turn.min(peers.len());

        TimerScan {
            forwarding,
            accounts: &self.accounts,
            idle_peers: &mut self.idle_peers,
            initial_handshakes_left: &mut self.initial_handshakes_left,
            turn: &mut self.turn,
            places: (first..peers.len()).chain(0..first),
            started: 0,
            now,
        }
    }

    /// As [`Self::handle_timeout`], but starts and renews no handshakes. Initiations are still answered, and state with
    /// a limited lifetime expires. Sessions are unchanged.
    pub fn handle_passive_timeout(&mut self, now: Instant) {
        self.keyring.handle_timeout(now);
        let tick = self.flows.tick(now);
        if tick > self.swept {
            self.swept = tick;
            self.flows.handle_timeout(tick);
        }
    }

    fn count(&self, answered: Result<(), DropReason>) {
        match answered {
            Ok(()) => self.accounts.inbound.protocol_messages.add(1),
            Err(reason) => self.accounts.inbound.count_drops(reason, 1),
        }
    }

    fn answer(
        &mut self,
        message: &[u8],
        path: Path,
        now: Instant,
        out: &mut TransmitBatch,
    ) -> Result<(), DropReason> {
        let kind = Message::classify(message).ok_or(DropReason::Malformed)?;
        match kind {
            Message::Initiation => match self.keyring.identify(message, path, out)? {
                (own, Identification::Peer(sender)) => {
                    self.answer_initiation((own, sender), message, path, now, out)?;
                }
                (_, Identification::UnderLoad) => return Err(DropReason::UnderLoad),
            },
            Message::Data { .. } => return Err(DropReason::Malformed),
            Message::Response { receiver_index } | Message::CookieReply { receiver_index } => {
                let slot = self.indices.slot(receiver_index);
                let (id, peer) =
                    self.forwarding.load().by_slot(slot).ok_or(DropReason::UnknownIndex)?;
                self.idle_peers.mark_active(id);
                let before = out.len();
                let mut endpoint_update =
                    peer.tunnel.handle_answer(slot, message, path, out, now)?;
                count_sent(peer, before, out);
                // The peer may have roamed while the response was in flight, and this is known already.
                if peer.endpoints.has_roamed_since_initiation() {
                    endpoint_update = EndpointUpdate::Keep;
                }
                // A cookie reply completes nothing: anyone who knows our public key and saw our message can send one.
                if !matches!(kind, Message::CookieReply { .. }) {
                    peer.receive.bytes.add(as_u64(message.len()));
                    note_answer(peer, endpoint_update, path, now, out);
                }
            }
        }

        Ok(())
    }

    /// Answers an initiation to the first of `keys`, which is ours, that claims to be from the second.
    fn answer_initiation(
        &mut self,
        keys: (PublicKey, PublicKey),
        message: &[u8],
        path: Path,
        now: Instant,
        out: &mut TransmitBatch,
    ) -> Result<(), DropReason> {
        let (own, sender) = keys;
        let forwarding = self.forwarding.load();
        let id = forwarding.id_of(sender).ok_or(DropReason::Unauthenticated)?;
        let peer = forwarding.peer(id).ok_or(DropReason::Unauthenticated)?;
        self.idle_peers.mark_active(id);
        let before = out.len();
        let endpoint_update =
            peer.tunnel.handle_initiation(own, sender, message, path, out, now)?;
        count_sent(peer, before, out);
        peer.receive.bytes.add(as_u64(message.len()));
        note_answer(peer, endpoint_update, path, now, out);

        Ok(())
    }
}

/// The timers of all peers at one time, from [`Handshakes::handle_timeout`].
#[must_use]
pub struct TimerScan<'a> {
    forwarding: &'a Forwarding,
    accounts: &'a Accounts,
    idle_peers: &'a mut IdlePeers,
    initial_handshakes_left: &'a mut usize,
    turn: &'a mut usize,
    /// The peers that are left.
    places: Chain<Range<usize>, Range<usize>>,
    /// Handshakes that this scan has started.
    started: usize,
    now: Instant,
}

impl TimerScan<'_> {
    /// Runs timers until all peers are done or `out`, which is empty before, is full. Returns whether peers are left:
    /// the caller then drains `out`, and calls again.
    pub fn fill(&mut self, out: &mut TransmitBatch) -> bool {
        let Self { forwarding, idle_peers, initial_handshakes_left, places, now, .. } = self;
        let now = *now;
        for place in places {
            let Some(peer) = forwarding.peers().get(place) else { continue };
            // The common case with thousands of peers: nothing else of the peer is read.
            let is_initial_pass = **initial_handshakes_left > 0;
            if !is_initial_pass && idle_peers.is_skipped(place, || peer.is_dormant()) {
                continue;
            }
            let may_start = self.started < HANDSHAKES_PER_SCAN;
            // Its timers wait too: a handshake that they start, and count as started, could not be sent.
            if !may_start && !is_busy(peer) {
                continue;
            }
            let path = peer.path();
            let before = out.len();
            let mut is_new = false;
            if may_start {
                *self.turn = place + 1;
                is_new = is_initial_pass;
                **initial_handshakes_left = initial_handshakes_left.saturating_sub(1);
                self.started += initiation_fanout::seek(peer, out, now);
            }
            let sought = out.len();
            let timed_out = peer.tunnel.handle_timeout(peer.timer_policy(path), out, now);
            self.started += initiation_fanout::fan_out(peer, sought, out, now);
            count_sent(peer, before, out);
            self.accounts.outbound.count_drops(DropReason::HandshakeTimeout, timed_out.given_up);
            if let Some(path) = path {
                if timed_out.has_staged {
                    seal_staged(peer, path, out, now);
                }
                if is_new {
                    self.started += initiate_first(peer, path, out, now);
                }
            }
            if !out.has_room(FULL_BELOW_BYTES) || out.spare_transmits() < SPARE_TRANSMITS {
                return true;
            }
        }

        false
    }
}

/// Records that a peer has initiated or answered a handshake.
fn note_answer(
    peer: &Peer,
    endpoint_update: EndpointUpdate,
    path: Path,
    now: Instant,
    out: &mut TransmitBatch,
) {
    if endpoint_update == EndpointUpdate::Learn {
        peer.learn_path(path);
    }
    peer.endpoints.reset_unanswered();
    seal_staged(peer, peer.path().unwrap_or(path), out, now);
}

/// Whether a delay of the peer's timers would affect packets.
fn is_busy(peer: &Peer) -> bool {
    let session = peer.tunnel.session();

    session.is_established || session.staged > 0
}

/// Starts a handshake with a peer that never had one. Returns how many were started.
fn initiate_first(peer: &Peer, path: Path, out: &mut TransmitBatch, now: Instant) -> usize {
    let session = peer.tunnel.session();
    if session.is_established || session.last_handshake.is_some() {
        return 0;
    }
    let before = out.len();
    peer.tunnel.initiate(path, out, now);
    let started = initiation_fanout::fan_out(peer, before, out, now);
    count_sent(peer, before, out);

    started
}

/// Counts what was appended to the first `before` bytes of `out` as sent to `peer`.
fn count_sent(peer: &Peer, before: usize, out: &TransmitBatch) {
    peer.transmit.bytes.add(as_u64(out.len().saturating_sub(before)));
}

/// Seals the staged packets of `peer`. Those that do not fit into `out` are sealed by the next call.
pub(super) fn seal_staged(peer: &Peer, path: Path, out: &mut TransmitBatch, now: Instant) {
    let sealed = peer.tunnel.seal_staged(path, out, now);
    peer.transmit.packets.add(sealed.packets);
    peer.transmit.bytes.add(sealed.bytes);
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::num::NonZeroU16;
    use std::time::Duration;

    use remap::{Cluster, Table};

    use super::*;
    use crate::{Engine, PeerConfig, Settings};
    use strait_packet::ecn::Ecn;
    use strait_packet::path::LocalPort;
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
        let own = hub.engine.control.keyring.keys().current.identity.public_key();
        let tunnel =
            peer.tunnel(&PeerKeys { public_key: own, preshared_key: None }, IndexSlot::from(1));
        let keys = PeerKeys { public_key: peer.public_key(), preshared_key: None };
        let config = PeerConfig { keys, ..hub.peer(0) };
        hub.engine.control.apply(vec![config], Table::build(1, &Cluster::default(), []).0);
        let (initiation, sent_by) = hub.sent(TICK).remove(0);
        let mut answer = TransmitBatch::default();
        tunnel.handle_handshake(&initiation, sent_by, &mut answer, hub.now).unwrap();
        let response = answer.datagrams_behind(0).next().unwrap().0;
        let path = Path { port: LocalPort::Spare, ..sent_by };
        let received = Received { bytes: response, stride: response.len(), path, ecn: Ecn::NotEct };
        hub.engine.handshakes.handle_datagrams(received, hub.now, &mut TransmitBatch::default());

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
        /// How many initiations were sent to each.
        initiations: BTreeMap<SocketAddr, usize>,
    }

    impl Hub {
        fn new(peers: usize, keepalive: Option<u16>) -> Self {
            let now = Instant::now();
            let settings = Settings { max_flows: 1024, seed: 7, start: now };
            let engine = Engine::new(identity(now), settings).unwrap();
            let initiations = BTreeMap::new();
            let mut hub =
                Self { engine, keepalive, preshared_key: None, candidates: 1, now, initiations };
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

        /// Advances time in ticks. Returns how many initiations were sent.
        fn initiations_within(&mut self, duration: Duration) -> usize {
            let ticks = duration.as_millis() / TICK.as_millis();

            (0..ticks).map(|_| self.tick(TICK).len()).sum()
        }

        /// Advances time. Returns the endpoints that initiations were sent to.
        fn tick(&mut self, by: Duration) -> Vec<SocketAddr> {
            let targets: Vec<_> =
                self.initiation_paths(by).iter().map(|path| path.remote).collect();
            for peer in &targets {
                *self.initiations.entry(*peer).or_default() += 1;
            }

            targets
        }

        /// Advances time. Returns the paths of the initiations that were sent.
        fn initiation_paths(&mut self, by: Duration) -> Vec<Path> {
            self.sent(by).into_iter().map(|(_, path)| path).collect()
        }

        /// Advances time. Returns what was sent, and by which path.
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

            sent
        }
    }

    fn identity(now: Instant) -> Arc<dyn Identity> {
        let epoch = Epoch::new(now, Duration::from_secs(1_700_000_000));

        strait_wg::Engine::Native.identity(&PrivateKey::generate(), &Environment::new(epoch, 1420))
    }
}
