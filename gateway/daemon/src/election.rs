//! Flags of leader election.

use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::os::unix::fs::MetadataExt as _;
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
    /// The candidacy of this process. With an `interface`, which no other process of this network namespace can have, it
    /// takes the Lease of a process that had the interface before: of the container that ran in this pod.
    ///
    /// # Errors
    ///
    /// [`UsageError`] with the wrong flag.
    pub fn candidacy(&self, interface: Option<&str>) -> Result<Candidacy, UsageError> {
        let lease_duration = self.leader_election_lease_duration;
        let renew_deadline = self.leader_election_renew_deadline;
        let retry_period = self.leader_election_retry_period;
        if renew_deadline >= lease_duration || retry_period >= renew_deadline {
            return Err(UsageError::Wrong(format!(
                "--leader-election-lease-duration {lease_duration:?} must be longer than -renew-deadline {renew_deadline:?}, and that longer than -retry-period {retry_period:?}"
            )));
        }
        let pod = self.pod()?;
        let place = interface.and_then(place).map(|place| format!("{pod}_{place:016x}_"));
        // A pod that restarts under the same name is another holder.
        let holder = match &place {
            Some(place) => format!("{place}{:016x}", random()),
            None => format!("{pod}_{:016x}", random()),
        };
        let settings = Settings { holder, place, lease_duration };

        Ok(Candidacy { settings, times: Times { renew_deadline, retry_period }, pod })
    }

    /// The name of the pod.
    ///
    /// # Errors
    ///
    /// [`UsageError`] if it is not known.
    pub(crate) fn pod(&self) -> Result<String, UsageError> {
        let pod = self.pod_name.clone().filter(|name| !name.is_empty());

        pod.or_else(|| only_line(Path::new(HOST_NAME_FILE)))
            .ok_or_else(|| UsageError::Wrong("--pod-name is missing".to_owned()))
    }
}

/// Identifies the interface of this name in the network namespace of this process, since the machine was started.
fn place(interface: &str) -> Option<u64> {
    let boot = only_line(Path::new("/proc/sys/kernel/random/boot_id"))?;
    let namespace = std::fs::metadata("/proc/self/ns/net").ok()?;
    let mut hasher = DefaultHasher::new();
    (boot, namespace.ino(), interface).hash(&mut hasher);

    Some(hasher.finish())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_interface_is_the_same_place() {
        let flags = ElectionFlags {
            leader_election: Some(true),
            leader_election_lease_duration: Duration::from_secs(15),
            leader_election_renew_deadline: Duration::from_secs(10),
            leader_election_retry_period: Duration::from_secs(2),
            pod_name: Some("gw-1".to_owned()),
        };
        let settings = |interface| flags.candidacy(interface).unwrap().settings;

        let [first, restarted] = [settings(Some("liqo-tunnel")), settings(Some("liqo-tunnel"))];
        assert_ne!(first.holder, restarted.holder);
        assert!(first.holder.starts_with(restarted.place.as_ref().unwrap()), "{first:?}");
        let other = settings(Some("strait0"));
        assert!(!first.holder.starts_with(other.place.as_ref().unwrap()), "{other:?}");
        let operator = settings(None);
        assert!(operator.holder.starts_with("gw-1_") && operator.place.is_none(), "{operator:?}");
    }
}
