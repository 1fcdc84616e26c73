//! How soon a new peer gets its session while a flood of 100,000 handshakes a second arrives, and what the flood
//! takes of memory.
//!
//! A newcomer is a peer with a key of its own that behaves as the whitepaper has it: it sends one initiation, and
//! another one after five seconds, with a cookie if it has got one. The flood forges one address, those of the
//! newcomers, or thousands.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use strait_lab::gateway::{GatewayConfig, GatewayProcess, PeerSection};
use strait_lab::netlink::{Via, connect};
use strait_lab::process::find;
use strait_lab::topology::LISTEN_PORT;
use strait_lab::{LabError, Namespace, Scratch, now};
use strait_packet::buffer::TransmitBatch;
use strait_wg::Epoch;
use strait_wg::native::Environment;
use strait_wg::tunnel::{PeerKeys, TimerPolicy};
use strait_wg::{Engine, IndexSlot, PrivateKey, PublicKey, Tunnel};

use crate::flood::{FORGED, FORGED_LEN, MESSAGES, Sources, initiation, is_strict, net, packet};
use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::{is_thorough, require};

/// Messages of the flood in a second.
const PACE: u32 = 100_000;

/// How many come under each flood.
const NEWCOMERS: u16 = 20;

/// How many of them must have a session in time.
const LEAST: usize = 19;

/// From one newcomer to the next.
const GAP: Duration = Duration::from_millis(200);

/// Within this a newcomer has its session.
const LIMIT: Duration = Duration::from_secs(6);

/// How long the flood lasts before the first of them.
const BEFORE: Duration = Duration::from_secs(2);

/// What the gateway may hold more than in peace, in bytes.
const GROWTH: u64 = 4 << 20;

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_millis(50);

const HUB: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Of all newcomers, each at a port of its own from `PORT` on.
const NEWCOMER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
const PORT: u16 = 50_000;

/// As gateways have: under a flood with its address a newcomer gets thousands of cookies a second.
const RECEIVE_BUFFER_BYTES: usize = 2 << 20;

/// Until load is over and its memory is released.
const CALM: Duration = Duration::from_secs(3);

#[test]
fn new_peers_connect_within_six_seconds_under_flood() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else { return };
    let hub = Hub::start();
    let own = Sources { address: NEWCOMER, addresses: 1, port: PORT, ports: NEWCOMERS };
    let floods = [
        ("one source", Sources::forged(1)),
        ("the newcomers' own address and ports", own),
        ("10,000 sources", Sources::forged(10_000)),
        ("131,072 sources", Sources::forged(131_072)),
    ];

    let floods = if is_thorough() { &floods[..] } else { &floods[1..3] };
    for (number, &(name, sources)) in (0..).zip(floods) {
        std::thread::sleep(CALM);
        hub.forget_peak();
        let before = hub.resident("VmRSS:");
        let lost = hub.lost();
        let flood = Flood::start(&hub, sources);
        std::thread::sleep(BEFORE);
        let came = hub.come(number * NEWCOMERS);
        let rate = flood.stop();
        let lost = hub.lost() - lost;
        let growth = hub.resident("VmHWM:").saturating_sub(before);
        let in_time = came.iter().flatten().count();
        let last = came.iter().flatten().max();
        eprintln!(
            "{name}, {rate:.0} messages/s: {in_time} of {NEWCOMERS} have a session within {LIMIT:?}, the last \
             after {last:?}; {lost} messages lost for lack of room, {} kB more than in peace",
            growth / 1000,
        );

        if is_strict() {
            assert!(rate >= 0.95 * f64::from(PACE), "{rate}");
            assert!(in_time >= LEAST, "{came:?}");
        }
        assert!(growth <= GROWTH, "{growth} bytes");
    }

    hub.gateway.stop().unwrap();
}

/// A gateway, and a network of which it knows nothing but some keys.
struct Hub {
    gateway: GatewayProcess,
    key: PublicKey,
    outside: Arc<Namespace>,
    /// For all floods.
    newcomers: Vec<PrivateKey>,
    epoch: Epoch,
    _inside: Arc<Namespace>,
    _scratch: Scratch,
}

