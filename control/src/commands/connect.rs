//! Joining two clusters: `network init` and `network connect`.
//!
//! ```text
//!        local (client)                                  remote (server)
//!   1    own prefixes read                               own prefixes read
//!   2    Configuration of the other one                  Configuration of the other one
//!   3    waits: prefixes have their names                waits: prefixes have their names
//!   4    template checked                                template checked
//!   7                                                    GatewayServer
//!   8,9                                                  waits: a pod is ready, the Service has an address
//!   10   GatewayClient; waits: a pod is ready
//!   11   PublicKey of the other one                      PublicKey of the other one
//!   12   waits: Connection is established                waits: Connection is established
//! ```
//!
//! Step 5 says that all prefixes are known, step 6 ends here if the clusters are joined the other way
//! round. What step 4 finds is known before step 2 writes.

mod gateways;
mod links;
mod rollout;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;

use super::contact::Ends;
use super::forge::{self, Exposure, TemplateRef};
use super::preflight::{self, TypedTemplate};
use super::wait::{Awaited, Progress, until};
use super::write::apply;
use super::{CommandError, Pair, Prefixes, Session, TemplateType};
use crate::api::{Configuration, GatewayClient, GatewayServer};
use crate::identity::Mode;
use crate::ipam::{CONFIGURED, CONFIGURED_CONDITION, TRUE};

use super::contact::End;

pub(super) use gateways::{endpoint, gateway_name, is_server_ready, ready, until_addressed};
pub(super) use links::established;
pub(super) use rollout::{Asked, until_rolled_out};

/// What is wanted of both gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Of the template of the server, its name and its namespace.
    pub server_template: (TemplateType, String, Option<String>),
    /// Of the template of the client, its name and its namespace.
    pub client_template: (TemplateType, String, Option<String>),
    /// How the server is exposed.
    pub exposure: Exposure,
    /// Where the client connects to, if not to where the server says that it is.
    pub client_address: Option<String>,
    /// The port for that.
    pub client_port: Option<u16>,
    /// Of the tunnel, in bytes.
    pub mtu: u16,
    /// Whether each gateway is given the public key of the other one.
    pub shares_keys: bool,
    /// Whether templates and ports are looked at before anything is written.
    pub is_validated: bool,
    /// Whether the verb ends only when the gateways reach each other.
    pub waits: bool,
}

/// What was found before anything was written.
pub(super) struct Found {
    pub(super) local: Prefixes,
    pub(super) remote: Prefixes,
    pub(super) server: TemplateRef,
    pub(super) client: TemplateRef,
}

/// Tells each cluster the prefixes of the other one, steps 1 to 5.
///
/// # Errors
///
/// [`CommandError`]; if it is about what was typed, nothing was written.
pub async fn initialize(
    pair: &Pair,
    wanted: &Connect,
    session: Session<'_>,
) -> Result<(), CommandError> {
    let ends = Ends::meet(pair, session).await?;
    let found = look(&ends, wanted).await?;

    exchange_prefixes(&ends, wanted, &found).await
}

/// Joins two clusters, all steps. Where it was interrupted it goes on when it is called again.
///
/// # Errors
///
/// [`CommandError`]; if it is about what was typed, nothing was written.
pub async fn connect(
    pair: &Pair,
    wanted: &Connect,
    session: Session<'_>,
) -> Result<(), CommandError> {
    let ends = Ends::meet(pair, session).await?;
    let Ends { local, remote } = &ends;
    let found = look(&ends, wanted).await?;
    exchange_prefixes(&ends, wanted, &found).await?;

    let is_reversed = !local.list::<GatewayServer>().await?.is_empty()
        || !remote.list::<GatewayClient>().await?.is_empty();
    if is_reversed {
        local.session.report.warn(
            local.side,
            "the clusters are joined already, with the server here: nothing else is done",
        );
        return Ok(());
    }
    let server = gateways::server(remote, wanted, &found.server).await?;
    let client = gateways::client(local, wanted, &found.client, &server).await?;
    if wanted.shares_keys {
        links::exchange_keys(&ends, &client, &server).await?;
    }
    if wanted.waits {
        links::until_connected(&ends, &client, &server).await?;
    }

    Ok(())
}

