//! The life of a peering: it comes up, it changes, its API servers go away, it ends.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kube::api::{Api, DeleteParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use strait_api::{Configuration, PublicKey};
use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::Underlay;
use strait_lab::traffic::{Amount, Ping, tcp};
use strait_lab::wait_until;
use strait_plan::conncheck::{MESSAGE_BYTES_MAX, PORT};
use strait_wg::PrivateKey;

use crate::harness::kernel::run;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::kube::black_hole::filter_errors_and_fragments;
use crate::kube::fed::{Fed, Mode, NAMESPACE, PATIENCE, wait_for_ping};
use crate::kube::observed::{assert_observed, assert_only_read_from_outside};
use crate::kube::peering::{Peering, alone};

/// Type and code of ICMP: destination unreachable, host unreachable (RFC 792).
const HOST_UNREACHABLE: (u8, u8) = (3, 1);

/// How long the API servers are away.
const OUTAGE: Duration = Duration::from_secs(60);

#[test]
fn clusters_are_joined_with_either_server() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };

    for (layout, rome) in
        [(Layout::equal(), Mode::Client), (Layout::partly_overlapping(), Mode::Server)]
    {
        let Some(peering) = Peering::start(&layout, rome) else {
            return;
        };
        peering.assert_traffic();

        let type_ = match rome {
            Mode::Client => "Client",
            Mode::Server => "Server",
        };
        let table = peering.in_rome.table("connections");
        assert_eq!(table[0], ["Name", "Type", "Status", "Age", "Latency"]);
        assert_eq!(table[1][..3], ["gw-milan", type_, "Connected"]);
        assert!(table[1][4].ends_with("ms") || table[1][4].ends_with("μs"), "{table:?}");
        assert_observed(&peering.in_rome);
        assert_only_read_from_outside(peering.rome(), peering.milan());
        peering.finish();
    }
}

#[test]
fn changes_of_objects_are_followed_while_everything_runs() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let (rome, fed) = (&peering.rome().pod, &peering.in_rome);
    let target = peering.target();

    // Another name for the remote's pods.
    configure(fed, &json!({"status": {"remote": {"cidr": {"pod": ["10.99.0.0/16"]}}}}));
    wait_for_ping(rome, "10.99.2.7".parse().unwrap());
    assert!(!Ping::new(target, 1).run(rome).unwrap().is_perfect(), "the old name is gone");
    assert_eq!(fed.config()["peers"][0]["remap"]["value"][0]["local"], "10.99.0.0/16");

    // A name that makes no sense takes the prefix out of force, and the way back is a right one.
    configure(fed, &json!({"status": {"remote": {"cidr": {"pod": ["10.99.0.0/24"]}}}}));
    peering.assert_silent();
    assert!(fed.log("gateway").contains("Configuration liqo-tenant/milan"), "it is named");
    assert_eq!(fed.metrics().value("strait_objects_refused", &[]), Some("1"));
    fed.wait_for_condition("RemapInvalid");
    configure(fed, &json!({"status": {"remote": {"cidr": {"pod": ["10.71.0.0/16"]}}}}));
    wait_for_ping(rome, target);
    fed.wait_for_condition("InForce");

    // Without a key there is no peer.
    let key = fed.ask(|client| async move {
        let keys = Api::<PublicKey>::namespaced(client, NAMESPACE);
        let key = keys.get("milan").await.unwrap();
        keys.delete("milan", &DeleteParams::default()).await.unwrap();
        key
    });
    peering.assert_silent();
    fed.apply::<PublicKey>(&json!({"spec": key.spec}));
    wait_for_ping(rome, target);

    // The namespace is deleted with everything in it: the peer goes, the gateway stays.
    fed.ask(|client| async move {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
        namespaces.delete(NAMESPACE, &DeleteParams::default()).await.unwrap();
        // What the controller of namespaces does.
        let keys = Api::<PublicKey>::namespaced(client.clone(), NAMESPACE);
        keys.delete("milan", &DeleteParams::default()).await.unwrap();
        let configurations = Api::<Configuration>::namespaced(client, NAMESPACE);
        configurations.delete("milan", &DeleteParams::default()).await.unwrap();
    });
    peering.assert_silent();

    peering.finish();
}

