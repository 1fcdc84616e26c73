// Two engines and the network between them, driven step by step under one virtual clock.

use std::collections::VecDeque;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mock_instant::MockClock;
use remap::{Cluster, PeerId, Rule, Table, checksum};
use strait_packet::buffer::TransmitBatch;
use strait_packet::counters::Snapshot;
use strait_engine::inbound::Received;
use strait_engine::outbound::Disposition;
use strait_engine::{Engine, PeerConfig};
use strait_packet::ecn::Ecn;
use strait_packet::virtio::VirtioHeader;
use strait_packet::path::{Local, Path};
use strait_wg::message::Message;
use strait_wg::Epoch;
use strait_wg::native::Environment;
use strait_wg::tunnel::{Identity, PeerKeys, SessionState};
use strait_wg::{Peer, PrivateKey};

use super::ENGINES;
use super::protocol_checker::ProtocolChecker;

/// The server: has no configured endpoint, and learns it.
pub(crate) const MILAN: usize = 0;
/// The client.
pub(crate) const ROME: usize = 1;

const STEP: Duration = Duration::from_millis(5);
const TICK: Duration = Duration::from_millis(100);

fn environment(start: Instant) -> Environment {
    Environment::new(Epoch::new(start, SINCE_1970), 1420)
}

/// The wall clock time at the start.
const SINCE_1970: Duration = Duration::from_secs(1_700_000_000);

/// What the network does to datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) seed: u64,
    pub(crate) loss_percent: u32,
    pub(crate) repeat_percent: u32,
    /// Additional loss of messages that carry no data.
    pub(crate) handshake_loss_percent: u32,
    pub(crate) delay: Duration,
    /// Random additional delay up to this: reorders datagrams.
    pub(crate) jitter: Duration,
    pub(crate) marks_congestion: bool,
}

impl Network {
    pub(crate) const PERFECT: Self = Self {
        seed: 1,
        loss_percent: 0,
        repeat_percent: 0,
        handshake_loss_percent: 0,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        marks_congestion: false,
    };
}

struct Side {
    engine: Engine,
    key: PrivateKey,
    identity: Weak<dyn Identity>,
    /// The address that it sends from by default.
    address: SocketAddr,
    /// Its other addresses.
    others: Vec<SocketAddr>,
    peer: PeerConfig,
    rule: Rule,
    received: Vec<Vec<u8>>,
    /// ICMP errors about packets of its cluster.
    icmp_errors: Vec<Vec<u8>>,
    next_tick: Duration,
}

struct Datagram {
    due: Duration,
    to: SocketAddr,
    from: SocketAddr,
    ecn: Ecn,
    bytes: Vec<u8>,
}

pub(crate) struct World {
    start: Instant,
    elapsed: Duration,
    network: Network,
    random: u64,
    sides: [Side; 2],
    wire: Vec<Datagram>,
    blocked: Vec<SocketAddr>,
    mute: Vec<SocketAddr>,
    initiations: Vec<SocketAddr>,
    /// Sender, destination and source address of each datagram.
    sources: Vec<(usize, SocketAddr, SocketAddr)>,
    restarts: u64,
    /// Batches for reuse: allocating them would take most of the time of a tick.
    spare: Vec<TransmitBatch>,
    pub(crate) checker: ProtocolChecker,
    pub(crate) eavesdropped: Vec<Vec<u8>>,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
    pub(crate) fn new(network: Network) -> Self {
        let start = Instant::now();
        let keys = [PrivateKey::generate(), PrivateKey::generate()];
        let addresses = ["192.0.2.1:51840", "198.51.100.1:40000"].map(|a| a.parse().unwrap());
        let side = |own: usize, other: usize| {
            let identity = ENGINES[own].identity(&keys[own], &environment(start));
            let peer = PeerConfig {
                name: format!("side-{other}"),
                keys: PeerKeys {
                    public_key: keys[other].public_key(),
                    preshared_key: None
                },
                endpoints: if own == ROME { vec![addresses[other]] } else { Vec::new() },
                allowed_ips: ["10.244.0.0/16".parse().unwrap()].into(),
                clamp_mtu: None,
                persistent_keepalive: None,
            };
            let remote = "10.244.0.0/16".parse().unwrap();
            let rule = Rule::new(remote, "10.71.0.0/16".parse().unwrap()).unwrap();
            let mut side = Side {
                key: keys[own].clone(),
                identity: Arc::downgrade(&identity),
                engine: Engine::new(identity, strait_engine::Settings { max_flows: 1024, seed: 7, start })
                    .unwrap(),
                address: addresses[own],
                others: Vec::new(),
                peer,
                rule,
                received: Vec::new(),
                icmp_errors: Vec::new(),
                next_tick: Duration::ZERO,
            };
            side.apply(1);

            side
        };

        Self {
            start,
            elapsed: Duration::ZERO,
            network,
            random: network.seed | 1,
            sides: [side(MILAN, ROME), side(ROME, MILAN)],
            wire: Vec::new(),
            blocked: Vec::new(),
            mute: Vec::new(),
            initiations: Vec::new(),
            sources: Vec::new(),
            restarts: 0,
            spare: Vec::new(),
            checker: ProtocolChecker::default(),
            eavesdropped: Vec::new(),
        }
    }

