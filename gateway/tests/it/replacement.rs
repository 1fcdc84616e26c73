//! The binary of a running gateway is replaced, and the gateway goes on with the new one: not a packet is lost.
//!
//! Needs root and `/dev/net/tun`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use strait_lab::traffic::{Amount, Datagrams, Ping, tcp, udp};
use strait_lab::{Cluster, Layout, Namespace, wait_until};

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::{is_thorough, require};
use crate::harness::world::World;

/// What a gateway logs when it goes on where its predecessor stopped.
const TOOK_OVER: &str = "took over from the previous program";

/// What a gateway logs when it is not replaced.
const GOES_ON: &str = "not replaced: this program goes on";

/// How long a replacement may take, with the check before it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Two clusters whose gateways run from files of their own.
struct Replaceable {
    world: World,
    rome: PathBuf,
    milan: PathBuf,
}

impl Replaceable {
    fn start(layout: &Layout) -> Self {
        let mut world = World::prepare(layout);
        let clusters = &mut world.clusters;
        let [rome, milan] = ["rome", "milan"].map(|name| {
            let file = clusters.scratch.path().join(name).join("strait");
            fs::create_dir(file.parent().unwrap()).unwrap();
            install(&file);
            file
        });
        clusters.milan.start(&milan, &clusters.scratch).unwrap();
        clusters.rome.start(&rome, &clusters.scratch).unwrap();
        clusters.rome.process().unwrap().wait_for_session().unwrap();

        Self { world, rome, milan }
    }

    const fn rome(&self) -> &Cluster {
        self.world.rome()
    }

    const fn milan(&self) -> &Cluster {
        self.world.milan()
    }
}

/// Puts the program into the place of `file`: a link, as the program is long in a test build.
fn install(file: &Path) {
    let new = file.with_extension("new");
    symlink(STRAIT, &new).unwrap();
    fs::rename(new, file).unwrap();
}

/// Puts a program that does not work into `file`.
fn install_script(file: &Path, script: &str) {
    let new = file.with_extension("new");
    fs::write(&new, script).unwrap();
    fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, file).unwrap();
}

/// How often the log of a gateway contains `text`.
fn count(cluster: &Cluster, text: &str) -> usize {
    cluster.process().unwrap().process().log().matches(text).count()
}

/// Asks a gateway to be replaced, and waits until it logs `outcome` once more.
fn replace(cluster: &Cluster, outcome: &str) {
    let before = count(cluster, outcome);
    cluster.process().unwrap().process().signal(Signal::SIGUSR2).unwrap();
    let condition = format!("{} logged {outcome:?}", cluster.name);
    wait_until(condition, TIMEOUT, || Ok(count(cluster, outcome) > before)).unwrap();
}

fn last_handshake(cluster: &Cluster) -> Option<String> {
    let metrics = cluster.metrics().unwrap();

    metrics.value("strait_peer_last_handshake_timestamp_seconds", &[]).map(str::to_owned)
}

/// Datagrams that the kernel dropped because a receive buffer in `namespace` was full.
fn receive_buffer_errors(namespace: &Namespace) -> u64 {
    let snmp =
        namespace.run(|| Ok(fs::read_to_string("/proc/thread-self/net/snmp").unwrap())).unwrap();
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut fields = names.split(' ').zip(values.split(' '));

    fields.find(|(name, _)| *name == "RcvbufErrors").unwrap().1.parse().unwrap()
}

/// Packets that the kernel dropped because a queue of the device was full.
fn device_drops(cluster: &Cluster) -> u64 {
    let devices = cluster
        .gateway
        .run(|| Ok(fs::read_to_string("/proc/thread-self/net/dev").unwrap()))
        .unwrap();
    let device = devices.lines().find_map(|line| line.trim().strip_prefix("strait0:")).unwrap();

    // Eight counts of received packets, then bytes, packets, errors and drops of sent ones.
    device.split_whitespace().nth(11).unwrap().parse().unwrap()
}

