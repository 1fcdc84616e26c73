//! Compares what two clusters know of each other. Pure.

use k8s_openapi::ByteString;
use kube::ResourceExt as _;
use remap::Prefix;
use strait_api::identity::Mode;
use strait_plan::objects::{of_cluster, parse};

use super::super::{Prefixes, Side, keys};
use super::fold::GatewayName;
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
    let count = count(&here, &there);
    for index in 0..count {
        let here = numbered(&here, index);
        let there = numbered(&there, index);
        match (here.as_slice(), there.as_slice()) {
            ([here], [there]) => {
                let mut found = ends(here, there);
                found.extend(key((Side::Local, local, here), there, remote_id));
                findings.extend(found.into_iter().map(|finding| finding.of(here)));
                let found = key((Side::Remote, remote, there), here, local_id);
                findings.extend(found.map(|finding| finding.of(there)));
            }
            ([], []) => {}
            ([], [alone, ..]) if !local.hides_gateways => {
                findings.push(one_sided(alone, Side::Remote, local_id, count));
            }
            ([alone, ..], []) if !remote.hides_gateways => {
                findings.push(one_sided(alone, Side::Local, remote_id, count));
            }
            // Which of them belong together is not defined.
            _ => {
                findings.extend(several(&here, Side::Local, remote_id));
                findings.extend(several(&there, Side::Remote, local_id));
            }
        }
    }

    findings
}

/// The ends of the tunnels between the two, the local one first.
pub(super) fn tunnels(local: &Facts, remote: &Facts) -> Vec<[GatewayName; 2]> {
    let (Some(local_id), Some(remote_id)) = (&local.cluster_id, &remote.cluster_id) else {
        return Vec::new();
    };
    let (here, there) = (gateways(local, remote_id), gateways(remote, local_id));
    let tunnel = |index| match (&numbered(&here, index)[..], &numbered(&there, index)[..]) {
        ([here], [there]) => Some([here.id(), there.id()]),
        _ => None,
    };

    (0..count(&here, &there)).filter_map(tunnel).collect()
}

fn gateways<'a>(facts: &'a Facts, id: &str) -> Vec<&'a GatewayFacts> {
    facts.gateways.iter().filter(|gateway| gateway.remote.as_deref() == Some(id)).collect()
}

/// The number of gateways of the peering on each side, from the highest index.
fn count(here: &[&GatewayFacts], there: &[&GatewayFacts]) -> u8 {
    let indexes = here.iter().chain(there).filter_map(|gateway| gateway.index.as_ref().ok());

    indexes.max().map_or(0, |last| last + 1)
}

/// Those with this index.
fn numbered<'a>(gateways: &[&'a GatewayFacts], index: u8) -> Vec<&'a GatewayFacts> {
    gateways.iter().copied().filter(|gateway| gateway.index == Ok(index)).collect()
}

/// A gateway without one of the same index at the other end, in a peering with `count` gateways.
fn one_sided(gateway: &GatewayFacts, side: Side, id: &str, count: u8) -> Finding {
    let (message, remedy) = match gateway.index {
        Ok(index) if count > 1 => (
            format!("cluster {id} has no gateway for it, with the same index {index}"),
            format!("`strait network connect --gateways {count}` again, or delete it"),
        ),
        _ => (
            format!("cluster {id} has no gateway for it"),
            "make one there, or `strait network connect`".to_owned(),
        ),
    };
    let finding = Finding::error(gateway.display_name(), "NoCounterpart", message, remedy);

    Finding { side, ..finding.of(gateway) }
}

/// Reports that there are too many gateways to the cluster `id` to compare them with its own.
fn several(gateways: &[&GatewayFacts], side: Side, id: &str) -> Option<Finding> {
    let [first, _, ..] = gateways else { return None };
    let names: Vec<_> = gateways.iter().map(|gateway| gateway.display_name()).collect();
    let message = format!(
        "{} are all for cluster {id}, with the same index: none is compared with the gateways there",
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
