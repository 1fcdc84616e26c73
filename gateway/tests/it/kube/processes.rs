//! A gateway's process ends, and another one goes on.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use strait_lab::Layout;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;

use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{Mode, PATIENCE, wait_for_ping};
use crate::kube::peering::{Peering, alone};

/// Type and code of ICMP: destination unreachable, host unreachable (RFC 792).
const HOST_UNREACHABLE: (u8, u8) = (3, 1);

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
