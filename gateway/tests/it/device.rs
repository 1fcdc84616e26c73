//! `strait device` as `wg`, `wg-quick` and other implementations see it. Needs root, `/dev/net/tun`,
//! `wg`, `wg-quick`, `wireguard-go`, `ip` and `nft`.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use strait_lab::LabError;
use strait_lab::Process;
use strait_lab::now;
use strait_lab::process::find;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_wg::PrivateKey;

use crate::harness::STRAIT;
use crate::harness::devices::{Host, Maker, PORT, World, succeeded};
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::{Need, require};

const NEEDS: [Need; 4] = [Root, Tun, Tool("wg"), Tool("ip")];

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn two_devices_talk_and_wg_shows_them() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Boringtun]);
    let World { left, right, .. } = &world;

    let before = now();
    world.assert_talk(20);
    let dump = left.dump();
    let shown = left.wg(&["show", &left.interface]);
    let configuration = left.wg(&["showconf", &left.interface]);
    let all = left.wg(&["show", "interfaces"]);
    let took = before.elapsed();

    assert_eq!(
        dump[0],
        [&*left.key.to_base64(), &left.key.public_key().to_string(), "51820", "off"]
    );
    let [key, psk, endpoint, allowed_ips, handshake, received, sent, keepalive] = &dump[1][..]
    else {
        panic!("{dump:?}")
    };
    assert_eq!(key, &right.key.public_key().to_string());
    assert_eq!(
        [psk, endpoint, allowed_ips, keepalive],
        ["(none)", "192.0.2.2:51820", "10.77.0.2/32", "off"]
    );
    assert_ne!(handshake, "0");
    assert!(received.parse::<u64>().unwrap() >= 20 * 112, "{received}");
    assert!(sent.parse::<u64>().unwrap() >= 20 * 112, "{sent}");
    assert!(
        shown.contains("private key: (hidden)") && shown.contains("latest handshake: "),
        "{shown}"
    );
    let expected = format!(
        "[Interface]\nListenPort = 51820\nPrivateKey = {}\n\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 10.77.0.2/32\nEndpoint = 192.0.2.2:51820\n",
        *left.key.to_base64(),
        right.key.public_key(),
    );
    assert_eq!(configuration, expected);
    assert!(all.split_whitespace().any(|name| name == left.interface), "{all}");
    assert_eq!(right.dump()[1][2], "192.0.2.1:51820", "learned");
    assert!(took < PATIENCE, "with the handshake and 20 pings: {took:?}");
    world.stop();
}

/// Every `wg` verb that changes something, while pings go by.
#[test]
fn no_change_loses_an_unrelated_packet() {
    let Some(_turn) = require(&NEEDS) else { return };
    for maker in [Maker::Native, Maker::Boringtun] {
        let world = World::start([maker, maker]);
        let World { left, right, scratch } = &world;
        world.assert_talk(5);
        let handshake = left.dump()[1][4].clone();
        let peer = right.key.public_key().to_string();
        let stranger = PrivateKey::generate().public_key().to_string();
        let configuration = left.wg(&["showconf", &left.interface]);
        let file = scratch.write("left.conf", &configuration).unwrap();
        let file = file.to_str().unwrap();
        let ping = world.pings(200);
        let pinging = left.namespace.spawn(move || ping.run_here()).unwrap();

        left.wg_set(&["peer", &stranger, "allowed-ips", "10.78.0.0/24,fd00::/64"]);
        left.wg_set(&["peer", &stranger, "endpoint", "192.0.2.9:9", "allowed-ips", ""]);
        left.wg_set(&["peer", &peer, "allowed-ips", "10.77.0.2/32,10.79.0.0/16"]);
        left.wg_set(&["fwmark", "0x7"]);
        left.wg(&["setconf", &left.interface, file]);
        left.wg_set(&["peer", &stranger]);
        left.wg(&["syncconf", &left.interface, file]);
        left.wg(&["addconf", &left.interface, file]);
        let after = left.wg(&["showconf", &left.interface]);
        let same_handshake = left.dump()[1][4].clone();
        // This begins a new session, and the one before serves until it is there.
        left.wg_set(&["peer", &peer, "persistent-keepalive", "25"]);
        let report = pinging.join().unwrap().unwrap();
        // What is under way to the port before is lost, and nothing else.
        let before = right.dump()[1][4].clone();
        left.wg_set(&["listen-port", "51821"]);
        world.assert_talk(20);

        assert!(report.is_perfect(), "{maker:?}: {report:?}");
        assert_eq!(right.dump()[1][4], before, "{maker:?}");
        assert_eq!(after, configuration, "{maker:?}");
        assert_eq!(same_handshake, handshake, "{maker:?}");
        assert_eq!(right.dump()[1][2], "192.0.2.1:51821", "{maker:?}");
        assert_eq!(left.dump()[1][7], "25");
        world.stop();
    }
}

