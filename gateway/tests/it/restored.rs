//! A machine that goes on from a snapshot, as a hypervisor tells it: all sessions begin again, since another
//! machine may go on with those that the snapshot has. What else that means is in `pair/renewal.rs`.
//!
//! Needs root, `/dev/net/tun`, `unshare`, `mount`, `wg` and `wireguard-go`.

mod hypervisor;

use std::path::Path;
use std::time::Duration;

use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::Process;
use strait_lab::traffic::{Ping, PingReport};
use strait_lab::wait_until;

use crate::harness::STRAIT;
use crate::harness::devices;
use crate::harness::devices::{Host, Maker};
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::world;
use hypervisor::Hypervisor;

const PATIENCE: Duration = Duration::from_secs(5);

/// What the log says of it.
const SAID: &str = "this machine was restored from a snapshot: all sessions are renewed";

#[test]
fn a_restored_device_renews_all_sessions() {
    let needs = [Root, Tun, Tool("unshare"), Tool("mount"), Tool("wg"), Tool("wireguard-go")];
    let Some(_turn) = require(&needs) else { return };
    for makers in [[Maker::Native, Maker::WireguardGo], [Maker::Boringtun, Maker::Native]] {
        let mut world = devices::World::bare();
        let mut hypervisor = Hypervisor::of(Path::new(STRAIT), &world.scratch);
        world.left.program.clone_from(&hypervisor.program);
        world.start_devices(makers);
        world.assert_talk(5);
        let devices::World { left, right, .. } = &world;
        let process = left.process.as_ref().unwrap();

        let last_handshake = || handshake_of_device(left);
        let pings = Pings { target: right.inner, from: &left.namespace };
        check(&mut hypervisor, process, last_handshake, &pings);
        world.stop();
    }
}

/// That of the server, which knows only where it heard its peer.
#[test]
fn a_restored_gateway_renews_all_sessions() {
    let Some(_turn) = require(&[Root, Tun, Tool("unshare"), Tool("mount")]) else { return };
    let mut world = world::World::prepare(&Layout::equal().without_ipv6());
    let clusters = &mut world.clusters;
    let strait = Path::new(STRAIT);
    let mut hypervisor = Hypervisor::of(strait, &clusters.scratch);
    clusters.milan.start(&hypervisor.program, &clusters.scratch).unwrap();
    clusters.rome.start(strait, &clusters.scratch).unwrap();
    clusters.milan.process().unwrap().wait_for_session().unwrap();
    world.assert_traffic();
    let (milan, rome) = (world.milan(), world.rome());
    let process = milan.process().unwrap().process();

    let last_handshake = || handshake_of_gateway(milan);
    let target = milan.side.sees(&rome.side).next().unwrap();
    check(&mut hypervisor, process, last_handshake, &Pings { target, from: &milan.pod });
    world.assert_traffic();
    world.finish();
}

/// Restores twice: without traffic, and during pings.
fn check(
    hypervisor: &mut Hypervisor,
    process: &Process,
    last_handshake: impl Fn() -> String,
    pings: &Pings<'_>,
) {
    let mut restore = || {
        let before = last_handshake();
        hypervisor.restore();
        wait_until("there was another session", PATIENCE, || Ok(last_handshake() != before))
            .unwrap();
    };

    restore();
    assert!(pings.run(5).is_perfect());
    let report = pings.run_beside(150, restore);

    // What the peer sent before it heard of the new session is gone.
    assert!(report.lost() <= 1 && report.duplicated == 0, "{report:?}");
    assert!(pings.run(5).is_perfect());
    let log = process.log();
    assert_eq!(log.matches(SAID).count(), 2, "{log}");
}

/// From the machine that is restored.
struct Pings<'a> {
    target: std::net::IpAddr,
    from: &'a Namespace,
}

impl Pings<'_> {
    fn run(&self, count: u16) -> PingReport {
        self.run_beside(count, || ())
    }

    /// 50 in a second, while `something` happens.
    fn run_beside(&self, count: u16, something: impl FnOnce()) -> PingReport {
        let interval = Duration::from_millis(20);
        let ping = Ping { interval, ..Ping::new(self.target, count) };
        let pinging = self.from.spawn(move || ping.run_here()).unwrap();
        something();

        pinging.join().unwrap().unwrap()
    }
}

/// Seconds and nanoseconds, as the device says them.
fn handshake_of_device(host: &Host) -> String {
    let answer = host.say("get=1\n\n");
    let lines = answer.lines().filter(|line| line.starts_with("last_handshake_time_"));

    lines.collect()
}

fn handshake_of_gateway(cluster: &Cluster) -> String {
    let metrics = cluster.metrics().unwrap();

    metrics.value("strait_peer_last_handshake_timestamp_seconds", &[]).unwrap().to_owned()
}
