//! Who takes part, and how the peers are obtained.
//!
//! Peers are built from package registries below `target/peers`. Who cannot be had is left out,
//! loudly: a comparison without a peer is none.
#![expect(clippy::print_stderr, reason = "who is left out must be seen")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use strait_gateway::lab::process;

use crate::contestant::Kind;

const FOLDER: &str = "target/peers";
const WIREGUARD_GO: &str = "golang.zx2c4.com/wireguard@latest";

/// Everybody who can be had, `strait` first.
pub(crate) fn available(strait: &Path) -> Vec<Kind> {
    let mut kinds = vec![Kind::Plain, Kind::Strait(strait.to_owned())];
    let mut add = |name: &str, program: Option<PathBuf>, kind: fn(PathBuf) -> Kind| match program {
        Some(program) => kinds.push(kind(program)),
        None => eprintln!("LEFT OUT: {name} could not be installed below {FOLDER}"),
    };
    add("wireguard-go", wireguard_go(), Kind::WireguardGo);
    add("boringtun-cli", boringtun_cli(), Kind::BoringtunCli);

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

fn boringtun_cli() -> Option<PathBuf> {
    obtain("boringtun-cli", || {
        run(Command::new("cargo").args(["install", "--quiet", "boringtun-cli", "--root", FOLDER]))
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