/// `wg showconf` names the port that is in use, also if the kernel chose it.
#[test]
fn a_port_chosen_by_the_kernel_is_settable() {
    let Some(_turn) = require(&NEEDS) else { return };
    let mut world = World::bare();
    world.left.start(Maker::Native, &world.scratch);
    let World { left, scratch, .. } = &world;
    let port = || left.wg(&["show", &left.interface, "listen-port"]);
    let chosen = port();
    let configuration = left.wg(&["showconf", &left.interface]);
    let file = scratch.write("left.conf", &configuration).unwrap();

    left.wg(&["syncconf", &left.interface, file.to_str().unwrap()]);
    left.wg_set(&["listen-port", chosen.trim()]);
    let same = port();
    left.wg_set(&["listen-port", "0"]);
    let another = port();

    assert!(configuration.contains(&format!("ListenPort = {chosen}")), "{configuration}");
    assert_eq!(same, chosen);
    assert_ne!(another, chosen, "0 is any, and what was set is not any");
    world.stop();
}

/// As with the kernel: nothing that was learned outlives the removal.
#[test]
fn a_removed_peer_is_new_when_added_again() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    let World { left, right, .. } = &world;
    world.assert_talk(5);
    let learned = right.dump()[1].clone();
    let key: String = left.key.public_key().as_bytes().map(|byte| format!("{byte:02x}")).concat();

    let answer = right.say(&format!(
        "set=1\npublic_key={key}\nendpoint=192.0.2.9:9\npublic_key={key}\nremove=true\n\
         public_key={key}\nallowed_ip={}/32\n\n",
        left.inner
    ));
    let added_again = right.dump()[1].clone();

    assert_eq!(answer, "errno=0\n\n");
    assert_eq!(learned[2], "192.0.2.1:51820");
    let allowed_ips = format!("{}/32", left.inner);
    let key = left.key.public_key().to_string();
    assert_eq!(added_again, [&*key, "(none)", "(none)", &allowed_ips, "0", "0", "0", "off"]);
    world.stop();
}

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
    let untold = pinging.join().unwrap().unwrap();
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
    let told = world.ping(20);
    for (host, peer) in [(&world.left, &world.right), (&world.right, &world.left)] {
        let peer = peer.key.public_key().to_string();
        host.wg_set(&["peer", &peer, "preshared-key", secret.to_str().unwrap()]);
    }
    let with_psk = world.ping(20);

    assert!(!untold.is_perfect(), "{untold:?}");
    assert!(told.is_perfect(), "{told:?}");
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

/// The numbers are those of the kernel's own tests: an initiation or its response, and ten packets of 84 bytes.
#[test]
fn transfer_counts_handshakes_as_the_kernel_does() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    let ping = Ping { payload_bytes: 56, ..world.pings(10) };
    assert!(ping.run(&world.left.namespace).unwrap().is_perfect());

    let transfer = |host: &Host| {
        let fields = host.dump()[1].clone();
        [5, 6].map(|field| fields[field].parse::<u64>().unwrap())
    };

    assert_eq!(transfer(&world.left), [1372, 1428]);
    assert_eq!(transfer(&world.right), [1428, 1372]);
    world.stop();
}

#[test]
fn padding_follows_the_mtu_of_the_device() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    world.assert_talk(3);
    let sent = || world.left.dump()[1][6].parse::<u64>().unwrap();
    let ping = Ping { payload_bytes: 1272, ..world.pings(1) };
    let bytes = || {
        let before = sent();
        assert!(ping.run(&world.left.namespace).unwrap().is_perfect());
        sent() - before
    };

    let usual = bytes();
    world.left.namespace.set_mtu(&world.left.interface, 1300).unwrap();
    let mut lowered = usual;
    wait_until("the padding was another one", PATIENCE, || {
        lowered = bytes();
        Ok(lowered != usual)
    })
    .unwrap();

    // 1300 bytes are padded to 1312, but not beyond the MTU.
    assert_eq!((usual, lowered), (1344, 1332));
    world.stop();
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

