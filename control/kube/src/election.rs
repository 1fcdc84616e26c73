//! Which of several replicas of a gateway is the active one: a `Lease` that one of them holds.
//!
//! [`Candidate`] decides and does no I/O; [`Election`] asks and writes, with `get`, `create` and
//! `update` alone, as Liqo's role for gateways grants no `patch` on leases. That rules the crates out
//! that elect by server-side apply.
//!
//! # Invariants
//!
//! - A candidate takes a lease that is free, or whose holder was seen to be silent for as long as it
//!   promised not to be. Time in which the API server could not be asked does not count, as the
//!   holder could not renew either: an outage moves nothing.
//! - A leader that cannot renew stays one until it sees another holder. What others could see of it
//!   (the label of its pod) cannot change while the API server is away, and packets go on. It claims
//!   nothing by that: what others are to see of it is written when it has just renewed.
//! - No clock of another machine is believed: only that a lease changes counts, not what time it says. Of
//!   dates that only go forward the next leader is told which were used ([`Election::continue_after`]).

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};
use strait_api::identity::Identity;

mod campaign;
mod dates;
#[cfg(test)]
mod tests;

pub use campaign::{Campaign, Times};
use dates::Dates;

/// The annotation of the Lease with which a leader leaves to the next one where it hears its peer: a server
/// learns that from its peer alone, and whoever takes its place has heard nothing yet.
pub(crate) const PEER_ENDPOINT: &str = "strait.io/peer-endpoint";

/// How to stand for election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Unique among all candidates that ever were.
    pub holder: String,
    /// For how long after a renewal nobody else may take the lease; for others rounded up to seconds.
    pub lease_duration: Duration,
}

/// Whether a replica is the active one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It waits.
    #[default]
    Standby,
    /// It holds the lease.
    Leader,
}

impl fmt::Display for Standing {
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
    /// Nothing: somebody else has it.
    Wait,
    /// Make it so.
    Write(Box<LeaseSpec>),
}

/// One replica in the election.
#[derive(Clone, Debug)]
pub struct Candidate {
    settings: Settings,
    standing: Standing,
    seen: Option<Seen>,
    dates: Dates,
}

/// A lease of somebody else, and for how long it was seen not to change.
#[derive(Clone, Debug)]
struct Seen {
    spec: LeaseSpec,
    /// When it was read first.
    since: Instant,
    unchanged_for: Duration,
    /// When it was read last; `None` if that failed since.
    read: Option<Instant>,
}

impl Candidate {
    /// On standby, and knows nothing of anybody.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, standing: Standing::Standby, seen: None, dates: Dates::default() }
    }

    /// Whether this one leads, as far as it knows.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// What to do, now that the lease was `found` like this.
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

        self.standing = Standing::Standby;
        let promised = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let promised = promised.map_or(self.settings.lease_duration, Duration::from_secs);
        if self.see(spec, now) >= promised { self.write(spec, now, wall) } else { Step::Wait }
    }

    /// The lease that [`Self::decide`] wanted stands.
    pub fn written(&mut self) {
        self.standing = Standing::Leader;
        self.seen = None;
    }

    /// The API server could not be asked.
    pub fn failed(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.read = None;
        }
    }

    /// The lease with nobody in it, if this one has it.
    pub fn release(
        &mut self,
        found: &LeaseSpec,
        now: Instant,
        wall: Timestamp,
    ) -> Option<LeaseSpec> {
        self.standing = Standing::Standby;
        let is_mine = found.holder_identity.as_deref() == Some(&self.settings.holder);

        is_mine.then(|| LeaseSpec {
            holder_identity: Some(String::new()),
            // The API takes no lease without a duration; nobody waits for it.
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(self.dates.tell(now, wall))),
            ..found.clone()
        })
    }

    /// Whether somebody else has the lease that was `found`.
    #[must_use]
    pub fn has_successor(&self, found: &LeaseSpec) -> bool {
        let holder = found.holder_identity.as_deref().unwrap_or_default();

        !holder.is_empty() && holder != self.settings.holder
    }

    /// For how long `spec` was seen not to change.
    fn see(&mut self, spec: &LeaseSpec, now: Instant) -> Duration {
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
            self.dates.follow((since, *renewed), now, wall);
        }
        let now = Some(MicroTime(self.dates.tell(now, wall)));
        let transitions = found.lease_transitions.unwrap_or_default();
        // A Lease has whole seconds: a bit more than was asked for, so that nobody takes it before that.
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

