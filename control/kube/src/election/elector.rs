//! Runs the rounds of an election, and logs changes.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{Election, PeerRecord, Role};
use crate::repeated_failure::RepeatedFailure;

/// A round has two calls and a pause: with a call limited to this part of the renew deadline, one that hangs leaves
/// room for another round before the Lease expires.
const CALLS_PER_DEADLINE: u32 = 3;

/// Within this time a pod starts on another node that has the image, or a candidate on standby reads the Lease. This wait
/// and the end of the process together are shorter than the 30 s after which the kubelet kills a container by default.
const SUCCESSION: Duration = Duration::from_secs(8);

/// How often a replica that has released the Lease looks for its successor in one retry period.
const POLLS_PER_PERIOD: u32 = 10;

/// The periods of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// After how long without a renewal a warning is logged.
    pub renew_deadline: Duration,
    /// The pause between two rounds.
    pub retry_period: Duration,
}

impl Times {
    /// The timeout of one call.
    #[must_use]
    pub fn call(&self) -> Duration {
        self.renew_deadline / CALLS_PER_DEADLINE
    }
}

/// An [`Election`], and what was logged of it.
#[derive(Debug)]
pub struct Elector {
    election: Election,
    times: Times,
    renewed: Instant,
    failure: RepeatedFailure,
    logged: Role,
    was_answered: bool,
    holds: bool,
}

impl Elector {
    /// No round was run yet.
    #[must_use]
    pub fn new(election: Election, times: Times) -> Self {
        Self {
            logged: election.role(),
            election,
            times,
            renewed: Instant::now(),
            failure: RepeatedFailure::about("ask for the Lease"),
            was_answered: false,
            holds: false,
        }
    }

    /// The periods of the election.
    #[must_use]
    pub const fn times(&self) -> Times {
        self.times
    }

    /// Whether the API server has answered any call yet.
    #[must_use]
    pub const fn was_answered(&self) -> bool {
        self.was_answered
    }

    /// Whether the last round has acquired or renewed the Lease. A leader without that may have a successor.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.holds
    }

    /// See [`Election::record_of_leader`].
    #[must_use]
    pub const fn record_of_leader(&self) -> PeerRecord {
        self.election.record_of_leader()
    }

    /// See [`Election::continue_after`].
    #[must_use]
    pub fn continue_after(&self) -> Option<Duration> {
        self.election.continue_after(Instant::now().into_std(), Timestamp::now())
    }

    /// See [`Election::set_record`].
    pub const fn set_record(&mut self, record: PeerRecord) {
        self.election.set_record(record);
    }

    /// Tries to acquire or to renew the lease; to be called every retry period.
    pub async fn round(&mut self) -> Role {
        let now = Instant::now();
        let acquired = self.election.try_acquire(now.into_std(), Timestamp::now());
        let acquired = match timeout(self.times.call(), acquired).await {
            Ok(acquired) => acquired.map_err(|error| error.to_string()),
            Err(silent) => Err(silent.to_string()),
        };
        let is = self.election.role();
        self.holds = *acquired.as_ref().unwrap_or(&false);
        if acquired.is_ok() {
            self.renewed = now;
            self.was_answered = true;
        } else {
            self.election.failed();
        }
        let is_overdue = Instant::now() - self.renewed >= self.times.renew_deadline;
        // A leader may miss a few renewals before it is logged.
        if acquired.is_ok() || is == Role::Standby || is_overdue {
            self.failure.log(&acquired);
        }
        if is != self.logged {
            info!(role = %is, "leader election");
        }
        self.logged = is;

        is
    }

    /// Releases the Lease if this replica holds it, so that the next leader need not wait.
    pub async fn end(mut self) {
        self.release().await;
    }

    /// Releases the Lease, and waits until another replica holds it, 8 s at most. Returns whether one does.
    pub async fn hand_over(mut self) -> bool {
        if !self.release().await {
            return false;
        }
        info!(patience = ?SUCCESSION, "the Lease is released; waiting for another replica");

        let taken = timeout(SUCCESSION, async {
            loop {
                // A failed call proves nothing, and is repeated.
                if self.election.has_successor().await.unwrap_or(false) {
                    return;
                }
                sleep(self.times.retry_period / POLLS_PER_PERIOD).await;
            }
        });

        taken.await.is_ok()
    }

    /// Whether a Lease was held, and was released.
    async fn release(&mut self) -> bool {
        let released = timeout(
            self.times.call(),
            self.election.release(Instant::now().into_std(), Timestamp::now()),
        )
        .await;
        let error = match released {
            Ok(Ok(had_it)) => return had_it,
            // The garbage collector deletes the rights of a removed gateway together with its pod.
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
                info!(error = %status, "the Lease was not released: this account has no right to it any more");
                return false;
            }
            Ok(Err(error)) => error.to_string(),
            Err(silent) => silent.to_string(),
        };
        warn!(%error, "the Lease was not released; another replica takes it when it expires");

        false
    }
}