#[test]
fn a_device_talks_to_wireguard_go() {
    let needs = [&NEEDS[..], &[Tool("wireguard-go")]].concat();
    let Some(_turn) = require(&needs) else { return };
    for makers in [[Maker::Native, Maker::WireguardGo], [Maker::WireguardGo, Maker::Native]] {
        let world = World::start(makers);

        let ping = world.ping(20);
        let [left, right] = [&world.left, &world.right].map(Host::dump);

        assert!(ping.is_perfect(), "{makers:?}: {ping:?}");
        assert_eq!((&*left[1][2], &*right[1][2]), ("192.0.2.2:51820", "192.0.2.1:51820"));
        // Devices of other tests come and go, so only what is shown counts.
        let shown = world.left.run(STRAIT, &["show"]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        for host in [&world.left, &world.right] {
            assert!(shown.contains(&format!("interface: {}\n", host.interface)), "{shown}");
        }
        world.stop();
    }
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

/// As with wireguard-go, but for the text before the wrong line: it changes nothing.
#[test]
fn what_is_wrong_is_refused_and_changes_nothing() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    let World { left, .. } = &world;
    let before = left.wg(&["showconf", &left.interface]);
    let taken = left
        .namespace
        .run(|| UdpSocket::bind("0.0.0.0:4500").map_err(LabError::io("bind")))
        .unwrap();

    let answers =
        left.say("set=1\nlisten_port=7\nfwmark=none\n\nset=1\nfwmark\n\nget=1\nfwmark=7\n\n");
    let in_use = left.run("wg", &["set", &left.interface, "fwmark", "3", "listen-port", "4500"]);
    let nonsense = left.say("give me everything\n\n");
    drop(taken);

    assert_eq!(answers, "errno=-22\n\nerrno=-71\n\nerrno=-22\n\n");
    let error = String::from_utf8_lossy(&in_use.stderr);
    assert!(error.contains("Address already in use"), "{error}");
    assert_eq!(nonsense, "");
    assert_eq!(left.wg(&["showconf", &left.interface]), before);
    let log = left.process.as_ref().unwrap().log();
    assert!(log.contains("refused: fwmark \"none\" is invalid: use a decimal number"), "{log}");
    assert!(!log.contains(&*left.key.to_base64()), "{log}");
    world.assert_talk(5);
    world.stop();
}

#[test]
fn an_idle_device_sends_nothing() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    let World { left, right, .. } = &world;
    let handshakes = || [left, right].map(|host| host.dump()[1][4].clone());

    std::thread::sleep(Duration::from_millis(500));
    let silent = (handshakes(), left.say("get=1\n\n"));
    let first = world.ping(3);
    let talked = handshakes();
    left.wg_set(&["private-key", "/dev/null"]);
    let without_key = left.dump();
    let lost = world.ping(3);
    let file = world.scratch.write("left.key", &left.key.to_base64()).unwrap();
    left.wg_set(&["private-key", file.to_str().unwrap()]);
    let with_key = world.ping(10);

    assert_eq!(silent.0, ["0", "0"]);
    assert!(silent.1.contains("\nstrait_unanswered=0\n"), "an initiation: {}", silent.1);
    assert!(first.is_perfect(), "{first:?}");
    assert!(talked.iter().all(|at| at != "0"), "{talked:?}");
    assert_eq!(without_key[0][0], "(none)");
    assert_eq!(without_key[1][0], right.key.public_key().to_string());
    assert_eq!(without_key[1][2], "192.0.2.2:51820", "a peer is kept without a key");
    assert_eq!(lost.received, 0);
    assert!(with_key.is_perfect(), "{with_key:?}");
    world.stop();
}

