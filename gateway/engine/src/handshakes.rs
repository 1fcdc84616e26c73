//! Handshakes and time: what neither direction waits for.

use std::sync::Arc;
use std::time::Instant;

use remap::Reader;
use remap::masquerade::Tick;

use super::Accounts;
use super::Flows;
use super::Forwarding;
use super::inbound::Received;
use super::keyring::Keyring;
use super::race;
use super::rest::Rest;
use strait_packet::DropReason;
use strait_packet::buffer::TransmitBatch;
use strait_packet::counters::as_u64;
use strait_packet::path::Path;
use strait_wg::Indices;
use strait_wg::Peer;
use strait_wg::PublicKey;
use strait_wg::endpoints::MAX_CANDIDATES;
use strait_wg::message::Message;
use strait_wg::native::Epoch;
use strait_wg::tunnel::{Introduction, Whereabouts};

/// What one peer may need: a full-size packet that was staged.
const FLUSH_BELOW_BYTES: usize = 68 * 1024;

/// The same in sends: all that may be staged, and two initiations to every address.
const SPARE_TRANSMITS: usize = 2 * (MAX_CANDIDATES + 1) + 256;

/// Handshakes that are begun in one look at the clock with peers that no packet waits for: two thousand a
/// second, for which the curve takes about a tenth of a core. A gateway that starts with thousands of peers, or whose
/// peers are all away, sends them no burst, and answers others in between.
const BEGINNINGS: usize = 200;

/// Answers handshakes and drives the timers of all peers. One thread owns it.
#[derive(Debug)]
pub struct Handshakes {
    forwarding: Reader<Forwarding>,
    indices: Indices,
    flows: Arc<Flows>,
    keyring: Arc<Keyring>,
    accounts: Accounts,
    greeted_generation: u64,
    /// How many peers of the generation are yet to be greeted, from the one whose turn it is.
    ungreeted: usize,
    /// The peer whose turn it is to begin a handshake: there may have been too many before it.
    turn: usize,
    rest: Rest,
    swept: Tick,
}

impl Handshakes {
    pub(super) fn new(
        mut forwarding: Reader<Forwarding>,
        indices: Indices,
        flows: Arc<Flows>,
        keyring: Arc<Keyring>,
        accounts: Accounts,
    ) -> Self {
        // There is nobody yet to greet.
        let greeted_generation = forwarding.load().table().generation();

        Self {
            forwarding,
            indices,
            flows,
            keyring,
            accounts,
            greeted_generation,
            ungreeted: 0,
            turn: 0,
            rest: Rest::default(),
            swept: Tick::default(),
        }
    }

    /// Takes a handshake message or a cookie reply that came by `path`. Answers go back the same way;
    /// they, and packets that were staged for this handshake, are appended to `out`.
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

    /// Takes datagrams that came straight here, and counts them; see [`Self::handle_message`]. Data is
    /// dropped as malformed: nobody sends it so that it comes here.
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

    /// The kernel has dropped `messages` for which the receive buffer had no room.
    pub fn handle_lost(&self, messages: u32) {
        let account = &self.accounts.inbound;
        account.packets_in.add(messages.into());
        account.count_drops(DropReason::HandshakeQueueFull, messages.into());
    }

    /// The clock of the wall says `epoch`: what we begin from now on is dated by it. To be called every now and
    /// then.
    pub fn handle_wall_clock(&self, epoch: Epoch) {
        self.keyring.handle_wall_clock(epoch);
    }

