//! A device in the background: the same program once more, in a session of its own.
//!
//! ```text
//!   strait device wg0 ─── starts itself with WG_PROCESS_FOREGROUND=1 ───▶ strait device wg0
//!          │ waits ◀──────────── a byte: device and socket are there ──────────┤
//!        ends, 0                                                       leaves stdout, stderr
//! ```
//!
//! Whoever started it may go on as soon as the first process ends. No thread is ever forked.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::Context;
use nix::unistd::{chdir, dup2_stderr, dup2_stdout, setsid};

/// Tells the second process that the first one waits. Nobody else sets it.
const WAITING_PARENT: &str = "STRAIT_DEVICE_WAITED_FOR";

/// Starts this program once more with the same arguments, and waits until the device is there.
///
/// # Errors
///
/// If it cannot be started. What else is wrong it says itself, and gives its status.
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
    let said = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read(&mut byte));
    if said.context("cannot hear from the device")? > 0 {
        return Ok(ExitCode::SUCCESS);
    }

    Ok(status(child.wait().context("cannot wait for the device")?))
}

/// The status of the second process as ours; of one that a signal ended, 1.
fn status(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);

    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// In the second process: a session and a directory that nobody takes away.
///
/// # Errors
///
/// What the kernel says.
pub(super) fn leave_terminal() -> anyhow::Result<()> {
    if has_waiting_parent() {
        setsid().context("cannot begin a session")?;
        chdir("/").context("cannot change to /")?;
    }

    Ok(())
}

/// In the second process: the device and its socket are there.
///
/// As with wireguard-go, what is logged from now on is lost unless somebody asked for it: `is_log_visible`.
///
/// # Errors
///
/// What the kernel says.
pub(super) fn report_ready(is_log_visible: bool) -> anyhow::Result<()> {
    if !has_waiting_parent() {
        return Ok(());
    }
    // Whoever waited may be gone; the device is there all the same.
    let _ = io::stdout().write_all(b"\n").and_then(|()| io::stdout().flush());
    let nowhere = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    dup2_stdout(&nowhere).context("cannot leave stdout")?;
    if !is_log_visible {
        dup2_stderr(&nowhere).context("cannot leave stderr")?;
    }

    Ok(())
}

/// Whether this is the second process.
pub(super) fn has_waiting_parent() -> bool {
    std::env::var_os(WAITING_PARENT).is_some()
}
