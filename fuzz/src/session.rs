//! Two peers with the engine `native`, and a simulated network controlled by the input.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strait_packet::Header;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::ecn::Ecn;
use strait_packet::segment::Segments;
use strait_packet::virtio::VirtioHeader;
use strait_wg::Epoch;
use strait_wg::PrivateKey;
use strait_wg::message::Message;
use strait_wg::native::{Environment, Lanes, NativeIdentity};
use strait_wg::tunnel::{Identification, Identity, PeerKeys, TimerPolicy, Tunnel};

/// Maximum number of datagrams in the network; a further one displaces the oldest.
const WIRE_MAX: usize = 64;

const TICK: Duration = Duration::from_millis(100);

/// Time that the peers have to establish a session after the network works again.
const RECOVERY: Duration = Duration::from_secs(30);

/// Each pair of bytes is a step: a datagram is sent, delivered, duplicated, lost or changed, or time passes.
/// Each packet that arrives was sent, and arrives once; changed datagrams are rejected; and once the
/// network works again, the peers have a session.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn session(steps: &[u8]) {
    let mut simulation = Simulation::new();
    for step in steps.chunks_exact(2) {
        if let [kind, argument] = *step {
            simulation.step(kind, argument);
        }
    }

    simulation.recover();
}

struct Peer {
    identity: NativeIdentity,
    tunnel: Arc<dyn Tunnel>,
    address: SocketAddr,
}

struct Simulation {
    peers: [Peer; 2],
    now: Instant,
    /// Sender and content of each datagram in the network.
    wire: Vec<(usize, Vec<u8>)>,
    sent: u16,
    arrived: HashSet<(usize, u16)>,
}

impl Simulation {
    fn new() -> Self {
        let now = Instant::now();
        let keys = [1_u8, 2].map(|number| PrivateKey::from_file_content(&[number; 32]));
        let keys = keys.map(|key| key.unwrap_or_else(|error| panic!("{error}")));
        let [one, two] = &keys;
        let peer = |own: &PrivateKey, other: &PrivateKey, number: u16| {
            let identity = NativeIdentity::new(own, environment(number, now));
            let keys = PeerKeys { public_key: other.public_key(), preshared_key: None };
            let tunnel = identity.tunnel(&keys, number.into());
            let address = SocketAddr::from(([192, 0, 2, 1], number));
            Peer { identity, tunnel, address }
        };
        let peers = [peer(one, two, 1), peer(two, one, 2)];

        Self { peers, now, wire: Vec::new(), sent: 0, arrived: HashSet::new() }
    }

    fn step(&mut self, kind: u8, argument: u8) {
        let place = usize::from(argument).checked_rem(self.wire.len());
        match (kind % 8, place) {
            (0, _) => self.send(0),
            (1, _) => self.send(1),
            (2, Some(place)) => {
                let (from, datagram) = self.wire.remove(place);
                self.deliver(from, &datagram);
            }
            (3, Some(place)) => {
                if let Some((from, datagram)) = self.wire.get(place).cloned() {
                    self.deliver(from, &datagram);
                }
            }
            (4, Some(place)) => {
                self.wire.remove(place);
            }
            (5, _) => self.deliver_changed(argument),
            (6, _) => self.advance(TICK * u32::from(argument)),
            (7, _) => self.restart(usize::from(argument % 2)),
            _ => {}
        }
    }

    fn peer(&self, number: usize) -> &Peer {
        let [one, two] = &self.peers;

        if number == 0 { one } else { two }
    }

    fn send(&mut self, from: usize) {
        let mut packet = packet(from, self.sent);
        self.sent = self.sent.wrapping_add(1);
        let mut out = TransmitBatch::with_capacity(1 << 16);
        let header = Header::parse(&packet).unwrap_or_else(|error| panic!("{error:?}"));
        let virtio = VirtioHeader::default();
        let segments = Segments::new(&mut packet, &virtio, &header);
        let mut segments = segments.unwrap_or_else(|error| panic!("{error:?}"));
        let outer = Outer::data(self.peer(1 - from).address, Ecn::NotEct);
        self.peer(from).tunnel.seal(&mut segments, outer, &mut out, self.now);

        self.enqueue(from, &out);
    }

    fn restart(&mut self, from: usize) {
        let mut out = TransmitBatch::with_capacity(1 << 16);
        let destination = self.peer(1 - from).address;
        self.peer(from).tunnel.restart(destination.into(), &mut out, self.now);

        self.enqueue(from, &out);
    }