    /// A packet leaves the cluster of `from`.
    pub(crate) fn send(&mut self, from: usize, packet: &[u8]) {
        self.send_frame(from, &VirtioHeader::default(), packet);
    }

    /// A frame leaves the cluster of `from`.
    pub(crate) fn send_frame(&mut self, from: usize, virtio: &VirtioHeader, frame: &[u8]) {
        let mut spare = self.spare.pop();
        let full = self.send_frame_in(|| spare.take().unwrap_or_default(), from, virtio, frame);

        assert_eq!(full, 0, "one frame cannot fill the batch");
    }

    /// As [`Self::send_frame`], in batches from `batch`. Returns how many were full.
    pub(crate) fn send_frame_in(
        &mut self,
        mut batch: impl FnMut() -> TransmitBatch,
        from: usize,
        virtio: &VirtioHeader,
        frame: &[u8],
    ) -> usize {
        let now = self.now();
        let mut frame = frame.to_vec();
        let (mut out, mut full) = (batch(), Vec::new());

        let side = &mut self.sides[from];
        let mut handled = side.engine.outbound.handle_frame(virtio, &mut frame, now, &mut out);
        while handled.is_incomplete() {
            full.push(mem::replace(&mut out, batch()));
            handled.resume(now, &mut out);
        }
        match handled.disposition() {
            Disposition::Taken => {}
            Disposition::Reply => side.icmp_errors.push(side.engine.outbound.reply().to_vec()),
            Disposition::Hairpin => panic!("there are no external addresses here"),
        }
        let count = full.len();
        for out in full.into_iter().chain([out]) {
            self.transmit(from, out);
        }

        count
    }

    /// Advances time, step by step.
    pub(crate) fn run(&mut self, duration: Duration) {
        let until = self.elapsed + duration;

        while self.elapsed < until {
            self.tick();
            self.deliver();
            let step = self.quiet().unwrap_or(STEP).min(until - self.elapsed);
            self.elapsed += step;
            MockClock::advance(step);
        }
        self.deliver();
    }

    /// Advances both clocks at once, as when both machines were suspended.
    pub(crate) fn suspend(&mut self, duration: Duration) {
        self.elapsed += duration;
        MockClock::advance(duration);
        self.tick();
    }

    /// Restarts `side` with its configuration and no other state.
    pub(crate) fn restart(&mut self, side: usize) {
        self.restart_with(side, &environment(self.start), None);
    }

    /// Restarts `side` on a machine whose clock is `behind`. If it `continues`, it gets the last timestamp of the
    /// former instance.
    pub(crate) fn restart_behind(&mut self, side: usize, behind: Duration, continues: bool) {
        let right = SINCE_1970 + self.elapsed;
        let epoch = Epoch::new(self.now(), right - behind);
        let before = continues.then(|| Epoch::new(self.now(), right));

        self.restart_with(side, &Environment { epoch, ..environment(self.start) }, before);
    }

