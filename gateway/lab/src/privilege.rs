//! What a process must be allowed to do before it can make namespaces.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::LabError;

/// Makes sure that the process may create network namespaces: root may, anybody else becomes root of
/// a user namespace.
///
/// # Caller's duty
///
/// The kernel refuses a user namespace to a process with several threads: call it first.
///
/// # Errors
///
/// [`LabError::Unprivileged`] with the remedy if the kernel does not allow user namespaces.
pub fn acquire() -> Result<(), LabError> {
    if geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (geteuid(), getegid());

    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(io::Error::from)
        .and_then(|()| fs::write("/proc/self/setgroups", "deny"))
        .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
        .map_err(|source| LabError::Unprivileged { source })
}

/// A namespace for a unit test. Without the privilege the test is skipped, loudly, or fails if this
/// is CI, where it must not be missing.
#[cfg(test)]
pub(super) fn namespace(name: &str) -> Option<super::Namespace> {
    use std::io::Write;

    match super::Namespace::new(name) {
        Ok(namespace) => Some(namespace),
        Err(error) if std::env::var("CI").is_ok_and(|value| value == "true") => panic!("{error}"),
        Err(error) => {
            // Written past the test harness, which would keep it to itself.
            let _ = writeln!(io::stderr(), "SKIPPED: {error}");
            None
        }
    }
}