/// Under full load: one TCP stream at full speed, numbered datagrams, and pings in the other direction.
#[test]
fn replaced_gateways_lose_no_packet() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let rounds: u32 = if is_thorough() { 10 } else { 2 };
    let replaceable = Replaceable::start(&Layout::equal().without_ipv6());
    let (rome, milan) = (replaceable.rome(), replaceable.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let back = milan.side.sees(&rome.side).next().unwrap();
    let handshake = last_handshake(rome);
    let ids = [rome, milan].map(|cluster| cluster.process().unwrap().process().id());
    let seconds = u64::from(rounds) + 1;

    // A queue of the device holds a thousand packets: half a second, for a busy machine.
    let datagrams = Datagrams { count: 2000 * seconds, payload_bytes: 1200, per_second: 2000 };
    let count = u16::try_from(100 * seconds).unwrap();
    let ping = Ping { interval: Duration::from_millis(10), ..Ping::new(back, count) };
    let (train, bulk, pings) = thread::scope(|scope| {
        let bulk = Amount::Time(Duration::from_secs(seconds));
        let bulk = scope.spawn(move || tcp(&rome.pod, &milan.pod, target, bulk).unwrap());
        // The sender of datagrams keeps the pod from starting another thread.
        thread::sleep(Duration::from_millis(200));
        let train = scope.spawn(|| udp(&rome.pod, &milan.pod, target, datagrams).unwrap());
        let pings = scope.spawn(move || ping.run(&milan.pod).unwrap());
        thread::sleep(Duration::from_millis(300));
        for _ in 0..rounds {
            install(&replaceable.rome);
            replace(rome, TOOK_OVER);
            install(&replaceable.milan);
            replace(milan, TOOK_OVER);
        }
        assert!(!bulk.is_finished(), "the replacements took longer than the traffic");
        (train.join().unwrap(), bulk.join().unwrap(), pings.join().unwrap())
    });

    for cluster in [rome, milan] {
        let log = cluster.process().unwrap().process().log();
        for line in log.lines().filter(|line| line.contains(TOOK_OVER)) {
            eprintln!("{}: {line}", cluster.name);
        }
        let lost = (receive_buffer_errors(&cluster.gateway), device_drops(cluster));
        assert_eq!(lost, (0, 0), "{log}");
    }
    eprintln!("{:.2} Gb/s", bulk.bits_per_second() / 1e9);
    // What the receiver itself had no time to read was not lost by a gateway.
    let lost = train.lost().saturating_sub(receive_buffer_errors(&milan.pod));
    assert_eq!((lost, train.duplicated, train.corrupted), (0, 0, 0), "{train:?}");
    assert!(pings.is_perfect(), "{pings:?}");
    assert!(bulk.is_intact, "{bulk:?}");
    assert_eq!(last_handshake(rome), handshake, "the sessions went on");
    let ids_after = [rome, milan].map(|cluster| cluster.process().unwrap().process().id());
    assert_eq!(ids, ids_after);
    replaceable.world.assert_traffic();
    replaceable.world.finish();
}

#[test]
fn broken_binary_does_not_replace_gateway() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let replaceable = Replaceable::start(&Layout::equal().without_ipv6());
    let (rome, milan) = (replaceable.rome(), replaceable.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let handshake = last_handshake(rome);

    let ping = Ping { interval: Duration::from_millis(10), ..Ping::new(target, 200) };
    let pinging = rome.pod.spawn(move || ping.run_here()).unwrap();
    for (script, reason) in [
        ("not a program", "it cannot be started: Exec format error"),
        ("#!/bin/sh\necho of another architecture >&2; exit 1\n", "of another architecture"),
        ("#!/bin/sh\necho hand-over 999\n", "it answers \"hand-over 999\""),
        (
            "#!/bin/sh\necho hand-over 2 without NET_ADMIN\n",
            "it answers \"hand-over 2 without NET_ADMIN\"",
        ),
    ] {
        install_script(&replaceable.rome, script);
        replace(rome, GOES_ON);
        let log = rome.process().unwrap().process().log();
        let last = log.lines().rfind(|line| line.contains(GOES_ON)).unwrap();
        assert!(last.contains(&reason.replace('"', "\\\"")) || last.contains(reason), "{last}");
    }
    // Its check succeeds, and then it cannot be executed.
    let vanishing = "#!/bin/sh\necho hand-over 2 with NET_ADMIN\nrm \"$0\"\n";
    install_script(&replaceable.rome, vanishing);
    replace(rome, GOES_ON);
    let report = pinging.join().unwrap().unwrap();

    assert!(report.is_perfect(), "{report:?}");
    assert_eq!(last_handshake(rome), handshake);
    install(&replaceable.rome);
    replace(rome, TOOK_OVER);
    assert_eq!(last_handshake(rome), handshake);
    replaceable.world.assert_traffic();
    replaceable.world.finish();
}
