//! A gateway that many know: it and one of its peers in namespaces of their own, the others only in its file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nix::sys::signal::Signal;
use socket2::{Domain, Protocol, Socket, Type};
use strait_lab::GatewayConfig;
use strait_lab::GatewayProcess;
use strait_lab::LabError;
use strait_lab::Namespace;
use strait_lab::PeerSection;
use strait_lab::Process;
use strait_lab::Scratch;
use strait_lab::gateway::METRICS_ADDRESS;
use strait_lab::initiator::initiation;
use strait_lab::netlink::connect;
use strait_lab::now;
use strait_lab::scrape;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_wg::Engine;
use strait_wg::PrivateKey;
use strait_wg::PublicKey;

use crate::harness::STRAIT;

const PORT: u16 = 51840;

/// The port of the other peers' endpoints: any number of addresses, and no listener.
const AWAY_PORT: u16 = 9;

const HUB: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(10, 77, 0, 1)];
const ROME: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(10, 77, 0, 2)];

/// The first tunnel address of the others.
const FIRST_OTHER: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);

const PATIENCE: Duration = Duration::from_secs(60);

/// Who is in the file beside the two peers that the test plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Peers without an endpoint, of which nothing is ever heard.
    Silent,
    /// Peers with an endpoint that does not answer.
    Away,
    /// One peer with so many allowed IPs, and no routes.
    AllOne,
}

/// The program whose figures are taken: that of the image, if it was built, or else that of this build.
pub(crate) fn strait() -> PathBuf {
    let path = std::env::var_os("STRAIT_IMAGE_BINARY");

    path.unwrap_or_else(|| STRAIT.into()).into()
}

/// What of a process is in memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// All of it: as `ps` and cgroups tell.
    pub(crate) all: u64,
    /// The most that it ever was.
    pub(crate) most: u64,
    /// Its own. The rest are pages of the program, as they are in the file: one copy for all that run it,
    /// and the kernel takes them back when it needs the memory.
    pub(crate) own: u64,
}

pub(crate) struct Hub {
    /// From the start of the program to its readiness.
    pub(crate) ready: Duration,
    /// From the start of the program to its first answer to a peer.
    pub(crate) answered: Duration,
    namespace: Arc<Namespace>,
    rome: Arc<Namespace>,
    rome_key: PrivateKey,
    own_key: PublicKey,
    config: GatewayConfig,
    process: Process,
    log: PathBuf,
    greetings: Greetings,
    scratch: Scratch,
}

/// What was sent to peers that are away.
pub(crate) struct Greeted {
    /// From the first of them to the last.
    pub(crate) all_after: Duration,
    pub(crate) most_in_a_tick: usize,
}

impl Hub {
    pub(crate) fn start(count: usize, others: Others) -> Self {
        let scratch = Scratch::new().unwrap();
        let [namespace, rome] = ["hub", "rome"].map(|name| Arc::new(Namespace::new(name).unwrap()));
        connect((&namespace, "underlay"), (&rome, "underlay"), 1500).unwrap();
        for (namespace, [address, _]) in [(&namespace, HUB), (&rome, ROME)] {
            namespace.add_address("underlay", net(address, 24)).unwrap();
        }

        let [own, rome_key, probe] = [(); 3].map(|()| PrivateKey::generate());
        let mut config = config("hub", HUB, &own, &scratch);
        config.set_routes(others != Others::AllOne);
        let inner = |address| vec![net(address, 32)];
        config.peers.push(PeerSection::new("rome", rome_key.public_key(), inner(ROME[1])));
        let nowhere = Ipv4Addr::new(10, 77, 0, 3);
        config.peers.push(PeerSection::new("probe", probe.public_key(), inner(nowhere)));
        config.peers.extend(sections(count, others));
        let file = scratch.write("hub.toml", &config.to_toml().unwrap()).unwrap();
        let greetings = Greetings::listen(&namespace);
        let message = initiation(&probe, own.public_key(), now());

        let start = now();
        let log = scratch.path().join("hub.log");
        let words = ["gateway".as_ref(), "--config".as_ref(), file.as_os_str()];
        let process = Process::start(&namespace, "the hub", &strait(), words, log.clone()).unwrap();
        let answer = namespace.spawn(move || first_answer(&message, start)).unwrap();
        wait_until("the hub was ready", PATIENCE, || {
            Ok(namespace
                .run(|| scrape::get(METRICS_ADDRESS, "/readyz"))
                .is_ok_and(|(s, _)| s == 200))
        })
        .unwrap();
        let ready = start.elapsed();
        let answered = answer.join().unwrap();

        Self {
            ready,
            answered,
            own_key: own.public_key(),
            namespace,
            rome,
            rome_key,
            config,
            process,
            log,
            greetings,
            scratch,
        }
    }

