//! Joining two clusters: `network init` and `network connect`.
//!
//! ```text
//!        local (client)                                  remote (server)
//!   1    own prefixes read                               own prefixes read
//!   2    Configuration of the other one                  Configuration of the other one
//!   3    waits: prefixes are allocated                   waits: prefixes are allocated
//!   4    template checked                                template checked
//!   7                                                    GatewayServer
//!   8,9                                                  waits: a pod is ready, the Service has an address
//!   10   GatewayClient; waits: a pod is ready
//!   11   PublicKey of the other one                      PublicKey of the other one
//!   12   waits: Connection is established                waits: Connection is established
//! ```
//!
//! With several gateways steps 7 to 11 are repeated for each, and step 12 for each after that.
//!
//! Step 5 reports that all prefixes are known, step 6 ends the verb if the clusters are joined the other way round.
//! Step 4 is evaluated before step 2 writes, and so are existing objects: a flag that is left out keeps their values,
//! and a server that is in use is replaced only after a question.

mod desired;
mod gateways;
mod links;
mod pairs;
mod rollout;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use strait_api::labels::{CONFIGURED, TRUE};
use strait_api::{Configuration, GatewayClient, GatewayServer};
use strait_ipam::CONFIGURED_CONDITION;

use super::builders::{self, TemplateRef};
use super::context::PeeringSides;
use super::report::WarningsOnly;
use super::wait::{Progress, WaitTarget, until};
use super::write::apply;
use super::{CommandError, Deadline, Pair, Prefixes, Session};

use super::context::PeeringSide;

pub use desired::{Connect, TemplateFlags, TypedExposure};
pub(super) use gateways::{
    client_of, endpoint, is_server_ready, ready, server_of, until_addressed,
};
pub(super) use links::{established, to_object};
pub(super) use pairs::{GatewayPair, Surplus, index_of, numbered};
pub(super) use rollout::{Requested, until_rolled_out};

/// The line of Liqo's documentation on a cluster whose id is known.
const IDENTIFIED: &str = "Cluster identity correctly retrieved";

/// What was read before the first write.
pub(super) struct Found {
    /// The prefixes of the local cluster.
    pub(super) local: Prefixes,
    /// The prefixes of the remote cluster.
    pub(super) remote: Prefixes,
    /// Whether the clusters are joined with the server on the local side.
    pub(super) is_reversed: bool,
    /// The gateways that are wanted, the first one first.
    pub(super) pairs: Vec<GatewayPair>,
    /// The gateways that are not wanted any more.
    pub(super) surplus: Surplus,
}

/// Exchanges the prefixes of both clusters, steps 1 to 3.
///
/// # Errors
///
/// [`CommandError`]; if it is a usage error, nothing was written.
pub async fn initialize(pair: &Pair, session: Session<'_>) -> Result<(), CommandError> {
    let ends = PeeringSides::connect_both(pair, session).await?;
    for end in ends.both() {
        end.done(IDENTIFIED);
    }
    let [of_local, of_remote] = own_prefixes(&ends).await?;

    exchange_prefixes(&ends, [&of_local, &of_remote]).await
}

