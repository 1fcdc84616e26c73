//! How a device starts, idles and ends, also with `wg-quick`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use strait_lab::process::find;
use strait_lab::wait_until;
use strait_wg::PrivateKey;

use crate::device::{NEEDS, PATIENCE};
use crate::harness::STRAIT;
use crate::harness::devices::{Host, Maker, PORT, World, succeeded};
use crate::harness::require::Need::Tool;
use crate::harness::require::require;

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
