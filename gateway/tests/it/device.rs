//! `strait device` as `wg`, `wg-quick` and other implementations see it. Needs root, `/dev/net/tun`,
//! `wg`, `wg-quick`, `wireguard-go`, `ip` and `nft`.

mod keys;
mod life;

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use strait_lab::traffic::Ping;
use strait_lab::{LabError, Process, now, wait_until};
use strait_wg::PrivateKey;

use crate::harness::STRAIT;
use crate::harness::devices::{Host, Maker, PORT, World};
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
        "path mtu: 1420 (device)",
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
    // Without its counters: the gateway sends handshakes meanwhile.
    let settings = |mut dump: Vec<Vec<String>>| {
        dump[1].drain(4..7);
        dump
    };
    assert_eq!(settings(left.dump()), settings(dump));
    process.stop().unwrap();
    assert!(!left.socket().exists());
}
