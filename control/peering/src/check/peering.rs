//! Checks what a cluster knows of others: prefixes, keys, and whether packets pass. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use kube::{Resource, ResourceExt as _};
use strait_api::identity::is_of_another_gateway;
use strait_api::labels::{GATEWAY_INDEX, REMOTE_CLUSTER_ID};
use strait_api::public_key::KEY_BYTES;
use strait_api::{Configuration, PublicKey};
use strait_plan::conditions::{self, IN_FORCE, NODE_ROUTES};
use strait_plan::objects::{cluster_id, of_cluster, parse};

use super::super::connect::{configured, established};
use super::super::wait::{Progress, is_stale};
use super::read::{Facts, GatewayFacts};
use super::{Finding, named};

/// The problems of peerings.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let configurations = facts.configurations.iter().flatten();
    let mut findings: Vec<_> = configurations.flat_map(|it| configuration(it, facts)).collect();
    findings.extend(facts.public_keys.iter().flatten().filter_map(|key| public_key(key, facts)));
    for gateway in &facts.gateways {
        let Some(remote) = gateway.remote.as_deref() else { continue };
        let found = prefixes(facts, gateway, remote)
            .into_iter()
            .chain(key(facts, gateway, remote))
            .chain(connection(facts, gateway));
        findings.extend(found.map(|finding| finding.of(gateway)));
    }
    findings.extend(neighbours(&facts.gateways));

    findings
}

fn display_name<K: Resource<DynamicType = ()>>(object: &K) -> String {
    named(&K::kind(&()), object.namespace().as_deref(), &object.name_any())
}

fn configuration(configuration: &Configuration, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if cluster_id(configuration).is_none_or(str::is_empty) {
        let message = format!("it has no label {REMOTE_CLUSTER_ID}");
        let remedy = "set it to the id of the cluster whose prefixes it has".to_owned();
        findings.push(Finding::error(display_name(configuration), "Unassigned", message, remedy));
    }
    // Other reports on it follow from these problems.
    let refused = parse(configuration).problems;
    if !refused.is_empty() {
        findings.extend(refused.iter().map(|problem| {
            let remedy = "write what the message asks for".to_owned();
            let reason = conditions::reason_of(problem);
            Finding::error(display_name(configuration), reason, problem.to_string(), remedy)
        }));
        return findings;
    }
    if let Progress::NotYet(found) = configured(configuration) {
        let remedy = "is the operator running? Its Events say more".to_owned();
        findings.push(Finding::error(display_name(configuration), "NotConfigured", found, remedy));
    }
    let conditions = configuration.status.iter().flat_map(|status| &status.conditions);
    let refused = conditions.filter(|it| it.status == "False");
    // Without a gateway the conditions have no effect.
    let refused = refused.filter(|_| has_gateway(configuration, facts));
    findings.extend(refused.filter_map(|it| {
        let object = display_name(configuration);
        match it.type_.as_str() {
            IN_FORCE => {
                let message = format!("a gateway says {}: {}", it.reason, it.message);
                let remedy = "write what the message asks for".to_owned();
                Some(Finding::error(object, "NotInForce", message, remedy))
            }
            NODE_ROUTES => {
                let message = format!("nodes report {}", it.message);
                let remedy = "see Nodes in the manual, Problems and their remedies";
                Some(Finding::warning(object, "NodeProblem", message, remedy.to_owned()))
            }
            _ => None,
        }
    }));

    findings
}

/// Whether there may be a gateway for the prefixes.
fn has_gateway(configuration: &Configuration, facts: &Facts) -> bool {
    let (cluster, namespace) = (cluster_id(configuration), configuration.namespace());
    let mut gateways = facts.gateways.iter();

    facts.hides_gateways
        || gateways.any(|gateway| {
            gateway.remote.as_deref() == cluster && Some(&gateway.namespace) == namespace.as_ref()
        })
}

fn public_key(key: &PublicKey, facts: &Facts) -> Option<Finding> {
    let ByteString(bytes) = key.spec.public_key.clone().unwrap_or_default();
    let message = format!("spec.publicKey has {} bytes, a key has {KEY_BYTES}", bytes.len());
    let remedy =
        "apply there what `strait generate publickey` prints in the other cluster".to_owned();

    if bytes.len() == KEY_BYTES {
        return None;
    }
    let finding = Finding::error(display_name(key), "KeyMalformed", message, remedy);
    let is_of = |gateway: &&GatewayFacts| {
        let of_gateway = gateway.remote.as_deref().and_then(|remote| gateway.key(facts, remote));
        of_gateway.is_some_and(|it| display_name(it) == display_name(key))
    };

    Some(match facts.gateways.iter().find(is_of) {
        Some(gateway) => finding.of(gateway),
        None => finding,
    })
}

