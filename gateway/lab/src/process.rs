//! A program that runs in a namespace and never outlives us.

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

/// How long a program may take to end when asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running program. Dropping it kills it; if we are killed first, the kernel kills it
/// (`PR_SET_PDEATHSIG`, which `setpriv` of util-linux asks for).
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` in `namespace`. What it prints is appended to `log`.
    ///
    /// It gets a process group of its own, so that Ctrl-C at a terminal reaches only us and we decide
    /// what ends when.
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

    /// Everything it printed so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if there is no such process any more.
    pub fn signal(&self, signal: Signal) -> Result<(), LabError> {
        let operation = format!("send {signal} to {}", self.name);

        i32::try_from(self.child.id())
            .map_err(std::io::Error::other)
            .and_then(|pid| Ok(kill(Pid::from_raw(pid), signal)?))
            .map_err(LabError::io(operation))
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if the kernel does not say.
    pub fn status(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child.try_wait().map_err(LabError::io(format!("wait for {}", self.name)))
    }

    /// Asks it to end with SIGTERM and waits.
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

    /// An error that says what this process did.
    pub(super) fn failed(&self, what: impl Into<String>) -> LabError {
        let what = match self.log().lines().last() {
            Some(line) => format!("{}, saying {line:?}", what.into()),
            None => what.into(),
        };

        LabError::Process { process: self.name.clone(), what, log: self.log.clone() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where `program` is in the search path, or in one of the directories for administrators.
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
    fn a_process_that_was_stopped_ends_with_its_own_status() {
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

        let polite = start("exit 0").stop();
        let rude = start("exit 7").stop();

        assert!(polite.is_ok(), "{polite:?}");
        assert!(rude.is_err_and(|error| error.to_string().contains("exit status: 7")));
    }
}
