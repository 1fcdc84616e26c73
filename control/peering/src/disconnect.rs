//! Reverts `network connect`: `network disconnect` and `network reset`.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use strait_api::labels::COMPONENT;
use strait_api::{
    Configuration, Connection, GatewayClient, GatewayServer, Network, WgGatewayClient,
    WgGatewayServer,
};

use super::context::{PeeringSide, PeeringSides};
use super::wait::{Progress, WaitTarget, named, until};
use super::write::{delete_all, held_by, until_gone};
use super::{CommandError, Pair, Session};

/// Deletes all gateways of the peering in both clusters, with the objects that they own.
///
/// # Errors
///
/// [`CommandError`]. Another call deletes the rest.
pub async fn disconnect(
    pair: &Pair,
    waits: bool,
    session: Session<'_>,
) -> Result<(), CommandError> {
    let ends = connect_both(pair, session).await?;

    delete_gateways(&ends, waits).await
}

/// [`disconnect`], and deletes the prefixes of each other in both clusters. If `waits`, until the operators have
/// released them: an operator that is removed earlier leaves Networks that its finalizer holds.
///
/// # Errors
///
/// [`CommandError`]. Another call deletes the rest.
pub async fn reset(pair: &Pair, waits: bool, session: Session<'_>) -> Result<(), CommandError> {
    let ends = connect_both(pair, session).await?;
    delete_gateways(&ends, waits).await?;
    for end in ends.both() {
        delete::<Configuration>(end, "Network configuration", waits).await?;
    }
    if waits {
        for end in ends.both() {
            until_prefixes_released(end).await?;
        }
    }

    Ok(())
}

async fn connect_both<'a>(
    pair: &Pair,
    session: Session<'a>,
) -> Result<PeeringSides<'a>, CommandError> {
    let ends = PeeringSides::connect_both(pair, session).await?;
    for end in ends.both() {
        end.done("Cluster identity correctly retrieved");
    }

    Ok(ends)
}

async fn delete_gateways(ends: &PeeringSides<'_>, waits: bool) -> Result<(), CommandError> {
    for end in ends.both() {
        delete_gateway::<GatewayClient, WgGatewayClient>(end, "Gateway client", waits).await?;
    }
    for end in ends.both() {
        delete_gateway::<GatewayServer, WgGatewayServer>(end, "Gateway server", waits).await?;
    }
    if waits {
        for end in ends.both() {
            // The Connection is the last object of a gateway.
            let selection = watcher::Config::default().labels(&end.label_selector());
            until_gone::<Connection>(end, selection).await?;
        }
    }

    Ok(())
}

/// [`delete`] of the gateways of one kind: `K`s, from which a template makes `C`s. A gateway is gone when none of its pods runs
/// any more.
async fn delete_gateway<K, C>(
    end: &PeeringSide<'_>,
    what: &str,
    waits: bool,
) -> Result<(), CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
    C: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    C: Clone + Debug + DeserializeOwned + Send + 'static,
{
    if !waits {
        return delete::<K>(end, what, waits).await;
    }
    let mut names: BTreeSet<_> = end.list::<K>().await?.iter().map(K::name_any).collect();
    // Without an operator a former one may still have its finalizer.
    let made = made::<C>(end).await?;
    names.extend(made.iter().flatten().map(C::name_any));
    let was_there = delete_all::<K>(end).await?;
    let selection = || watcher::Config::default().labels(&end.label_selector());
    until_gone::<K>(end, selection()).await?;
    if made.is_some() {
        until_released::<C>(end, selection()).await?;
    }
    for name in &names {
        until_gone::<Deployment>(end, named(&format!("gw-{name}"))).await?;
        let (label, value) = COMPONENT;
        let pods = format!("{label}={value},app.kubernetes.io/name={name}");
        until_gone::<Pod>(end, watcher::Config::default().labels(&pods)).await?;
    }
    end.done(&deleted(what, was_there));

    Ok(())
}

/// Waits until the Networks of a deleted Configuration are gone: the garbage collector deletes them after their owner.
async fn until_prefixes_released(end: &PeeringSide<'_>) -> Result<(), CommandError> {
    if made::<Network>(end).await?.is_some() {
        let selection = watcher::Config::default().labels(&end.label_selector());
        until_gone::<Network>(end, selection).await?;
    }

    Ok(())
}

/// The children of the peering; `None` where they may not be listed, or where the kind does not exist.
async fn made<C>(end: &PeeringSide<'_>) -> Result<Option<Vec<C>>, CommandError>
where
    C: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    C: Clone + Debug + DeserializeOwned,
{
    let parameters = ListParams::default().labels(&end.label_selector());
    let doing = format!("listing {} in namespace {}", C::plural(&()), end.namespace);
    let api = end.api::<C>();
    let found = end.ask(&doing, async || match api.list(&parameters).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        found => found.map(|list| Some(list.items)),
    });

    Ok(found.await?.flatten())
}

/// Waits until the operator has removed its finalizer from a child, and the child is gone.
async fn until_released<C>(
    end: &PeeringSide<'_>,
    selection: watcher::Config,
) -> Result<(), CommandError>
where
    C: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    C: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (kind, namespace) = (C::kind(&()), &end.namespace);
    let awaited = WaitTarget {
        what: format!("{kind} to be deleted"),
        look_at: format!("kubectl get {},deployments,pods -n {namespace}", C::plural(&())),
    };

    until(end, end.api::<C>(), selection, &awaited, |left| {
        Ok(left.first().map_or(Progress::Done(()), |first| {
            let name = first.name_any();
            Progress::NotYet(format!(
                "{kind} {name}{}, and with it stays Deployment gw-{name}, whose pods run on: is the operator of this cluster running?",
                held_by(*first)
            ))
        }))
    })
    .await
}

async fn delete<K>(end: &PeeringSide<'_>, what: &str, waits: bool) -> Result<(), CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let was_there = delete_all::<K>(end).await?;
    if waits && was_there {
        let selection = watcher::Config::default().labels(&end.label_selector());
        until_gone::<K>(end, selection).await?;
    }
    end.done(&deleted(what, was_there));

    Ok(())
}

fn deleted(what: &str, was_there: bool) -> String {
    format!("{what} {} deleted", if was_there { "correctly" } else { "already" })
}