#[test]
fn a_device_ends_with_link_socket_or_signal() {
    let Some(_turn) = require(&NEEDS) else { return };
    type End = fn(&Host);
    let ends: [(&str, End); 4] = [
        ("the link", |host| drop(host.run("ip", &["link", "delete", &host.interface]))),
        ("the socket", |host| fs::remove_file(host.socket()).unwrap()),
        ("SIGTERM", |host| host.process.as_ref().unwrap().signal(Signal::SIGTERM).unwrap()),
        ("SIGINT", |host| host.process.as_ref().unwrap().signal(Signal::SIGINT).unwrap()),
    ];
    for (name, end) in ends {
        let mut world = World::bare();
        world.left.start(Maker::Native, &world.scratch);

        end(&world.left);
        world.left.wait_for_end();
        let process = world.left.process.as_mut().unwrap();
        let mut status = None;
        wait_until("it had ended", PATIENCE, || {
            status = process.status()?;
            Ok(status.is_some())
        })
        .unwrap();

        assert!(status.unwrap().success(), "{name}: {status:?} {}", process.log());
    }
}

#[test]
fn a_device_goes_to_the_background_once_created() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::bare();
    let World { left, scratch, .. } = &world;
    let link = scratch.path().join("strait-device");
    symlink(STRAIT, &link).unwrap();
    let link = link.to_str().unwrap();

    // Its output is read to the end: nothing in the background may hold it open.
    let started = left.run(link, &[&left.interface]);
    let (has_device, has_socket) = (left.has_device(), left.socket().exists());
    let modes = [left.socket(), left.socket().parent().unwrap().to_owned()]
        .map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777);
    let link_state = left.run("ip", &["link", "show", &left.interface]);
    let again = left.run(link, &[&left.interface]);
    let still = left.wg(&["show", &left.interface]);
    let wrong = left.run(link, &["no/name"]);
    left.run("ip", &["link", "delete", &left.interface]);
    left.wait_for_end();

    assert_eq!(succeeded(&started, &[]), "");
    assert!(has_device && has_socket);
    assert_eq!(modes[0], 0o600);
    assert_eq!(modes[1] & 0o022, 0, "only root may put a socket there");
    let link_state = String::from_utf8_lossy(&link_state.stdout).into_owned();
    assert!(link_state.contains("mtu 1420") && !link_state.contains("UP"), "{link_state}");
    let error = String::from_utf8_lossy(&again.stderr).into_owned();
    assert_eq!(again.status.code(), Some(1), "{error}");
    assert!(error.contains("use a name no other interface has"), "{error}");
    assert!(still.contains("listening port: "), "{still}");
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn wg_quick_brings_devices_up_and_down() {
    let needs = [&NEEDS[..], &[Tool("wg-quick"), Tool("nft"), Tool("sysctl")]].concat();
    let Some(_turn) = require(&needs) else { return };
    if Path::new("/sys/module/wireguard").exists() {
        assert_ne!(
            std::env::var("CI").as_deref(),
            Ok("true"),
            "wg-quick prefers this kernel's WireGuard"
        );
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"SKIPPED: wg-quick prefers the WireGuard of this kernel\n",
        );
        return;
    }
    let world = World::bare();
    let World { left, right, scratch } = &world;
    let quick = Quick::new(scratch.path());
    // The left one sends everything through the tunnel, which takes the mark to get out at all.
    let to_right =
        format!("AllowedIPs = 0.0.0.0/0\nEndpoint = {}\n", SocketAddr::new(right.underlay, PORT));
    let to_left = format!("AllowedIPs = {}/32\n", left.inner);
    quick.write(left, &right.key, &to_right);
    quick.write(right, &left.key, &to_left);

    for _ in 0..2 {
        quick.run(left, "up");
        quick.run(right, "up");
        let ping = world.ping(20);
        let mark = left.wg(&["show", &left.interface, "fwmark"]);
        let all = left.wg(&["show", "interfaces"]);
        quick.run(left, "down");
        quick.run(right, "down");

        assert!(ping.is_perfect(), "{ping:?}");
        assert_eq!(mark.trim(), "0xca6c");
        assert!(all.contains(&left.interface), "{all}");
        left.wait_for_end();
        right.wait_for_end();
    }
}

/// `wg-quick` beside an `ip` without WireGuard, also if the kernel has it.
struct Quick {
    folder: PathBuf,
}

impl Quick {
    fn new(folder: &Path) -> Self {
        symlink(STRAIT, folder.join("strait-device")).unwrap();
        fs::copy(find("wg-quick").unwrap(), folder.join("wg-quick")).unwrap();
        let ip = format!(
            "#!/bin/sh\ncase \"$*\" in *'type wireguard'*) exit 2 ;; esac\nexec {} \"$@\"\n",
            find("ip").unwrap().display(),
        );
        fs::write(folder.join("ip"), ip).unwrap();
        fs::set_permissions(folder.join("ip"), fs::Permissions::from_mode(0o755)).unwrap();

        Self { folder: folder.to_owned() }
    }

