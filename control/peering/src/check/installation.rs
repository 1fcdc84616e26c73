//! Checks the operator, its networks, and the addresses of the cluster. Pure.

use std::net::IpAddr;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt as _;
use remap::Prefix;
use strait_api::Network;
use strait_api::labels::{EXTERNAL_CIDR, NETWORK_TYPE, POD_CIDR};

use super::super::connect::ready;
use super::super::flag_or_env::flag_or_env;
use super::super::plan::{NodeConflict, node_conflicts};
use super::super::prefixes;
use super::super::wait::Progress;
use super::read::{Facts, LEASE, Visibility};
use super::{Finding, named};

/// The types of `Network`s, and whether prefixes cannot be allocated without.
const TYPES: [(&str, bool); 4] =
    [(POD_CIDR, true), (EXTERNAL_CIDR, true), ("service-cidr", false), ("internal-cidr", false)];

/// The flag of an operator for leader election: whether there may be other replicas.
const ELECTION: (&str, &str) = ("--leader-election", "STRAIT_LEADER_ELECTION");

/// The largest difference between the local clock and that of the operator.
const CLOCK_ERROR_SECONDS: i64 = 60;

/// The problems of the installation.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = operators(facts);
    findings.extend(lease(facts));
    findings.extend(types(facts));
    findings.extend(unserved(facts));
    findings.extend(overlaps(facts.networks.as_deref().unwrap_or_default()));
    findings.extend(nodes(facts));
    findings.extend(own_prefixes(facts));

    findings
}

fn operators(facts: &Facts) -> Vec<Finding> {
    let namespace = facts.namespace.as_str();
    let called =
        |deployment: &Deployment| named("Deployment", Some(namespace), &deployment.name_any());
    let mut findings = Vec::new();
    let operators = facts.operators.as_deref();
    match (operators, &facts.liqo) {
        (Some([operator, ..]), Visibility::Found(liqo)) => findings.push(Finding::error(
            called(operator),
            "TwoOperators",
            format!("{} runs as well, and both would write the same objects", called(liqo)),
            "delete this one where Liqo runs".to_owned(),
        )),
        (Some([]), Visibility::Missing) => findings.push(Finding::error(
            named("Namespace", None, namespace),
            "OperatorMissing",
            "neither the operator of Strait nor that of Liqo is there".to_owned(),
            "apply deploy/standalone, or name the namespace of the installation with --liqo-namespace"
                .to_owned(),
        )),
        (Some([_, ..]), Visibility::Missing) | (Some([]), Visibility::Found(_)) => {}
        // It is not known whether there is one.
        (None, _) | (_, Visibility::Hidden) => {}
    }
    for operator in operators.into_iter().flatten().chain(facts.liqo.seen()) {
        if let Progress::NotYet(found) = ready(operator) {
            let name = operator.name_any();
            let remedy = format!("look at `kubectl describe deployment {name} -n {namespace}`");
            findings.push(Finding::error(called(operator), "OperatorNotReady", found, remedy));
        }
    }

    findings
}

/// Whether one of the operators works.
fn lease(facts: &Facts) -> Option<Finding> {
    let operator = facts.only_operator()?;
    let (flag, variable) = ELECTION;
    let mut containers = operator.spec.template.spec.as_ref()?.containers.iter();
    let is_alone = containers
        .any(|container| flag_or_env(container, flag, variable).as_deref() == Some("false"));
    if is_alone || matches!(facts.lease, Visibility::Hidden) {
        return None;
    }

    let lease = facts.lease.seen().and_then(|lease| lease.spec.as_ref());
    let holder = lease.and_then(|lease| lease.holder_identity.as_deref()).unwrap_or_default();
    let renewed = lease.and_then(|lease| lease.renew_time.as_ref());
    let seconds = lease.and_then(|lease| lease.lease_duration_seconds).unwrap_or_default();
    let message = match renewed {
        None => "no replica of the operator has ever taken it".to_owned(),
        Some(_) if holder.is_empty() => "no replica of the operator holds it".to_owned(),
        Some(MicroTime(renewed)) => {
            let age = facts.now.duration_since(*renewed).as_secs();
            if age <= i64::from(seconds) + CLOCK_ERROR_SECONDS {
                return None;
            }
            format!("{holder} has not renewed it for {age} s, {seconds} s are allowed")
        }
    };
    let name = operator.name_any();
    let remedy = format!("look at `kubectl logs deployment/{name} -n {}`", facts.namespace);

    Some(Finding::error(
        named("Lease", Some(&facts.namespace), LEASE),
        "NobodyLeads",
        message,
        remedy,
    ))
}

/// The required prefixes.
fn types(facts: &Facts) -> Vec<Finding> {
    let Some(networks) = facts.own_networks() else { return Vec::new() };
    let mut findings = Vec::new();
    for (type_, is_needed) in TYPES {
        let object = named("Network", Some(&facts.namespace), type_);
        let finding = match prefixes::of_type(&networks, type_) {
            Ok(found) if found.is_empty() => {
                let message = format!("there is none with the label {NETWORK_TYPE}={type_}");
                let remedy =
                    "apply that of deploy/standalone/networks.yaml with your prefix".to_owned();
                Finding::error(object, "NetworkMissing", message, remedy)
            }
            Ok(_) => continue,
            Err(error) => {
                let remedy = "delete it, and make it again".to_owned();
                Finding::error(object, "CIDRInvalid", error.to_string(), remedy)
            }
        };
        findings.push(if is_needed {
            finding
        } else {
            Finding::warning(finding.object, finding.reason, finding.message, finding.remedy)
        });
    }

    findings
}

