//! Stands for election again and again, and says what is worth a word.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::{Election, Standing};
use crate::complaint::Complaint;

/// A round has two calls and a pause: with this part of the time to renew in, one that hangs leaves
/// room for another round before the Lease is over.
const CALLS_PER_DEADLINE: u32 = 3;

/// How often, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// After how long without a renewal that is worth a word.
    pub renew_deadline: Duration,
    /// Between two rounds.
    pub retry_period: Duration,
}

impl Times {
    /// The longest that one call may take.
    #[must_use]
    pub fn call(&self) -> Duration {
        self.renew_deadline / CALLS_PER_DEADLINE
    }
}

/// An [`Election`], and what was said of it.
#[derive(Debug)]
pub struct Campaign {
    election: Election,
    times: Times,
    renewed: Instant,
    complaint: Complaint,
    told: Standing,
    was_answered: bool,
}

impl Campaign {
    /// Has not stood yet.
    #[must_use]
    pub fn new(election: Election, times: Times) -> Self {
        Self {
            told: election.standing(),
            election,
            times,
            renewed: Instant::now(),
            complaint: Complaint::about("ask for the Lease"),
            was_answered: false,
        }
    }

    /// Whether the API server has answered so far.
    #[must_use]
    pub const fn was_answered(&self) -> bool {
        self.was_answered
    }

    /// Tries to get or to renew the lease; to be called every retry period.
    pub async fn round(&mut self) -> Standing {
        let now = Instant::now();
        let stood = self.election.stand(now.into_std(), Timestamp::now());
        let stood = match timeout(self.times.call(), stood).await {
            Ok(stood) => stood.map_err(|error| error.to_string()),
            Err(silent) => Err(silent.to_string()),
        };
        let is = self.election.standing();
        if stood.is_ok() {
            self.renewed = now;
            self.was_answered = true;
        } else {
            self.election.failed();
        }
        let is_overdue = Instant::now() - self.renewed >= self.times.renew_deadline;
        // A leader may miss a few.
        if stood.is_ok() || is == Standing::Standby || is_overdue {
            self.complaint.say(&stood);
        }
        if is != self.told {
            info!(standing = %is, "leader election");
        }
        self.told = is;

        is
    }

    /// Gives up what it has, so that nobody has to wait.
    pub async fn end(mut self) {
        let released = timeout(self.times.call(), self.election.release(Timestamp::now())).await;
        let error = match released {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(silent) => silent.to_string(),
        };
        warn!(%error, "the Lease was not given up; another replica takes it when it is over");
    }
}
