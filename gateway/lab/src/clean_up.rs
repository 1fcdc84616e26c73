//! How to leave nothing behind when there is no time to drop things one by one.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::wait_until;

/// How long gateways may take to end when we are in a hurry.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What to end and to remove in place of [`super::TwoClusters`], from any thread.
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
        // Whoever is gone needs no signal, and whoever does not go is killed when we end.
        for process in &self.processes {
            let _ = kill(*process, Signal::SIGTERM);
        }
        let are_gone = || Ok(!self.processes.iter().any(|process| is_running(*process)));
        let _ = wait_until("", TIMEOUT, are_gone);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Whether a child of ours runs. One that has ended is forgotten with this question.
fn is_running(child: Pid) -> bool {
    matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
}