    fn restart_with(&mut self, side: usize, environment: &Environment, before: Option<Epoch>) {
        self.restarts += 1;
        self.checker.handle_restart(side);
        let identity = ENGINES[side].identity(&self.sides[side].key, environment);
        let settings =
            strait_engine::Settings { max_flows: 1024, seed: 7 + self.restarts, start: self.now() };
        let restarted = &mut self.sides[side];
        restarted.identity = Arc::downgrade(&identity);
        restarted.engine = Engine::new(identity, settings).unwrap();
        if let Some(before) = before {
            restarted.engine.control.continue_after(before);
        }
        restarted.next_tick = Duration::ZERO;
        restarted.apply(1);
    }

    /// Renews all sessions of `side`, as after it may have been copied.
    pub(crate) fn renew_sessions(&mut self, side: usize) {
        self.checker.end_sessions(side);
        self.sides[side].engine.control.renew_sessions();
    }

    /// Changes the network.
    pub(crate) fn set_network(&mut self, network: Network) {
        self.network = network;
    }

    /// Delivers a datagram to `to` as if `from` had sent it.
    pub(crate) fn inject(&mut self, from: usize, to: usize, datagram: &[u8]) {
        self.inject_from(self.sides[from].address, to, datagram);
    }

    pub(crate) fn inject_from(&mut self, from: SocketAddr, to: usize, datagram: &[u8]) {
        let path = path(from, self.sides[to].address);
        self.receive(to, path, Ecn::NotEct, datagram, datagram.len());
    }

    /// Delivers datagrams of equal length as one message, as the kernel merges them.
    pub(crate) fn inject_merged(&mut self, from: usize, to: usize, datagrams: &[Vec<u8>]) {
        let bytes = datagrams.concat();

        let path = path(self.sides[from].address, self.sides[to].address);
        self.receive(to, path, Ecn::NotEct, &bytes, datagrams[0].len());
    }

    /// Removes the datagrams in flight from the wire.
    pub(crate) fn in_flight(&mut self) -> Vec<Vec<u8>> {
        self.wire.drain(..).map(|datagram| datagram.bytes).collect()
    }

    pub(crate) fn last_data_datagram(&self) -> Vec<u8> {
        let is_data = |d: &&Vec<u8>| {
            matches!(Message::classify(d), Some(Message::Data { .. })) && d.len() > 32
        };

        self.eavesdropped.iter().rev().find(is_data).unwrap().clone()
    }

    /// Changes the address that `side` sends from, as after a change of network.
    pub(crate) fn move_to(&mut self, side: usize, address: SocketAddr) {
        self.sides[side].address = address;
    }

    /// Sets the addresses of `side`. It sends from the first unless a path requires another.
    pub(crate) fn set_addresses(&mut self, side: usize, addresses: &[SocketAddr]) {
        self.sides[side].address = addresses[0];
        self.sides[side].others = addresses.to_vec();
    }

    /// Sets the endpoint of the peer of `side`.
    pub(crate) fn set_endpoint(&self, side: usize, address: SocketAddr) {
        let control = &self.sides[side].engine.control;
        let key = control.current().peers()[0].keys.public_key;

        control.move_peer(key, address);
    }

    /// Sets the addresses of `side`, and configures them at its peer.
    pub(crate) fn publish_addresses(&mut self, side: usize, addresses: &[SocketAddr]) {
        self.set_addresses(side, addresses);
        let addresses = addresses.to_vec();
        self.reconfigure(1 - side, |peer| peer.endpoints = addresses);
    }

    /// Blocks all datagrams to and from these addresses, and no others.
    pub(crate) fn block(&mut self, addresses: &[SocketAddr]) {
        self.blocked = addresses.to_vec();
    }

    /// Blocks datagrams from these addresses, but not those to them.
    pub(crate) fn mute(&mut self, addresses: &[SocketAddr]) {
        self.mute = addresses.to_vec();
    }

    /// Changes the candidate endpoints of the peer of `side`.
    pub(crate) fn set_endpoints(&self, side: usize, endpoints: &[SocketAddr]) {
        let control = &self.sides[side].engine.control;
        let key = control.current().peers()[0].keys.public_key;

        control.set_endpoints(key, endpoints);
    }

