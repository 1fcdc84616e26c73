//! One `Configuration`: the `Network`s that it needs, and its status. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource as _;
use kube::api::ObjectMeta;
use remap::Prefix;
use serde_json::{Map, Value, json};
use strait_api::configuration::{Cluster, ClusterCidr};
use strait_api::labels::{
    CONFIGURED, EXTERNAL_CIDR, NETWORK_TYPE, POD_CIDR, REMOTE_CLUSTER_ID, TRUE,
};
use strait_api::network::NetworkSpec;
use strait_api::{Configuration, Network};
use strait_plan::conditions;
use strait_plan::objects::{LISTS, lists, parse};

use super::Settings;
use super::decision::{Decision, StatusAllocation};
use super::names::{CIDR_TYPE, NETWORK_FINALIZER, of_child};
use super::object::{Denial, Kind, Target, Write, target};
use super::requests::RequestedPrefixes;
use super::resources::{ParsedConfiguration, ParsedNetwork, Resources, label};

/// The type of the condition: whether every prefix has a local prefix.
pub const CONFIGURED_CONDITION: &str = "NetworkCIDRsConfigured";

/// All `Network`s, indexed for `Configuration`s.
pub(super) struct Children<'a> {
    networks: &'a [ParsedNetwork<'a>],
    decision: &'a Decision,
    /// By the UID of the `Configuration`.
    by_owner: BTreeMap<&'a str, Vec<&'a ParsedNetwork<'a>>>,
    by_name: BTreeMap<(&'a str, &'a str), &'a ParsedNetwork<'a>>,
}

/// The writes for one `Configuration`.
pub(super) struct Peer {
    /// To the object itself; see [`Chain::First`](super::work::Chain::First).
    pub(super) writes: Vec<Write>,
    /// To its `Network`s.
    pub(super) children: Vec<Write>,
    pub(super) denial: Option<Denial>,
}

/// The local prefixes of one `Configuration`, as far as they are known.
#[derive(Default)]
struct Names {
    /// As in [`LISTS`], place by place, up to the first that has no local prefix: the schema of Liqo forbids the empty
    /// string that should stand there, and a list that is too short means the same.
    lists: [Vec<String>; 2],
    is_waiting: bool,
    /// Reason and message.
    problems: Vec<(&'static str, String)>,
}

impl<'a> Children<'a> {
    pub(super) fn new(resources: &'a Resources<'a>, decision: &'a Decision) -> Self {
        let mut by_owner = BTreeMap::<_, Vec<_>>::new();
        let mut by_name = BTreeMap::new();
        for facts in &resources.networks {
            by_name.insert((facts.namespace, facts.name), facts);
            if let Some((owner, _)) = facts.configuration {
                by_owner.entry(owner).or_default().push(facts);
            }
        }

        Self { networks: &resources.networks, decision, by_owner, by_name }
    }

    fn of(&self, configuration: &ParsedConfiguration<'_>) -> &[&'a ParsedNetwork<'a>] {
        self.by_owner.get(configuration.uid).map(Vec::as_slice).unwrap_or_default()
    }

    /// The child for a prefix. Other releases use other names, so the name does not count.
    fn child(
        &self,
        configuration: &ParsedConfiguration<'_>,
        list: &str,
        prefix: Prefix,
    ) -> Option<&'a ParsedNetwork<'a>> {
        let mut children = self.of(configuration).iter().copied();

        children.find(|child| !child.is_deleted && is_for(child, list, prefix))
    }