/// Its Service has another port, so both templates make other pods, one after the other.
#[test]
fn a_moved_server_is_called_at_its_address() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let moved = |other: &Cluster, mode| -> Vec<_> {
        alone(other, mode).iter().map(|flag| flag.replace("=51840", "=51841")).collect()
    };
    let server = moved(peering.rome(), Mode::Server);
    let client = moved(peering.milan(), Mode::Client);

    peering.in_milan.stop("gateway");
    peering.in_milan.start("gateway", &server);
    peering.in_rome.wait_for("Error");
    peering.in_rome.stop("gateway");
    peering.in_rome.start("gateway", &client);

    peering.in_rome.wait_for("Connected");
    peering.in_milan.wait_for("Connected");
    peering.assert_traffic();
    peering.finish();
}

/// Each key changes by itself, and the other cluster's object follows a moment later, or went before.
#[test]
fn a_rotated_secret_costs_no_packet() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let Peering { in_rome, in_milan, clusters } = &peering;
    let [rome_key, milan_key] = [PrivateKey::generate(), PrivateKey::generate()];
    let interval = Duration::from_millis(60);
    let ping = Ping { interval, ..Ping::new(peering.target(), 200) };

    let report = thread::scope(|scope| {
        let pinging = scope.spawn(|| ping.run(&clusters.rome.pod).unwrap());
        in_rome.rotate(&rome_key);
        in_milan.learn(&rome_key);
        in_rome.learn(&milan_key);
        in_milan.rotate(&milan_key);
        assert!(!pinging.is_finished(), "the changes took longer than the traffic");
        pinging.join().unwrap()
    });

    assert!(report.is_perfect(), "lost {:?} of {}", report.unanswered, report.sent);
    peering.assert_traffic();
    peering.finish();
}

/// The object of the peer has the key that this gateway has for a while.
#[test]
fn our_own_key_is_refused_for_a_peer() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let Peering { in_rome, in_milan, .. } = &peering;
    let [key, another] = [PrivateKey::generate(), PrivateKey::generate()];
    in_milan.rotate(&key);
    in_rome.learn(&key);
    let refused = |count: &'static str| {
        let is_so = || Ok(in_rome.metrics().value("strait_objects_refused", &[]) == Some(count));
        wait_until(format!("{count} objects are refused"), PATIENCE, is_so).unwrap();
    };
    refused("0");

    in_rome.rotate(&key);
    refused("1");
    assert!(in_rome.log("gateway").contains("spec.publicKey is our own public key"));

    in_rome.rotate(&another);
    refused("0");
    in_milan.learn(&another);
    wait_for_ping(&peering.rome().pod, peering.target());
    peering.finish();
}

#[test]
fn an_api_server_outage_costs_no_packet() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::different(), Mode::Client) else {
        return;
    };
    let target = peering.target();

    let interval = Duration::from_millis(20);
    let count = u16::try_from(OUTAGE.as_millis() / interval.as_millis()).unwrap();
    let ping = Ping { interval, ..Ping::new(target, count) };
    let Peering { in_rome, in_milan, clusters } = &mut peering;
    let reloads = |fed: &Fed| fed.log("gateway").matches("configuration reloaded").count();
    let before = reloads(in_rome);
    let report = thread::scope(|scope| {
        let traffic = scope.spawn(|| ping.run(&clusters.rome.pod).unwrap());
        in_rome.kill_api_server();
        in_milan.kill_api_server();
        traffic.join().unwrap()
    });
    assert!(report.is_perfect(), "lost {:?} of {}", report.unanswered, report.sent);

    assert_eq!(reloads(in_rome), before, "an outage is no change");

    // What the watches saw last is history when they come back.
    for fed in [&mut peering.in_rome, &mut peering.in_milan] {
        fed.restart_api_server();
        fed.compact();
    }
    configure(
        &peering.in_rome,
        &json!({"status": {"remote": {"cidr": {"pod": ["10.99.0.0/16"]}}}}),
    );
    wait_for_ping(&peering.rome().pod, "10.99.2.7".parse().unwrap());
    peering.in_rome.wait_for("Connected");

    peering.finish();
}