    /// Requests a search for the peer of `side`.
    pub(crate) fn seek(&self, side: usize) {
        self.sides[side].engine.control.seek_peers();
    }

    /// The endpoint that `side` sends to.
    pub(crate) fn endpoint(&self, side: usize) -> Option<SocketAddr> {
        self.sides[side].engine.control.current().peers()[0].endpoint()
    }

    /// The address that `side` last sent from.
    pub(crate) fn last_source(&self, side: usize) -> Option<SocketAddr> {
        self.sources.iter().rev().find(|(from, ..)| *from == side).map(|(.., source)| *source)
    }

    /// How many initiations were sent to `address`.
    pub(crate) fn initiations_to(&self, address: SocketAddr) -> usize {
        self.initiations.iter().filter(|to| **to == address).count()
    }

    /// Sets the allowed IPs of the peer of `side`.
    pub(crate) fn allow(&mut self, side: usize, prefix: &str) {
        self.sides[side].peer.allowed_ips = [prefix.parse().unwrap()].into();
        self.sides[side].apply(2);
    }

    pub(crate) fn apply_again(&mut self, side: usize) {
        self.sides[side].apply(3);
    }

    /// Changes the peer configuration of `side`.
    pub(crate) fn reconfigure(&mut self, side: usize, change: impl FnOnce(&mut PeerConfig)) {
        change(&mut self.sides[side].peer);
        self.sides[side].apply(4);
    }

    /// Rotates the private key of `side`. The other side does not know it yet.
    pub(crate) fn change_key(&mut self, side: usize) {
        self.set_key(side, &PrivateKey::generate());
    }

    pub(crate) fn set_key(&mut self, side: usize, key: &PrivateKey) {
        let identity = ENGINES[side].identity(key, &environment(self.start));
        let side = &mut self.sides[side];
        side.key = key.clone();
        side.identity = Arc::downgrade(&identity);

        side.engine.control.rotate_key(&identity);
    }

    /// Changes the private key of `side` to `key`. Nothing is sent with the former one.
    pub(crate) fn supersede_key(&mut self, side: usize, key: &PrivateKey) {
        let identity = ENGINES[side].identity(key, &environment(self.start));
        let side = &mut self.sides[side];
        side.key = key.clone();

        side.engine.control.supersede_key(&identity);
    }

    pub(crate) fn key(&self, side: usize) -> PrivateKey {
        self.sides[side].key.clone()
    }

    /// Configures `side` with the current key of the other side.
    pub(crate) fn learn_key(&mut self, side: usize) {
        let key = self.key(1 - side);

        self.announce_key(side, &key);
    }

    /// Configures `side` with `key` for the other side.
    pub(crate) fn announce_key(&mut self, side: usize, key: &PrivateKey) {
        self.reconfigure(side, |peer| peer.keys.public_key = key.public_key());
    }

    /// The identity of `side`, as long as `side` holds it.
    pub(crate) fn identity(&self, side: usize) -> Weak<dyn Identity> {
        self.sides[side].identity.clone()
    }

