//! Two clusters in network namespaces of one machine, and traffic between them.
//!
//! What `strait demo`, the end-to-end tests and the benchmarks share: [`Namespace`] is a network
//! namespace with a thread inside, [`TwoClusters`] joins pods, gateways and an underlay out of them,
//! [`GatewayProcess`] is a `strait gateway` that runs in one, and [`traffic`] sends what can be
//! checked at the other end. No other program is needed.
//!
//! # Invariants
//!
//! - Everything happens in namespaces that were made here; no interface, route or setting outside
//!   of them is touched.
//! - Namespaces have no name in the file system: they end with the process, however it ends.
//!
//! # Not here
//!
//! What the gateway does (see `strait_engine` and [`strait_io`]), and what is expected of it: that
//! is for the demo and the tests to say.

pub mod demo;
pub mod gateway;
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
    ClusterSection, GatewayConfig, GatewayProcess, HostMapSection, PeerSection, RemapSection,
};
pub use layout::{Layout, Realm, Side, Underlay};
pub use netns::Namespace;
pub use process::Process;
pub use scrape::{Account, Direction, Metrics};
pub use scratch::Scratch;
pub use topology::{Cluster, TwoClusters};

/// How often [`wait_until`] asks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why something in the lab did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum LabError {
    /// A system call failed, or an operation on a file or a socket.
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
    /// A process ended in another way than it should.
    #[error("{process} {what}; its log is {}", log.display())]
    Process { process: String, what: String, log: PathBuf },
    /// Something did not happen in time.
    #[error("waited in vain until {condition}")]
    TimedOut { condition: String },
    /// The other side of a connection did not say what it should.
    #[error("{0}")]
    Protocol(String),
}

impl LabError {
    /// For `map_err`: an I/O error with what was tried, as in "cannot `operation`".
    pub fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();

        |source| Self::Io { operation, source }
    }

    fn netlink(operation: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let operation = operation.into();

        |source| Self::Netlink { operation, source }
    }
}

/// The time, in the one place of the lab that asks for it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the lab measures real traffic in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// How long the calling thread has been on a core, to the nanosecond, for tests that must not mind what else the
/// machine does.
///
/// # Errors
///
/// [`LabError::Io`] if the kernel has no such clock.
pub fn thread_time() -> Result<Duration, LabError> {
    // Not from /proc/thread-self/schedstat: that account is brought up to date every few milliseconds.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map(Duration::from)
        .map_err(|errno| LabError::io("read the clock of a thread")(errno.into()))
}

/// Asks again and again until `is_met`.
///
/// # Errors
///
/// [`LabError::TimedOut`] with `condition` ("waited in vain until ..."), or whatever asking reports.
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