    /// Time has advanced to `now`. Calling early or twice is harmless; call it at least every 250 ms.
    ///
    /// A peer that has just been configured with an endpoint is greeted with a handshake, so that
    /// the first packet finds a session; unless the generation is the one before, or that of an engine
    /// without peers. A handshake that is not answered, or that a silent peer is
    /// asked for, goes to all addresses of the peer. Of many that are due at once, those that no packet
    /// waits for take turns. If `out` fills up, `flush` must empty it.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        out: &mut TransmitBatch,
        mut flush: impl FnMut(&mut TransmitBatch),
    ) {
        self.handle_passive_timeout(now);
        let forwarding = self.forwarding.load();
        let generation = forwarding.table().generation();
        let peers = forwarding.peers();
        if self.greeted_generation != generation {
            self.greeted_generation = generation;
            self.ungreeted = peers.len();
            self.rest.reset(peers.len());
        }
        self.rest.begin_look(forwarding.count_sought(), now);

        let turn = self.turn.min(peers.len());
        let places = || peers.iter().enumerate();
        let mut begun = 0;
        for (place, peer) in places().skip(turn).chain(places().take(turn)) {
            // Thousands are like this: nothing else of them is read.
            let is_greeting = self.ungreeted > 0;
            if !is_greeting && self.rest.includes(place, || peer.is_dormant()) {
                continue;
            }
            let may_begin = begun < BEGINNINGS;
            // Time does not pass for it: what it would begin now, and count as begun, could not be sent.
            if !may_begin && !is_busy(peer) {
                continue;
            }
            if !out.has_room(FLUSH_BELOW_BYTES) || out.spare_transmits() < SPARE_TRANSMITS {
                flush(out);
            }
            let path = peer.path();
            let before = out.len();
            let mut is_new = false;
            if may_begin {
                self.turn = place + 1;
                is_new = is_greeting;
                self.ungreeted = self.ungreeted.saturating_sub(1);
                begun += race::seek(peer, out, now);
            }
            let sought = out.len();
            let timed_out = peer.tunnel.handle_timeout(peer.upkeep(path), out, now);
            begun += race::spread(peer, sought, out, now);
            count_sent(peer, before, out);
            self.accounts.outbound.count_drops(DropReason::HandshakeTimeout, timed_out.given_up);
            let Some(path) = path else {
                continue;
            };
            if timed_out.has_staged {
                seal_staged(peer, path, out, now);
            }
            if is_new {
                begun += greet(peer, path, out, now);
            }
        }
    }

    /// The same where nothing is to be begun or renewed any more: whoever asks is answered as before, and what
    /// is kept for a time only is forgotten. Sessions stay as they are.
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
                (own, Introduction::By(sender)) => {
                    self.answer_initiation((own, sender), message, path, now, out)?;
                }
                (_, Introduction::TurnedAway) => return Err(DropReason::UnderLoad),
            },
            Message::Data { .. } => return Err(DropReason::Malformed),
            Message::Response { receiver_index } | Message::CookieReply { receiver_index } => {
                let slot = self.indices.slot(receiver_index);
                let (id, peer) =
                    self.forwarding.load().by_slot(slot).ok_or(DropReason::UnknownIndex)?;
                self.rest.wake(id);
                let before = out.len();
                let mut whereabouts = peer.tunnel.handle_answer(slot, message, path, out, now)?;
                count_sent(peer, before, out);
                // The peer may have moved when the answer was under way, and have said so since.
                if peer.endpoints.has_roamed_since_asked() {
                    whereabouts = Whereabouts::Unknown;
                }
                // Whoever knows our public key and saw our message can send a cookie. It completes nothing.
                if !matches!(kind, Message::CookieReply { .. }) {
                    peer.receive.bytes.add(as_u64(message.len()));
                    note_answer(peer, whereabouts, path, now, out);
                }
            }
        }

        Ok(())
    }

    /// An initiation that the second of `keys` says it has sent to the first, which is ours.
    fn answer_initiation(
        &mut self,
        keys: (PublicKey, PublicKey),
        message: &[u8],
        path: Path,
        now: Instant,
        out: &mut TransmitBatch,
    ) -> Result<(), DropReason> {
        let (_, sender) = keys;
        let forwarding = self.forwarding.load();
        let id = forwarding.id_of(sender).ok_or(DropReason::Unauthenticated)?;
        let peer = forwarding.peer(id).ok_or(DropReason::Unauthenticated)?;
        self.rest.wake(id);
        let before = out.len();
        let whereabouts = peer.tunnel.handle_initiation(keys, message, path, out, now)?;
        count_sent(peer, before, out);
        peer.receive.bytes.add(as_u64(message.len()));
        note_answer(peer, whereabouts, path, now, out);

        Ok(())
    }
}

/// A peer has begun or answered a handshake.
fn note_answer(
    peer: &Peer,
    whereabouts: Whereabouts,
    path: Path,
    now: Instant,
    out: &mut TransmitBatch,
) {
    if whereabouts == Whereabouts::Here {
        peer.learn_path(path);
    }
    peer.endpoints.forget_unanswered();
    seal_staged(peer, peer.path().unwrap_or(path), out, now);
}

/// Whether anybody would notice if the peer had to wait for its turn.
fn is_busy(peer: &Peer) -> bool {
    let session = peer.tunnel.session();

    session.is_established || session.staged > 0
}

/// Begins a handshake with a peer that never had one. Says how many it began.
fn greet(peer: &Peer, path: Path, out: &mut TransmitBatch, now: Instant) -> usize {
    let session = peer.tunnel.session();
    if session.is_established || session.last_handshake.is_some() {
        return 0;
    }
    let before = out.len();
    peer.tunnel.initiate(path, out, now);
    let begun = race::spread(peer, before, out, now);
    count_sent(peer, before, out);

    begun
}

/// Counts what was written behind the first `before` bytes of `out`, all of it for `peer`.
fn count_sent(peer: &Peer, before: usize, out: &TransmitBatch) {
    peer.transmit.bytes.add(as_u64(out.len().saturating_sub(before)));
}

