//! One round: decide, agree through the journal, write.
//!
//! Why no two resources get the same allocation, with any number of operators in any order:
//!
//! 1. The objects were seen before the journal is read or written in the round.
//! 2. A status is written only if the journal has the allocation after that, and only to the version of the object that
//!    was seen.
//! 3. An entry is removed from the journal only if its resource is deleted, which is final.
//! 4. A new journal permits no allocation until every object was written to once since its creation: so no write of a
//!    round under a former journal can succeed any more, and those that have are known.

use std::collections::BTreeSet;

use futures_util::stream::{self, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::json;

use super::cluster::{Cluster, Failure, JOURNAL, Stored};
use super::decision::{Decision, Permission, decide};
use super::journal::{Journal, JournalError};
use super::names::SINCE;
use super::object::{Denial, Kind, Target, Write, target};
use super::resources::{Objects, Resources};
use super::work::{Chain, RoundWrites, work};
use super::{Settings, SkipVersions};

/// The number of concurrent calls.
const CALLS_MAX: usize = 16;

/// The attempts of a round that conflicts with others, until it is left to the next one.
const ATTEMPTS: usize = 5;

/// The allocator of one operator.
pub(super) struct Allocator<C> {
    cluster: C,
    settings: Settings,
    /// The journal as it was read or written last.
    known: Option<(Stored, Journal)>,
    /// Versions of objects that were written to, or cannot be.
    handled: SkipVersions,
}

/// The result of a round.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Whether there may be more to do even without a change.
    pub(super) is_unfinished: bool,
    /// What the API server rejected.
    pub(super) failures: Vec<String>,
    /// The resources without an allocation, and why.
    pub(super) denials: Vec<Denial>,
}

impl<C: Cluster> Allocator<C> {
    /// Nothing is known yet.
    pub(super) const fn new(cluster: C, settings: Settings) -> Self {
        Self { cluster, settings, known: None, handled: SkipVersions::new() }
    }

    pub(super) const fn cluster(&self) -> &C {
        &self.cluster
    }

    /// Forgets which writes failed, as they may succeed now, and the known journal, as it may have been deleted.
    pub(super) fn look_again(&mut self) {
        self.handled.clear();
        self.known = None;
    }

    /// Brings the journal in line with `objects`, and the statuses with the journal.
    ///
    /// # Errors
    ///
    /// [`Failure::Away`], or [`Failure::Refused`] if it concerns the journal. The next round continues.
    pub(super) async fn round(
        &mut self,
        objects: &Objects,
        now: Timestamp,
    ) -> Result<Round, Failure> {
        let resources = Resources::read(&self.settings, objects);
        let Some(RoundWrites { chains, denials }) = self.agree(&resources, now).await? else {
            return Ok(Round { is_unfinished: true, ..Round::default() });
        };

        let mut round = Round { denials, ..Round::default() };
        let cluster = &self.cluster;
        let calls = chains.into_iter().map(|chain| carry_out(cluster, chain));
        let mut done = stream::iter(calls).buffer_unordered(CALLS_MAX);
        while let Some(done) = done.next().await {
            let Done { handled, failures: complaints } = done?;
            self.handled.extend(handled);
            round.failures.extend(complaints);
        }
        self.handled.retain(|uid, _| resources.has(uid));

        Ok(round)
    }

    /// The writes, after the journal has their allocations; `None` if that takes another round.
    async fn agree(
        &mut self,
        resources: &Resources<'_>,
        now: Timestamp,
    ) -> Result<Option<RoundWrites>, Failure> {
        for _ in 0..ATTEMPTS {
            // Taken: a call that is cut off must not leave an outdated journal here.
            let (stored, journal) = match self.known.take() {
                Some(known) => known,
                None => match self.read().await? {
                    Some(known) => known,
                    None => continue,
                },
            };
            let decision = self.decide(&journal, resources).await?;
            let work = work(&self.settings, resources, &decision, &self.handled, now);

            if decision.journal != journal {
                match self.cluster.replace_journal(&stored, decision.journal.text()).await {
                    Ok(stored) => {
                        self.known = Some((stored, decision.journal));
                        return Ok(Some(work));
                    }
                    Err(Failure::Conflict | Failure::Gone) => continue,
                    Err(error) => return Err(error),
                }
            }
            if work.chains.is_empty() || self.cluster.journal().await?.as_ref() == Some(&stored) {
                self.known = Some((stored, journal));
                return Ok(Some(work));
            }
        }

        Ok(None)
    }

    async fn decide(
        &self,
        journal: &Journal,
        resources: &Resources<'_>,
    ) -> Result<Decision, Failure> {
        let pools = &self.settings.pools;
        let decide = |gone: &BTreeSet<_>| decide(pools, journal, resources, gone, Permission::New);
        let decision = decide(&BTreeSet::new());
        let gone = self.gone(journal, &decision.unseen).await?;

        Ok(if gone.is_empty() { decision } else { decide(&gone) })
    }

    /// The `unseen` that are deleted. That they were not seen is no proof: the operator that entered them may have
    /// seen more.
    async fn gone(
        &self,
        journal: &Journal,
        unseen: &[String],
    ) -> Result<BTreeSet<String>, Failure> {
        let entries = unseen.iter().filter_map(|uid| Some((uid, journal.entry(uid)?)));
        let calls = entries.map(async |(uid, entry)| {
            let kind = entry.allocation.kind();
            let found = self.cluster.uid(kind, &entry.namespace, &entry.name).await?;
            Ok((found.as_ref() != Some(uid)).then(|| uid.clone()))
        });
        let mut answers = stream::iter(calls.collect::<Vec<_>>()).buffer_unordered(CALLS_MAX);
        let mut gone = BTreeSet::new();
        while let Some(answer) = answers.next().await {
            gone.extend(answer?);
        }

        Ok(gone)
    }

