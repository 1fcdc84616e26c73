//! Clean-up after a signal, when values are not dropped.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::wait_until;

/// How long gateways may take to end.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Ends the processes and removes the files of [`super::TwoClusters`], from any thread.
#[derive(Clone, Debug)]
pub struct CleanUp {
    processes: Vec<Pid>,
    directory: PathBuf,
}

impl CleanUp {
    pub(super) const fn new(processes: Vec<Pid>, directory: PathBuf) -> Self {
        Self { processes, directory }
    }

    /// Ends the gateways with SIGTERM and removes the files. The namespaces end with the process.
    pub fn run(&self) {
        // An ended process needs no signal, and one that does not end is killed when this process ends.
        for process in &self.processes {
            let _ = kill(*process, Signal::SIGTERM);
        }
        let have_ended = || Ok(!self.processes.iter().any(|process| is_running(*process)));
        let _ = wait_until("", TIMEOUT, have_ended);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Whether a child process runs. Reaps it if it has ended.
fn is_running(child: Pid) -> bool {
    matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
}
