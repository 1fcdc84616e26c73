//! How soon a gateway notices that the other one is gone, and that nothing else is taken for that.
//!
//! With Liqo's interval of two seconds, at which the regular probes would need four or more. Prints what it measured.
//! With `STRAIT_FIGURES` set, in the release build on a quiet machine, what is promised is demanded; without, what even a
//! busy machine must reach.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use strait_lab::Layout;
use strait_lab::now;
use strait_lab::rate;
use strait_lab::traffic::{Amount, Ping, tcp};
use strait_lab::wait_until;

use crate::harness::follower::Follower;
use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{Fed, HEALTH, Mode, PATIENCE, wait_for_ping};
use crate::kube::peering::{Peering, alone};

#[test]
fn a_killed_gateway_is_noticed_within_a_second() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let target = peering.target();
    let mut client = alone(peering.milan(), Mode::Client);
    client.push("--ping-interval=2s".to_owned());
    peering.in_rome.stop("gateway");
    peering.in_rome.start("gateway", &client);
    wait_for_ping(&peering.rome().pod, target);
    wait_until("the other gateway is known as one of Strait", PATIENCE, || {
        Ok(value(&peering.in_rome, "strait_peer_silence_limit_seconds").is_some())
    })
    .unwrap();

    // The first probes may have found no session yet.
    let before = silences(&peering.in_rome);
    // Two gateways and their traffic on the processors of this machine.
    let (rome, milan) = (peering.rome(), peering.milan());
    let bulk = tcp(&rome.pod, &milan.pod, target, Amount::Bytes(200_000_000)).unwrap();
    assert!(bulk.is_intact, "{bulk:?}");
    let ping = Ping { interval: Duration::from_millis(20), ..Ping::new(target, 100) };
    assert!(ping.run(&rome.pod).unwrap().is_perfect());
    assert_eq!(silences(&peering.in_rome), before, "the other gateway was there");

    let ping = Ping { count: 150, timeout: Duration::ZERO, ..ping };
    let pinging = rome.pod.spawn(move || ping.run_here()).unwrap();
    peering.in_milan.kill("gateway");
    let killed = now();
    wait_until("silence is noticed", PATIENCE, || Ok(silences(&peering.in_rome) > before)).unwrap();
    let took = killed.elapsed();
    eprintln!("a killed gateway: silence is noticed after {took:?}");
    let limit = if std::env::var_os("STRAIT_FIGURES").is_some() { 1_000 } else { 2_000 };
    assert!(took <= Duration::from_millis(limit), "{took:?}");
    let unanswered = pinging.join().unwrap().unwrap().unanswered.len();
    assert!(unanswered > 20, "{unanswered}: the other gateway was gone");

    let server = alone(peering.rome(), Mode::Server);
    peering.in_milan.start("gateway", &server);
    wait_for_ping(&peering.rome().pod, target);
    peering.finish();
}

#[test]
fn a_gateway_without_its_peer_does_not_forward() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let target = peering.target();
    let agent = Follower::start(&peering.rome().gateway, HEALTH);
    agent.wait_for(true);
    wait_for_silence_limit(&peering.in_rome);

    // Dead without notice, while packets are sent.
    let ping = Ping { interval: Duration::from_millis(10), ..Ping::new(target, 200) };
    let ping = Ping { timeout: Duration::ZERO, ..ping };
    let pinging = peering.rome().pod.spawn(move || ping.run_here()).unwrap();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(agent.last(), Some(true));
    // Its end takes a while, in which it still answers.
    let killed = now();
    peering.in_milan.kill("gateway");
    let took = agent.wait_for(false) - killed;
    eprintln!("a killed peer: forwards is false after {took:?}");
    assert!(took <= promised(400, 1_500), "{took:?}");
    pinging.join().unwrap().unwrap();

    // A new process forwards with its session, and not before.
    peering.in_rome.kill("gateway");
    peering.in_milan.start("gateway", &alone(peering.rome(), Mode::Server));
    wait_until("the gateway is ready", PATIENCE, || Ok(peering.in_milan.is_ready())).unwrap();
    let other_agent = Follower::start(&peering.milan().gateway, HEALTH);
    other_agent.wait_for(false);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(other_agent.last(), Some(false));
    peering.in_rome.start("gateway", &alone(peering.milan(), Mode::Client));
    other_agent.wait_for(true);

    wait_for_ping(&peering.rome().pod, target);
    peering.finish();
}

