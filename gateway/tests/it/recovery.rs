//! How soon packets arrive again when what was in their way has gone: a link that was down, a peer that had
//! ended. Only the test sends packets, so that nothing else can notice.
//!
//! Prints what it measured. With `STRAIT_FIGURES` set, in the release build on a quiet machine, what is
//! promised is demanded; without, what even a busy machine must reach. Needs root, `/dev/net/tun`, `wg` and
//! `ip`.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use strait_lab::Layout;
use strait_lab::netlink::Via;
use strait_lab::now;
use strait_lab::traffic::Ping;

use crate::harness::STRAIT;
use crate::harness::devices;
use crate::harness::devices::Maker;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::world;

/// How long something is in the way.
const AWAY: Duration = Duration::from_millis(300);

/// The cable between two hosts, then the device of one of them.
#[test]
fn a_link_that_comes_back_carries_at_once() {
    let Some(_turn) = require(&[Root, Tun, Tool("wg"), Tool("ip")]) else { return };
    let world = devices::World::start([Maker::Native, Maker::Native]);
    let devices::World { left, right, .. } = &world;
    // The kernel resolves the other end's address again, and its question may come too soon for the cable: it
    // asks again after a second unless it is told otherwise.
    for host in [left, right] {
        host.namespace.set(&[("ipv4/neigh/cable/retrans_time_ms", "1")]).unwrap();
    }
    world.assert_talk(5);

    for link in ["cable", &left.interface] {
        left.run("ip", &["link", "set", link, "down"]);
        let lost = Ping { timeout: AWAY, ..Ping::new(right.inner, 3) }.run(&left.namespace);
        left.run("ip", &["link", "set", link, "up"]);
        if link != "cable" {
            // As with any link, its routes went with it.
            let route = left.namespace.add_route(right.inner.into(), link, Via::Link);
            route.unwrap();
        }
        let back = now();
        let after = first_reply(&every_millisecond(right.inner), &left.namespace) - back;
        eprintln!("{link} comes back: the first reply after {after:?}");

        assert!(lost.is_err() || lost.is_ok_and(|report| report.received == 0), "{link}");
        assert!(after <= promised(Duration::from_millis(10)), "{after:?}");
        world.assert_talk(5);
    }
    world.stop();
}

/// It knows where its peer is, says so at its start, and the peer need not find out that its session is worth
/// nothing, which takes 15 s.
#[test]
fn a_restarted_peer_is_reached_within_a_second() {
    let Some(_turn) = require(&[Root, Tun]) else { return };
    let mut world = world::World::start(&Layout::different().without_ipv6());
    let target = world.milan().side.sees(&world.rome().side).next().unwrap();
    assert!(Ping::new(target, 3).run(&world.milan().pod).unwrap().is_perfect());

    world.rome().process().unwrap().process().signal(Signal::SIGKILL).unwrap();
    let lost = Ping { timeout: AWAY, ..Ping::new(target, 3) }.run(&world.milan().pod).unwrap();
    let ping = Ping { count: 5_000, ..every_millisecond(target) };
    let pinging = world.milan().pod.spawn(move || ping.run_here()).unwrap();
    let begun = now();
    let world::World { clusters } = &mut world;
    clusters.rome.start(Path::new(STRAIT), &clusters.scratch).unwrap();
    let after = pinging.join().unwrap().unwrap().first_reply.unwrap() - begun;
    eprintln!("a gateway begins again: its peer reaches it after {after:?}");

    assert_eq!(lost.received, 0);
    assert!(after <= promised(Duration::from_secs(1)), "{after:?}");
    world.finish();
}

/// One request after the other, for two seconds.
fn every_millisecond(target: std::net::IpAddr) -> Ping {
    Ping {
        interval: Duration::from_millis(1),
        timeout: Duration::from_millis(100),
        ..Ping::new(target, 2_000)
    }
}

fn first_reply(ping: &Ping, from: &strait_lab::Namespace) -> Instant {
    ping.run(from).unwrap().first_reply.unwrap()
}

/// Ten times as much on a busy machine.
fn promised(limit: Duration) -> Duration {
    if std::env::var_os("STRAIT_FIGURES").is_some() { limit } else { 10 * limit }
}
