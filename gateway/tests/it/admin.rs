//! The admin port of a gateway with a file, asked over HTTP.
//!
//! Needs root and `/dev/net/tun`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::gateway::METRICS_ADDRESS;
use strait_lab::process::find;
use strait_lab::scrape::{get, put};
use strait_lab::wait_until;

use crate::harness::STRAIT;
use crate::harness::follower::Follower;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::world::World;

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn the_configuration_page_follows_a_reload() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let rome = world.rome();
    let file = json!({
        "from": "file", "path": world.clusters.scratch.path().join("rome.toml"),
    });

    let before = config(rome);
    assert_eq!(before["settings"]["config"]["origin"], json!({"from": "flag", "flag": "--config"}));
    assert_eq!(before["settings"]["interface"]["origin"], file);
    assert_eq!(
        before["settings"]["max_flows"],
        json!({"value": 1 << 18, "origin": {"from": "default"}})
    );
    assert!(before["settings"].get("keys_dir").is_none(), "no flags of a cluster: {before}");
    assert_eq!(before["peers"][0]["persistent_keepalive"]["value"], 25);

    let mut changed = rome.config.clone();
    changed.peers[0].persistent_keepalive = Some(7);
    changed.set_mtu(1300);
    rome.process().unwrap().reload(&changed, &world.clusters.scratch).unwrap();
    wait_until("the keepalive was shown", PATIENCE, || {
        Ok(config(rome)["peers"][0]["persistent_keepalive"]["value"] == 7)
    })
    .unwrap();

    let after = config(rome);
    assert_eq!(after["peers"][0]["persistent_keepalive"]["origin"], file);
    // The MTU needs a restart.
    assert_eq!(after["settings"]["mtu"], before["settings"]["mtu"]);
    let generation = |config: &Value| config["generation"].as_u64().unwrap();
    assert!(generation(&after) > generation(&before), "{after}");
    world.finish();
}

#[test]
fn a_log_filter_set_by_put_is_applied() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let rome = world.rome();
    let mut changed = rome.config.clone();
    let reload = |config| {
        rome.process().unwrap().reload(config, &world.clusters.scratch).unwrap();
    };
    let said = |text| rome.process().unwrap().process().log().matches(text).count();

    assert_eq!(ask(rome, true, "/log?level=warn").0, 200);
    changed.peers[0].persistent_keepalive = Some(7);
    reload(&changed);
    wait_until("the reload was done", PATIENCE, || {
        Ok(config(rome)["peers"][0]["persistent_keepalive"]["value"] == 7)
    })
    .unwrap();
    assert_eq!(ask(rome, true, "/log?level=loud").0, 400);
    assert_eq!(ask(rome, true, "/log?level=info").0, 200);
    reload(&changed);

    wait_until("the second reload was logged", PATIENCE, || Ok(said("nothing to apply") == 1))
        .unwrap();
    assert_eq!(said("configuration reloaded"), 1);
    let level = config(rome)["settings"]["log_level"].clone();
    assert_eq!(level["origin"], json!({"from": "request"}));
    world.finish();
}

/// A FIFO is never read to its end while nothing is written to it.
#[test]
fn a_configuration_that_cannot_be_read_blocks_nothing() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let mut world = World::start(&Layout::equal().without_ipv6());
    let file = world.clusters.scratch.path().join("rome.toml");
    std::fs::remove_file(&file).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap();

    world.rome().process().unwrap().process().signal(Signal::SIGHUP).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    // The control loop still follows the device.
    set_device(world.rome(), "down");
    wait_until("the device was seen to be down", PATIENCE, || {
        Ok(ask(world.rome(), false, "/readyz").0 == 503)
    })
    .unwrap();
    set_device(world.rome(), "up");
    wait_until("the gateway was ready", PATIENCE, || {
        Ok(ask(world.rome(), false, "/readyz").0 == 200)
    })
    .unwrap();

    world.clusters.stop().unwrap();
}

#[test]
fn routes_return_after_the_device_was_down() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());
    let rome = world.rome();
    let before = routes(rome);
    assert!(!before.is_empty());

    let until = |answer: (u16, &'static str)| {
        wait_until("readiness changed", PATIENCE, || {
            let (status, text) = ask(rome, false, "/readyz");
            Ok((status, text.as_str()) == answer)
        })
        .unwrap();
    };
    set_device(rome, "down");
    until((503, "the device is not up\n"));
    assert_eq!(routes(rome), "");
    set_device(rome, "up");
    until((200, "ready\n"));
    wait_until("the routes were there again", PATIENCE, || Ok(routes(rome) == before)).unwrap();

    // Too fast for a check at intervals.
    set_device(rome, "down");
    set_device(rome, "up");
    wait_until("the routes were there again", PATIENCE, || Ok(routes(rome) == before)).unwrap();
}

#[test]
fn agents_learn_whether_a_gateway_forwards() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    let mut world = World::prepare(&Layout::equal().without_ipv6());
    let clusters = &mut world.clusters;
    clusters.rome.start(Path::new(STRAIT), &clusters.scratch).unwrap();
    let agent = Follower::start(&clusters.rome.gateway, METRICS_ADDRESS);
    agent.wait_for(false);

    clusters.milan.start(Path::new(STRAIT), &clusters.scratch).unwrap();
    agent.wait_for(true);
    set_device(&clusters.rome, "down");
    agent.wait_for(false);
    set_device(&clusters.rome, "up");
    agent.wait_for(true);
    assert!(agent.longest_pause() < Duration::from_millis(300), "{:?}", agent.longest_pause());

    clusters.rome.process().unwrap().process().signal(Signal::SIGTERM).unwrap();
    let told = agent.wait_for(false);
    let went_on = agent.wait_for_end() - told;
    assert!(went_on >= Duration::from_millis(450), "{went_on:?}: nodes need time for other routes");
}

fn set_device(cluster: &Cluster, state: &str) {
    let mut ip = Command::new(find("ip").unwrap());
    ip.args(["link", "set", "strait0", state]);

    assert!(cluster.gateway.start(ip).unwrap().wait().unwrap().success());
}

/// Those that are the gateway's.
fn routes(cluster: &Cluster) -> String {
    let mut ip = Command::new(find("ip").unwrap());
    ip.args(["route", "show", "dev", "strait0", "proto", "83"]).stdout(Stdio::piped());
    let output = cluster.gateway.start(ip).unwrap().wait_with_output().unwrap();

    String::from_utf8(output.stdout).unwrap()
}

fn config(cluster: &Cluster) -> Value {
    serde_json::from_str(&ask(cluster, false, "/config").1).unwrap()
}

fn ask(cluster: &Cluster, is_put: bool, path: &'static str) -> (u16, String) {
    let ask = if is_put { put } else { get };

    cluster.gateway.run(move || ask(METRICS_ADDRESS, path)).unwrap()
}