#[test]
fn both_ends_of_a_draining_gateway_say_so() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    for mode in [Mode::Client, Mode::Server] {
        let Some(mut peering) = Peering::start(&Layout::equal(), mode) else {
            return;
        };
        let target = peering.target();
        let agents = [peering.rome(), peering.milan()]
            .map(|cluster| Follower::start(&cluster.gateway, HEALTH));
        for agent in &agents {
            agent.wait_for(true);
        }
        wait_for_silence_limit(&peering.in_rome);
        wait_for_silence_limit(&peering.in_milan);

        let interval = Duration::from_millis(10);
        let ping = Ping { interval, timeout: Duration::ZERO, ..Ping::new(target, 150) };
        let pinging = peering.rome().pod.spawn(move || (now(), ping.run_here())).unwrap();
        thread::sleep(Duration::from_millis(300));
        let ending = peering.in_milan.take("gateway");
        let asked = now();
        ending.signal(Signal::SIGTERM).unwrap();
        let [in_rome, in_milan] = [0, 1].map(|end: usize| agents[end].wait_for(false) - asked);
        eprintln!("draining: {in_milan:?} to the agents here, {in_rome:?} to those of the peer");
        assert!(in_rome.max(in_milan) <= promised(50, 1_000), "{in_rome:?}, {in_milan:?}");

        // What still arrives is forwarded until agents have other routes.
        let went_on = agents[1].wait_for_end() - asked;
        assert!(went_on >= Duration::from_millis(450), "{went_on:?}");
        let (begun, report) = pinging.join().unwrap();
        let first_lost = report.unwrap().unanswered.first().copied().unwrap();
        let first_lost = begun + interval * u32::try_from(first_lost).unwrap();
        let carried = first_lost.saturating_duration_since(asked);
        assert!(carried >= Duration::from_millis(400), "{carried:?} of {went_on:?}");

        let mode = if mode == Mode::Client { Mode::Server } else { Mode::Client };
        peering.in_milan.start("gateway", &alone(peering.rome(), mode));
        agents[0].wait_for(true);
        wait_for_ping(&peering.rome().pod, target);
        drop(ending);
        peering.finish();
    }
}

/// Until the other gateway is known as one of Strait.
fn wait_for_silence_limit(fed: &Fed) {
    wait_until("the other gateway is known as one of Strait", PATIENCE, || {
        Ok(value(fed, "strait_peer_silence_limit_seconds").is_some())
    })
    .unwrap();
}

/// In milliseconds: what is promised where figures are demanded, and what a busy machine must reach.
fn promised(quiet: u64, busy: u64) -> Duration {
    let is_demanded = std::env::var_os("STRAIT_FIGURES").is_some();

    Duration::from_millis(if is_demanded { quiet } else { busy })
}

/// Traffic silence alone adds no probe. The manual has the figures.
#[test]
fn an_idle_pair_exchanges_few_packets() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(mut peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let interval = "--ping-interval=500ms".to_owned();
    let mut client = alone(peering.milan(), Mode::Client);
    let mut server = alone(peering.rome(), Mode::Server);
    client.push(interval.clone());
    server.push(interval);
    peering.in_milan.stop("gateway");
    peering.in_rome.stop("gateway");
    peering.in_milan.start("gateway", &server);
    peering.in_rome.start("gateway", &client);
    wait_for_ping(&peering.rome().pod, peering.target());
    for fed in [&peering.in_rome, &peering.in_milan] {
        wait_until("each knows the other as one of Strait", PATIENCE, || {
            Ok(value(fed, "strait_peer_silence_limit_seconds").is_some())
        })
        .unwrap();
    }

    let carried = |what: &str| -> u64 {
        let names = ["receive", "transmit"].map(|way| format!("strait_peer_{way}_{what}_total"));
        let values = names.map(|name| value(&peering.in_rome, &name).unwrap());
        values.iter().map(|value| value.parse::<u64>().unwrap()).sum()
    };
    let (begun, packets, bytes) = (now(), carried("packets"), carried("bytes"));
    thread::sleep(Duration::from_secs(10));
    let (packets, bytes) = (carried("packets") - packets, carried("bytes") - bytes);
    let [packets, bytes] = [packets, bytes].map(|count| rate(count, begun.elapsed()));
    eprintln!("an idle pair: {packets:.1} packets and {bytes:.0} bytes a second, both ways");
    // The search for a longer path MTU may go on.
    assert!(packets <= 40.0, "{packets}");
    peering.finish();
}

fn silences(fed: &Fed) -> u32 {
    value(fed, "strait_peer_silences_total").unwrap().parse().unwrap()
}

fn value(fed: &Fed, name: &str) -> Option<String> {
    fed.metrics().value(name, &[("peer", fed.peer)]).map(ToOwned::to_owned)
}