    pub(crate) fn peer(&self, side: usize) -> Arc<Peer> {
        Arc::clone(&self.sides[side].engine.control.current().peers()[0])
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Clears the recorded datagrams and received packets.
    pub(crate) fn clear_records(&mut self) {
        self.eavesdropped.clear();
        for side in &mut self.sides {
            side.received.clear();
        }
    }

    pub(crate) fn remove_peer(&mut self, side: usize) {
        self.sides[side].engine.control.apply(Vec::new(), Table::default());
    }

    /// The ICMP errors that the cluster of `side` got.
    pub(crate) fn icmp_errors(&self, side: usize) -> &[Vec<u8>] {
        &self.sides[side].icmp_errors
    }

    pub(crate) fn received(&self, side: usize) -> Vec<Vec<u8>> {
        self.sides[side].received.clone()
    }

    pub(crate) fn outbound(&self, side: usize) -> Snapshot {
        self.sides[side].engine.control.accounts().outbound.snapshot()
    }

    pub(crate) fn inbound(&self, side: usize) -> Snapshot {
        self.sides[side].engine.control.accounts().inbound.snapshot()
    }

    pub(crate) fn session(&self, side: usize) -> SessionState {
        self.sides[side].engine.control.current().peers()[0].tunnel.session()
    }

    pub(crate) fn staged(&self, side: usize) -> usize {
        self.session(side).staged
    }

    pub(crate) fn count(&self, is_wanted: impl Fn(Message) -> bool) -> usize {
        self.eavesdropped
            .iter()
            .filter_map(|d| Message::classify(d))
            .filter(|m| is_wanted(*m))
            .count()
    }

    /// Asserts that packets in equal packets out, dropped and staged, on both sides and in both directions.
    pub(crate) fn assert_accounts_balance(&self) {
        for side in [MILAN, ROME] {
            let staged = i128::try_from(self.staged(side)).unwrap();
            let (outbound, inbound) = (self.outbound(side), self.inbound(side));
            assert_eq!(outbound.balance(), staged, "outbound of {side}: {outbound:?}");
            assert_eq!(inbound.balance(), 0, "inbound of {side}: {inbound:?}");
        }
    }

    fn now(&self) -> Instant {
        self.start + self.elapsed
    }

    fn tick(&mut self) {
        for side in [MILAN, ROME] {
            if self.elapsed < self.sides[side].next_tick {
                continue;
            }
            self.sides[side].next_tick = self.elapsed + TICK;
            let mut out = self.spare.pop().unwrap_or_default();
            let now = self.now();
            self.sides[side].engine.handshakes.handle_timeout(now).fill(&mut out);
            // As the daemon does every second.
            self.sides[side].engine.control.free_retired();
            self.transmit(side, out);
            let has_session = self.session(side).is_established;
            self.checker.check_timers(side, has_session && self.endpoint(side).is_some(), self.elapsed);
        }
    }

    /// Time until the next event, if no datagram is in flight.
    fn quiet(&self) -> Option<Duration> {
        let next = self.sides.iter().map(|side| side.next_tick).min()?;

        next.checked_sub(self.elapsed).filter(|quiet| self.wire.is_empty() && !quiet.is_zero())
    }

    /// Delivers the datagrams that are due, and those that they cause without delay.
    fn deliver(&mut self) {
        loop {
            let (mut due, later): (Vec<_>, Vec<_>) =
                self.wire.drain(..).partition(|d| d.due <= self.elapsed);
            self.wire = later;
            if due.is_empty() {
                return;
            }
            due.sort_by_key(|d| d.due);

            for Datagram { to, from, ecn, bytes, .. } in due {
                let is_cut = self.blocked.contains(&to) || self.blocked.contains(&from);
                if is_cut || self.mute.contains(&from) {
                    continue;
                }
                if let Some(side) = [MILAN, ROME].into_iter().find(|s| self.sides[*s].is_at(to)) {
                    self.receive(side, path(from, to), ecn, &bytes, bytes.len());
                }
            }
        }
    }

    fn receive(&mut self, side: usize, path: Path, ecn: Ecn, bytes: &[u8], stride: usize) {
        let now = self.now();
        let mut out = self.spare.pop().unwrap_or_default();
        let mut messages = VecDeque::new();
        let Engine { inbound, handshakes, .. } = &mut self.sides[side].engine;

        inbound.handle_datagrams(
            Received { bytes, stride, path, ecn },
            now,
            &mut out,
            |message, path| {
                messages.push_back((message.to_vec(), path));
                true
            },
        );
        for (message, path) in messages {
            handshakes.handle_message(&message, path, now, &mut out);
        }
        let mut packets: Vec<Vec<u8>> = Vec::new();
        inbound.drain(|frame, bytes, accounts| {
            for range in frame.members() {
                accounts.handle_frame(1, u64::try_from(range.len()).unwrap(), true);
                packets.push(bytes[range].to_vec());
            }
        });
        if !packets.is_empty() {
            self.checker.received_data(side, self.elapsed);
        }
        self.sides[side].received.extend(packets);
        self.transmit(side, out);
    }

    fn transmit(&mut self, from: usize, mut out: TransmitBatch) {
        let accounts = self.sides[from].engine.control.accounts().clone();

        for transmit in out.transmits() {
            accounts.handle_transmit(transmit, true);
            let source = self.source(from, transmit.outer.path);
            self.sources.push((from, transmit.outer.path.remote, source));
            for bytes in out.bytes(transmit).chunks(transmit.segment_bytes) {
                self.checker.sent(from, bytes, self.elapsed);
                self.eavesdropped.push(bytes.to_vec());
                if Message::classify(bytes) == Some(Message::Initiation) {
                    self.initiations.push(transmit.outer.path.remote);
                }
                let copies = 1 + u32::from(self.chance(self.network.repeat_percent));
                for _ in 0..copies {
                    let is_data = matches!(Message::classify(bytes), Some(Message::Data { .. }));
                    if self.chance(self.network.loss_percent)
                        || !is_data && self.chance(self.network.handshake_loss_percent)
                    {
                        continue;
                    }
                    let jitter = self.network.jitter.as_millis().max(1);
                    let extra = u64::try_from(u128::from(self.next_random()) % jitter).unwrap();
                    self.wire.push(Datagram {
                        due: self.elapsed + self.network.delay + Duration::from_millis(extra),
                        to: transmit.outer.path.remote,
                        from: source,
                        ecn: if self.network.marks_congestion {
                            Ecn::Ce
                        } else {
                            transmit.outer.ecn
                        },
                        bytes: bytes.to_vec(),
                    });
                }
            }
        }
        out.clear();
        self.spare.push(out);
    }

    /// The address that `side` sends from: that of the path, or the default if it has lost that address, as when the
    /// kernel refuses it.
    fn source(&self, side: usize, path: Path) -> SocketAddr {
        let Side { address, others, engine, .. } = &self.sides[side];
        let Some(local) = path.local else { return *address };
        let mut own = std::iter::once(address).chain(others);
        let wanted = own.find(|own| own.ip() == local.address());
        if wanted.is_none() {
            engine.control.current().forget_local(path);
        }

        *wanted.unwrap_or(address)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.next_random() % 100 < u64::from(percent)
    }

    /// xorshift64: good enough for packet loss.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;

        self.random
    }
}