impl Hub {
    fn start() -> Self {
        let [inside, outside] =
            ["hub", "outside"].map(|name| Arc::new(Namespace::router(name).unwrap()));
        connect((&inside, "underlay"), (&outside, "underlay"), 1500).unwrap();
        inside.add_address("underlay", net(HUB, 24)).unwrap();
        outside.add_address("underlay", net(OUTSIDE, 24)).unwrap();
        outside.add_address("underlay", net(NEWCOMER, 24)).unwrap();
        let forged = net(FORGED, FORGED_LEN);
        inside.add_route(forged, "underlay", Via::Router(OUTSIDE.into())).unwrap();
        let mut command = Command::new(find("ip").unwrap());
        command.args(["route", "add", "blackhole", &forged.to_string()]);
        assert!(outside.start(command).unwrap().wait().unwrap().success());

        let scratch = Scratch::new().unwrap();
        let key = PrivateKey::generate();
        let file = scratch.write("hub.key", &key.to_base64()).unwrap();
        let own = vec![net(Ipv4Addr::new(10, 77, 0, 1), 32)];
        let mut config = GatewayConfig::new("hub", own, LISTEN_PORT, file);
        config.set_engine(Engine::Native.name());
        let newcomers: Vec<_> = (0..4 * NEWCOMERS).map(|_| PrivateKey::generate()).collect();
        for (number, newcomer) in (0..).zip(&newcomers) {
            let inner = vec![net(Ipv4Addr::new(10, 77, 1, number), 32)];
            let name = format!("newcomer-{number}");
            config.peers.push(PeerSection::new(&name, newcomer.public_key(), inner));
        }
        let gateway = GatewayProcess::start(&inside, Path::new(STRAIT), &config, &scratch).unwrap();
        let key = key.public_key();

        let epoch = Epoch::new(now(), Duration::from_secs(1_700_000_000));

        Self { gateway, key, outside, newcomers, epoch, _inside: inside, _scratch: scratch }
    }

    /// One newcomer after the other, from the `first`; how long each took.
    fn come(&self, first: u16) -> Vec<Option<Duration>> {
        let mut numbers = 0..NEWCOMERS;
        let start = now();
        let mut came: Vec<Newcomer> = Vec::new();
        let mut last_look = start;

        loop {
            let is_due = start.elapsed() >= GAP * u32::try_from(came.len()).unwrap();
            if let Some(number) = is_due.then(|| numbers.next()).flatten() {
                came.push(self.newcomer(usize::from(first + number), PORT + number));
            }
            let is_look = last_look.elapsed() >= LOOK;
            if is_look {
                last_look = now();
            }
            for newcomer in &mut came {
                newcomer.go_on(is_look);
            }
            let is_over = came.iter().all(Newcomer::is_over);
            if is_over && came.len() == usize::from(NEWCOMERS) {
                return came.iter().map(|newcomer| newcomer.took).collect();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn newcomer(&self, number: usize, port: u16) -> Newcomer {
        let key = &self.newcomers[number];
        let socket = self.outside.run(move || {
            let socket = UdpSocket::bind((NEWCOMER, port)).map_err(LabError::io("bind"))?;
            socket.set_nonblocking(true).map_err(LabError::io("not block"))?;
            SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER_BYTES).unwrap();
            Ok(socket)
        });
        let peer = PeerKeys { public_key: self.key, preshared_key: None };
        let identity = Engine::Native.identity(key, &Environment::new(self.epoch, 1420));
        let tunnel = identity.tunnel(&peer, IndexSlot::from(1));
        let mut newcomer = Newcomer { tunnel, socket: socket.unwrap(), begun: now(), took: None };
        let mut out = TransmitBatch::default();
        newcomer.tunnel.initiate(HUB_ENDPOINT.into(), &mut out, newcomer.begun);
        newcomer.send(&out);

        newcomer
    }

    /// Messages for which its receive buffer had no room.
    fn lost(&self) -> u64 {
        let labels = [("direction", "inbound"), ("reason", "handshake_queue_full")];

        self.gateway.metrics().unwrap().sum("strait_drops_total", &labels)
    }

    /// `VmRSS:` is what is resident, `VmHWM:` the most that ever was; in bytes.
    fn resident(&self, field: &str) -> u64 {
        let text = fs::read_to_string(self.proc("status")).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();

        1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    }

    /// What ever was is what is.
    fn forget_peak(&self) {
        fs::write(self.proc("clear_refs"), "5").unwrap();
    }

    fn proc(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.gateway.process().id())
    }
}

const HUB_ENDPOINT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(HUB), LISTEN_PORT);

