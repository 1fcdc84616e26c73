//! Flags of leader election.

use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::time::Duration;

use strait_host::flags::duration;
use strait_host::usage::UsageError;
use strait_kube::election::{Settings, Times};

/// The host name, which in a pod is the name of the pod.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Flags of daemons that may have several replicas.
#[derive(Clone, Debug, clap::Args)]
pub struct ElectionFlags {
    /// Whether there are several replicas, of which only the holder of the Lease is active
    #[arg(
        long,
        env = "STRAIT_LEADER_ELECTION",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub leader_election: Option<bool>,
    /// How long the active replica keeps the Lease after the last renewal
    #[arg(
        long,
        env = "STRAIT_LEADER_ELECTION_LEASE_DURATION",
        value_name = "DURATION",
        default_value = "15s",
        value_parser = duration
    )]
    pub(crate) leader_election_lease_duration: Duration,
    /// Time without a renewal after which the active replica logs a warning
    #[arg(
        long,
        env = "STRAIT_LEADER_ELECTION_RENEW_DEADLINE",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration
    )]
    pub(crate) leader_election_renew_deadline: Duration,
    /// Interval between attempts to acquire or renew the Lease
    #[arg(
        long,
        env = "STRAIT_LEADER_ELECTION_RETRY_PERIOD",
        value_name = "DURATION",
        default_value = "2s",
        value_parser = duration
    )]
    pub(crate) leader_election_retry_period: Duration,
    /// Name of the pod, for leader election [default: the host name, which in a pod is its name]
    #[arg(long, env = "STRAIT_POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,
}

/// The settings with which a replica takes part in the leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidacy {
    /// The holder name and the duration of the Lease.
    pub settings: Settings,
    /// Intervals of renewal.
    pub times: Times,
    /// The name of the pod.
    pub pod: String,
}

impl ElectionFlags {
    /// # Errors
    ///
    /// [`UsageError`] with the wrong flag.
    pub fn candidacy(&self) -> Result<Candidacy, UsageError> {
        let lease_duration = self.leader_election_lease_duration;
        let renew_deadline = self.leader_election_renew_deadline;
        let retry_period = self.leader_election_retry_period;
        if renew_deadline >= lease_duration || retry_period >= renew_deadline {
            return Err(UsageError::Wrong(format!(
                "--leader-election-lease-duration {lease_duration:?} must be longer than -renew-deadline {renew_deadline:?}, and that longer than -retry-period {retry_period:?}"
            )));
        }
        let pod = self.pod()?;
        // A pod that restarts under the same name is another holder.
        let holder = format!("{pod}_{:016x}", random());
        let settings = Settings { holder, lease_duration };

        Ok(Candidacy { settings, times: Times { renew_deadline, retry_period }, pod })
    }

    fn pod(&self) -> Result<String, UsageError> {
        let pod = self.pod_name.clone().filter(|name| !name.is_empty());

        pod.or_else(|| only_line(Path::new(HOST_NAME_FILE)))
            .ok_or_else(|| UsageError::Wrong("--pod-name is missing".to_owned()))
    }
}

/// The content of a file without white space around it, unless it is empty.
pub(crate) fn only_line(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;

    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A number that is unpredictable from outside: the standard library seeds its hash maps with the system's
/// randomness.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}