    pub(crate) fn resident(&self) -> Resident {
        Resident::of(&self.process)
    }

    /// The most memory in bytes that was resident during `action`, above what was before it.
    pub(crate) fn peak_of<T>(&mut self, action: impl FnOnce(&mut Self) -> T) -> (u64, T) {
        // Begins the high-water mark again: proc_pid_clear_refs(5).
        fs::write(format!("/proc/{}/clear_refs", self.process.id()), "5").unwrap();
        let before = self.resident();
        let result = action(self);

        (self.resident().most.saturating_sub(before.all), result)
    }

    /// Which part of a core it takes while nothing happens.
    pub(crate) fn idle(&self, duration: Duration) -> f64 {
        let before = cpu_nanos(&self.process);
        std::thread::sleep(duration);
        let spent = cpu_nanos(&self.process) - before;

        Duration::from_nanos(spent).as_secs_f64() / duration.as_secs_f64()
    }

    /// How long a scrape takes, and its length.
    pub(crate) fn scrape(&self) -> (Duration, usize) {
        let start = now();
        let (_, text) = self.namespace.run(|| scrape::get(METRICS_ADDRESS, "/metrics")).unwrap();

        (start.elapsed(), text.len())
    }

    /// Changes one of the others in the file and has it read, while another peer pings. How long that takes, and the
    /// longest of the pings.
    pub(crate) fn change_one(&mut self) -> (Duration, Duration) {
        let mut rome = config("rome", ROME, &self.rome_key, &self.scratch);
        rome.peers.push(PeerSection {
            endpoint: Some(SocketAddr::new(HUB[0].into(), PORT).to_string()),
            ..PeerSection::new("hub", self.own_key, vec![net(HUB[1], 32)])
        });
        let rome = GatewayProcess::start(&self.rome, &strait(), &rome, &self.scratch).unwrap();
        rome.wait_for_session().unwrap();
        self.config.peers.last_mut().unwrap().allowed_ips =
            vec![net(Ipv4Addr::new(10, 78, 0, 1), 32)];
        self.scratch.write("hub.toml", &self.config.to_toml().unwrap()).unwrap();
        let ping = Ping { interval: Duration::from_millis(2), ..Ping::new(HUB[1].into(), 1_000) };
        let ping = self.rome.spawn(move || ping.run_here().unwrap()).unwrap();
        let mut log = File::open(&self.log).unwrap();
        log.seek(SeekFrom::End(0)).unwrap();

        std::thread::sleep(Duration::from_millis(500));
        let start = now();
        self.process.signal(Signal::SIGHUP).unwrap();
        let mut text = String::new();
        wait_until("the configuration was reloaded", PATIENCE, || {
            log.read_to_string(&mut text).map_err(LabError::io("read the log"))?;
            Ok(text.contains("configuration reloaded"))
        })
        .unwrap();
        let elapsed = start.elapsed();
        let report = ping.join().unwrap();
        rome.stop().unwrap();

        assert!(report.is_perfect(), "{report:?}");
        (elapsed, report.round_trips.into_iter().max().unwrap())
    }

    /// Waits until `count` peers that are away were greeted.
    pub(crate) fn greetings(&self, count: usize) -> Greeted {
        let heard = &self.greetings.heard;
        wait_until("all were greeted", PATIENCE, || Ok(heard.lock().unwrap().len() >= count))
            .unwrap();
        let mut times: Vec<_> = heard.lock().unwrap().values().copied().collect();
        times.sort();
        let tick = Duration::from_millis(100);
        let within = |first: usize| {
            times[first..].iter().take_while(|at| **at < times[first] + tick).count()
        };

        Greeted {
            all_after: *times.last().unwrap() - times[0],
            most_in_a_tick: (0..times.len()).map(within).max().unwrap(),
        }
    }

    pub(crate) fn stop(&self) {
        self.process.signal(Signal::SIGTERM).unwrap();
        let path = format!("/proc/{}/fd", self.process.id());
        let is_gone = || Ok(fs::read_dir(&path).map_or(true, |mut open| open.next().is_none()));
        wait_until("the hub ended", PATIENCE, is_gone).unwrap();
    }
}

