//! Leader election between the replicas of a gateway: the active one holds a `Lease`.
//!
//! [`Candidate`] decides and does no I/O; [`Election`] reads and writes, with `get`, `create` and `update` alone, as
//! Liqo's role for gateways grants no `patch` on leases. That excludes the crates that elect by server-side apply.
//!
//! # Invariants
//!
//! - A candidate takes a lease that is free, or that was seen not to change for its whole duration. Time in which the
//!   API server could not be read does not count, as the holder could not renew either: an outage changes no leader.
//!   The lease of a process that ran in the same place, as before a restart of its container, is free.
//! - A leader that cannot renew stays the leader until it sees another holder. The label of its pod cannot change while
//!   the API server is away, and packets go on. Labels and statuses are written only right after a renewal.
//! - No clock of another machine is trusted: only changes of a lease count, not its timestamps. The next leader learns
//!   from the Lease up to which date initiations may have been dated ([`Election::continue_after`]).

use std::fmt;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use strait_api::identity::Identity;

mod elector;
mod leader_clock;
mod peer_record;
#[cfg(test)]
mod tests;

pub use elector::{Elector, Times};
use leader_clock::LeaderClock;
pub use peer_record::{PeerRecord, ProbedPathMtu};

/// The settings of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Unique among all candidates, past ones included.
    pub holder: String,
    /// How the names of all holders begin that were started where this one is. Two of them cannot run at once, so the
    /// others have ended.
    pub place: Option<String>,
    /// For how long after a renewal no other candidate may take the lease; in the Lease rounded up to seconds.
    pub lease_duration: Duration,
}

/// Whether a replica is the active one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It waits for the lease.
    #[default]
    Standby,
    /// It holds the lease.
    Leader,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standby => "standby",
            Self::Leader => "leader",
        })
    }
}

/// What to do about a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: another candidate holds it.
    Wait,
    /// Write this spec.
    Write(Box<LeaseSpec>),
}

/// One replica in the election.
#[derive(Clone, Debug)]
pub struct Candidate {
    settings: Settings,
    role: Role,
    seen: Option<Seen>,
    clock: LeaderClock,
}

/// A lease of another candidate, and for how long it was seen not to change.
#[derive(Clone, Debug)]
struct Seen {
    spec: LeaseSpec,
    /// When it was read first.
    since: Instant,
    unchanged_for: Duration,
    /// When it was read last; `None` if reading has failed since.
    read: Option<Instant>,
}

impl Candidate {
    /// On standby; has not read the lease yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, role: Role::Standby, seen: None, clock: LeaderClock::default() }
    }

    /// Whether this candidate leads, as far as it knows.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Decides what to do about the lease that was `found`.
    pub fn decide(&mut self, found: Option<&LeaseSpec>, now: Instant, wall: Timestamp) -> Step {
        let Some(spec) = found else {
            self.seen = None;
            return self.write(&LeaseSpec::default(), now, wall);
        };
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder == self.settings.holder || holder.is_empty() {
            self.seen = None;
            return self.write(spec, now, wall);
        }

        let is_of_this_place =
            self.settings.place.as_ref().is_some_and(|place| holder.starts_with(place));
        if is_of_this_place {
            return self.write(spec, now, wall);
        }

        self.role = Role::Standby;
        let promised = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let promised = promised.map_or(self.settings.lease_duration, Duration::from_secs);
        if self.observe(spec, now) >= promised { self.write(spec, now, wall) } else { Step::Wait }
    }

    /// The spec that [`Self::decide`] returned was written.
    pub fn written(&mut self) {
        self.role = Role::Leader;
        self.seen = None;
    }

    /// The API server could not be read or written.
    pub fn failed(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.read = None;
        }
    }

    /// The spec that releases the lease, if this candidate holds it.
    pub fn release(
        &mut self,
        found: &LeaseSpec,
        now: Instant,
        wall: Timestamp,
    ) -> Option<LeaseSpec> {
        self.role = Role::Standby;
        let is_mine = found.holder_identity.as_deref() == Some(&self.settings.holder);

        is_mine.then(|| LeaseSpec {
            holder_identity: Some(String::new()),
            // The API requires a duration; a free lease needs none.
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(self.clock.advance(now, wall))),
            ..found.clone()
        })
    }

    /// Whether the lease that was `found` has another holder.
    #[must_use]
    pub fn has_successor(&self, found: &LeaseSpec) -> bool {
        let holder = found.holder_identity.as_deref().unwrap_or_default();

        !holder.is_empty() && holder != self.settings.holder
    }

    /// For how long `spec` was seen not to change.
    fn observe(&mut self, spec: &LeaseSpec, now: Instant) -> Duration {
        let seen = match &mut self.seen {
            Some(seen) if seen.spec == *spec => seen,
            _ => {
                let (spec, unchanged_for) = (spec.clone(), Duration::ZERO);
                self.seen.insert(Seen { spec, since: now, unchanged_for, read: None })
            }
        };
        if let Some(last) = seen.read {
            seen.unchanged_for += now.saturating_duration_since(last);
        }
        seen.read = Some(now);

        seen.unchanged_for
    }

    fn write(&mut self, found: &LeaseSpec, now: Instant, wall: Timestamp) -> Step {
        let Settings { holder, lease_duration, .. } = &self.settings;
        let is_mine = found.holder_identity.as_deref() == Some(holder);
        if let (false, Some(MicroTime(renewed))) = (is_mine, &found.renew_time) {
            let since = self.seen.as_ref().map_or(now, |seen| seen.since);
            self.clock.follow((since, *renewed), now, wall);
        }
        let now = Some(MicroTime(self.clock.advance(now, wall)));
        let transitions = found.lease_transitions.unwrap_or_default();
        // A Lease has whole seconds: rounded up, so that no candidate takes it too early.
        let begun = u64::from(lease_duration.subsec_nanos() > 0);
        let seconds = lease_duration.as_secs().saturating_add(begun);
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);

        Step::Write(Box::new(LeaseSpec {
            holder_identity: Some(holder.clone()),
            lease_duration_seconds: Some(seconds.max(1)),
            renew_time: now.clone(),
            acquire_time: if is_mine { found.acquire_time.clone() } else { now },
            lease_transitions: Some(match &found.holder_identity {
                Some(_) if !is_mine => transitions.saturating_add(1),
                _ => transitions,
            }),
            ..found.clone()
        }))
    }
}