    /// The local prefixes of the installation's networks of a type; `None` while one has none.
    fn installed(&self, settings: &Settings, network_type: &str) -> Option<Vec<String>> {
        let installed = self.networks.iter().filter(|facts| {
            let is_of_type = label(facts.object, NETWORK_TYPE) == Some(network_type);
            is_of_type && facts.namespace == settings.namespace && !facts.is_deleted
        });
        let prefixes: Option<Vec<_>> =
            installed.map(|facts| Some(self.decision.prefix(facts.uid)?.to_string())).collect();

        prefixes.filter(|prefixes| !prefixes.is_empty())
    }
}

fn is_for(child: &ParsedNetwork<'_>, list: &str, prefix: Prefix) -> bool {
    let is_of_list = child.configuration.is_some_and(|(_, cidr_type)| cidr_type == list);

    is_of_list && child.request.as_ref().is_ok_and(|request| request.prefix == prefix)
}

/// The writes for `facts`.
pub(super) fn peer(
    settings: &Settings,
    children: &Children<'_>,
    facts: &ParsedConfiguration<'_>,
    target: &Target,
    now: Timestamp,
) -> Peer {
    let names = names(children, facts);
    let (status, reason, message) = names.condition();
    let known = facts.object.status.as_ref();
    let conditions = known.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let former = conditions.iter().find(|condition| condition.type_ == CONFIGURED_CONDITION);
    let generation = facts.object.metadata.generation;
    let is_said = former.is_some_and(|former| {
        (&*former.status, &*former.reason, &*former.message) == (status, reason, &*message)
    });

    let mut writes = Vec::new();
    writes.extend(spec(settings, children, facts, target));
    let is_reported =
        is_said && former.is_some_and(|former| former.observed_generation == generation);
    let [pod, external] = &names.lists;
    if !is_reported || lists(known.and_then(|status| status.remote.as_ref())) != [pod, external] {
        let same = former.filter(|former| former.status == status);
        let condition = Condition {
            last_transition_time: same
                .map_or(Time(now), |former| former.last_transition_time.clone()),
            message: message.clone(),
            observed_generation: generation,
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: CONFIGURED_CONDITION.to_owned(),
        };
        let others = conditions.iter().filter(|other| other.type_ != CONFIGURED_CONDITION);
        let conditions: Vec<_> = others.cloned().chain([condition]).collect();
        let remote = json!({"cidr": {"pod": pod, "external": external}});
        let status = json!({"conditions": conditions, "remote": remote});
        writes.push(Write::Status(target.clone(), status));
    }
    // Older readers look only at this label, so it is written last.
    let is_configured = names.is_complete();
    if is_configured != (label(facts.object, CONFIGURED) == Some(TRUE)) {
        let value = if is_configured { json!(TRUE) } else { Value::Null };
        let labels = json!({"metadata": {"labels": {CONFIGURED: value}}});
        writes.push(Write::Main(target.clone(), labels));
    }
    let object = facts.object.object_ref(&());
    let denial = (!names.problems.is_empty()).then_some(Denial {
        object,
        reason,
        message,
        is_reported: is_said,
    });

    Peer { writes, children: to_children(children, facts), denial }
}

impl Names {
    fn is_complete(&self) -> bool {
        self.problems.is_empty() && !self.is_waiting
    }

    /// Status, reason and message.
    fn condition(&self) -> (&'static str, &'static str, String) {
        if let Some((reason, _)) = self.problems.first() {
            let message = conditions::list(self.problems.iter().map(|(_, text)| text.clone()));
            return ("False", reason, message);
        }
        let text = str::to_owned;
        if self.is_waiting {
            return ("False", "WaitingForNetworks", text("Waiting for all networks to be ready"));
        }

        ("True", CONFIGURED_CONDITION, text("All network CIDRs are configured"))
    }
}

fn names(children: &Children<'_>, facts: &ParsedConfiguration<'_>) -> Names {
    let mut names = Names::default();
    let RequestedPrefixes(requested) = &facts.requested;
    for ((field, requested), list) in LISTS.into_iter().zip(requested).zip(0..) {
        let mut found = Vec::with_capacity(requested.len());
        for (place, requested_prefix) in requested.iter().enumerate() {
            let Some(prefix) = requested_prefix else { continue };
            let name = name(children, facts, field, *prefix);
            names.is_waiting |= matches!(name, Ok(None));
            match name {
                Ok(Some(name)) if found.len() == place => found.push(name.to_string()),
                Ok(_) => {}
                Err((reason, why)) => {
                    let message = format!("spec.remote.cidr.{field}[{place}]: {why}");
                    names.problems.push((reason, message));
                }
            }
        }
        if let Some(names) = names.lists.get_mut::<usize>(list) {
            *names = found;
        }
    }
    let refused = parse(&named(facts.object, &names.lists)).problems;
    names.problems.extend(refused.iter().map(|why| (conditions::reason_of(why), why.to_string())));

    names
}

/// `object` with these local prefixes, to be parsed as its readers parse it.
fn named(object: &Configuration, [pod, external]: &[Vec<String>; 2]) -> Configuration {
    let cidr = ClusterCidr { pod: pod.clone().into(), external: external.clone().into() };
    let mut object = object.clone();
    object.status.get_or_insert_default().remote = Some(Cluster { cidr: Some(cidr) });

    object
}

/// The local prefix for `prefix`, or why there never will be one; `None` while that is open.
fn name(
    children: &Children<'_>,
    facts: &ParsedConfiguration<'_>,
    list: &str,
    prefix: Prefix,
) -> Result<Option<Prefix>, (&'static str, String)> {
    if let Some(child) = children.child(facts, list, prefix) {
        return match children.decision.outcomes.get(child.uid) {
            Some(Ok(StatusAllocation::Prefix(prefix))) => Ok(Some(*prefix)),
            Some(Ok(StatusAllocation::Address { .. })) | None => Ok(None),
            Some(Err(problem)) => Err((problem.reason(), problem.to_string())),
        };
    }
    let Some(name) = of_child(facts.name, list, prefix) else {
        let why = format!(
            "the name of its Network would be too long: name the Configuration {} shorter",
            facts.name
        );
        return Err(("NameTooLong", why));
    };
    match children.by_name.get(&(facts.namespace, name.as_str())) {
        // That of a deleted Configuration of this name, or one that is being deleted for another reason.
        Some(other) if other.is_deleted || other.configuration.is_some() => Ok(None),
        Some(_) => {
            let why = format!("the Network {name} belongs to another owner: delete it");
            Err(("NetworkNameTaken", why))
        }
        None => Ok(None),
    }
}

/// Networks that are no longer needed are deleted first: their prefixes may be what others need.
fn to_children(children: &Children<'_>, facts: &ParsedConfiguration<'_>) -> Vec<Write> {
    let requested = facts.requested.prefixes();
    let is_wanted = |child: &ParsedNetwork<'_>| {
        requested.iter().any(|(list, prefix)| is_for(child, list, *prefix))
    };
    let orphans = children.of(facts).iter().filter(|child| !is_wanted(child));
    let staying: Vec<_> = orphans
        .filter(|child| !child.is_deleted || children.decision.journal.entry(child.uid).is_some())
        .collect();
    if !staying.is_empty() {
        let deleted = staying.into_iter().filter(|child| !child.is_deleted);
        return deleted.map(|child| Write::Delete(target(Kind::Network, child.object))).collect();
    }

