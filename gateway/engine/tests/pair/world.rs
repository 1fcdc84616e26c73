// Two engines and the network between them, driven step by step under one virtual clock.

mod configuration {
    include!("world/configuration.rs");
}
mod records {
    include!("world/records.rs");
}

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mock_instant::MockClock;
use remap::{Cluster, PeerId, Rule, Table};
use strait_packet::buffer::TransmitBatch;
use strait_engine::inbound::Received;
use strait_engine::outbound::Disposition;
use strait_engine::{Engine, PeerConfig};
use strait_packet::ecn::Ecn;
use strait_packet::virtio::VirtioHeader;
use strait_packet::path::{Local, Path};
use strait_wg::message::Message;
use strait_wg::Epoch;
use strait_wg::native::Environment;
use strait_wg::tunnel::{Identity, PeerKeys};
use strait_wg::PrivateKey;

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
    /// The receivers mark each datagram, as if their queues stayed long.
    pub(crate) queues_are_long: bool,
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
        queues_are_long: false,
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
                engine: Engine::new(identity, strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start })
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

    /// `from` sends probes of the path to the other side.
    pub(crate) fn probe_path(&mut self, from: usize, lengths: &[u16]) {
        let now = self.now();
        let mut out = self.spare.pop().unwrap_or_default();
        let side = &self.sides[from];
        let peer = side.peer.keys.public_key;
        side.engine.control.probe_path(peer, lengths, now, &mut out);

        self.transmit(from, out);
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
            strait_engine::Settings { max_flows: 1024, seed: 7 + self.restarts, index_seed: 7, start: self.now() };
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

    /// Blocks all datagrams to and from these addresses, and no others.
    pub(crate) fn block(&mut self, addresses: &[SocketAddr]) {
        self.blocked = addresses.to_vec();
    }

    /// Blocks datagrams from these addresses, but not those to them.
    pub(crate) fn mute(&mut self, addresses: &[SocketAddr]) {
        self.mute = addresses.to_vec();
    }

    fn now(&self) -> Instant {
        self.start + self.elapsed
    }

    fn tick(&mut self) {
        for side in [MILAN, ROME] {
            let now = self.now();
            let mut out = self.spare.pop().unwrap_or_default();
            self.sides[side].engine.handshakes.send_copies(now, &mut out);
            self.transmit(side, out);
            if self.elapsed < self.sides[side].next_tick {
                continue;
            }
            self.sides[side].next_tick = self.elapsed + TICK;
            let mut out = self.spare.pop().unwrap_or_default();
            self.sides[side].engine.handshakes.handle_timeout(now).fill(&mut out);
            // As the daemon does every second.
            self.sides[side].engine.control.free_retired();
            self.transmit(side, out);
            let has_session = self.session(side).is_established;
            self.checker.check_timers(side, has_session && self.endpoint(side).is_some(), self.elapsed);
        }
    }

    /// Time until the next event, if no datagram is in flight.
    fn quiet(&mut self) -> Option<Duration> {
        let start = self.start;
        let next = self.sides.iter_mut().flat_map(|side| {
            let copy = side.engine.handshakes.next_copy();
            [Some(side.next_tick), copy.map(|due| due.saturating_duration_since(start))]
        });
        let next = next.flatten().min()?;

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

        let received = Received { bytes, stride, path, ecn };
        let handshake = |message: &[u8], path| {
            messages.push_back((message.to_vec(), path));
            true
        };
        if self.network.queues_are_long {
            inbound.handle_congested(received, now, &mut out, handshake);
        } else {
            inbound.handle_datagrams(received, now, &mut out, handshake);
        }
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