#[test]
fn a_saved_state_forwards_without_an_api_server() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::partly_overlapping(), Mode::Client) else {
        return;
    };
    let target = peering.target();
    let state = peering.in_milan.folder().join("state.json");
    // The server, which has no endpoint of the client.
    let mut arguments = alone(peering.rome(), Mode::Server);
    arguments.push(format!("--state-file={}", state.display()));
    peering.in_milan.stop("gateway");
    peering.in_milan.start("gateway", &arguments);
    wait_for_ping(&peering.rome().pod, target);
    let heard_from = peering.rome().underlay.to_string();
    wait_until("the state has the endpoint", PATIENCE, || {
        Ok(fs::read_to_string(&state).is_ok_and(|state| state.contains(&heard_from)))
    })
    .unwrap();
    let text = fs::read_to_string(&state).unwrap();
    let private_key = peering.milan().private_key.to_base64();
    assert!(!text.contains(private_key.as_str()), "no secret is in it");

    peering.in_milan.kill_api_server();
    peering.in_milan.kill("gateway");
    let back = peering.milan().side.sees(&peering.rome().side).next().unwrap();
    let ping = Ping::new(back, 1).run(&peering.milan().pod).unwrap();
    let errors: Vec<_> = ping.errors.iter().map(|error| (error.kind, error.code)).collect();
    assert_eq!(errors, [HOST_UNREACHABLE], "packets do not go back to the node");
    peering.in_milan.start("gateway", &arguments);
    wait_for_ping(&peering.milan().pod, back);
    assert!(!peering.in_milan.is_ready(), "it has not seen the objects");

    assert_replaced(&peering);

    peering.in_milan.restart_api_server();
    wait_until("it is ready", PATIENCE, || Ok(peering.in_milan.is_ready())).unwrap();
    peering.assert_traffic();
    peering.finish();
}

#[test]
fn a_process_on_standby_replaces_a_killed_one() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let folder = peering.in_milan.folder().to_owned();
    let mut arguments = alone(peering.rome(), Mode::Server);
    arguments.push(format!("--state-file={}", folder.join("state.json").display()));
    arguments.push(format!("--lock-file={}", folder.join("lock").display()));
    peering.in_milan.stop("gateway");
    peering.in_milan.start("gateway", &arguments);
    wait_for_ping(&peering.rome().pod, peering.target());
    start_on_standby(&mut peering, "standby", &arguments);
    let ends = "the other process has ended";

    // Its successor goes on with the lock.
    assert_replaced(&peering);
    assert!(!peering.in_milan.log("standby").contains(ends));

    for [killed, successor] in [["gateway", "standby"], ["standby", "gateway"]] {
        let process = peering.in_milan.take(killed);
        let interval = Duration::from_millis(10);
        let ping = Ping { interval, ..Ping::new(peering.target(), 300) };
        let pinging = peering.rome().pod.spawn(move || ping.run_here()).unwrap();
        thread::sleep(Duration::from_millis(200));
        drop(process);
        let report = pinging.join().unwrap().unwrap();

        let gap = interval * u32::try_from(report.unanswered.len()).unwrap();
        eprintln!("no process forwards for {gap:?}");
        assert!(gap < Duration::from_secs(1), "{report:?}");
        assert!(peering.in_milan.log(successor).contains(ends));
        start_on_standby(&mut peering, killed, &arguments);
    }

    peering.in_milan.kill("standby");
    peering.assert_traffic();
    peering.finish();
}

/// In Milan, beside a process that runs.
fn start_on_standby(peering: &mut Peering, name: &'static str, arguments: &[String]) {
    peering.in_milan.start(name, arguments);
    let log = || peering.in_milan.log(name);
    wait_until("it is on standby", PATIENCE, || Ok(log().contains("on standby until"))).unwrap();
}

