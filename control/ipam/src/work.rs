//! The writes of a round, once the journal has the allocations: each object at most once a round, and only what
//! differs. Pure.

use jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};
use strait_kube::finalizer;

use super::decision::{Decision, StatusAllocation};
use super::names::{IP_FINALIZER, NETWORK_FINALIZER, NETWORK_NAME, NETWORK_NAMESPACE};
use super::object::{Denial, Kind, Target, Write, target};
use super::peer::{self, Children};
use super::resources::{ParsedIp, ParsedNetwork, Resources, label};
use super::{Settings, SkipVersions};

/// Calls that belong together.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Chain {
    /// All of them, one after the other.
    All(Vec<Write>),
    /// Calls on one object, up to the first that is accepted: the next round makes the others.
    First(Vec<Write>),
}

/// All writes of a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RoundWrites {
    pub(super) chains: Vec<Chain>,
    pub(super) denials: Vec<Denial>,
}

/// The writes for `decision`. Objects in a version that was `handled` are skipped.
pub(super) fn work(
    settings: &Settings,
    resources: &Resources<'_>,
    decision: &Decision,
    handled: &SkipVersions,
    now: Timestamp,
) -> RoundWrites {
    let mut work = RoundWrites::default();
    let chain = |target: Target, writes: Vec<Write>| {
        let is_handled = handled.get(&target.uid) == Some(&target.version);
        (!writes.is_empty() && !is_handled).then_some(Chain::First(writes))
    };
    for facts in &resources.networks {
        let target = target(Kind::Network, facts.object);
        let writes = of_network(facts, decision, &target);
        work.chains.extend(chain(target, writes));
    }
    for ip in &resources.ips {
        let target = target(Kind::Ip, ip.object);
        let writes = of_ip(ip, resources, decision, &target);
        work.chains.extend(chain(target, writes));
    }
    let children = Children::new(resources, decision);
    for facts in &resources.configurations {
        let target = target(Kind::Configuration, facts.object);
        let peer = peer::peer(settings, &children, facts, &target, now);
        work.chains.extend(chain(target, peer.writes));
        if !peer.children.is_empty() {
            work.chains.push(Chain::All(peer.children));
        }
        work.denials.extend(peer.denial);
    }
    work.denials.extend(denied(resources, decision));

    work
}

fn of_network(facts: &ParsedNetwork<'_>, decision: &Decision, target: &Target) -> Vec<Write> {
    if facts.is_deleted {
        let is_released = decision.journal.entry(facts.uid).is_none();
        return without_finalizer(facts.object, NETWORK_FINALIZER, target, is_released);
    }
    let mut writes = Vec::new();
    if !facts.is_preinstalled {
        writes.extend(metadata(facts.object, NETWORK_FINALIZER, &[], target));
    }
    if let Some(Ok(StatusAllocation::Prefix(prefix))) = decision.outcomes.get(facts.uid)
        && facts.chosen != Some(*prefix)
    {
        let status = json!({"cidr": prefix.to_string()});
        writes.push(Write::Status(target.clone(), status));
    }

    writes
}

fn of_ip(
    ip: &ParsedIp<'_>,
    resources: &Resources<'_>,
    decision: &Decision,
    target: &Target,
) -> Vec<Write> {
    if ip.is_deleted {
        let is_released = decision.journal.entry(ip.uid).is_none();
        return without_finalizer(ip.object, IP_FINALIZER, target, is_released);
    }
    let network = resources.network_of(ip).ok();
    let labels = network
        .map(|network| [(NETWORK_NAMESPACE, network.namespace), (NETWORK_NAME, network.name)]);
    let labels = labels.as_ref().map(|labels| &labels[..]).unwrap_or_default();
    let mut writes: Vec<_> =
        metadata(ip.object, IP_FINALIZER, labels, target).into_iter().collect();
    if let Some(Ok(StatusAllocation::Address { address, network: Some(network) })) =
        decision.outcomes.get(ip.uid)
    {
        let status = json!({"ip": address.to_string(), "cidr": network.to_string()});
        writes.push(Write::Status(target.clone(), status));
    }

    writes
}

/// Adds finalizer and labels, if they are missing.
fn metadata<K: Resource>(
    object: &K,
    finalizer: &str,
    labels: &[(&str, &str)],
    target: &Target,
) -> Option<Write> {
    let mut wanted = json!({});
    if let Some(all) = finalizer::with(object, finalizer) {
        merge(&mut wanted, "finalizers", json!(all));
    }
    for (key, value) in labels {
        // A name may be too long for a label.
        if label(object, key) != Some(value) && value.len() <= LABEL_BYTES_MAX {
            merge(&mut wanted, "labels", json!({*key: value}));
        }
    }
    let is_nothing = wanted.as_object().is_some_and(serde_json::Map::is_empty);

    (!is_nothing).then(|| Write::Main(target.clone(), json!({"metadata": wanted})))
}

/// The longest value of a label.
const LABEL_BYTES_MAX: usize = 63;

fn merge(object: &mut Value, key: &str, value: Value) {
    let Some(object) = object.as_object_mut() else { return };
    match (object.get_mut(key), value) {
        (Some(Value::Object(former)), Value::Object(more)) => former.extend(more),
        (_, value) => {
            object.insert(key.to_owned(), value);
        }
    }
}

fn without_finalizer<K: Resource>(
    object: &K,
    finalizer: &str,
    target: &Target,
    is_released: bool,
) -> Vec<Write> {
    let others = finalizer::without(object, finalizer).filter(|_| is_released);
    let write = others
        .map(|others| Write::Main(target.clone(), json!({"metadata": {"finalizers": others}})));

    write.into_iter().collect()
}

/// The networks and addresses without an allocation, and why.
fn denied<'a>(
    resources: &'a Resources<'_>,
    decision: &'a Decision,
) -> impl Iterator<Item = Denial> + use<'a> {
    let networks = resources.networks.iter().map(|facts| (facts.uid, facts.object.object_ref(&())));
    let ips = resources.ips.iter().map(|ip| (ip.uid, ip.object.object_ref(&())));

    networks.chain(ips).filter_map(|(uid, object)| {
        let problem = decision.outcomes.get(uid)?.as_ref().err()?;
        let (reason, message) = (problem.reason(), problem.to_string());
        Some(Denial { object, reason, message, is_reported: false })
    })
}
