//! The replacement of this process by the program that its file holds by now, without losing a packet.
//!
//! Before the hand-over the new program is tried: it is started with [`CHECK`] and the arguments of this process, reads its
//! configuration as a gateway would, and prints the version of its hand-over and whether it has the capability NET_ADMIN,
//! which a copied file may lack. Only if the version is ours, and the capability is not missing, it replaces this process.
//! So a file that is damaged, for another machine, or does not know the arguments, changes nothing.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use strait_io::handover::{Successor, VERSION};

use super::now;
use crate::background_reader::{BackgroundReader, ReadOutcome};

/// The argument in front of those of a gateway with which a successor is tried.
pub const CHECK: &str = "check-successor";

/// How long the check of a successor may take: more than it takes to read the configuration of thousands of peers.
const CHECK_MAX: Duration = Duration::from_secs(20);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The bit of NET_ADMIN in `/proc/self/status`.
const NET_ADMIN: u64 = 1 << 12;

/// The most bytes of an answer that are of interest.
const ANSWER_MAX: u64 = 4096;

/// What the service needs to be replaced.
#[derive(Debug)]
pub struct Replacement {
    pub(super) successor: Successor,
    descriptors: Vec<OwnedFd>,
    check: BackgroundReader<Result<(), String>>,
}

impl Replacement {
    /// By the program of this process, found as at its start: a link that leads to another file by then is followed.
    /// `descriptors` are the sockets of the admin port, and the lock file: the successor goes on with them.
    #[must_use]
    pub fn new(descriptors: Vec<OwnedFd>) -> Self {
        let arguments: Vec<_> = std::env::args_os().collect();
        let name = arguments.first().cloned().unwrap_or_default();
        let program = program(&name, std::env::current_exe().ok());

        Self {
            successor: Successor { program, arguments },
            descriptors,
            check: BackgroundReader::new(CHECK_MAX + Duration::from_secs(1)),
        }
    }

    /// Begins to check the successor.
    ///
    /// # Errors
    ///
    /// If no thread can be started, or a former check has not ended.
    pub(super) fn start_check(&mut self) -> std::io::Result<()> {
        let successor = self.successor.clone();

        self.check.start(move || check(&successor))
    }

    /// Waits until the check that was started has ended. Returns why the successor cannot be used. Cancel safe.
    pub(super) async fn checked(&mut self) -> Result<(), String> {
        match self.check.next().await {
            ReadOutcome::Done(result, _) => result,
            ReadOutcome::TimedOut | ReadOutcome::Panicked => Err("its check has not ended".into()),
        }
    }

    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().map(OwnedFd::as_fd).collect()
    }
}

/// The answer of a program that was started with [`CHECK`], if it can be a successor.
#[must_use]
pub fn answer() -> String {
    answer_with(has_net_admin())
}

fn answer_with(has_net_admin: bool) -> String {
    format!("hand-over {VERSION} {} NET_ADMIN\n", if has_net_admin { "with" } else { "without" })
}

/// Whether this process has the capability NET_ADMIN, which devices and routes need.
fn has_net_admin() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());

    effective.is_some_and(|set| set & NET_ADMIN != 0)
}

/// The file of this program: the path by which it was called, or else that of its file.
fn program(name: &OsString, file: Option<PathBuf>) -> PathBuf {
    let called = Path::new(name);
    if called.parent().is_some_and(|directory| !directory.as_os_str().is_empty())
        && let Ok(called) = std::path::absolute(called)
        && called.is_file()
    {
        return called;
    }

    file.unwrap_or_else(|| called.to_owned())
}

/// Starts the successor for a check, and waits for its end. Returns why it cannot be used.
fn check(successor: &Successor) -> Result<(), String> {
    let mut child = Command::new(&successor.program)
        .arg(CHECK)
        .args(successor.arguments.iter().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("it cannot be started: {error}"))?;

    let deadline = now() + CHECK_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if now() < deadline => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it has not answered within {CHECK_MAX:?}"));
            }
            Err(error) => return Err(format!("its end is unknown: {error}")),
        }
    };
    let (said, complained) = (text(child.stdout.take()), text(child.stderr.take()));

    judge(status.success(), &status.to_string(), &said, &complained)
}

/// The beginning of what a program has written.
fn text(output: Option<impl Read>) -> String {
    let mut text = Vec::new();
    if let Some(output) = output {
        // What can be read until an error is the text.
        let _ = output.take(ANSWER_MAX).read_to_end(&mut text);
    }

    String::from_utf8_lossy(&text).into_owned()
}

fn judge(is_success: bool, status: &str, said: &str, complained: &str) -> Result<(), String> {
    if !is_success {
        let complained = complained.lines().next().unwrap_or("it says nothing");
        return Err(format!("it cannot run: {status}: {complained}"));
    }
    // A capability that this process does not have is not missing.
    if said != answer() && said != answer_with(true) {
        let said = said.lines().next().unwrap_or_default();
        return Err(format!("it answers {said:?} in place of {:?}", answer().trim_end()));
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_version_may_succeed() {
        assert_eq!(judge(true, "", &answer(), "a warning"), Ok(()));
        assert_eq!(judge(true, "", &answer_with(true), ""), Ok(()));
        assert_eq!(judge(true, "", &answer_with(false), "").is_ok(), !has_net_admin());

        let other = judge(true, "", "hand-over 999 with NET_ADMIN\n", "").unwrap_err();
        let own = format!("in place of \"hand-over {VERSION} ");
        let expected = format!("it answers \"hand-over 999 with NET_ADMIN\" {own}");
        assert!(other.starts_with(&expected), "{other}");
        let old = judge(false, "exit status: 64", "", "error: unrecognized subcommand\nhelp");
        assert_eq!(
            old.unwrap_err(),
            "it cannot run: exit status: 64: error: unrecognized subcommand"
        );
    }

    #[test]
    fn a_program_is_found_as_it_was_called() {
        let own = std::env::current_exe().unwrap();
        let other = PathBuf::from("/other");

        assert_eq!(program(&own.clone().into(), Some(other.clone())), own);
        assert_eq!(program(&"strait".into(), Some(other.clone())), other);
        assert_eq!(program(&"/no/such/file".into(), Some(other.clone())), other);
    }
}