/// Hears what is sent to peers that are away.
struct Greetings {
    /// When an initiation came for an address the first time.
    heard: Arc<Mutex<BTreeMap<[u8; 4], Instant>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Greetings {
    fn listen(namespace: &Namespace) -> Self {
        let heard: Arc<Mutex<BTreeMap<_, _>>> = Arc::default();
        let is_over: Arc<AtomicBool> = Arc::default();
        let (heard_there, is_over_there) = (Arc::clone(&heard), Arc::clone(&is_over));
        // It shows the header of IP, and with it where to.
        let socket = namespace.run(|| {
            Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP))
                .map_err(LabError::io("open a raw socket"))
        });
        let socket = socket.unwrap();
        socket.set_recv_buffer_size(4 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut socket, mut packet) = (socket, [0; 2048]);
            while !is_over_there.load(Ordering::Relaxed) {
                let Ok(len) = socket.read(&mut packet) else { continue };
                let is_away = packet[22..24] == AWAY_PORT.to_be_bytes();
                if len == 28 + 148 && is_away && packet[28] == 1 {
                    let address = packet[16..20].try_into().unwrap();
                    heard_there.lock().unwrap().entry(address).or_insert_with(now);
                }
            }
        });

        Self { heard, is_over, thread: Some(thread) }
    }
}

impl Drop for Greetings {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn config(
    name: &str,
    [_, inner]: [Ipv4Addr; 2],
    key: &PrivateKey,
    scratch: &Scratch,
) -> GatewayConfig {
    let file = scratch.write(&format!("{name}.key"), &key.to_base64()).unwrap();
    let mut config = GatewayConfig::new(name, vec![net(inner, 32)], PORT, file);
    config.set_engine(Engine::Native.name());
    config.set_mtu(1420);

    config
}

fn sections(count: usize, others: Others) -> Vec<PeerSection> {
    if others == Others::AllOne {
        let prefixes = many_prefixes(count).collect();
        return vec![PeerSection::new("all", other_key(0), prefixes)];
    }

    (0..u32::try_from(count).unwrap())
        .map(|number| {
            let address = Ipv4Addr::from_bits(FIRST_OTHER.to_bits() + number);
            let away = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + number);
            PeerSection {
                endpoint: (others == Others::Away).then(|| format!("{away}:{AWAY_PORT}")),
                ..PeerSection::new(
                    &format!("peer-{number}"),
                    other_key(number),
                    vec![net(address, 32)],
                )
            }
        })
        .collect()
}

/// A key without a private key that is known: any bytes are a point of the curve or of its twist.
pub(crate) fn other_key(number: u32) -> PublicKey {
    let mut bytes = [0x55; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());

    PublicKey::from_bytes(bytes)
}

/// Half of them of either version of IP.
pub(crate) fn many_prefixes(count: usize) -> impl Iterator<Item = IpNet> {
    (0..u16::try_from(count / 2).unwrap()).flat_map(|number| {
        let [high, low] = (number + 256).to_be_bytes();
        let v6 = Ipv6Addr::new(high.into(), 0, 0, 0, 0, 0, 0, low.into());

        [net(Ipv4Addr::new(10, high, low, 0), 24), IpNet::from(IpAddr::V6(v6))]
    })
}

/// Sends `initiation` until it is answered; how long after `start` that was.
fn first_answer(initiation: &[u8], start: Instant) -> Duration {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut answer = [0; 256];
    while start.elapsed() < PATIENCE {
        socket.send_to(initiation, (Ipv4Addr::LOCALHOST, PORT)).unwrap();
        if let Ok(92) = socket.recv(&mut answer) {
            return start.elapsed();
        }
    }

    panic!("no answer");
}

impl Resident {
    pub(crate) fn of(process: &Process) -> Self {
        let text = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };

        Self { all: field("VmRSS:"), most: field("VmHWM:"), own: field("RssAnon:") }
    }
}

impl fmt::Display for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kB resident, {} of them its own", self.all / 1000, self.own / 1000)
    }
}

/// What all threads have spent.
fn cpu_nanos(process: &Process) -> u64 {
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();

    threads
        .map(|thread| {
            let text = fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap();
            text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        })
        .sum()
}

fn net(address: Ipv4Addr, len: u8) -> IpNet {
    IpNet::new_assert(address.into(), len)
}