    fn file(&self, host: &Host) -> PathBuf {
        self.folder.join(format!("{}.conf", host.interface))
    }

    fn write(&self, host: &Host, peer: &PrivateKey, rest: &str) {
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\nAddress = {}/24\n[Peer]\n\
             PublicKey = {}\n{rest}",
            *host.key.to_base64(),
            host.inner,
            peer.public_key(),
        );
        fs::write(self.file(host), text).unwrap();
        fs::set_permissions(self.file(host), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn run(&self, host: &Host, verb: &str) {
        let mut command = Command::new(self.folder.join("wg-quick"));
        command
            .arg(verb)
            .arg(self.file(host))
            .env("WG_QUICK_USERSPACE_IMPLEMENTATION", self.folder.join("strait-device"));

        succeeded(&host.output(command), &["wg-quick", verb]);
    }
}

#[test]
fn strait_show_knows_more_than_wg() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::start([Maker::Native, Maker::Native]);
    let World { left, right, .. } = &world;
    world.assert_talk(5);
    // No peer has this address.
    left.namespace
        .add_route("10.99.0.0/16".parse().unwrap(), &left.interface, strait_lab::netlink::Via::Link)
        .unwrap();
    let lost = Ping::new("10.99.0.1".parse().unwrap(), 3);
    lost.run(&left.namespace).unwrap();
    wait_until("the path was known", PATIENCE, || {
        Ok(left.say("get=1\n\n").contains("strait_path_mtu="))
    })
    .unwrap();

    let text = left.strait(&["show", &left.interface]);
    let json = left.strait(&["show", &left.interface, "--json"]);
    let missing = left.run(STRAIT, &["show", "none0"]);

    for line in [
        "private key: (hidden)",
        "engine: native",
        "drops outbound: no_route ",
        "round trip: ",
        "path mtu: 1420",
        &format!("peer: {}", right.key.public_key()),
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["peers"][0]["path_mtu"], 1420);
    assert!(json[0]["drops"]["outbound"]["no_route"].as_u64() >= Some(3), "{json}");
    assert!(json[0]["peers"][0]["rtt_us"].is_u64(), "{json}");
    assert_eq!(missing.status.code(), Some(69));
    let secret = &*left.key.to_base64();
    assert!(!text.contains(secret) && !json.to_string().contains(secret));
    world.stop();
}

#[test]
fn a_gateway_is_seen_and_not_changed() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = World::bare();
    let World { left, right, scratch } = &world;
    let key = scratch.write("gateway.key", &left.key.to_base64()).unwrap();
    let text = format!(
        "[gateway]\ninterface = \"{}\"\nlisten_port = {PORT}\nprivate_key_file = {key:?}\nadmin_socket = \"\"\n\
         [[peer]]\nname = \"milan\"\npublic_key = \"{}\"\nendpoint = \"192.0.2.2:{PORT}\"\n\
         persistent_keepalive = 25\nallowed_ips = [\"10.77.0.2/32\"]\n",
        left.interface,
        right.key.public_key(),
    );
    let file = scratch.write("gateway.toml", &text).unwrap();
    let words = ["gateway".as_ref(), "--config".as_ref(), file.as_os_str()];
    let log = scratch.path().join("gateway.log");
    let process =
        Process::start(&left.namespace, "gateway", Path::new(STRAIT), words, log).unwrap();
    wait_until("the gateway ran", PATIENCE, || Ok(process.log().contains("the gateway runs")))
        .unwrap();

    let dump = left.dump();
    let shown = left.strait(&["show", &left.interface]);
    let refused = left.run("wg", &["set", &left.interface, "listen-port", "7"]);

    assert_eq!(dump[0][1..], [&left.key.public_key().to_string(), "51820", "off"]);
    assert_eq!(dump[1][2..4], ["192.0.2.2:51820", "10.77.0.2/32"]);
    assert_eq!(dump[1][7], "25");
    assert!(shown.contains("name: milan") && shown.contains("engine: "), "{shown}");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("Operation not permitted"), "{error}");
    assert!(
        process.log().contains("this gateway is configured by the configuration file"),
        "{}",
        process.log()
    );
    assert_eq!(left.dump(), dump);
    process.stop().unwrap();
    assert!(!left.socket().exists());
}
