//! Runs a device in the background: starts this program again in a new session.
//!
//! ```text
//!   strait device wg0 ─── starts itself with WG_PROCESS_FOREGROUND=1 ───▶ strait device wg0
//!          │ waits ◀──────────── a byte: device and socket are there ──────────┤
//!        ends, 0                                                       leaves stdout, stderr
//! ```
//!
//! The caller continues when the first process ends. Threads are never forked.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::Context;
use nix::unistd::{chdir, dup2_stderr, dup2_stdout, setsid};

/// Tells the second process that the first one waits. Set by the first process only.
const WAITING_PARENT: &str = "STRAIT_DEVICE_WAITED_FOR";

/// Starts this program again with the same arguments, and waits until the device exists.
///
/// # Errors
///
/// If it cannot be started. Other errors are reported by the second process, whose status is returned.
pub(super) fn start() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| OsString::from(&program));
    let mut child = Command::new(&program)
        .arg0(name)
        .args(words)
        .env("WG_PROCESS_FOREGROUND", "1")
        .env(WAITING_PARENT, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;

    let mut byte = [0; 1];
    let reported = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read(&mut byte));
    if reported.context("cannot read from the device's process")? > 0 {
        return Ok(ExitCode::SUCCESS);
    }

    Ok(status(child.wait().context("cannot wait for the device")?))
}

/// The status of the second process; 1 if a signal ended it.
fn status(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);

    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// In the second process: leaves the session and the directory of the caller.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn leave_terminal() -> anyhow::Result<()> {
    if has_waiting_parent() {
        setsid().context("cannot create a session")?;
        chdir("/").context("cannot change to /")?;
    }

    Ok(())
}

/// In the second process: reports that the device and its socket exist.
///
/// As with wireguard-go, later log lines are lost unless they were requested (`is_log_visible`).
///
/// # Errors
///
/// The kernel's error.
pub(super) fn report_ready(is_log_visible: bool) -> anyhow::Result<()> {
    if !has_waiting_parent() {
        return Ok(());
    }
    // The first process may be gone; the device exists nevertheless.
    let _ = io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush());
    let nowhere = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    dup2_stdout(&nowhere).context("cannot replace stdout")?;
    if !is_log_visible {
        dup2_stderr(&nowhere).context("cannot replace stderr")?;
    }

    Ok(())
}

/// Whether this is the second process.
pub(super) fn has_waiting_parent() -> bool {
    std::env::var_os(WAITING_PARENT).is_some()
}