    /// Reads the journal, creates one if there is none, and initializes it if needed; `None` if others are doing so.
    async fn read(&self) -> Result<Option<(Stored, Journal)>, Failure> {
        let stored = match self.cluster.journal().await? {
            Some(stored) => stored,
            None => match self.cluster.create_journal().await {
                Ok(stored) => stored,
                Err(Failure::Conflict) => return Ok(None),
                Err(Failure::Gone) => {
                    let namespace = &self.settings.namespace;
                    let error = format!("the namespace {namespace} of {JOURNAL} is not there");
                    return Err(Failure::Refused(error));
                }
                Err(error) => return Err(error),
            },
        };
        match stored.text.as_deref().map(Journal::read) {
            Some(Ok(journal)) => Ok(Some((stored, journal))),
            // An invalid journal is treated as none: the statuses restore it.
            Some(Err(error)) => {
                let uid = stored.uid.clone();
                let begun = self.begin(stored).await?;
                if begun.is_some() {
                    self.report_invalid(&error, uid).await?;
                }
                Ok(begun)
            }
            None => self.begin(stored).await,
        }
    }

    /// Reports that the journal was invalid, and so why an edit by hand is lost.
    async fn report_invalid(&self, error: &JournalError, uid: String) -> Result<(), Failure> {
        let message = format!(
            "{error}; it was created again from the statuses of the Networks and IPs, and allocations without a status are free: do not edit it by hand"
        );
        tracing::warn!("ConfigMap {}/{JOURNAL}: {message}", self.settings.namespace);
        let object = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name: Some(JOURNAL.to_owned()),
            namespace: Some(self.settings.namespace.clone()),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        let denial = Denial { object, reason: "JournalUnreadable", message, is_reported: false };
        match self.cluster.report(&denial).await {
            // It is in the log.
            Ok(()) | Err(Failure::Conflict | Failure::Gone | Failure::Refused(_)) => Ok(()),
            Err(error @ Failure::Away(_)) => Err(error),
        }
    }

    /// Enters the allocations of all statuses, once no write under another journal is outstanding.
    async fn begin(&self, stored: Stored) -> Result<Option<(Stored, Journal)>, Failure> {
        let objects = Objects {
            networks: self.cluster.networks().await?,
            ips: self.cluster.ips().await?,
            configurations: Vec::new(),
        };
        let resources = Resources::read(&self.settings, &objects);
        let marked = |target: Target| {
            let annotations = json!({"annotations": {SINCE: stored.uid}});
            Write::Main(target, json!({"metadata": annotations}))
        };
        let networks = resources.networks.iter().filter(|facts| !facts.is_deleted);
        let networks = networks.filter(|facts| !is_marked(facts.object, &stored.uid));
        let networks = networks.map(|facts| target(Kind::Network, facts.object));
        let ips = resources.ips.iter().filter(|ip| !ip.is_deleted);
        let ips = ips.filter(|ip| !is_marked(ip.object, &stored.uid));
        let ips = ips.map(|ip| target(Kind::Ip, ip.object));
        let writes: Vec<_> = networks.chain(ips).map(marked).collect();
        let calls = writes.iter().map(|write| self.cluster.write(write));
        let mut calls = stream::iter(calls.collect::<Vec<_>>()).buffer_unordered(CALLS_MAX);
        let mut is_sure = true;
        while let Some(written) = calls.next().await {
            match written {
                Ok(()) => {}
                Err(Failure::Conflict | Failure::Gone) => is_sure = false,
                Err(error) => return Err(error),
            }
        }
        if !is_sure {
            return Ok(None);
        }

        let empty = Journal::default();
        let pools = &self.settings.pools;
        let Decision { journal, .. } =
            decide(pools, &empty, &resources, &BTreeSet::new(), Permission::KnownOnly);
        match self.cluster.replace_journal(&stored, journal.text()).await {
            Ok(stored) => Ok(Some((stored, journal))),
            Err(Failure::Conflict | Failure::Gone) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_marked<K: kube::Resource>(object: &K, journal: &str) -> bool {
    let annotations = object.meta().annotations.as_ref();

    annotations.and_then(|annotations| annotations.get(SINCE)).is_some_and(|uid| uid == journal)
}

/// The result of a chain.
#[derive(Default)]
struct Done {
    handled: SkipVersions,
    failures: Vec<String>,
}

async fn carry_out<C: Cluster>(cluster: &C, chain: Chain) -> Result<Done, Failure> {
    let mut done = Done::default();
    let (writes, is_one_enough) = match chain {
        Chain::All(writes) => (writes, false),
        Chain::First(writes) => (writes, true),
    };
    for write in writes {
        let written = cluster.write(&write).await;
        if is_one_enough && let Write::Main(target, _) | Write::Status(target, _) = &write {
            done.handled.insert(target.uid.clone(), target.version.clone());
        }
        match written {
            // A write by others will be seen by the watch.
            Ok(()) | Err(Failure::Conflict | Failure::Gone) if is_one_enough => break,
            Ok(()) | Err(Failure::Conflict | Failure::Gone) => {}
            Err(Failure::Refused(error)) => done.failures.push(format!("{write}: {error}")),
            Err(error @ Failure::Away(_)) => return Err(error),
        }
    }

    Ok(done)
}
