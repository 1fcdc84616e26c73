//! Two clusters in network namespaces of one machine, and traffic between them.
//!
//! Shared by `strait demo`, the end-to-end tests and the benchmarks: [`Namespace`] is a network namespace with a thread
//! inside, [`TwoClusters`] connects pods, gateways and an underlay made of namespaces, [`GatewayProcess`] is a
//! `strait gateway` that runs in one, and [`traffic`] sends data that the receiver can check. No other program is needed.
//!
//! # Invariants
//!
//! - It uses only namespaces that it creates: no interface, route or setting outside of them is touched.
//! - Namespaces have no name in the file system: they end with the process, also when it is killed.
//!
//! # Not here
//!
//! The gateway (see `strait-engine` and `strait-io`), and what the demo and the tests expect of it.

pub mod demo;
pub mod gateway;
pub mod initiator;
pub mod layout;
pub mod netlink;
pub mod netns;
pub mod privilege;
pub mod process;
pub mod scrape;
pub mod topology;
pub mod traffic;

mod clean_up;
mod scratch;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

pub use clean_up::CleanUp;
pub use gateway::{
    ClusterSection, GatewayConfig, GatewayProcess, HostMapSection, NodeSection, OverlaySection,
    PeerSection, RemapSection,
};
pub use layout::{Layout, Realm, Side, Underlay};
pub use netns::Namespace;
pub use process::Process;
pub use scrape::{Account, Direction, Metrics};
pub use scratch::Scratch;
pub use topology::{Cluster, TwoClusters};

/// Interval between the checks of [`wait_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum LabError {
    /// An operation on a file, a socket or a process failed.
    #[error("cannot {operation}")]
    Io {
        operation: String,
        #[source]
        source: io::Error,
    },
    /// The kernel refused a change of links, addresses or routes.
    #[error("cannot {operation}")]
    Netlink {
        operation: String,
        #[source]
        source: rtnetlink::Error,
    },
    /// Neither root nor allowed to be root in a user namespace.
    #[error(
        "cannot create a user namespace: run as root, or allow it with `sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0`"
    )]
    Unprivileged {
        #[source]
        source: io::Error,
    },
    /// A job in a namespace panicked; the panic was reported where it happened.
    #[error("a job in namespace {namespace} panicked")]
    Panicked { namespace: String },
    /// A process did not end as expected.
    #[error("{process} {what}; its log is {}", log.display())]
    Process { process: String, what: String, log: PathBuf },
    /// A condition was not met in time.
    #[error("timed out before {condition}")]
    TimedOut { condition: String },
    /// A file, or the answer of a peer, is not in the expected format.
    #[error("{0}")]
    Protocol(String),
}

impl LabError {
    /// For `map_err`: wraps an I/O error with the failed operation, as in "cannot `operation`".
    pub fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();

        |source| Self::Io { operation, source }
    }

    fn netlink(operation: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let operation = operation.into();

        |source| Self::Netlink { operation, source }
    }
}

/// The current time. The only place of the lab that reads the clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the lab measures real traffic in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// CPU time of the calling thread, to the nanosecond, for tests that must not depend on other load of the machine.
///
/// # Errors
///
/// [`LabError::Io`] if the kernel has no such clock.
pub fn thread_time() -> Result<Duration, LabError> {
    // Not from /proc/thread-self/schedstat, which is updated only every few milliseconds.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map(Duration::from)
        .map_err(|errno| LabError::io("read the clock of a thread")(errno.into()))
}

/// Polls `is_met` until it returns `true`.
///
/// # Errors
///
/// [`LabError::TimedOut`] with `condition` ("timed out before ..."), or the error of `is_met`.
pub fn wait_until(
    condition: impl Into<String>,
    timeout: Duration,
    mut is_met: impl FnMut() -> Result<bool, LabError>,
) -> Result<(), LabError> {
    let deadline = now() + timeout;
    loop {
        if is_met()? {
            return Ok(());
        }
        if now() >= deadline {
            return Err(LabError::TimedOut { condition: condition.into() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// `count` per second.
#[must_use]
pub fn rate(count: u64, elapsed: Duration) -> f64 {
    let (high, low) = (u32::try_from(count >> 32), u32::try_from(count & u64::from(u32::MAX)));
    let count = f64::from(high.unwrap_or(0)) * 2_f64.powi(32) + f64::from(low.unwrap_or(0));

    count / elapsed.as_secs_f64().max(f64::EPSILON)
}