/// Whether the gateway has the prefixes of the other end.
fn prefixes(facts: &Facts, gateway: &GatewayFacts, remote: &str) -> Option<Finding> {
    let is_there = facts.configurations.as_ref()?.iter().any(|it| {
        cluster_id(it) == Some(remote) && it.namespace().as_deref() == Some(&gateway.namespace)
    });
    let message = format!("no Configuration of cluster {remote} is in its namespace");
    let remedy =
        "apply there what `strait generate configuration` prints in that cluster".to_owned();

    (!is_there)
        .then(|| Finding::error(gateway.display_name(), "ConfigurationMissing", message, remedy))
}

/// Whether the gateway has the public key of the other end.
fn key(facts: &Facts, gateway: &GatewayFacts, remote: &str) -> Option<Finding> {
    facts.public_keys.as_ref()?;
    let message = format!("no PublicKey of cluster {remote} is in its namespace");
    let remedy = "apply there what `strait generate publickey` prints in that cluster".to_owned();

    gateway
        .key(facts, remote)
        .is_none()
        .then(|| Finding::error(gateway.display_name(), "PublicKeyMissing", message, remedy))
}

impl GatewayFacts {
    /// The public key of the other end that this gateway has: one that it owns, or else one that belongs to no gateway.
    pub(super) fn key<'a>(&self, facts: &'a Facts, remote: &str) -> Option<&'a PublicKey> {
        let kind = self.mode.kind();
        let is_here = |key: &&PublicKey| key.namespace().as_deref() == Some(&self.namespace);
        let is_own = |key: &&PublicKey| {
            let owners = key.owner_references();
            owners.iter().any(|owner| owner.kind == kind && owner.name == self.name)
        };
        let is_of_another =
            |key: &&PublicKey| is_of_another_gateway(key.owner_references(), kind, &self.name);
        let here = || facts.public_keys.iter().flatten().filter(is_here);

        of_cluster(here().filter(is_own), remote)
            .or_else(|| of_cluster(here().filter(|key| !is_of_another(key)), remote))
    }
}

fn connection(facts: &Facts, gateway: &GatewayFacts) -> Option<Finding> {
    let (name, uid) = (format!("gw-{}", gateway.name), gateway.uid());
    let found = facts.connections.as_ref()?.iter().find(|connection| {
        let is_here = connection.namespace().as_deref() == Some(&gateway.namespace);
        is_here && connection.name_any() == name && !is_stale(*connection, uid.as_ref())
    });
    let object = named("Connection", Some(&gateway.namespace), &name);
    let logs = format!("`kubectl logs deployment/{name} -n {}`", gateway.namespace);
    let Some(connection) = found else {
        let message = format!("{} has never reported", gateway.display_name());
        let remedy = format!("look at {logs}");
        return Some(Finding::error(object, "ConnectionMissing", message, remedy));
    };
    match established(connection) {
        Progress::Done(()) => None,
        Progress::NotYet(found) => {
            let remedy =
                format!("check both clusters with --remote-kubeconfig, firewalls, and {logs}");
            Some(Finding::error(object, "NotConnected", found, remedy))
        }
    }
}

/// Gateways in one namespace that are not those of one peering, numbered one by one: their objects cannot be attributed.
fn neighbours(gateways: &[GatewayFacts]) -> Vec<Finding> {
    let mut by_namespace = BTreeMap::<&str, Vec<&GatewayFacts>>::new();
    for gateway in gateways {
        by_namespace.entry(&gateway.namespace).or_default().push(gateway);
    }
    let shared = by_namespace.into_iter().filter(|(_, gateways)| !is_one_peering(gateways));

    shared
        .map(|(namespace, gateways)| {
            let names: Vec<_> = gateways.iter().map(|gateway| gateway.display_name()).collect();
            let message = format!(
                "{} are both in it: what is labelled as active there is of both",
                names.join(" and ")
            );
            let remedy = format!(
                "give each gateway a namespace of its own, or, if all are for one peering, a number of its own in the label {GATEWAY_INDEX}"
            );
            Finding::error(named("Namespace", None, namespace), "SharedNamespace", message, remedy)
        })
        .collect()
}

/// Whether all are the same end of one peering, with different numbers.
fn is_one_peering(gateways: &[&GatewayFacts]) -> bool {
    let indexes: BTreeSet<_> = gateways.iter().map(|gateway| &gateway.index).collect();
    let of_one = |pair: &[&GatewayFacts]| match pair {
        [one, other] => one.mode == other.mode && one.remote == other.remote,
        _ => true,
    };

    indexes.len() == gateways.len() && gateways.windows(2).all(of_one)
}
