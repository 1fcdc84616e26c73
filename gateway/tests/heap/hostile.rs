//! What an attacker can send endlessly ends no session, changes no endpoint and fills no memory.
//!
//! Two engines in memory with a session between them; the allocator is asked what they hold.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use remap::{Cluster, Table};
use strait_engine::Engine;
use strait_engine::PeerConfig;
use strait_engine::inbound::Received;
use strait_packet::buffer::TransmitBatch;
use strait_packet::ecn::Ecn;
use strait_packet::virtio::VirtioHeader;
use strait_wg::Epoch;
use strait_wg::PrivateKey;
use strait_wg::message::Message;
use strait_wg::native::Environment;
use strait_wg::tunnel::PeerKeys;

use crate::Count;

/// How often each message is sent again.
const REPEATED: u32 = 1_000_000;

/// How much more a gateway may hold under attack than without, in bytes: the sources that it remembers.
const MEMORY_MAX: usize = 4 << 20;

/// Between two messages of the attacker: a million a second.
const GAP: Duration = Duration::from_micros(1);

/// Interval of the timers of the engines, as in a gateway.
const TICK: u32 = 100_000;

#[test]
fn a_million_repeated_messages_neither_disconnect_nor_leak() {
    let _count = Count::start();
    let mut world = World::new();
    let [initiation, response, data] = world.establish();
    let cookie_reply = world.cookie_reply(&initiation);
    world.calm_down();
    assert!(world.carries(), "the session serves before");

    for (kind, message, to) in [
        ("initiation", &initiation, MILAN),
        ("response", &response, ROME),
        ("cookie reply", &cookie_reply, ROME),
        ("data", &data, MILAN),
    ] {
        let here = world.endpoint(to);
        let (before, blocks) =
            (dhat::HeapStats::get().curr_bytes, dhat::HeapStats::get().total_blocks);
        let mut out = TransmitBatch::default();
        for number in 0..REPEATED {
            world.receive(to, message, attacker(0), &mut out);
            world.pass(GAP, number);
            for transmit in out.transmits() {
                let answer = out.bytes(transmit);
                let is_cookie =
                    matches!(Message::classify(answer), Some(Message::CookieReply { .. }));
                assert!(is_cookie && answer.len() < message.len(), "{kind}: {answer:?}");
            }
            out.clear();
        }

        let after = dhat::HeapStats::get();
        let held = after.curr_bytes.saturating_sub(before);
        dhat::assert!(held < MEMORY_MAX, "{kind}: {held} bytes");
        let allocated = after.total_blocks - blocks;
        dhat::assert!(allocated < 1_000, "{kind}: {allocated} allocations");
        dhat::assert_eq!(world.endpoint(to), here, "{kind}");
        dhat::assert!(world.carries(), "{kind}: the session serves after");
    }
}

#[test]
fn a_million_senders_neither_fill_memory_nor_block() {
    let _count = Count::start();
    let mut world = World::new();
    let [initiation, ..] = world.establish();
    world.calm_down();
    let before = dhat::HeapStats::get().curr_bytes;

    let mut out = TransmitBatch::default();
    for number in 0..REPEATED {
        world.receive(MILAN, &initiation, attacker(number), &mut out);
        world.pass(GAP, number);
        out.clear();
    }

    let stats = dhat::HeapStats::get();
    let held = stats.curr_bytes.saturating_sub(before);
    dhat::assert!(held < MEMORY_MAX, "{held} bytes");
    dhat::assert!(world.carries(), "the session serves after");
    drop(out);
    world.calm_down();
    let held = dhat::HeapStats::get().curr_bytes.saturating_sub(before);
    dhat::assert!(held < 64 << 10, "{held} bytes in peace");
}

/// Answers.
const MILAN: usize = 0;
/// Begins.
const ROME: usize = 1;

const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 51840),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 51840),
];

