//! Reloads, changed keys, and the end of a gateway.

use std::path::Path;
use std::time::Duration;

use strait_lab::traffic::Ping;
use strait_lab::{Cluster, Layout, PeerSection, wait_until};
use strait_wg::PrivateKey;

use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::harness::world::World;

#[test]
fn a_reload_keeps_packets_and_sessions() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let (rome, milan) = (world.rome(), world.milan());
    let target = rome.side.sees(&milan.side).next().unwrap();
    let handshake = last_handshake(rome);

    let ping = Ping { interval: Duration::from_millis(100), ..Ping::new(target, 20) };
    let pinging = rome.pod.spawn(move || ping.run_here()).unwrap();
    for cluster in [rome, milan] {
        let mut config = cluster.config.clone();
        config.peers.push(absent_peer());
        cluster.process().unwrap().reload(&config, &world.clusters.scratch).unwrap();
        wait_until("the new peer was there", Duration::from_secs(5), || {
            Ok(cluster.metrics()?.has("strait_peer_has_session", &[("peer", "naples")]))
        })
        .unwrap();
    }
    let report = pinging.join().unwrap().unwrap();

    assert!(report.is_perfect(), "{report:?}");
    assert_eq!(last_handshake(rome), handshake);
    world.finish();
}

/// First one key, then the other: once the peer learns of it later, once before.
#[test]
fn a_change_of_both_keys_loses_no_packet() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let (rome, milan) = (world.rome(), world.milan());
    let scratch = &world.clusters.scratch;
    let target = rome.side.sees(&milan.side).next().unwrap();
    let [mut rome_config, mut milan_config] = [&rome.config, &milan.config].map(Clone::clone);
    let reload_rome = |config: &_| rome.process().unwrap().reload(config, scratch).unwrap();
    let reload_milan = |config: &_| milan.process().unwrap().reload(config, scratch).unwrap();
    let moment = || std::thread::sleep(Duration::from_millis(1500));
    // One handshake is under way at a time, and each is given five seconds.
    let handshake_after = |former: &Option<String>| {
        let is_another = || Ok(last_handshake(rome) != *former);
        wait_until("there was another handshake", Duration::from_secs(15), is_another).unwrap();
        last_handshake(rome)
    };
    let [rome_key, milan_key] = [PrivateKey::generate(), PrivateKey::generate()];

    let ping = Ping { interval: Duration::from_millis(60), ..Ping::new(target, 600) };
    let pinging = rome.pod.spawn(move || ping.run_here()).unwrap();
    moment();
    let first = last_handshake(rome);
    scratch.write("milan.key", &milan_key.to_base64()).unwrap();
    reload_milan(&milan_config);
    moment();
    assert_eq!(last_handshake(rome), first, "Rome does not know the key yet");
    rome_config.peers[0].public_key = milan_key.public_key().to_string();
    reload_rome(&rome_config);
    let second = handshake_after(&first);
    milan_config.peers[0].public_key = rome_key.public_key().to_string();
    reload_milan(&milan_config);
    moment();
    assert_eq!(last_handshake(rome), second, "Rome does not have the key yet");
    scratch.write("rome.key", &rome_key.to_base64()).unwrap();
    reload_rome(&rome_config);
    handshake_after(&second);
    assert!(!pinging.is_finished(), "the changes took longer than the traffic");
    let report = pinging.join().unwrap().unwrap();

    assert!(report.is_perfect(), "{report:?}");
    world.assert_traffic();
    world.finish();
}

#[test]
fn the_device_goes_with_the_gateway() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let mut world = World::start(&Layout::equal());
    let before = world.rome().gateway.has_link("strait0").unwrap();

    world.clusters.stop().unwrap();

    assert!(before);
    for cluster in [world.milan(), world.rome()] {
        assert!(!cluster.gateway.has_link("strait0").unwrap(), "{}", cluster.name);
    }
}

#[test]
fn an_unresolvable_endpoint_is_not_fatal() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let mut world = World::prepare(&Layout::equal());
    let strait = Path::new(STRAIT);
    let clusters = &mut world.clusters;
    let good = clusters.rome.config.clone();
    clusters.rome.config.peers[0].endpoint = Some("milan.invalid:51840".to_owned());
    clusters.milan.start(strait, &clusters.scratch).unwrap();

    // Ready in spite of it, and as good as new once the name is right.
    clusters.rome.start(strait, &clusters.scratch).unwrap();
    let gateway = clusters.rome.process().unwrap();
    gateway.reload(&good, &clusters.scratch).unwrap();
    gateway.wait_for_session().unwrap();

    world.assert_traffic();
    world.finish();
}

fn last_handshake(cluster: &Cluster) -> Option<String> {
    let metrics = cluster.metrics().unwrap();

    metrics.value("strait_peer_last_handshake_timestamp_seconds", &[]).map(str::to_owned)
}

/// A peer that never shows up.
fn absent_peer() -> PeerSection {
    let allowed_ips = vec!["192.0.2.0/24".parse().unwrap()];

    PeerSection::new("naples", PrivateKey::generate().public_key(), allowed_ips)
}