    let missing = requested.into_iter().filter(|(list, prefix)| {
        let name = of_child(facts.name, list, *prefix);
        let is_free = name
            .is_some_and(|name| !children.by_name.contains_key(&(facts.namespace, name.as_str())));
        is_free && children.child(facts, list, *prefix).is_none()
    });

    missing.filter_map(|(list, prefix)| made(facts, list, prefix)).collect()
}

fn made(facts: &ParsedConfiguration<'_>, list: &str, prefix: Prefix) -> Option<Write> {
    let cluster = label(facts.object, REMOTE_CLUSTER_ID);
    let labels = cluster.map(|cluster| (REMOTE_CLUSTER_ID.to_owned(), cluster.to_owned()));
    let labels = labels.into_iter().chain([(CIDR_TYPE.to_owned(), list.to_owned())]);
    let metadata = ObjectMeta {
        name: Some(of_child(facts.name, list, prefix)?),
        namespace: Some(facts.namespace.to_owned()),
        labels: Some(labels.collect()),
        finalizers: Some(vec![NETWORK_FINALIZER.to_owned()]),
        owner_references: facts.object.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    let spec = NetworkSpec { cidr: prefix.to_string(), pre_allocated: None };

    Some(Write::Create(Box::new(Network { metadata, spec, status: None })))
}

/// Completes the spec, and corrects what API clients written in Go cannot read: a string in place of a list. The
/// columns of `kubectl get` expect lists as well.
fn spec(
    settings: &Settings,
    children: &Children<'_>,
    facts: &ParsedConfiguration<'_>,
    target: &Target,
) -> Option<Write> {
    let clusters = [("local", &facts.object.spec.local), ("remote", &facts.object.spec.remote)];
    let mut spec = Map::new();
    for (name, cluster) in clusters {
        let Some(cidr) = cluster.as_ref().and_then(|cluster| cluster.cidr.as_ref()) else {
            continue;
        };
        let lists = LISTS.into_iter().zip([&cidr.pod, &cidr.external]);
        let strings: Map<_, _> = lists
            .filter(|(_, cidrs)| cidrs.is_string())
            .map(|(list, cidrs)| (list.to_owned(), json!(cidrs)))
            .collect();
        if !strings.is_empty() {
            spec.insert(name.to_owned(), json!({"cidr": strings}));
        }
    }
    if let Some(local) = local(settings, children, facts) {
        spec.insert("local".to_owned(), local);
    }

    (!spec.is_empty()).then(|| Write::Main(target.clone(), json!({"spec": spec})))
}

/// This cluster's own prefixes, if the object does not list them yet.
fn local(
    settings: &Settings,
    children: &Children<'_>,
    facts: &ParsedConfiguration<'_>,
) -> Option<Value> {
    let known = lists(facts.object.spec.local.as_ref());
    if known.into_iter().flatten().any(|text| !text.is_empty()) {
        return None;
    }
    let pod = children.installed(settings, POD_CIDR)?;
    let external = children.installed(settings, EXTERNAL_CIDR)?;

    Some(json!({"cidr": {"pod": pod, "external": external}}))
}