struct World {
    now: Instant,
    sides: [Engine; 2],
    sent: u16,
    arrived: usize,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
    fn new() -> Self {
        let now = Instant::now();
        let environment = Environment::new(Epoch::new(now, Duration::from_secs(1)), 1420);
        let keys = [PrivateKey::generate(), PrivateKey::generate()];
        let sides = [MILAN, ROME].map(|own| {
            let identity = strait_wg::Engine::Native.identity(&keys[own], &environment);
            let settings =
                strait_engine::Settings { max_flows: 16, seed: 7, index_seed: 7, start: now };
            let mut engine = Engine::new(identity, settings).unwrap();
            let pods = if own == MILAN { "10.2.0.0/16" } else { "10.1.0.0/16" };
            let peer = PeerConfig {
                name: "peer".into(),
                keys: PeerKeys { public_key: keys[1 - own].public_key(), preshared_key: None },
                endpoints: if own == ROME { vec![ADDRESSES[MILAN]] } else { Vec::new() },
                allowed_ips: [pods.parse().unwrap()].into(),
                clamp_mtu: None,
                persistent_keepalive: None,
            };
            let table = Table::build(1, &Cluster::default(), []).0;
            engine.control.apply(vec![peer], table);

            engine
        });

        Self { now, sides, sent: 0, arrived: 0 }
    }

    /// A handshake. Gives what went over the wire: initiation, response, keepalive.
    fn establish(&mut self) -> [Vec<u8>; 3] {
        let mut out = TransmitBatch::default();
        self.sides[ROME].handshakes.handle_timeout(self.now).fill(&mut out);

        [MILAN, ROME, MILAN].map(|to| {
            let message = out.bytes(&out.transmits()[0]).to_vec();
            out.clear();
            self.receive(to, &message, ADDRESSES[1 - to], &mut out);

            message
        })
    }

    /// What Milan answers to Rome's `initiation` under load.
    fn cookie_reply(&mut self, initiation: &[u8]) -> Vec<u8> {
        let mut out = TransmitBatch::default();
        while out.is_empty() {
            self.receive(MILAN, initiation, ADDRESSES[ROME], &mut out);
        }

        out.bytes(&out.transmits()[0]).to_vec()
    }

    /// The load is over.
    fn calm_down(&mut self) {
        for _ in 0..30 {
            self.pass(Duration::from_millis(100), 0);
        }
    }

    fn endpoint(&self, side: usize) -> Option<SocketAddr> {
        self.sides[side].control.current().peers()[0].endpoint()
    }

    /// Whether a packet of either side reaches the other.
    fn carries(&mut self) -> bool {
        [(ROME, MILAN), (MILAN, ROME)].into_iter().all(|(from, to)| {
            self.sent += 1;
            let mut packet = packet(from, self.sent);
            let mut out = TransmitBatch::default();
            let _ = self.sides[from].outbound.handle_frame(
                &VirtioHeader::default(),
                &mut packet,
                self.now,
                &mut out,
            );
            let arrived = self.arrived;
            let mut answers = TransmitBatch::default();
            for transmit in out.transmits() {
                self.receive(to, out.bytes(transmit), ADDRESSES[from], &mut answers);
            }

            self.arrived == arrived + 1
        })
    }

    fn receive(&mut self, to: usize, bytes: &[u8], source: SocketAddr, out: &mut TransmitBatch) {
        let now = self.now;
        let Engine { inbound, handshakes, .. } = &mut self.sides[to];
        let received =
            Received { bytes, stride: bytes.len(), path: source.into(), ecn: Ecn::NotEct };
        let mut is_handshake = false;
        inbound.handle_datagrams(received, now, out, |_, _| {
            is_handshake = true;
            true
        });
        if is_handshake {
            handshakes.handle_message(bytes, source.into(), now, out);
        }
        inbound.drain(|frame, _, accounts| {
            self.arrived += frame.packet_count();
            accounts.handle_frame(u64::try_from(frame.packet_count()).unwrap(), 0, true);
        });
    }

    /// Time passes; with every [`TICK`]th call the engines notice.
    fn pass(&mut self, duration: Duration, number: u32) {
        self.now += duration;
        if !number.is_multiple_of(TICK) {
            return;
        }
        let mut out = TransmitBatch::default();
        for side in [MILAN, ROME] {
            self.sides[side].handshakes.handle_timeout(self.now).fill(&mut out);
        }
    }
}

/// Where the attacker says that he is.
fn attacker(number: u32) -> SocketAddr {
    (Ipv4Addr::from(0x0a00_0000 + number), 4500).into()
}

/// An IPv4 packet between two pods.
fn packet(from: usize, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let (source, destination) = if from == ROME { (2, 1) } else { (1, 2) };
    let mut packet = vec![0x45, 0, 0, 20, high, low, 0, 0, 64, 253, 0, 0];
    packet.extend([10, source, 0, 1, 10, destination, 0, 1]);
    let checksum = remap::checksum::complete(remap::checksum::sum(&packet));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());

    packet
}
