//! A program that runs in a namespace and never outlives this process.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::LabError;
use super::Namespace;
use super::wait_until;

/// How long a program may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running program. Dropping it kills it; if this process is killed first, the kernel kills it (`PR_SET_PDEATHSIG`,
/// set by `setpriv` of util-linux).
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` in `namespace`. Its output is appended to `log`.
    ///
    /// It gets a process group of its own: Ctrl-C at a terminal reaches only this process, which ends its programs in
    /// order.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`], which names the program or the log.
    pub fn start<S: AsRef<OsStr>>(
        namespace: &Namespace,
        name: impl Into<String>,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
        log: PathBuf,
    ) -> Result<Self, LabError> {
        let operation = format!("write {}", log.display());
        let output = OpenOptions::new().create(true).append(true).open(&log);
        let output = output.map_err(LabError::io(operation.clone()))?;
        let copy = output.try_clone().map_err(LabError::io(operation))?;

        let mut command = match find("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(copy).process_group(0);

        Ok(Self { name: name.into(), child: namespace.start(command)?, log })
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), LabError> {
        let operation = format!("send {signal} to {}", self.name);

        i32::try_from(self.child.id())
            .map_err(std::io::Error::other)
            .and_then(|pid| Ok(kill(Pid::from_raw(pid), signal)?))
            .map_err(LabError::io(operation))
    }

    /// Its exit status, or `None` while it runs.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if the kernel does not return it.
    pub fn status(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child.try_wait().map_err(LabError::io(format!("wait for {}", self.name)))
    }

    /// Sends SIGTERM and waits until it has ended.
    ///
    /// # Errors
    ///
    /// [`LabError::Process`] if it ended before, does not end, or ends with another status than 0.
    pub fn stop(mut self) -> Result<(), LabError> {
        if let Some(status) = self.status()? {
            return Err(self.failed(format!("had ended early ({status})")));
        }
        self.signal(Signal::SIGTERM)?;

        let mut ended = None;
        let result = wait_until("", STOP_TIMEOUT, || {
            ended = self.status()?;
            Ok(ended.is_some())
        });
        match (result, ended) {
            (Ok(()), Some(status)) if status.success() => Ok(()),
            (Ok(()), Some(status)) => Err(self.failed(format!("ended with {status} on SIGTERM"))),
            (Err(LabError::TimedOut { .. }), _) | (Ok(()), None) => {
                Err(self.failed(format!("did not end within {STOP_TIMEOUT:?} of SIGTERM")))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// An error about this process: `what` it did, and the last line of its log.
    pub(super) fn failed(&self, what: impl Into<String>) -> LabError {
        let what = match self.log().lines().last() {
            Some(line) => format!("{}, last line {line:?}", what.into()),
            None => what.into(),
        };

        LabError::Process { process: self.name.clone(), what, log: self.log.clone() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of `program` in the search path, or in one of the directories for administrators.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);

    std::env::split_paths(&path)
        .chain(administrators)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::super::Scratch;
    use super::super::privilege;
    use super::*;

    #[test]
    fn a_stopped_process_reports_its_status() {
        let (Some(namespace), Ok(scratch)) = (privilege::namespace("test"), Scratch::new()) else {
            return;
        };
        let start = |script| {
            let log = scratch.path().join("log");
            let script = format!("trap '{script}' TERM; echo ready; read -r _ < \"$0\"");
            let fifo = scratch.path().join("fifo");
            let _ = nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU);
            let arguments = ["-c".as_ref(), script.as_ref(), fifo.as_os_str()];
            let _ = fs::remove_file(&log);
            let shell = Path::new("/bin/sh");
            let process = Process::start(&namespace, "sh", shell, arguments, log).unwrap();
            let is_ready = || Ok(process.log().contains("ready"));
            wait_until("the shell was ready", STOP_TIMEOUT, is_ready).unwrap();
            process
        };

        let success = start("exit 0").stop();
        let failure = start("exit 7").stop();

        assert!(success.is_ok(), "{success:?}");
        assert!(failure.is_err_and(|error| error.to_string().contains("exit status: 7")));
    }
}