/// Seals what waited for the handshake. What does not fit into `out` goes with the next call.
pub(super) fn seal_staged(peer: &Peer, path: Path, out: &mut TransmitBatch, now: Instant) {
    let sealed = peer.tunnel.seal_staged(path, out, now);
    peer.transmit.packets.add(sealed.packets);
    peer.transmit.bytes.add(sealed.bytes);
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::num::NonZeroU16;
    use std::time::Duration;

    use remap::{Cluster, Table};

    use super::*;
    use crate::Engine;
    use crate::PeerConfig;
    use crate::Settings;
    use strait_packet::ecn::Ecn;
    use strait_packet::path::LocalPort;
    use strait_wg::PresharedKey;
    use strait_wg::PrivateKey;
    use strait_wg::Slot;
    use strait_wg::native::Surroundings;
    use strait_wg::succession::GRACE;
    use strait_wg::tunnel::{Identity, PeerKeys};

    const TICK: Duration = Duration::from_millis(100);

    #[test]
    fn many_peers_are_greeted_in_turn() {
        for keepalive in [None, Some(25)] {
            let mut hub = Hub::new(5 * BEGINNINGS, keepalive);

            for turn in 1..=5 {
                let asked = hub.tick(TICK);
                assert_eq!(asked.len(), BEGINNINGS, "{keepalive:?}, {turn}");
            }

            assert_eq!(hub.asked.len(), 5 * BEGINNINGS, "each of them");
            assert_eq!(hub.tick(TICK), [], "nobody is asked again so soon");
        }
    }

    #[test]
    fn nobody_is_left_out_while_more_are_away_than_can_be_asked() {
        let mut hub = Hub::new(5 * BEGINNINGS, Some(25));

        // They should be asked every five seconds, which is too often by half.
        for _ in 0..40 {
            assert_eq!(hub.tick(Duration::from_secs(2)).len(), BEGINNINGS);
        }

        assert!(hub.asked.values().all(|count| *count == 8), "{:?}", hub.asked);
    }

    #[test]
    fn a_peer_that_never_answers_is_asked_from_both_ports() {
        for candidates in [1, 2] {
            let mut hub = Hub::new(0, Some(25));
            hub.candidates = candidates;
            hub.apply(1, 1);
            let mut runs: Vec<(LocalPort, Duration)> = Vec::new();
            let start = hub.now;

            while runs.len() < 4 {
                for path in hub.paths_asked(TICK) {
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
    fn a_sought_peer_is_asked_in_the_next_look() {
        let mut hub = Hub::new(8, None);
        hub.asked_within(Duration::from_secs(200));
        let forwarding = hub.engine.control.current();

        for peer in forwarding.peers() {
            hub.asked_within(Duration::from_secs(200));
            peer.endpoints.seek();
            assert_eq!(hub.tick(TICK).len(), 1);
        }
    }

    #[test]
    fn what_is_asked_from_the_spare_port_is_answered_there() {
        let mut hub = Hub::new(1, None);
        let forwarding = hub.engine.control.current();
        let endpoints = &forwarding.peers()[0].endpoints;
        let heard = Path { port: LocalPort::Spare, ..endpoints.in_use().unwrap() };
        endpoints.learn(heard);
        endpoints.ask();

        assert_eq!(hub.paths_asked(TICK)[0].port, LocalPort::Spare);
    }

    #[test]
    fn a_session_of_the_spare_port_is_renewed_from_the_first() {
        let mut hub = Hub::new(0, Some(25));
        let peer = identity(hub.now);
        let own = hub.engine.control.keyring.keys().current.identity.public_key();
        let tunnel = peer.tunnel(&PeerKeys { public_key: own, preshared_key: None }, Slot::from(1));
        let keys = PeerKeys { public_key: peer.public_key(), preshared_key: None };
        let config = PeerConfig { keys, ..hub.peer(0) };
        hub.engine.control.apply(vec![config], Table::build(1, &Cluster::default(), []).0);
        let (initiation, asked) = hub.sent(TICK).remove(0);
        let mut answer = TransmitBatch::default();
        tunnel.handle_handshake(&initiation, asked, &mut answer, hub.now).unwrap();
        let response = answer.datagrams_behind(0).next().unwrap().0;
        let path = Path { port: LocalPort::Spare, ..asked };
        let received = Received { bytes: response, stride: response.len(), path, ecn: Ecn::NotEct };
        hub.engine.handshakes.handle_datagrams(received, hub.now, &mut TransmitBatch::default());

        let mut sent = Vec::new();
        while sent.len() < 2 {
            for (datagram, path) in hub.sent(TICK) {
                match Message::classify(&datagram) {
                    Some(Message::Initiation) => sent.push(path.port),
                    _ => assert_eq!(path.port, LocalPort::Spare, "what is sent with the session"),
                }
            }
        }

        assert_eq!(sent, [LocalPort::Listen, LocalPort::Spare], "and if that has no answer");
    }

    #[test]
    fn another_generation_greets_whoever_is_new() {
        let mut hub = Hub::new(2 * BEGINNINGS, None);
        for _ in 0..2 {
            hub.tick(TICK);
        }

        hub.apply(2 * BEGINNINGS + 1, 2);

        assert_eq!(hub.tick(TICK).len(), 1);
    }

    /// As with the kernel: peers hear of other keys when there is something to say.
    #[test]
    fn what_changes_about_silent_peers_wakes_none_of_them() {
        let mut hub = Hub::new(0, None);
        // As in a device: peers are in one place, and greeted by nobody.
        hub.candidates = 0;
        hub.apply(3, 0);
        let control = &hub.engine.control;
        for (peer, at) in control.current().peers().iter().zip(1..) {
            control.move_peer(peer.keys.public_key, ([192, 0, 2, at], 51840).into());
        }
        assert_eq!(hub.asked_within(GRACE), 0);

        for key in [Some([1; 32]), Some([2; 32]), None] {
            hub.preshared_key = key.map(|key| PresharedKey::from_bytes(&key).unwrap());
            hub.apply(3, 0);
            assert_eq!(hub.asked_within(GRACE / 2), 0, "{key:?}");
        }
        hub.engine.control.succeed(&identity(hub.now));
        assert_eq!(hub.asked_within(GRACE), 0, "with another key of ours");

        hub.keepalive = Some(25);
        hub.apply(3, 0);
        assert!(hub.asked_within(GRACE) > 0, "that is to keep them alive");
        hub.keepalive = None;
        hub.apply(3, 0);
        // As with the kernel, an attempt that has begun goes on until it is given up.
        hub.asked_within(Duration::from_secs(95));
        assert_eq!(hub.asked_within(2 * GRACE), 0, "no peer is to be kept alive");
    }

    #[test]
    fn whatever_comes_straight_to_us_is_accounted_for() {
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
        // The odd byte behind each, data, and what is of no kind.
        assert_eq!(account.drops(DropReason::Malformed), 5 + 2);
        assert_eq!(account.drops(DropReason::HandshakeQueueFull), 7);
        assert_eq!(account.balance(), 0);
    }

    /// Peers that are away, each at an address of its own.
    struct Hub {
        engine: Engine,
        keepalive: Option<u16>,
        preshared_key: Option<PresharedKey>,
        /// Of each.
        candidates: usize,
        now: Instant,
        /// How often each was asked.
        asked: BTreeMap<SocketAddr, usize>,
    }

    impl Hub {
        fn new(peers: usize, keepalive: Option<u16>) -> Self {
            let now = Instant::now();
            let settings = Settings { max_flows: 1024, seed: 7, start: now };
            let engine = Engine::new(identity(now), settings).unwrap();
            let asked = BTreeMap::new();
            let mut hub =
                Self { engine, keepalive, preshared_key: None, candidates: 1, now, asked };
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

        /// Lets so much time pass bit by bit. How many it makes the gateway ask.
        fn asked_within(&mut self, duration: Duration) -> usize {
            let ticks = duration.as_millis() / TICK.as_millis();

            (0..ticks).map(|_| self.tick(TICK).len()).sum()
        }

        /// Lets time pass. Whom it makes the gateway ask.
        fn tick(&mut self, by: Duration) -> Vec<SocketAddr> {
            let asked: Vec<_> = self.paths_asked(by).iter().map(|path| path.remote).collect();
            for peer in &asked {
                *self.asked.entry(*peer).or_default() += 1;
            }

            asked
        }

        /// Lets time pass. By which paths it makes the gateway ask.
        fn paths_asked(&mut self, by: Duration) -> Vec<Path> {
            self.sent(by).into_iter().map(|(_, path)| path).collect()
        }

        /// Lets time pass. What it makes the gateway send, and by which path.
        fn sent(&mut self, by: Duration) -> Vec<(Vec<u8>, Path)> {
            self.now += by;
            let mut sent = Vec::new();
            let mut collect = |out: &mut TransmitBatch| {
                let datagrams = out.datagrams_behind(0);
                sent.extend(datagrams.map(|(datagram, path)| (datagram.to_vec(), path)));
                out.clear();
            };
            let mut out = TransmitBatch::default();
            self.engine.handshakes.handle_timeout(self.now, &mut out, &mut collect);
            collect(&mut out);

            sent
        }
    }

    fn identity(now: Instant) -> Arc<dyn Identity> {
        let epoch = Epoch::new(now, Duration::from_secs(1_700_000_000));

        strait_wg::Engine::Native.identity(&PrivateKey::generate(), &Surroundings::new(epoch, 1420))
    }
}
