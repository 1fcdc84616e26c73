//! A gateway with ten thousand peers: how soon it is there, what it takes, and how many of them it answers;
//! and what a gateway takes that has nothing to do.
//!
//! Prints what it measured. With `STRAIT_FIGURES` set, in the release build on a quiet machine, what is
//! promised is demanded, with ten thousand peers; without, with fewer of them, what even a busy machine
//! and a build without optimisation must reach. `STRAIT_IMAGE_BINARY` names the program of the image, to
//! take its figures instead. Most of it needs root, `/dev/net/tun` and a native engine.

mod answers;
mod device;
mod hub;

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use device::Device;
use hub::{Greeted, Hub, Others};

/// As many as netns.sh of the kernel gives to one peer.
const MANY_ALLOWED_IPS: usize = 130_560;

/// Long enough for everything that is done from time to time.
const SETTLED: Duration = Duration::from_secs(3);

/// What must be reached.
struct Bounds {
    peers: usize,
    /// As many as the kernel allows an interface, and what they take: to be set, of a core, and more than
    /// without a scrape or a reload.
    most_peers: usize,
    set_most: Duration,
    idle_most: f64,
    more_bytes: u64,
    ready: Duration,
    bytes_per_peer: u64,
    /// Of a gateway without traffic, not counting pages of the program.
    idle_bytes: u64,
    /// Of a core.
    idle: f64,
    /// Of the network's answers, while a configuration is read.
    longest_ping: Duration,
    /// One of them and no more.
    change: Duration,
    allowed_ips: Duration,
    /// Of a device and of a gateway.
    allowed_ips_bytes: u64,
    /// Of what the curve alone allows.
    answers: f64,
}

const PROMISED: Bounds = Bounds {
    peers: 10_000,
    most_peers: 65_536,
    set_most: Duration::from_secs(10),
    idle_most: 0.05,
    more_bytes: 200_000_000,
    ready: Duration::from_secs(2),
    bytes_per_peer: 8 << 10,
    // What takes them is in the manual, architecture.md.
    idle_bytes: 2_000_000,
    idle: 0.01,
    longest_ping: Duration::from_millis(50),
    change: Duration::from_millis(500),
    allowed_ips: Duration::from_millis(100),
    allowed_ips_bytes: 12_000_000,
    answers: 0.8,
};

/// Nothing here is quadratic: twice the peers take twice the time.
const ANYWHERE: Bounds = Bounds {
    peers: 2_000,
    most_peers: 4_000,
    set_most: Duration::from_secs(30),
    idle_most: 0.5,
    more_bytes: 60_000_000,
    ready: Duration::from_secs(10),
    bytes_per_peer: 16 << 10,
    // A build without optimisation has many addresses for the loader to fill in.
    idle_bytes: 6_000_000,
    idle: 0.5,
    longest_ping: Duration::from_secs(1),
    change: Duration::from_secs(5),
    allowed_ips: Duration::from_secs(5),
    allowed_ips_bytes: 30_000_000,
    answers: 0.2,
};

#[test]
fn an_idle_gateway_takes_little_memory() {
    let Some(_turn) = require(&[Root, Tun]) else { return };
    let bounds = bounds();
    let hub = Hub::start(0, Others::Silent);

    std::thread::sleep(SETTLED);
    let idle = hub.resident();
    hub.scrape();
    let scraped = hub.resident();
    eprintln!("nothing to do: {idle} ({scraped} after a scrape)");
    hub.stop();

    assert!(idle.own <= bounds.idle_bytes, "{idle}");
}

#[test]
fn a_gateway_with_many_peers_starts_soon() {
    let Some(_turn) = require(&[Root, Tun]) else { return };
    let bounds = bounds();
    let one = Hub::start(0, Others::Silent);
    let small = one.resident();
    one.stop();

    let mut hub = Hub::start(bounds.peers, Others::Silent);
    let large = hub.resident();
    let added = large.own.saturating_sub(small.own);
    let per_peer = added / u64::try_from(bounds.peers).unwrap();
    eprintln!(
        "{} peers: ready after {:?}, the first handshake after {:?}; {large} (at most {} kB), \
         with one peer {small}: {per_peer} bytes each",
        bounds.peers,
        hub.ready,
        hub.answered,
        large.most / 1000,
    );
    let idle = hub.idle(Duration::from_secs(3));
    let (scrape, bytes) = hub.scrape();
    eprintln!("idle: {:.2} % of a core; a scrape of {bytes} bytes takes {scrape:?}", idle * 100.0);
    let (change, ping) = hub.change_one();
    eprintln!("one peer of them changed: {change:?}; the longest ping meanwhile {ping:?}");
    hub.stop();

    assert!(hub.ready <= bounds.ready && hub.answered <= bounds.ready, "{:?}", hub.ready);
    assert!(per_peer <= bounds.bytes_per_peer, "{per_peer}");
    assert!(idle <= bounds.idle, "{idle}");
    assert!(change <= bounds.change, "{change:?}");
    assert!(ping <= bounds.longest_ping, "{ping:?}");
}