/// Stands for election on an API server.
#[derive(Clone, Debug)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    candidate: Candidate,
    /// Where this one hears its peer.
    heard: Option<SocketAddr>,
    /// Where the Lease says the leader hears it.
    left: Option<SocketAddr>,
}

impl Election {
    /// Of the replicas of one gateway. Asks nothing yet.
    #[must_use]
    pub fn new(client: Client, identity: &Identity, settings: Settings) -> Self {
        Self::for_lease(client, &identity.namespace, lease_name(identity), settings)
    }

    /// For the lease called `name`. Asks nothing yet.
    #[must_use]
    pub fn for_lease(client: Client, namespace: &str, name: String, settings: Settings) -> Self {
        let api = Api::namespaced(client, namespace);

        Self { api, name, candidate: Candidate::new(settings), heard: None, left: None }
    }

    /// Whether this one leads, as far as it knows.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.candidate.standing()
    }

    /// Where the leader heard its peer, as the Lease said when it was read last; whoever has just become the
    /// leader knows by this where the one before did.
    #[must_use]
    pub const fn left(&self) -> Option<SocketAddr> {
        self.left
    }

    /// What the leader before may have dated initiations by until `now`, since 1970, if there was one. This one
    /// is to date its own later.
    #[must_use]
    pub fn continue_after(&self, now: Instant, wall: Timestamp) -> Option<Duration> {
        self.candidate.dates.continue_after(now, wall)
    }

    /// This one hears its peer at `endpoint`. Whoever leads next is told, in the Lease, from when that is
    /// written next.
    pub const fn leave(&mut self, endpoint: SocketAddr) {
        self.heard = Some(endpoint);
    }

    /// [`Self::stand`] failed, or was not answered in time. The standing stays what it was.
    pub fn failed(&mut self) {
        self.candidate.failed();
    }

    /// Tries to get or to renew the lease; to be called again and again, well within the duration of
    /// the lease. Says whether it is this one's from now on for as long as it promises.
    ///
    /// # Errors
    ///
    /// What the API server says; tell [`Self::failed`].
    pub async fn stand(&mut self, now: Instant, wall: Timestamp) -> kube::Result<bool> {
        let found = self.api.get_opt(&self.name).await?;
        let spec = found.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        self.left = found.as_ref().and_then(peer_endpoint);
        let Step::Write(spec) = self.candidate.decide(spec.as_ref(), now, wall) else {
            return Ok(false);
        };

        let parameters = PostParams::default();
        let written = match found {
            // With the version that was read: whoever was faster has it.
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

    /// Gives the lease up, so that nobody has to wait until it is over. Says whether this one had it.
    ///
    /// # Errors
    ///
    /// What the API server says; the lease then runs out by itself.
    pub async fn release(&mut self, now: Instant, wall: Timestamp) -> kube::Result<bool> {
        let Some(found) = self.api.get_opt(&self.name).await? else { return Ok(false) };
        let spec = found.spec.clone().unwrap_or_default();
        let Some(spec) = self.candidate.release(&spec, now, wall) else { return Ok(false) };
        let lease = self.lease(found.metadata, spec);
        self.api.replace(&self.name, &PostParams::default(), &lease).await?;

        Ok(true)
    }

    /// Whether somebody else has the lease.
    ///
    /// # Errors
    ///
    /// What the API server says.
    pub async fn has_successor(&self) -> kube::Result<bool> {
        let found = self.api.get_opt(&self.name).await?.and_then(|lease| lease.spec);

        Ok(found.is_some_and(|spec| self.candidate.has_successor(&spec)))
    }

    /// What to write. A leader that has not heard its peer yet keeps what the one before left.
    fn lease(&self, mut metadata: ObjectMeta, spec: LeaseSpec) -> Lease {
        if let Some(heard) = self.heard {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(PEER_ENDPOINT.to_owned(), heard.to_string());
        }

        Lease { metadata, spec: Some(spec) }
    }
}

/// Where the leader hears its peer, if it says so in a way that makes sense.
fn peer_endpoint(lease: &Lease) -> Option<SocketAddr> {
    lease.annotations().get(PEER_ENDPOINT)?.parse().ok()
}

/// The lease of all replicas of one gateway, under the name that Liqo's gateways use.
#[must_use]
pub fn lease_name(identity: &Identity) -> String {
    let Identity { name, namespace, mode, .. } = identity;
    let mode = mode.to_string().to_lowercase();

    format!("{name}.{namespace}.{mode}.connections.liqo.io")
}