    /// Delivers the newest datagram with one bit flipped.
    fn deliver_changed(&mut self, argument: u8) {
        let Some((from, mut datagram)) = self.wire.last().cloned() else { return };
        let place = usize::from(argument) % datagram.len();
        if let Some(byte) = datagram.get_mut(place) {
            *byte ^= 1 << (argument % 8);
        }
        let before = self.arrived.len();
        self.deliver(from, &datagram);

        assert_eq!(self.arrived.len(), before, "a changed datagram was accepted: {datagram:?}");
    }

    fn deliver(&mut self, from: usize, datagram: &[u8]) {
        let mut out = TransmitBatch::with_capacity(1 << 16);
        let mut opened = PacketBatch::with_capacity(1 << 12, 8);
        let (sender, receiver) = (self.peer(from), self.peer(1 - from));
        let (source, now) = (sender.address, self.now);
        match Message::classify(datagram) {
            None => return,
            Some(Message::Data { .. }) => {
                receiver.tunnel.open(datagram, datagram.len(), &mut opened, now);
            }
            Some(Message::Initiation) => {
                let known = receiver.identity.identify(datagram, source.into(), &mut out);
                if matches!(known, Ok(Identification::Peer(_))) {
                    let _ =
                        receiver.tunnel.handle_handshake(datagram, source.into(), &mut out, now);
                }
            }
            Some(Message::Response { .. } | Message::CookieReply { .. }) => {
                let _ = receiver.tunnel.handle_handshake(datagram, source.into(), &mut out, now);
            }
        }
        receiver.tunnel.seal_staged(source.into(), &mut out, now);

        for range in opened.packets() {
            let arrived = opened.bytes().get(range.clone()).unwrap_or_default();
            let number = arrived.get(4..).and_then(|rest| rest.first_chunk());
            let number = number.map_or(0, |bytes| u16::from_be_bytes(*bytes));
            assert_eq!(arrived, packet(from, number), "the packet was not sent");
            assert!(number < self.sent, "number {number} was not sent");
            assert!(self.arrived.insert((from, number)), "number {number} arrives twice");
        }
        self.enqueue(1 - from, &out);
    }

    /// Advances the time of both peers, in ticks as in a gateway.
    fn advance(&mut self, duration: Duration) {
        let until = self.now + duration;
        while self.now < until {
            self.now += TICK;
            for number in [0, 1] {
                let mut out = TransmitBatch::with_capacity(1 << 16);
                let destination = self.peer(1 - number).address;
                self.peer(number).identity.handle_timeout(self.now);
                let path = Some(destination.into());
                let policy = TimerPolicy { path, persistent_keepalive: None, may_initiate: true };
                self.peer(number).tunnel.handle_timeout(policy, &mut out, self.now);
                self.enqueue(number, &out);
            }
        }
    }

    fn enqueue(&mut self, from: usize, out: &TransmitBatch) {
        for transmit in out.transmits() {
            for datagram in out.bytes(transmit).chunks(transmit.segment_bytes.max(1)) {
                self.wire.push((from, datagram.to_vec()));
            }
        }
        let too_many = self.wire.len().saturating_sub(WIRE_MAX);
        self.wire.drain(..too_many);
    }

    /// Delivers everything at once from now on, until both peers reach each other.
    fn recover(&mut self) {
        self.wire.clear();
        let end = self.now + RECOVERY;
        for from in [0, 1] {
            self.send(from);
        }
        while self.now < end {
            self.deliver_all();
            self.advance(TICK);
        }
        self.deliver_all();

        for from in [0, 1] {
            let number = self.sent;
            self.send(from);
            self.deliver_all();
            assert!(self.arrived.contains(&(from, number)), "packets of peer {from} do not arrive");
        }
    }

    fn deliver_all(&mut self) {
        while !self.wire.is_empty() {
            let (from, datagram) = self.wire.remove(0);
            self.deliver(from, &datagram);
        }
    }
}

/// The same in every run, so that failures are reproducible.
fn environment(seed: u16, now: Instant) -> Environment {
    let state = AtomicU64::new(seed.into());
    let randomness = move |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(8) {
            // splitmix64: well distributed, and predictable.
            let mut mixed = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            for (byte, random) in chunk.iter_mut().zip(mixed.to_le_bytes()) {
                *byte = random;
            }
        }
    };
    let epoch = Epoch::new(now, Duration::from_secs(1_700_000_000));

    // One peer uses vector lanes if the processor has them, the other none.
    let lanes = if seed == 1 { Lanes::detect() } else { Lanes::none() };
    let mtu = Arc::new(AtomicU16::new(1420));

    Environment { randomness: Arc::new(randomness), epoch, mtu, lanes }
}

/// An IPv4 packet that contains its sender and a number.
fn packet(from: usize, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let sender = if from == 0 { 1 } else { 2 };

    vec![0x45, 0, 0, 20, high, low, 0, 0, 64, 253, 0, 0, 10, 0, 0, sender, 10, 0, 0, 9]
}