/// The peers of Milan's gateway are handed over with their sessions.
fn assert_replaced(peering: &Peering) {
    let target = peering.target();

    let ping = Ping { interval: Duration::from_millis(10), ..Ping::new(target, 100) };
    let pinging = peering.rome().pod.spawn(move || ping.run_here()).unwrap();
    peering.in_milan.signal("gateway", Signal::SIGUSR2);
    let log = || peering.in_milan.log("gateway");
    let is_replaced = || Ok(log().contains("took over from the previous program"));
    wait_until("it was replaced", PATIENCE, is_replaced).unwrap();
    let report = pinging.join().unwrap().unwrap();

    assert!(report.is_perfect(), "{report:?}");
}

/// Routers with narrow links send no ICMP error, and behind them fragments are lost.
#[test]
fn a_black_hole_heals_within_two_seconds() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    for (is_ipv6, narrow) in [(false, "1232"), (true, "1216")] {
        let underlay = Underlay { is_ipv6, is_routed: true, mtu_bytes: 1500 };
        let layout = Layout::equal().with_underlay(underlay);
        let Some(peering) = Peering::start(&layout, Mode::Client) else {
            return;
        };
        let (rome, milan) = (peering.rome(), peering.milan());
        let router = peering.clusters.router.as_ref().unwrap();
        let set_mtu = |mtu_bytes| {
            for cluster in [rome, milan] {
                router.set_mtu(cluster.name, mtu_bytes).unwrap();
            }
        };
        filter_errors_and_fragments(&peering.clusters);
        wait_for_path_mtu(&peering, "1420", PATIENCE);

        set_mtu(1300);
        wait_for_path_mtu(&peering, narrow, Duration::from_secs(2));
        for (from, to) in [(rome, milan), (milan, rome)] {
            let target = from.side.sees(&to.side).next().unwrap();
            let bulk = tcp(&from.pod, &to.pod, target, Amount::Bytes(20_000_000)).unwrap();
            assert!(bulk.is_intact, "{bulk:?}");
        }

        set_mtu(1500);
        wait_for_path_mtu(&peering, "1420", Duration::from_secs(10));
        peering.finish();
    }
}

/// As a faulty kernel or driver: of each send that the kernel segments, the first datagram is damaged.
#[test]
fn damage_by_segmentation_ends_it_within_two_seconds() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft")]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let (rome, milan) = (peering.rome(), peering.milan());
    let gso = || {
        let labels = [("offload", "udp_gso")];
        peering.in_rome.metrics().value("strait_offload_enabled", &labels).map(str::to_owned)
    };
    let target = rome.side.sees(&milan.side).next().unwrap();
    let is_connected =
        || Ok(peering.in_rome.metrics().value("strait_peer_probe_rtt_seconds", &[]).is_some());
    wait_until("the check has answers", PATIENCE, is_connected).unwrap();
    assert_eq!(gso().as_deref(), Some("1"));

    // The bits of a transport data message from 128 on are its encrypted packet, after the 64 of the UDP header.
    let damage = "table ip damage { chain leaving { type filter hook output priority 0; \
        meta l4proto udp meta length > 2000 @th,192,32 set 0x64616d67; }; }";
    run(&rome.gateway, "nft", &[damage]);
    let bulk = thread::scope(|scope| {
        let bulk =
            scope.spawn(|| tcp(&rome.pod, &milan.pod, target, Amount::Bytes(20_000_000)).unwrap());
        // The second that is promised, where figures are demanded.
        let seconds = if std::env::var_os("STRAIT_FIGURES").is_some() { 1 } else { 2 };
        let most = Duration::from_secs(seconds);
        wait_until("the kernel segments no more", most, || Ok(gso().as_deref() == Some("0")))
            .unwrap();
        bulk.join().unwrap()
    });

    assert!(bulk.is_intact, "{bulk:?}");
    peering.finish();
}