/// Step 1, and what can be wrong in step 4.
pub(super) async fn look(ends: &Ends<'_>, wanted: &Connect) -> Result<Found, CommandError> {
    let Ends { local, remote } = ends;
    let mut prefixes = Vec::with_capacity(2);
    for end in ends.both() {
        prefixes.push(end.prefixes().await?);
        end.done("Network configuration correctly retrieved");
    }
    let is_checked = wanted.is_validated;
    let typed = |mode, template| {
        let (type_, name, namespace): &(TemplateType, String, Option<String>) = template;
        TypedTemplate { mode, type_, name, namespace: namespace.as_deref() }
    };
    let of_server = typed(Mode::Server, &wanted.server_template);
    let of_client = typed(Mode::Client, &wanted.client_template);
    let (server, spec) = preflight::template(remote, &of_server, is_checked).await?;
    let (client, _) = preflight::template(local, &of_client, is_checked).await?;
    if let Some(spec) = spec {
        preflight::check_fields(remote.side, &server.name, &spec, &wanted.exposure)?;
    }
    if is_checked && !has_port(remote, &wanted.exposure).await? {
        preflight::node_port(remote, &wanted.exposure).await?;
    }
    let remote = prefixes.pop().unwrap_or_default();
    let local = prefixes.pop().unwrap_or_default();

    Ok(Found { local, remote, server, client })
}

/// Whether the gateway has what it wants already: then nobody else could have it.
async fn has_port(end: &End<'_>, exposure: &Exposure) -> Result<bool, CommandError> {
    let service = service(end, &gateway_name(&end.list::<GatewayServer>().await?, end)).await?;

    Ok(service.is_some_and(|service| exposure.difference(&service).is_none()))
}

/// The Service of the gateway `name`.
pub(super) async fn service(end: &End<'_>, name: &str) -> Result<Option<Service>, CommandError> {
    let (api, name) = (end.api::<Service>(), format!("gw-{name}"));
    let doing = format!("reading Service {name} in namespace {}", end.namespace);

    end.call(&doing, async || api.get_opt(&name).await).await
}

/// Steps 2 to 5.
async fn exchange_prefixes(
    ends: &Ends<'_>,
    wanted: &Connect,
    found: &Found,
) -> Result<(), CommandError> {
    let Ends { local, remote } = ends;
    for (end, prefixes) in [(local, &found.remote), (remote, &found.local)] {
        end.make_namespace().await?;
        let name = configuration_name(end).await?;
        let wanted = forge::configuration(&name, Some(&end.namespace), &end.other, prefixes);
        apply(end, &wanted).await?;
        end.done("Network configuration correctly set up");
    }
    for end in ends.both() {
        until_configured(end, &configuration_name(end).await?).await?;
        end.done("Configuration applied successfully");
    }
    if wanted.is_validated {
        let TemplateRef { name, namespace, .. } = &found.server;
        remote.done(&format!("Gateway server template \"{name}/{namespace}\" correctly checked"));
        let TemplateRef { name, namespace, .. } = &found.client;
        local.done(&format!("Gateway client template \"{name}/{namespace}\" correctly checked"));
    }
    for end in ends.both() {
        end.done("Network correctly initialized");
    }

    Ok(())
}

/// That of the Configuration of the other cluster: whoever wrote one by hand may have named it otherwise.
pub(super) async fn configuration_name(end: &End<'_>) -> Result<String, CommandError> {
    let found = end.list::<Configuration>().await?;
    let is_default = |found: &&Configuration| found.name_any() == end.other;
    let chosen = found.iter().find(is_default).or_else(|| found.first());

    Ok(chosen.map_or_else(|| end.other.clone(), Configuration::name_any))
}

/// Waits until all prefixes of a Configuration have their names.
pub(super) async fn until_configured(end: &End<'_>, name: &str) -> Result<(), CommandError> {
    let namespace = &end.namespace;
    let awaited = Awaited {
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

/// Whether all prefixes have their names, as releases from 1.2 on say it and those before.
pub(super) fn configured(configuration: &Configuration) -> Progress<()> {
    let generation = configuration.metadata.generation;
    let conditions = configuration.status.as_ref().map(|status| status.conditions.as_slice());
    let condition =
        conditions.into_iter().flatten().find(|condition| condition.type_ == CONFIGURED_CONDITION);

    let label = configuration.labels().get(CONFIGURED);
    let is_labelled = label.is_some_and(|value| value == TRUE);

    match condition {
        // The label says nothing of a spec that has changed since.
        None if is_labelled => Progress::Done(()),
        None => Progress::NotYet(format!(
            "no condition {CONFIGURED_CONDITION} in it: is the operator of this cluster running?"
        )),
        Some(condition)
            if condition.observed_generation.is_some_and(|of| Some(of) < generation) =>
        {
            Progress::NotYet(format!("a condition {CONFIGURED_CONDITION} of what it was before"))
        }
        Some(condition) if condition.status == "True" => Progress::Done(()),
        Some(condition) => Progress::NotYet(format!(
            "{CONFIGURED_CONDITION} {}, {}: {}",
            condition.status, condition.reason, condition.message
        )),
    }
}