/// A peer on its way to a session.
struct Newcomer {
    tunnel: Arc<dyn Tunnel>,
    socket: UdpSocket,
    begun: Instant,
    took: Option<Duration>,
}

impl Newcomer {
    fn is_over(&self) -> bool {
        self.took.is_some() || self.begun.elapsed() > LIMIT
    }

    /// Reads what came, and looks at the clock now and then.
    fn go_on(&mut self, is_look: bool) {
        if self.is_over() {
            return;
        }
        let mut out = TransmitBatch::default();
        let mut datagram = [0; 2048];
        loop {
            match self.socket.recv(&mut datagram) {
                Ok(len) => {
                    let message = &datagram[..len];
                    let path = HUB_ENDPOINT.into();
                    let _ = self.tunnel.handle_handshake(message, path, &mut out, now());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        if self.tunnel.session().is_established {
            self.took = Some(self.begun.elapsed());
            return;
        }
        if is_look {
            let path = Some(HUB_ENDPOINT.into());
            let policy = TimerPolicy { path, persistent_keepalive: None, may_initiate: true };
            self.tunnel.handle_timeout(policy, &mut out, now());
        }
        self.send(&out);
    }

    fn send(&mut self, out: &TransmitBatch) {
        for (message, _) in out.datagrams_behind(0) {
            self.socket.send_to(message, HUB_ENDPOINT).unwrap();
        }
    }
}

/// A thread that sends at [`PACE`].
struct Flood {
    thread: JoinHandle<()>,
    shared: Arc<(AtomicBool, AtomicU64)>,
    started: Instant,
}

impl Flood {
    fn start(hub: &Hub, sources: Sources) -> Self {
        let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let (key, there) = (hub.key, Arc::clone(&shared));
        let thread = hub.outside.spawn(move || send(key, sources, &there)).unwrap();

        Self { thread, shared, started: now() }
    }

    /// Gives messages per second.
    fn stop(self) -> f64 {
        let sent = self.shared.1.load(Ordering::Relaxed);
        let elapsed = self.started.elapsed().as_secs_f64();
        self.shared.0.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();

        f64::from(u32::try_from(sent).unwrap()) / elapsed
    }
}

/// A thread that is late catches up, a millisecond's worth at a time.
fn send(key: PublicKey, sources: Sources, shared: &(AtomicBool, AtomicU64)) {
    let (is_over, sent) = shared;
    let raw = Some(Protocol::from(libc::IPPROTO_RAW));
    let socket = Socket::new(Domain::IPV4, Type::RAW, raw).unwrap();
    let target = SocketAddr::new(HUB.into(), LISTEN_PORT);
    let mut packets: Vec<_> =
        (0..MESSAGES).map(|_| packet(HUB.octets(), LISTEN_PORT, &initiation(key))).collect();
    let (address, start) = (target.into(), now());
    let mut number = 0_u32;

    while !is_over.load(Ordering::Relaxed) {
        let due = start.elapsed().as_secs_f64() * f64::from(PACE);
        let ahead = f64::from(number) - due;
        if ahead > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(ahead / f64::from(PACE)));
            continue;
        }
        for _ in 0..PACE / 1_000 {
            let packet = &mut packets[usize::try_from(number).unwrap() % MESSAGES];
            sources.stamp(packet, number);
            // A full queue loses packets, as networks do.
            let _ = socket.send_to(packet, &address);
            number += 1;
        }
        sent.store(number.into(), Ordering::Relaxed);
    }
}
