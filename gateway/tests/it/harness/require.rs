//! What a test needs of the machine, and what happens without it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use strait_lab::process::find;

/// Something that not every machine has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// To be root, or root of a user namespace.
    Root,
    /// The device that TUN interfaces come from.
    Tun,
    /// A program in the search path.
    Tool(&'static str),
    /// A kernel that is a program, with more modules than that of the machine: see [`user_mode_linux`].
    UserModeLinux,
}

impl Need {
    fn is_met(self) -> bool {
        match self {
            Self::Root => nix::unistd::geteuid().is_root(),
            Self::Tun => Path::new("/dev/net/tun").exists(),
            Self::Tool(program) => find(program).is_some(),
            Self::UserModeLinux => user_mode_linux().is_some(),
        }
    }

    fn remedy(self) -> String {
        match self {
            Self::Root => "needs root: run with sudo, or under `unshare -Ur`".to_owned(),
            Self::Tun => "needs /dev/net/tun: load the tun module".to_owned(),
            Self::Tool(program) => format!("needs {program}: see `make test`, which installs it"),
            Self::UserModeLinux => {
                "needs User Mode Linux of Debian for amd64: see `make test`, which unpacks it into \
                ~/.cache/strait/uml"
                    .to_owned()
            }
        }
    }
}

/// The folder into which `.ci/setup` unpacks the package `user-mode-linux`, if it did.
pub(crate) fn user_mode_linux() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    let folder = cache.join("strait/uml");

    folder.join("usr/bin/linux.uml").exists().then_some(folder)
}

/// The turn of a test that measures loss or time, or loads the machine: one at a time, also between processes.
///
/// Nextest limits such tests by the groups of `.config/nextest.toml`, in which those that wait for API servers run beside
/// the others.
pub(crate) struct Turn {
    _lock: Option<File>,
}

/// The file that is locked during a [`Turn`].
const TURN: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/turn");

/// Waits for a [`Turn`]. `None` if the machine lacks one of `needs`, see [`check`].
#[must_use]
pub(crate) fn require(needs: &[Need]) -> Option<Turn> {
    check(needs).then(|| {
        let is_in_group = std::env::var_os("NEXTEST").is_some();
        let lock = (!is_in_group).then(|| {
            let lock = File::create(TURN).unwrap();
            lock.lock().unwrap();
            lock
        });

        Turn { _lock: lock }
    })
}

/// Whether tests take every case and as long as they need: `make soak`, and where goals are demanded. Otherwise they take
/// the cases that differ most.
pub(crate) fn is_thorough() -> bool {
    ["STRAIT_SLOW", "STRAIT_FIGURES"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Whether the machine has all of `needs`. If not, says so past the test harness, which would keep it
/// to itself.
///
/// # Panics
///
/// If something is missing and this is CI, where a skipped test would look like a passed one.
#[must_use]
pub(crate) fn check(needs: &[Need]) -> bool {
    let missing: Vec<_> =
        needs.iter().filter(|need| !need.is_met()).map(|need| need.remedy()).collect();
    if missing.is_empty() {
        return true;
    }

    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let reasons = missing.join("; ");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{name} {reasons}");
    // A closed stderr is no failure of the test.
    let _ = writeln!(io::stderr(), "SKIPPED: {name} {reasons}");

    false
}
