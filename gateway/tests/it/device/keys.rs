//! Changing keys of a device: sessions, endpoints and keepalives.

use std::time::Duration;

use strait_lab::traffic::Ping;
use strait_lab::{now, wait_until};
use strait_wg::PrivateKey;

use crate::device::{NEEDS, PATIENCE};
use crate::harness::devices::{Maker, World};
use crate::harness::require::Need::Tool;
use crate::harness::require::require;

#[test]
fn keys_change_under_traffic() {
    let Some(_turn) = require(&NEEDS) else { return };
    let mut world = World::start([Maker::Native, Maker::Native]);
    world.assert_talk(5);
    let key = PrivateKey::generate();
    let file = world.scratch.write("next.key", &key.to_base64()).unwrap();
    let secret = world.scratch.write("psk", &PrivateKey::generate().to_base64()).unwrap();
    let ping = world.pings(100);
    let pinging = world.left.namespace.spawn(move || ping.run_here()).unwrap();

    world.left.wg_set(&["private-key", file.to_str().unwrap()]);
    // As with the kernel nothing is sent with the key before.
    let before_change = pinging.join().unwrap().unwrap();
    let before = world.left.key.public_key().to_string();
    let allowed = format!("{}/32", world.left.inner);
    world.right.wg_set(&[
        "peer",
        &key.public_key().to_string(),
        "allowed-ips",
        &allowed,
        "peer",
        &before,
        "remove",
    ]);
    world.left.key = key;
    let right_again = Duration::from_secs(8);
    wait_until("the new key was known", right_again, || Ok(world.ping(1).is_perfect())).unwrap();
    let after_change = world.ping(20);
    for (host, peer) in [(&world.left, &world.right), (&world.right, &world.left)] {
        let peer = peer.key.public_key().to_string();
        host.wg_set(&["peer", &peer, "preshared-key", secret.to_str().unwrap()]);
    }
    let with_psk = world.ping(20);

    assert!(!before_change.is_perfect(), "{before_change:?}");
    assert!(after_change.is_perfect(), "{after_change:?}");
    assert!(with_psk.is_perfect(), "{with_psk:?}");
    assert_ne!(world.left.dump()[1][1], "(none)");
    assert_eq!(world.left.dump()[1][1], world.right.dump()[1][1]);
    assert_eq!(world.right.dump().len(), 2);
    world.stop();
}

/// The session of the key before would go on for minutes, and the right one would not answer in it.
#[test]
fn a_key_known_to_peers_is_used_immediately() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    world.assert_talk(5);
    let key = PrivateKey::generate();
    let file = world.scratch.write("next.key", &key.to_base64()).unwrap();
    let allowed = format!("{}/32", world.left.inner);

    world.right.wg_set(&["peer", &key.public_key().to_string(), "allowed-ips", &allowed]);
    world.left.wg_set(&["private-key", file.to_str().unwrap()]);

    world.assert_talk(20);
    world.stop();
}

/// As the kernel does, whose own tests look for it.
#[test]
fn keepalives_wait_for_the_link_and_the_key() {
    let Some(_turn) = require(&NEEDS) else { return };
    for comes_last in ["link", "key"] {
        let mut world = World::bare();
        let World { left, right, scratch } = &mut world;
        left.start(Maker::Native, scratch);
        let file = scratch.write("left.key", &left.key.to_base64()).unwrap();
        let key = ["private-key", file.to_str().unwrap()];
        let peer = right.key.public_key().to_string();
        let sent = || left.dump()[1][6].parse::<u64>().unwrap();

        left.wg_set(&["peer", &peer, "endpoint", "192.0.2.2:1", "persistent-keepalive", "1"]);
        if comes_last == "link" {
            left.wg_set(&key);
        } else {
            left.namespace.set_up_link(&left.interface).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1500));
        let before = sent();
        if comes_last == "link" {
            left.namespace.set_up_link(&left.interface).unwrap();
        } else {
            left.wg_set(&key);
        }
        wait_until("something was sent", PATIENCE, || Ok(sent() > 0)).unwrap();
        let after = sent();

        assert_eq!((before, after), (0, 148), "one initiation when the {comes_last} comes");
        world.stop();
    }
}

/// The right peer remembers the time of the last initiation, also of one by another program.
#[test]
fn another_program_with_the_same_key_connects_immediately() {
    use Maker::{Boringtun, Native, WireguardGo};
    let needs = [&NEEDS[..], &[Tool("wireguard-go")]].concat();
    let Some(_turn) = require(&needs) else { return };
    for right in [WireguardGo, Native] {
        let mut world = World::start([WireguardGo, right]);
        world.assert_talk(3);
        // The library dates later than the others: what comes after it is heard when it asks for the second time.
        for (left, patience) in
            [(Native, 2), (WireguardGo, 2), (Native, 2), (Boringtun, 2), (Native, 8)]
        {
            world.restart_left(left);
            let began = now();
            wait_until("the peers talked", Duration::from_secs(20), || {
                Ok(world.ping(1).is_perfect())
            })
            .unwrap();

            let took = began.elapsed();
            assert!(took < Duration::from_secs(patience), "{left:?} to {right:?}: {took:?}");
        }
        world.stop();
    }
}

/// Only by what it learned before can the right one know where the left one is.
#[test]
fn peers_keep_their_endpoints_when_a_key_returns() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    let World { left, right, scratch } = &world;
    world.assert_talk(5);
    let with_key = right.dump()[1].clone();
    let file = scratch.write("right.key", &right.key.to_base64()).unwrap();

    right.wg_set(&["private-key", "/dev/null"]);
    let without_key = right.dump()[1].clone();
    right.wg_set(&["private-key", file.to_str().unwrap()]);
    let again = right.dump()[1].clone();
    let back = Ping { interval: Duration::from_millis(20), ..Ping::new(left.inner, 10) };
    let back = back.run(&right.namespace).unwrap();

    assert_eq!(with_key[2], "192.0.2.1:51820", "learned");
    for dump in [&without_key, &again] {
        assert_eq!((&dump[2], &dump[5..7]), (&with_key[2], &with_key[5..7]));
    }
    assert!(back.is_perfect(), "{back:?}");
    world.stop();
}

/// What the kernel's `netns.sh` does and expects.
#[test]
fn a_zero_peer_is_kept_and_keys_clamped() {
    let needs = [&NEEDS[..], &[Tool("wireguard-go")]].concat();
    let Some(_turn) = require(&needs) else { return };
    let world = World::start([Maker::Native, Maker::WireguardGo]);
    let zeros = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let slashes = "/".repeat(39);
    let file = world.scratch.write("ones.key", &format!("///{slashes}8=")).unwrap();

    for host in [&world.left, &world.right] {
        host.wg_set(&["private-key", file.to_str().unwrap()]);
        host.wg_set(&["peer", zeros, "endpoint", "192.0.2.9:51820", "persistent-keepalive", "1"]);

        let dump = host.dump();
        assert_eq!(dump[0][0], format!("+P{slashes}38="));
        assert!(dump[1..].iter().any(|peer| peer[0] == zeros), "{dump:?}");
    }
    world.stop();
}