/// Takes part in an election through the API server.
#[derive(Clone, Debug)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    candidate: Candidate,
    /// What this replica knows about the peer.
    record: PeerRecord,
    /// What the leader knew, as in the Lease.
    record_of_leader: PeerRecord,
}

impl Election {
    /// For the replicas of one gateway. Sends no request yet.
    #[must_use]
    pub fn new(client: Client, identity: &Identity, settings: Settings) -> Self {
        Self::for_lease(client, &identity.namespace, lease_name(identity), settings)
    }

    /// For the lease called `name`. Sends no request yet.
    #[must_use]
    pub fn for_lease(client: Client, namespace: &str, name: String, settings: Settings) -> Self {
        let api = Api::namespaced(client, namespace);

        Self {
            api,
            name,
            candidate: Candidate::new(settings),
            record: PeerRecord::default(),
            record_of_leader: PeerRecord::default(),
        }
    }

    /// Whether this replica leads, as far as it knows.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.candidate.role()
    }

    /// What the leader knew about the peer, as in the Lease when it was read last; a new leader learns from it what the
    /// leader before knew.
    #[must_use]
    pub const fn record_of_leader(&self) -> PeerRecord {
        self.record_of_leader
    }

    /// The latest date, since 1970, that the leader before may have given initiations by `now`, if there was one. This
    /// leader has to use later dates.
    #[must_use]
    pub fn continue_after(&self, now: Instant, wall: Timestamp) -> Option<Duration> {
        self.candidate.clock.continue_after(now, wall)
    }

    /// Sets what this replica knows about the peer. The next renewal writes it into the Lease for the next leader; what is
    /// not known keeps what the leader before has written.
    pub const fn set_record(&mut self, record: PeerRecord) {
        self.record = record;
    }

    /// [`Self::try_acquire`] failed, or timed out. The role does not change.
    pub fn failed(&mut self) {
        self.candidate.failed();
    }

    /// Tries to acquire or to renew the lease; to be called periodically, well within its duration. Returns whether
    /// this replica holds it from now on for its duration.
    ///
    /// # Errors
    ///
    /// The error of the API server; call [`Self::failed`] then.
    pub async fn try_acquire(&mut self, now: Instant, wall: Timestamp) -> kube::Result<bool> {
        let found = self.api.get_opt(&self.name).await?;
        let spec = found.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        self.record_of_leader = found.as_ref().map(PeerRecord::of).unwrap_or_default();
        let Step::Write(spec) = self.candidate.decide(spec.as_ref(), now, wall) else {
            return Ok(false);
        };

        let parameters = PostParams::default();
        let written = match found {
            // With the resource version that was read: another writer causes a conflict.
            Some(found) => {
                let lease = self.lease(found.metadata, *spec);
                self.api.replace(&self.name, &parameters, &lease).await
            }
            None => {
                let name = Some(self.name.clone());
                let metadata = ObjectMeta { name, ..ObjectMeta::default() };
                self.api.create(&parameters, &self.lease(metadata, *spec)).await
            }
        };
        match written {
            Ok(_) => {
                self.candidate.written();
                Ok(true)
            }
            Err(kube::Error::Api(status))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Releases the lease, so that the next leader need not wait for it to expire. Returns whether this replica held
    /// it.
    ///
    /// # Errors
    ///
    /// The error of the API server; the lease then expires by itself.
    pub async fn release(&mut self, now: Instant, wall: Timestamp) -> kube::Result<bool> {
        let Some(found) = self.api.get_opt(&self.name).await? else { return Ok(false) };
        let spec = found.spec.clone().unwrap_or_default();
        let Some(spec) = self.candidate.release(&spec, now, wall) else { return Ok(false) };
        let lease = self.lease(found.metadata, spec);
        self.api.replace(&self.name, &PostParams::default(), &lease).await?;

        Ok(true)
    }

    /// Whether another replica holds the lease.
    ///
    /// # Errors
    ///
    /// The error of the API server.
    pub async fn has_successor(&self) -> kube::Result<bool> {
        let found = self.api.get_opt(&self.name).await?.and_then(|lease| lease.spec);

        Ok(found.is_some_and(|spec| self.candidate.has_successor(&spec)))
    }

    /// The Lease to write.
    fn lease(&self, mut metadata: ObjectMeta, spec: LeaseSpec) -> Lease {
        self.record.write(&mut metadata);

        Lease { metadata, spec: Some(spec) }
    }
}

/// The name of the lease of a gateway's replicas, the same as in Liqo's gateways.
#[must_use]
pub fn lease_name(identity: &Identity) -> String {
    let Identity { name, namespace, mode, .. } = identity;
    let mode = mode.to_string().to_lowercase();

    format!("{name}.{namespace}.{mode}.connections.liqo.io")
}