/// With the default MTU, on an underlay for jumbo frames.
#[test]
fn the_device_grows_to_what_the_underlay_carries() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: false, mtu_bytes: 9000 };
    let layout = Layout::equal().with_underlay(underlay).with_mtu(9000);
    let Some(peering) = Peering::start(&layout, Mode::Client) else {
        return;
    };
    let (rome, milan) = (peering.rome(), peering.milan());

    wait_for_path_mtu(&peering, "8920", PATIENCE);
    let target = rome.side.sees(&milan.side).next().unwrap();
    let bulk = tcp(&rome.pod, &milan.pod, target, Amount::Bytes(50_000_000)).unwrap();
    assert!(bulk.is_intact, "{bulk:?}");
    peering.finish();
}

/// Its successor knows the MTU of the device, and whose it is: with a stock gateway the device shrinks again.
#[test]
fn a_replaced_gateway_knows_its_grown_device() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    wait_for_path_mtu(&peering, "1420", PATIENCE);
    let resized = |fed: &Fed| fed.log("gateway").matches("the device has another MTU").count();
    assert_eq!(resized(&peering.in_rome), 1);

    peering.in_rome.signal("gateway", Signal::SIGUSR2);
    wait_until("it was replaced", PATIENCE, || {
        Ok(peering.in_rome.log("gateway").contains("took over from the previous program"))
    })
    .unwrap();
    let mtu = || peering.in_rome.config()["settings"]["mtu"]["value"].clone();
    wait_until("its successor answers", PATIENCE, || Ok(mtu() == 1420)).unwrap();
    assert_eq!(resized(&peering.in_rome), 1, "the successor knows the MTU");

    let stock = StockPeer::in_place_of_milan(&mut peering);
    let is_stock = |fed: &Fed| {
        let labels = [("peer", "milan")];
        fed.metrics().value("strait_peer_silence_limit_seconds", &labels).is_none()
    };
    wait_until("the peer is a stock gateway", PATIENCE, || Ok(is_stock(&peering.in_rome))).unwrap();
    wait_until("the device is small again", PATIENCE, || {
        Ok(peering.in_rome.config()["settings"]["mtu"]["value"] == 1340)
    })
    .unwrap();
    drop(stock);
    peering.finish();
}

/// Answers the connection check in Milan as a stock gateway does: without the fields that it does not know.
struct StockPeer {
    is_over: Arc<AtomicBool>,
    answering: Option<JoinHandle<()>>,
}

impl StockPeer {
    fn in_place_of_milan(peering: &mut Peering) -> Self {
        let mut flags = alone(peering.rome(), Mode::Server);
        flags.push("--ping-enabled=false".to_owned());
        peering.in_milan.stop("gateway");
        peering.in_milan.start("gateway", &flags);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let answering = peering.milan().gateway.spawn(move || answer_as_stock(&ends)).unwrap();

        Self { is_over, answering: Some(answering) }
    }
}

impl Drop for StockPeer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(answering) = self.answering.take() {
            let _ = answering.join();
        }
    }
}

fn answer_as_stock(is_over: &AtomicBool) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    while !is_over.load(Ordering::Relaxed) {
        let Ok((len, source)) = socket.recv_from(&mut buffer) else { continue };
        let ping: Value = serde_json::from_slice(&buffer[..len]).unwrap();
        let pong = json!({
            "clusterID": ping["clusterID"], "msgType": "PONG", "timeStamp": ping["timeStamp"],
        });
        // The tunnel may have no session.
        let _ = socket.send_to(pong.to_string().as_bytes(), source);
    }
}

/// Until both gateways know it.
fn wait_for_path_mtu(peering: &Peering, bytes: &str, most: Duration) {
    let source = if ["1420", "8920"].contains(&bytes) { "device" } else { "probe" };
    for (fed, peer) in [(&peering.in_rome, "milan"), (&peering.in_milan, "rome")] {
        let name = format!("the path to {peer} carries {bytes} bytes");
        wait_until(name, most, || {
            let labels = [("peer", peer), ("source", source)];
            Ok(fed.metrics().value("strait_peer_path_mtu_bytes", &labels) == Some(bytes))
        })
        .unwrap();
    }
}

fn configure(fed: &Fed, change: &Value) {
    fed.apply::<Configuration>(change);
}
