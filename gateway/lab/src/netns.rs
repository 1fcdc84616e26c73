//! A network namespace and the thread that runs in it.
//!
//! The thread enters a new namespace and waits for jobs. Sockets, threads, processes and netlink connections that a job
//! creates belong to the namespace, and `/proc/sys/net` shows its settings. Nothing else references the namespace, so it
//! ends with the last of them.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{Builder, JoinHandle};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, gettid};

use super::LabError;

/// Settings of every namespace, below `/proc/sys/net`.
///
/// No reverse path filter, because no route leads to remapped sources. No rate limit of ICMP errors, because tests count
/// them. No duplicate address detection and no router solicitations, because there are no other hosts.
const SETTINGS: [(&str, &str); 9] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv4/ip_local_port_range", "32768 60999"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/default/mldv2_unsolicited_report_interval", "0"),
];

/// Settings of a namespace that forwards between its interfaces.
const FORWARDING: [(&str, &str); 2] = [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace without a name in the file system. Dropping it ends its thread.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: Pid,
    /// The namespace as a file, for links that are moved into it.
    file: File,
}

impl Namespace {
    /// Creates a namespace with a loopback interface that is up. `name` is for messages.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if the process may not create namespaces.
    pub fn new(name: impl Into<String>) -> Result<Self, LabError> {
        let name = name.into();
        let (jobs, inbox) = mpsc::channel();
        let (report, entered) = mpsc::sync_channel(1);
        let thread = Builder::new()
            .name(format!("netns {name}"))
            .spawn(move || {
                let is_inside = report.send(enter()).is_ok();
                if is_inside {
                    work(&inbox);
                }
            })
            .map_err(LabError::io("start a thread"))?;
        let (tid, file) = entered
            .recv()
            .map_err(|_| LabError::Panicked { namespace: name.clone() })?
            .map_err(LabError::io("create a network namespace (needs CAP_SYS_ADMIN)"))?;

        let namespace = Self { name, jobs: Some(jobs), thread: Some(thread), tid, file };
        namespace.set_up_link("lo")?;
        namespace.set(&SETTINGS)?;

        Ok(namespace)
    }

    /// Creates a namespace that forwards packets between its interfaces.
    ///
    /// # Errors
    ///
    /// See [`Self::new`].
    pub fn router(name: impl Into<String>) -> Result<Self, LabError> {
        let namespace = Self::new(name)?;
        namespace.set(&FORWARDING)?;

        Ok(namespace)
    }

    /// As given to [`Self::new`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the namespace for other programs, valid while `self` lives: `nsenter --net=PATH`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/task/{}/ns/net", std::process::id(), self.tid).into()
    }

    /// Runs `job` in the namespace and waits for its result. Jobs run one after the other.
    ///
    /// # Errors
    ///
    /// Those of the job; [`LabError::Panicked`] if it panics.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, LabError> + Send + 'static,
    ) -> Result<T, LabError> {
        let panicked = || LabError::Panicked { namespace: self.name.clone() };
        let (report, result) = mpsc::sync_channel(1);
        let job = Box::new(move || {
            // Fails if the caller has panicked.
            let _ = report.send(job());
        });

        self.jobs.as_ref().ok_or_else(panicked)?.send(job).map_err(|_| panicked())?;
        result.recv().map_err(|_| panicked())?
    }

    /// Starts a thread in the namespace.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if the thread cannot be started.
    pub fn spawn<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, LabError> {
        let name = self.name.clone();

        self.run(|| Builder::new().name(name).spawn(job).map_err(LabError::io("start a thread")))
    }

    /// Starts a process in the namespace. Its parent is a thread that lives as long as `self`.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`], which names the program.
    pub fn start(&self, mut command: Command) -> Result<Child, LabError> {
        self.run(move || {
            let operation = format!("run {}", command.get_program().display());
            command.spawn().map_err(LabError::io(operation))
        })
    }

    /// Writes kernel settings, given as paths below `/proc/sys/net`.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`], which names the setting.
    pub fn set(&self, settings: &[(&'static str, &'static str)]) -> Result<(), LabError> {
        let settings = settings.to_vec();

        self.run(move || {
            for (path, value) in settings {
                let file = format!("/proc/sys/net/{path}");
                match fs::write(&file, value) {
                    // The kernel has no IPv6, or is older than the setting.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    result => result.map_err(LabError::io(format!("write {value:?} to {file}")))?,
                }
            }

            Ok(())
        })
    }

    /// The descriptor of the namespace, for netlink. Valid while `self` lives.
    pub(super) fn raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It has no job left and returns no result.
            let _ = thread.join();
        }
    }
}

fn enter() -> std::io::Result<(Pid, File)> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let file = File::open("/proc/thread-self/ns/net")?;

    Ok((gettid(), file))
}

fn work(jobs: &Receiver<Job>) {
    for job in jobs {
        // The panic hook has reported a panic; the waiting caller gets an error because its channel closes.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::privilege;
    use super::*;

    #[test]
    fn a_job_runs_inside_the_namespace() {
        let Some(namespace) = privilege::namespace("test") else {
            return;
        };

        let inside = namespace.run(|| Ok(fs::read_link("/proc/thread-self/ns/net"))).unwrap();
        let outside = fs::read_link("/proc/thread-self/ns/net").unwrap();

        assert_ne!(inside.unwrap(), outside);
    }

    #[test]
    fn each_namespace_has_its_own_ports() {
        let (Some(one), Some(other)) = (privilege::namespace("one"), privilege::namespace("other"))
        else {
            return;
        };
        let bind = || UdpSocket::bind("127.0.0.1:9").map_err(LabError::io("bind"));

        let first = one.run(bind);
        let second = other.run(bind);

        assert!(first.is_ok() && second.is_ok());
        assert!(one.run(bind).is_err());
    }

    #[test]
    fn a_panic_ends_only_the_job() {
        let Some(namespace) = privilege::namespace("test") else {
            return;
        };

        let result = namespace.run::<()>(|| std::panic::resume_unwind(Box::new("on purpose")));

        assert!(matches!(result, Err(LabError::Panicked { .. })));
        assert!(namespace.run(|| Ok(7)).is_ok_and(|seven| seven == 7));
    }
}
