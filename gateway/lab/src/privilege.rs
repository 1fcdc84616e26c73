//! Privileges that a process needs to create namespaces.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::LabError;

/// Makes sure that the process may create network namespaces: root may, another user becomes root of a user namespace.
///
/// # Caller's duty
///
/// Call it before threads are started: the kernel refuses a user namespace to a process with several threads.
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

/// A namespace for a unit test. Without the privilege it prints that the test is skipped; in CI the test fails.
#[cfg(test)]
pub(super) fn namespace(name: &str) -> Option<super::Namespace> {
    use std::io::Write;

    match super::Namespace::new(name) {
        Ok(namespace) => Some(namespace),
        Err(error) if std::env::var("CI").is_ok_and(|value| value == "true") => panic!("{error}"),
        Err(error) => {
            // Not by a macro, whose output the test harness captures.
            let _ = writeln!(io::stderr(), "SKIPPED: {error}");
            None
        }
    }
}
