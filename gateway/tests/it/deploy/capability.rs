//! How a gateway that is not root gets its one capability: what `deploy/README.md` and the Dockerfile
//! say of the kernel.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use strait_lab::Layout;
use strait_lab::process::find;
use strait_lab::traffic::Ping;
use tempfile::TempDir;

use crate::deploy::image;
use crate::harness::STRAIT;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::{check, require};
use crate::harness::world::World;

/// The user of the image.
const USER: u32 = 65_532;

/// The bit of `NET_ADMIN` in `/proc/PID/status`.
const NET_ADMIN: u64 = 1 << 12;

/// What a container runtime does for `runAsUser: 65532`, `allowPrivilegeEscalation: false`,
/// `drop: [ALL]` before it executes the program. The capabilities stay permitted until then.
const UNPRIVILEGED: [&str; 5] =
    ["--reuid=65532", "--regid=65532", "--clear-groups", "--inh-caps=-all", "--no-new-privs"];
const DROP_ALL: &str = "--bounding-set=-all";
/// The same with `add: [NET_ADMIN]`.
const ADD_NET_ADMIN: &str = "--bounding-set=-all,+net_admin";

#[test]
fn net_admin_suffices_for_a_gateway_without_root() {
    joins_clusters(Path::new(STRAIT), Start::Capable);
}

#[test]
#[ignore = "needs the binary of the image: make image-check"]
fn the_image_binary_joins_clusters_without_root() {
    joins_clusters(&image::binary(), Start::Capable);
}

/// Which of the two files a container starts.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    /// The one without a capability, which executes the other; `no_new_privs` would prevent a gain.
    Plain,
    Capable,
}

fn joins_clusters(binary: &Path, with: Start) {
    let Some(_turn) = require(&[Root, Tun, Tool("setcap"), Tool("setpriv"), Tool("unshare")])
    else {
        return;
    };
    let (_folder, [plain, capable]) = programs(binary);
    let mut world = World::prepare(&Layout::equal().without_ipv6());
    let start = match with {
        Start::Plain => start(&world, &plain, &UNPRIVILEGED[..4]),
        Start::Capable => start(&world, &capable, &UNPRIVILEGED),
    };

    world.clusters.start(&start).unwrap();

    for cluster in [world.rome(), world.milan()] {
        let status = status(cluster.process().unwrap().process().id());
        let is = |key: &str, value: &str| assert_eq!(status(key), value, "{key}");
        is("NoNewPrivs", if with == Start::Capable { "1" } else { "0" });
        is("Uid", &[USER.to_string().as_str(); 4].join("\t"));
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            is(set, &format!("{NET_ADMIN:016x}"));
        }
    }
    let target = world.rome().side.sees(&world.milan().side).next().unwrap();
    let ping = Ping::new(target, 5).run(&world.rome().pod).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");
    world.finish();
}

#[test]
fn the_capability_file_starts_only_with_net_admin() {
    if !check(&[Root, Tool("setcap"), Tool("setpriv")]) {
        return;
    }
    let (_folder, [plain, capable]) = programs(Path::new(STRAIT));

    for (program, bounding, starts) in [
        (&plain, DROP_ALL, true),
        (&plain, ADD_NET_ADMIN, true),
        (&capable, ADD_NET_ADMIN, true),
        (&capable, DROP_ALL, false),
    ] {
        let output = run(program, bounding, "--version");

        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), starts, "{program:?} {bounding}: {error}");
        assert!(starts || error.contains("Operation not permitted"), "{error}");
    }
}

#[test]
fn a_file_without_it_loses_what_was_added() {
    if !check(&[Root, Tool("setcap"), Tool("setpriv")]) {
        return;
    }
    let (_folder, [plain, capable]) = programs(&find("cat").unwrap());

    for (program, effective) in [(&plain, 0), (&capable, NET_ADMIN)] {
        let output = run(program, ADD_NET_ADMIN, "/proc/self/status");

        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(&format!("CapEff:\t{effective:016x}\n")), "{program:?}: {said}");
        assert!(said.contains(&format!("CapBnd:\t{NET_ADMIN:016x}\n")), "{program:?}: {said}");
    }
}

#[test]
fn strait_gateway_executes_the_capability_file() {
    joins_clusters(Path::new(STRAIT), Start::Plain);
}

/// `program` as it is, and with the file capability.
fn programs(program: &Path) -> (TempDir, [PathBuf; 2]) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let [plain, capable] = ["strait", "strait-gateway"].map(|name| folder.path().join(name));
    for copy in [&plain, &capable] {
        fs::copy(program, copy).unwrap();
        fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut setcap = Command::new(find("setcap").unwrap());
    let status = setcap.arg("cap_net_admin+ep").arg(&capable).status().unwrap();
    assert!(status.success(), "setcap: {status}");

    (folder, [plain, capable])
}

/// What starts `program` as the runtime does: its files are its user's, and it may open the device,
/// also if its mode on this machine forbids it.
fn start(world: &World, program: &Path, unprivileged: &[&str]) -> PathBuf {
    let scratch = world.clusters.scratch.path().display();
    let device = program.with_file_name("tun");
    let device = device.display();
    let text = format!(
        "#!/bin/sh -e\n\
         if [ \"$1\" != inside ]; then exec unshare --mount \"$0\" inside \"$@\"; fi\n\
         shift\n\
         chown -R {USER}:{USER} {scratch}\n\
         test -e {device} || mknod -m 666 {device} c 10 200\n\
         mount --bind {device} /dev/net/tun\n\
         exec setpriv {} {ADD_NET_ADMIN} {} \"$@\"\n",
        unprivileged.join(" "),
        program.display(),
    );
    let path = world.clusters.scratch.write("start", &text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();

    path
}

fn run(program: &Path, bounding: &str, argument: &str) -> Output {
    let mut setpriv = Command::new(find("setpriv").unwrap());
    setpriv.args(UNPRIVILEGED).arg(bounding).arg(program).arg(argument);

    setpriv.output().unwrap()
}

fn status(id: u32) -> impl Fn(&str) -> String {
    let text = fs::read_to_string(format!("/proc/{id}/status")).unwrap();

    move |key| {
        let start = format!("{key}:\t");
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().to_owned()
    }
}