/// Resources that wait for a prefix or an address.
fn unserved(facts: &Facts) -> Vec<Finding> {
    let remedy = |kind: &str, namespace: &str, name: &str| {
        format!("look at the Events: `kubectl describe {kind} {name} -n {namespace}`")
    };
    let networks = facts.networks.iter().flatten().filter(|network| {
        network.status.as_ref().and_then(|status| status.cidr.as_deref()).is_none_or(str::is_empty)
    });
    let networks = networks.map(|network| {
        let (namespace, name) = (network.namespace().unwrap_or_default(), network.name_any());
        let object = named("Network", Some(&namespace), &name);
        let message = format!("{} has no name here: status.cidr is empty", network.spec.cidr);
        Finding::error(object, "NoPrefix", message, remedy("network", &namespace, &name))
    });
    let ips = facts
        .ips
        .iter()
        .flatten()
        .filter(|ip| ip.status.as_ref().and_then(|status| status.ip.as_deref()).is_none());
    let ips = ips.map(|ip| {
        let (namespace, name) = (ip.namespace().unwrap_or_default(), ip.name_any());
        let object = named("IP", Some(&namespace), &name);
        let message = format!("{} has no address: status.ip is empty", ip.spec.ip);
        Finding::error(object, "NoAddress", message, remedy("ip", &namespace, &name))
    });

    networks.chain(ips).collect()
}

/// Prefixes with two meanings.
fn overlaps(networks: &[Network]) -> Vec<Finding> {
    let allocated = networks.iter().filter_map(|network| {
        let (prefix, is_shared) = prefixes::allocated(network)?;
        Some((network, prefix, is_shared))
    });
    let allocated: Vec<_> = allocated.collect();
    let mut findings = Vec::new();
    for (place, (network, prefix, is_shared)) in allocated.iter().enumerate() {
        for (other, other_prefix, is_other_shared) in allocated.iter().skip(place + 1) {
            if !prefix.overlaps(*other_prefix) || (*is_shared && *is_other_shared) {
                continue;
            }
            let called = |network: &Network| {
                named("Network", network.namespace().as_deref(), &network.name_any())
            };
            findings.push(Finding::error(
                called(other),
                "PrefixOverlap",
                format!("{other_prefix} overlaps {prefix} of {}", called(network)),
                "delete the one that is wrong, and make it again: it gets another prefix"
                    .to_owned(),
            ));
        }
    }

    findings
}

fn nodes(facts: &Facts) -> Vec<Finding> {
    let networks = facts.networks.as_deref().unwrap_or_default();
    let nodes = facts.nodes.as_deref().unwrap_or_default();
    let conflicts = node_conflicts(networks, nodes).into_iter().map(|conflict| {
        let object = named("Node", None, &conflict.node);
        let remedy = NodeConflict::REMEDY.to_owned();
        Finding::error(object, NodeConflict::REASON, conflict.to_string(), remedy)
    });
    let pods: Vec<Prefix> = prefixes::of_type(networks, POD_CIDR).unwrap_or_default();
    let unknown = nodes.iter().filter_map(|node| {
        let spec = node.spec.as_ref()?;
        let own: Vec<Prefix> =
            spec.pod_cidrs.iter().flatten().filter_map(|it| it.parse().ok()).collect();
        // Clusters of two IP versions may be joined by one.
        let is_of_version = |own: &Prefix| pods.iter().any(|it| it.is_ipv4() == own.is_ipv4());
        let mut own = own.into_iter().filter(is_of_version);
        let prefix = own.find(|own| !pods.iter().any(|pods| pods.covers(*own)))?;
        let object = named("Node", None, &node.name_any());
        let message =
            format!("its pods have {prefix}, which is in no Network of the type pod-cidr");
        let remedy = "if your CNI uses it, add it to those of the installation".to_owned();
        Some(Finding::warning(object, "PodCIDRUnknown", message, remedy))
    });
    let unknown = unknown.take(if pods.is_empty() { 0 } else { usize::MAX });

    conflicts.chain(unknown).collect()
}

/// Whether services are in the prefix of the installation.
fn own_prefixes(facts: &Facts) -> Option<Finding> {
    let services = prefixes::of_type(facts.networks.as_deref()?, "service-cidr").ok()?;
    let spec = facts.api_service.seen()?.spec.as_ref()?;
    let address: IpAddr = spec.cluster_ip.as_deref()?.parse().ok()?;
    let is_known = services.is_empty()
        || !address.is_ipv4()
        || services.iter().any(|prefix| prefix.contains(address));
    let object = named("Service", Some("default"), "kubernetes");
    let message = format!("its address {address} is in no Network of the type service-cidr");
    let remedy = "write the prefix of the services of this cluster there".to_owned();

    (!is_known).then(|| Finding::warning(object, "ServiceCIDRUnknown", message, remedy))
}
