//! Computes the verdict on each object from refusals and rejections.

use std::collections::{BTreeMap, BTreeSet};

use kube::{Resource, ResourceExt};
use strait_api::Configuration;

use super::{IN_FORCE, Outcome, Verdict, reason, text};
use crate::desired::Desired;
use crate::objects::{self, Objects, Problem, Scope};
use crate::plan::Rejection;

/// The verdicts on all objects that concern a gateway, in the order of kinds and names.
#[must_use]
pub(crate) fn verdicts(scope: &Scope, objects: &Objects, desired: &Desired) -> Vec<Verdict> {
    let causes = Causes::new(desired);

    let configurations = objects::configurations_of(scope, objects).map(|listed| {
        let object = listed.0.as_ref().ok();
        let waiting = || object.and_then(|object| causes.waiting(object));
        let outcome = causes.refused(&**listed).or_else(waiting).unwrap_or(Outcome::InForce);
        let has_condition = objects::reports_on(scope, objects, &**listed);
        let object = object.filter(|_| has_condition);
        let known = object.and_then(|object| object.status.as_ref()).and_then(|status| {
            status.conditions.iter().find(|condition| condition.type_ == IN_FORCE).cloned()
        });

        Verdict { has_condition, known, ..verdict(&**listed, outcome) }
    });
    let public_keys = objects::keys_of(scope, objects)
        .map(|listed| verdict(&**listed, causes.refused(&**listed).unwrap_or(Outcome::InForce)));

    let mut verdicts: Vec<_> = configurations.chain(public_keys).collect();
    verdicts.sort_by_cached_key(Verdict::key);

    verdicts
}

/// A verdict that is reported in Events alone.
fn verdict<K: Resource<DynamicType = ()>>(object: &K, outcome: Outcome) -> Verdict {
    Verdict {
        object: object.object_ref(&()),
        generation: object.meta().generation,
        resource_version: object.resource_version(),
        outcome,
        has_condition: false,
        known: None,
    }
}

/// The causes that keep objects from being in force.
struct Causes<'a> {
    /// The problems of the object of this kind, namespace and name.
    refusals: BTreeMap<(&'a str, &'a str, &'a str), Vec<&'a Problem>>,
    /// The rejections of the `Configuration` of this remote cluster.
    rejections: BTreeMap<&'a str, Vec<&'a Rejection>>,
    /// The remote clusters that have a key.
    peers: BTreeSet<&'a str>,
}

impl<'a> Causes<'a> {
    fn new(desired: &'a Desired) -> Self {
        let mut refusals = BTreeMap::<_, Vec<_>>::new();
        for refusal in &desired.refused {
            refusals.entry(refusal.object()).or_default().push(&refusal.problem);
        }
        let mut rejections = BTreeMap::<_, Vec<_>>::new();
        for rejection in &desired.rejected {
            if let Some(peer) = reason::peer(rejection) {
                rejections.entry(peer).or_default().push(rejection);
            }
        }
        let peers = desired.peers.iter().map(|peer| peer.name.as_str()).collect();

        Self { refusals, rejections, peers }
    }

    /// Everything that is wrong with an object, if anything is.
    fn refused<K: Resource<DynamicType = ()>>(&self, object: &K) -> Option<Outcome> {
        let kind = K::kind(&());
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let problems = self.refusals.get(&(&*kind, &*namespace, &*name));
        let problems = problems.map(Vec::as_slice).unwrap_or_default();
        // Only an object that was read can have rejections.
        let is_read = kind == Configuration::kind(&())
            && !problems.iter().any(|problem| reason::is_of_whole_object(problem));
        let rejections = objects::cluster_id(object).filter(|_| is_read);
        let rejections = rejections.and_then(|cluster| self.rejections.get(cluster));
        let rejections = rejections.map(Vec::as_slice).unwrap_or_default();

        let reason = problems.iter().map(|problem| reason::of_problem(problem));
        let reason = reason.chain(rejections.iter().map(|why| reason::of_rejection(why))).next()?;
        let problems = problems.iter().map(ToString::to_string);
        let message = text::list(problems.chain(rejections.iter().map(ToString::to_string)));

        Some(Outcome::Refused { reason, message })
    }

    /// What a `Configuration` without a problem waits for, if it does.
    fn waiting(&self, object: &Configuration) -> Option<Outcome> {
        let cluster = objects::cluster_id(object).unwrap_or_default();
        if !self.peers.contains(cluster) {
            let message = text::list([format!(
                "no usable PublicKey has the label {}={cluster}: nothing goes to a gateway without its key",
                strait_api::labels::REMOTE_CLUSTER_ID
            )]);
            return Some(Outcome::Waiting { reason: reason::NO_PUBLIC_KEY, message });
        }

        let pairs = objects::parse(object).pairs;
        let unnamed: Vec<_> =
            pairs.iter().filter(|pair| pair.name == objects::Name::None).collect();
        let message = text::list(unnamed.iter().map(|pair| {
            let (field, place, remote) = (pair.field, pair.place, pair.remote);
            format!("{remote} has no name here yet and is withheld: status.remote.cidr.{field}[{place}] is empty")
        }));

        (!unnamed.is_empty()).then_some(Outcome::Waiting { reason: reason::NO_NAME, message })
    }
}
