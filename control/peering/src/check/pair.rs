//! Compares what two clusters know of each other. Pure.

use k8s_openapi::ByteString;
use kube::ResourceExt as _;
use remap::Prefix;
use strait_api::identity::Mode;
use strait_plan::objects::{of_cluster, parse};

use super::super::{Prefixes, Side, keys};
use super::read::{Facts, GatewayFacts};
use super::{Finding, named};

/// The contradictions between both.
pub(super) fn findings(local: &Facts, remote: &Facts) -> Vec<Finding> {
    let (Some(local_id), Some(remote_id)) = (&local.cluster_id, &remote.cluster_id) else {
        return Vec::new();
    };
    let here = gateways(local, remote_id);
    let there = gateways(remote, local_id);
    let mut findings = Vec::new();
    for (side, facts, id, other) in
        [(Side::Local, local, remote_id, remote), (Side::Remote, remote, local_id, local)]
    {
        let found = prefixes(facts, id, other);
        findings.extend(found.into_iter().map(|finding| Finding { side, ..finding }));
    }
    match (here.as_slice(), there.as_slice()) {
        ([here], [there]) => {
            findings.extend(ends(here, there));
            findings.extend(key((Side::Local, local, here), there, remote_id));
            findings.extend(key((Side::Remote, remote, there), here, local_id));
        }
        ([], []) => {}
        ([], [alone, ..]) if !local.hides_gateways => {
            findings.push(one_sided(alone, Side::Remote, local_id));
        }
        ([alone, ..], []) if !remote.hides_gateways => {
            findings.push(one_sided(alone, Side::Local, remote_id));
        }
        // Which of them belong together is not defined.
        _ => {
            findings.extend(several(&here, Side::Local, remote_id));
            findings.extend(several(&there, Side::Remote, local_id));
        }
    }

    findings
}

/// The namespaces of the ends of the tunnel between the two, if there is one.
pub(super) fn namespaces(local: &Facts, remote: &Facts) -> Vec<[String; 2]> {
    let (Some(local_id), Some(remote_id)) = (&local.cluster_id, &remote.cluster_id) else {
        return Vec::new();
    };
    match (&gateways(local, remote_id)[..], &gateways(remote, local_id)[..]) {
        ([here], [there]) => vec![[here.namespace.clone(), there.namespace.clone()]],
        _ => Vec::new(),
    }
}

fn gateways<'a>(facts: &'a Facts, id: &str) -> Vec<&'a GatewayFacts> {
    facts.gateways.iter().filter(|gateway| gateway.remote.as_deref() == Some(id)).collect()
}

fn one_sided(gateway: &GatewayFacts, side: Side, id: &str) -> Finding {
    let message = format!("cluster {id} has no gateway for it");
    let remedy = "make one there, or `strait network connect`".to_owned();

    Finding { side, ..Finding::error(gateway.display_name(), "NoCounterpart", message, remedy) }
}

/// Reports that there are too many gateways to the cluster `id` to compare them with its own.
fn several(gateways: &[&GatewayFacts], side: Side, id: &str) -> Option<Finding> {
    let [first, _, ..] = gateways else { return None };
    let names: Vec<_> = gateways.iter().map(|gateway| gateway.display_name()).collect();
    let message = format!(
        "{} are all for cluster {id}: none is compared with the gateways there",
        names.join(" and ")
    );
    let remedy = "delete the unused ones".to_owned();
    let finding = Finding::warning(first.display_name(), "SeveralGateways", message, remedy);

    Some(Finding { side, ..finding })
}

/// Whether the two are the ends of one tunnel.
fn ends(here: &GatewayFacts, there: &GatewayFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |reason, message, remedy: &str| {
        let finding = Finding::error(here.display_name(), reason, message, remedy.to_owned());
        findings.push(Finding { side: Side::Local, ..finding });
    };
    if here.mtu() != there.mtu() {
        let message = format!(
            "its tunnel has an MTU of {} bytes, that of {} in the remote cluster {}",
            here.mtu(),
            there.display_name(),
            there.mtu()
        );
        add("MTUDiffers", message, "write the same into spec.mtu of both");
    }
    let (server, client) = match (here.mode, there.mode) {
        (Mode::Server, Mode::Client) => (here, there),
        (Mode::Client, Mode::Server) => (there, here),
        (Mode::Server, Mode::Server) | (Mode::Client, Mode::Client) => {
            let message = format!("{} at the other end is one too", there.display_name());
            add("SameEnd", message, "delete one of them, and make a gateway of the other kind");
            return findings;
        }
    };
    let (at, goal) = (server.addresses(), client.addresses());
    if !at.is_empty() && !goal.is_empty() && !goal.iter().any(|goal| at.contains(goal)) {
        let message = format!(
            "the client connects to {}, the server is at {}",
            goal.join(", "),
            at.join(", ")
        );
        let finding = Finding::warning(
            here.display_name(),
            "EndpointDiffers",
            message,
            "unless something forwards it, write the address of the server into spec.endpoint of the client"
                .to_owned(),
        );
        findings.push(Finding { side: Side::Local, ..finding });
    }

    findings
}

/// Whether the public key that a gateway has for `other` is that of `other`.
fn key(
    (side, facts, gateway): (Side, &Facts, &GatewayFacts),
    other: &GatewayFacts,
    id: &str,
) -> Option<Finding> {
    let known = gateway.key(facts, id)?;
    let own = keys::public(Side::Only, other.secret()?).ok()?;
    let ByteString(bytes) = known.spec.public_key.clone().unwrap_or_default();
    let object = named("PublicKey", known.namespace().as_deref(), &known.name_any());
    let message = format!("it is not the key of {} in cluster {id}", other.display_name());
    let remedy =
        "apply there what `strait generate publickey` prints in that cluster, or `strait network connect` again"
            .to_owned();

    (bytes != own)
        .then(|| Finding { side, ..Finding::error(object, "KeyDiffers", message, remedy) })
}

/// Whether the prefixes that a cluster has for the `other` one are true.
fn prefixes(facts: &Facts, id: &str, other: &Facts) -> Option<Finding> {
    let configuration = of_cluster(facts.configurations.as_ref()?, id)?;
    let Prefixes { pod, external } = other.prefixes()?;
    let parsed = parse(configuration);
    if !parsed.problems.is_empty() {
        // These problems are reported already.
        return None;
    }
    let known = parsed.remote.map(|list| sorted(list.into_iter().flatten()));
    let own = [pod, external].map(sorted);
    if known == own {
        return None;
    }
    let object =
        named("Configuration", configuration.namespace().as_deref(), &configuration.name_any());
    let text = |[pod, external]: [Vec<Prefix>; 2]| {
        let [pod, external] = [pod, external]
            .map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        format!("pods {pod}, external {external}")
    };
    let message =
        format!("it says of cluster {id}: {}; that says of itself: {}", text(known), text(own));
    let remedy =
        "apply there what `strait generate configuration` prints in that cluster".to_owned();

    Some(Finding::error(object, "PrefixesDiffer", message, remedy))
}

fn sorted(prefixes: impl IntoIterator<Item = Prefix>) -> Vec<Prefix> {
    let mut prefixes: Vec<_> = prefixes.into_iter().collect();
    prefixes.sort();

    prefixes
}