/// Joins two clusters, all steps. After an interruption it continues when it is called again.
///
/// # Errors
///
/// [`CommandError`]; if it is a usage error, or if the user declines, nothing was written.
pub async fn connect(
    pair: &Pair,
    wanted: &Connect,
    session: Session<'_>,
) -> Result<(), CommandError> {
    let quiet = WarningsOnly(session.report);
    let report = if wanted.has_former_lines { &quiet } else { session.report };
    let ends = PeeringSides::connect_both(pair, Session { report, ..session }).await?;
    let found = read(&ends, wanted).await?;
    let session = ask(&ends.remote, &found, session)?;
    let ends = ends.in_session(Session { report, ..session });
    if wanted.has_former_lines {
        for end in ends.both() {
            session.report.done(end.side, IDENTIFIED);
        }
    }
    exchange_prefixes(&ends, [&found.local, &found.remote]).await?;
    if !wanted.skips_validation {
        report_checked(&ends, &found);
    }
    let ends = ends.in_session(session);
    for end in ends.both() {
        end.done("Network correctly initialized");
    }

    let PeeringSides { local, remote } = &ends;
    if found.is_reversed {
        session.report.warn(
            local.side,
            "the clusters are joined already, with the server here: nothing else is done",
        );
        return Ok(());
    }
    let mut made = Vec::with_capacity(found.pairs.len());
    for pair in &found.pairs {
        let server = gateways::server(remote, pair).await?;
        let client = gateways::client(local, wanted, pair, &server).await?;
        if !wanted.hides_keys {
            links::exchange_keys(&ends, pair.index, &client, &server).await?;
        }
        made.push((client, server));
    }
    if wanted.waits {
        for (client, server) in &made {
            links::until_connected(&ends, client, server).await?;
        }
    }

    gateways::remove(&ends, &found.surplus, wanted.waits).await
}

/// The prefixes of both clusters, the local one first.
async fn own_prefixes(ends: &PeeringSides<'_>) -> Result<[Prefixes; 2], CommandError> {
    let mut prefixes = [Prefixes::default(), Prefixes::default()];
    for (end, prefixes) in ends.both().into_iter().zip(&mut prefixes) {
        *prefixes = end.prefixes().await?;
        end.done("Network configuration correctly retrieved");
    }

    Ok(prefixes)
}

/// Step 1, the checks of step 4, and the existing objects.
pub(super) async fn read(ends: &PeeringSides<'_>, wanted: &Connect) -> Result<Found, CommandError> {
    let PeeringSides { local, remote } = ends;
    let [of_local, of_remote] = own_prefixes(ends).await?;
    let is_reversed = !local.list::<GatewayServer>().await?.is_empty()
        || !remote.list::<GatewayClient>().await?.is_empty();
    let (pairs, surplus) = pairs::read(ends, wanted).await?;

    Ok(Found { local: of_local, remote: of_remote, is_reversed, pairs, surplus })
}

/// Asks before a gateway is deleted, or a server that clients may use is replaced. Returns the session to continue with: the
/// time until the answer does not count.
fn ask<'a>(
    remote: &PeeringSide<'_>,
    found: &Found,
    session: Session<'a>,
) -> Result<Session<'a>, CommandError> {
    let Surplus { servers, clients } = &found.surplus;
    let mut session = session;
    let names: BTreeSet<_> = servers.iter().chain(clients).map(String::as_str).collect();
    if !names.is_empty() && !found.is_reversed {
        let names: Vec<_> = names.into_iter().collect();
        let warning = format!(
            "Gateways {} would be deleted; connections of nodes that they carry end.",
            names.join(", ")
        );
        session = allowed(remote, &warning, session)?;
    }
    for pair in found.pairs.iter().filter(|_| !found.is_reversed) {
        let (Some(server), Some(difference)) = (&pair.former_server, &pair.replaced) else {
            continue;
        };
        if !gateways::has_address(server.status.as_ref()) {
            continue;
        }
        let name = server.name_any();
        let warning = format!(
            "Gateway server {name} would be replaced, as its Service has {difference}: nothing passes until it is there again."
        );
        session = allowed(remote, &warning, session)?;
    }

    Ok(session)
}

/// The session to continue with, if the user continues in spite of `warning`.
fn allowed<'a>(
    remote: &PeeringSide<'_>,
    warning: &str,
    session: Session<'a>,
) -> Result<Session<'a>, CommandError> {
    if !session.report.allows(remote.side, warning) {
        return Err(CommandError::Aborted);
    }

    Ok(Session { deadline: Deadline::after(session.deadline.timeout), ..session })
}

/// The Service of the gateway `name`.
pub(super) async fn service(
    end: &PeeringSide<'_>,
    name: &str,
) -> Result<Option<Service>, CommandError> {
    let (api, name) = (end.api::<Service>(), format!("gw-{name}"));
    let doing = format!("reading Service {name} in namespace {}", end.namespace);

    end.call(&doing, async || api.get_opt(&name).await).await
}