/// All of them at an address that does not answer.
#[test]
fn unreachable_peers_get_handshakes_one_by_one() {
    let Some(_turn) = require(&[Root, Tun]) else { return };
    let bounds = bounds();
    let hub = Hub::start(bounds.peers, Others::Away);

    let Greeted { all_after, most_in_a_tick } = hub.greetings(bounds.peers);
    eprintln!(
        "{} peers that are away: ready after {:?}, the first handshake after {:?}, all greeted {all_after:?} \
         later, at most {most_in_a_tick} within 100 ms",
        bounds.peers, hub.ready, hub.answered,
    );
    hub.stop();

    assert!(hub.ready <= bounds.ready && hub.answered <= bounds.ready, "{:?}", hub.ready);
    // Two looks at the clock.
    assert!(most_in_a_tick <= 400, "{most_in_a_tick}");
    let at_least = Duration::from_millis(u64::try_from(bounds.peers / 200 - 1).unwrap() * 100);
    assert!(all_after >= at_least.mul_f64(0.7), "{all_after:?}");
    assert!(all_after <= 3 * at_least + Duration::from_secs(3), "{all_after:?}");
}

#[test]
fn a_device_with_many_peers_answers_quickly() {
    let Some(_turn) = require(&[Root, Tun]) else { return };
    let bounds = bounds();
    let device = Device::start();

    let all = device.set_peers(bounds.peers);
    let one = device.set_one(Ipv4Addr::new(192, 0, 2, 7));
    let (get, bytes) = device.get();
    eprintln!(
        "a device: {} peers set in {all:?}, one of them in {one:?}; a get of {bytes} bytes takes {get:?}",
        bounds.peers,
    );
    device.stop();

    assert!(all <= bounds.ready, "{all:?}");
    assert!(one <= bounds.change, "{one:?}");
    assert!(get <= bounds.change, "{get:?}");
}

#[test]
fn most_peers_are_set_read_and_shown() {
    let Some(_turn) = require(&[Root, Tun]) else { return };
    let bounds = bounds();
    let device = Device::start();

    let set = device.set_configuration(bounds.most_peers);
    let (get, bytes) = device.get();
    device.stop();
    eprintln!("{} peers set in {set:?}; a get of {bytes} bytes takes {get:?}", bounds.most_peers);
    let mut hub = Hub::start(bounds.most_peers, Others::Silent);
    std::thread::sleep(SETTLED);
    let idle = hub.idle(Duration::from_secs(5));
    let before = hub.resident();
    let (of_scrape, (scrape, bytes)) = hub.peak_of(|hub| hub.scrape());
    let (of_reload, (change, _)) = hub.peak_of(Hub::change_one);
    hub.stop();
    eprintln!(
        "{:.2} % of a core, {before} (at most {} kB since its start); a scrape of {bytes} bytes in {scrape:?} \
         takes {} kB more, a reload in {change:?} {} kB more",
        idle * 100.0,
        before.most / 1000,
        of_scrape / 1000,
        of_reload / 1000,
    );

    assert!(set <= bounds.set_most, "{set:?}");
    assert!(idle <= bounds.idle_most, "{idle}");
    assert!(of_scrape.max(of_reload) <= bounds.more_bytes, "{of_scrape}, {of_reload}");
}

#[test]
fn one_peer_may_have_many_allowed_ips() {
    let Some(_turn) = require(&[Root, Tun]) else { return };
    let bounds = bounds();
    let device = Device::start();
    let before = device.resident();

    let set = device.set_allowed_ips(MANY_ALLOWED_IPS);
    std::thread::sleep(SETTLED);
    let after = device.resident();
    eprintln!(
        "{MANY_ALLOWED_IPS} allowed IPs set in {set:?}: {after} (at most {} kB), {before} before",
        after.most / 1000,
    );
    device.stop();
    let hub = Hub::start(MANY_ALLOWED_IPS, Others::AllOne);
    std::thread::sleep(SETTLED);
    let read = hub.resident();
    eprintln!("the same from a file: ready after {:?}, {read}", hub.ready);
    hub.stop();

    assert!(set <= bounds.allowed_ips, "{set:?}");
    assert!(after.own.max(read.own) <= bounds.allowed_ips_bytes, "{after}; {read}");
}

#[test]
fn handshakes_cost_little_more_than_the_curve() {
    let bounds = bounds();

    let figures = answers::measure(bounds.peers / 5);
    eprintln!(
        "of {} handshakes {:.0} are answered in a second of a core; the curve alone allows {:.0}: {:.2}",
        bounds.peers / 5,
        figures.answered,
        figures.curve,
        figures.answered / figures.curve,
    );

    assert!(figures.answered / figures.curve >= bounds.answers, "{figures:?}");
}

#[test]
fn applying_peers_takes_linear_time() {
    let [few, many] = [8_000, 32_000].map(answers::apply_again);
    eprintln!("the same peers applied again: 8000 in {few:?}, 32000 in {many:?}");

    // Caches are finite, so it is a little more than that.
    assert!(many < 9 * few, "{few:?}, {many:?}");
}

fn bounds() -> Bounds {
    if std::env::var_os("STRAIT_FIGURES").is_some() { PROMISED } else { ANYWHERE }
}
