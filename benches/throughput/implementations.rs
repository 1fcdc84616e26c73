//! The implementations to compare, and their installation.
//!
//! Other implementations are built from package registries below `target/peers`. One that is not
//! available is left out, with a line on standard error.
#![expect(clippy::print_stderr, reason = "tells which implementations are left out")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use strait_lab::process;
use strait_wg::Engine;

use crate::contestant::{self, Edge, Kind};

/// Strait with nodes in place of a device.
pub(crate) const OVERLAY: &str = "strait-overlay";

/// The contestants of the comparison with nodes.
pub(crate) const WITH_NODES: [&str; 4] = ["plain", "strait", OVERLAY, "wireguard-go"];

/// The contestants of the comparison without nodes.
pub(crate) const WITHOUT_NODES: [&str; 7] = [
    "plain",
    "strait",
    "strait-boringtun",
    "wireguard",
    "wireguard-go",
    "boringtun-cli",
    "gotatun-cli",
];

const FOLDER: &str = "target/peers";
const WIREGUARD_GO: &str = "golang.zx2c4.com/wireguard@latest";

/// All contestants, available or not.
pub(crate) const NAMES: [&str; 8] = [
    "plain",
    "strait",
    OVERLAY,
    "strait-boringtun",
    "wireguard",
    "wireguard-go",
    "boringtun-cli",
    "gotatun-cli",
];

/// The available contestants of `names`, in the order of [`NAMES`].
pub(crate) fn available(strait: &Path, names: &[&str]) -> Vec<Kind> {
    let wanted = NAMES.into_iter().filter(|name| names.contains(name));
    let mut kinds = Vec::new();
    for name in wanted {
        let kind = match name {
            "plain" => Some(Kind::Plain),
            "strait" => Some(Kind::Strait(strait.to_owned(), Engine::Native, Edge::Device)),
            OVERLAY => Some(Kind::Strait(strait.to_owned(), Engine::Native, Edge::Overlay)),
            "strait-boringtun" => {
                Some(Kind::Strait(strait.to_owned(), Engine::Boringtun, Edge::Device))
            }
            "wireguard" => contestant::kernel_has_wireguard().then_some(Kind::Wireguard),
            "wireguard-go" => wireguard_go().map(Kind::WireguardGo),
            "boringtun-cli" => installed(name, name).map(Kind::BoringtunCli),
            _ => installed(name, "gotatun").map(Kind::GotatunCli),
        };
        match kind {
            Some(kind) => kinds.push(kind),
            None if name == "wireguard" => {
                eprintln!("LEFT OUT: {name}: this kernel has no WireGuard");
            }
            None => eprintln!("LEFT OUT: {name} could not be installed below {FOLDER}"),
        }
    }

    kinds
}

/// The newest release that the Go module proxy has.
fn wireguard_go() -> Option<PathBuf> {
    obtain("wireguard-go", || {
        let folder = std::env::current_dir().ok()?.join(FOLDER);
        run(Command::new(process::find("go")?)
            .args(["install", WIREGUARD_GO])
            .env("GOBIN", folder.join("go")))?;
        std::fs::create_dir_all(folder.join("bin")).ok()?;

        std::fs::rename(folder.join("go/wireguard"), folder.join("bin/wireguard-go")).ok()
    })
}

/// The newest release of a crate, with the lock file that its authors tested.
fn installed(name: &str, program: &str) -> Option<PathBuf> {
    obtain(program, || {
        let arguments = ["install", "--quiet", "--locked", name, "--root", FOLDER];
        run(Command::new("cargo").args(arguments))
    })
}

fn obtain(program: &str, install: impl FnOnce() -> Option<()>) -> Option<PathBuf> {
    let path = Path::new(FOLDER).join("bin").join(program);
    if !path.is_file() {
        eprintln!("installing {program} below {FOLDER}");
        install()?;
    }

    path.is_file().then_some(path)
}

fn run(command: &mut Command) -> Option<()> {
    let status = command.stdin(Stdio::null()).status().ok()?;

    status.success().then_some(())
}