/// Steps 2 and 3; the prefixes of the local cluster come first.
async fn exchange_prefixes(
    ends: &PeeringSides<'_>,
    [of_local, of_remote]: [&Prefixes; 2],
) -> Result<(), CommandError> {
    let PeeringSides { local, remote } = ends;
    for (end, prefixes) in [(local, of_remote), (remote, of_local)] {
        end.make_namespace().await?;
        let name = configuration_name(end).await?;
        let wanted = builders::configuration(&name, Some(&end.namespace), &end.other, prefixes);
        apply(end, &wanted).await?;
        end.done("Network configuration correctly set up");
    }
    for end in ends.both() {
        until_configured(end, &configuration_name(end).await?).await?;
        end.done("Configuration applied successfully");
    }

    Ok(())
}

/// Step 4, which was evaluated before step 2.
fn report_checked(ends: &PeeringSides<'_>, found: &Found) {
    // All of them have the same, unless a user has changed one.
    let Some(first) = found.pairs.first() else { return };
    let TemplateRef { name, namespace, .. } = &first.server;
    ends.remote.done(&format!("Gateway server template \"{name}/{namespace}\" correctly checked"));
    let TemplateRef { name, namespace, .. } = &first.client;
    ends.local.done(&format!("Gateway client template \"{name}/{namespace}\" correctly checked"));
}

/// The name of the Configuration of the other cluster: one that was written by hand may have another name.
pub(super) async fn configuration_name(end: &PeeringSide<'_>) -> Result<String, CommandError> {
    let found = end.list::<Configuration>().await?;
    let is_default = |found: &&Configuration| found.name_any() == end.other;
    let chosen = found.iter().find(is_default).or_else(|| found.first());

    Ok(chosen.map_or_else(|| end.other.clone(), Configuration::name_any))
}

/// Waits until all prefixes of a Configuration have a local prefix.
pub(super) async fn until_configured(
    end: &PeeringSide<'_>,
    name: &str,
) -> Result<(), CommandError> {
    let namespace = &end.namespace;
    let awaited = WaitTarget {
        what: format!("Configuration {name} to be applied"),
        look_at: format!("kubectl get configuration {name} -n {namespace} -o yaml"),
    };
    let selection = super::wait::named(name);

    until(end, end.api::<Configuration>(), selection, &awaited, |found| {
        Ok(found.first().map_or_else(
            || Progress::NotYet(format!("no Configuration {name} in namespace {namespace}")),
            |found| configured(found),
        ))
    })
    .await
}

/// Whether all prefixes have a local prefix, as reported by releases from 1.2 on and by older ones.
pub(super) fn configured(configuration: &Configuration) -> Progress<()> {
    let generation = configuration.metadata.generation;
    let conditions = configuration.status.as_ref().map(|status| status.conditions.as_slice());
    let condition =
        conditions.into_iter().flatten().find(|condition| condition.type_ == CONFIGURED_CONDITION);

    let label = configuration.labels().get(CONFIGURED);
    let is_labelled = label.is_some_and(|value| value == TRUE);

    match condition {
        // The label does not follow later changes of the spec.
        None if is_labelled => Progress::Done(()),
        None => Progress::NotYet(format!(
            "no condition {CONFIGURED_CONDITION} in it: is the operator of this cluster running?"
        )),
        Some(condition)
            if condition.observed_generation.is_some_and(|of| Some(of) < generation) =>
        {
            Progress::NotYet(format!("a condition {CONFIGURED_CONDITION} of a former generation"))
        }
        Some(condition) if condition.status == "True" => Progress::Done(()),
        Some(condition) => Progress::NotYet(format!(
            "{CONFIGURED_CONDITION} {}, {}: {}",
            condition.status, condition.reason, condition.message
        )),
    }
}