impl Side {
    fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address || self.others.contains(&address)
    }

    fn apply(&mut self, generation: u64) {
        let (table, conflicts) =
            Table::build(generation, &Cluster::default(), [(PeerId(0), self.rule)]);
        assert!(conflicts.is_empty());

        self.engine.control.apply(vec![self.peer.clone()], table);
    }
}

/// The path as the receiver at `to` sees it.
fn path(from: SocketAddr, to: SocketAddr) -> Path {
    Path { local: Local::new(to.ip(), 0), ..from.into() }
}

/// A UDP packet with a correct checksum whose IP identification is `id`.
pub(crate) fn udp_packet(source: &str, destination: &str, id: u16) -> Vec<u8> {
    let (source, destination): (Ipv4Addr, Ipv4Addr) =
        (source.parse().unwrap(), destination.parse().unwrap());
    let payload = b"the payload of a packet";
    let udp_len = u16::try_from(8 + payload.len()).unwrap();

    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp_len).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend([0, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let header_checksum = checksum::complete(checksum::sum(&packet));
    packet[10..12].copy_from_slice(&header_checksum.to_be_bytes());

    packet.extend(4000u16.to_be_bytes());
    packet.extend(5000u16.to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    let pseudo = checksum::pseudo_header(source.into(), destination.into(), 17, u32::from(udp_len));
    let sum = checksum::add(pseudo, checksum::sum(&packet[20..]));
    packet[26..28].copy_from_slice(&checksum::complete(sum).to_be_bytes());

    packet
}

/// Sets the ECN field and updates the header checksum.
pub(crate) fn set_ecn_bits(packet: &mut [u8], bits: u8) {
    packet[1] |= bits;
    packet[10..12].fill(0);
    let header_checksum = checksum::complete(checksum::sum(&packet[..20]));
    packet[10..12].copy_from_slice(&header_checksum.to_be_bytes());
}

pub(crate) fn packet_id(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[4], packet[5]])
}
