//! Taking apart what `network connect` has made: `network disconnect` and `network reset`.

use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use super::contact::{End, Ends};
use super::write::{delete_all, until_gone};
use super::{CommandError, Pair, Session};
use crate::api::{Configuration, Connection, GatewayClient, GatewayServer};

/// Deletes both gateways. What belongs to them goes with them.
///
/// # Errors
///
/// [`CommandError`]. What is left can be deleted by calling it again.
pub async fn disconnect(
    pair: &Pair,
    waits: bool,
    session: Session<'_>,
) -> Result<(), CommandError> {
    let ends = meet(pair, session).await?;

    delete_gateways(&ends, waits).await
}

/// [`disconnect`], and both clusters forget the prefixes of each other.
///
/// # Errors
///
/// [`CommandError`]. What is left can be deleted by calling it again.
pub async fn reset(pair: &Pair, waits: bool, session: Session<'_>) -> Result<(), CommandError> {
    let ends = meet(pair, session).await?;
    delete_gateways(&ends, waits).await?;
    for end in ends.both() {
        delete::<Configuration>(end, "Network configuration", waits).await?;
    }

    Ok(())
}

async fn meet<'a>(pair: &Pair, session: Session<'a>) -> Result<Ends<'a>, CommandError> {
    let ends = Ends::meet(pair, session).await?;
    for end in ends.both() {
        end.done("Cluster identity correctly retrieved");
    }

    Ok(ends)
}

async fn delete_gateways(ends: &Ends<'_>, waits: bool) -> Result<(), CommandError> {
    for end in ends.both() {
        delete::<GatewayClient>(end, "Gateway client", waits).await?;
    }
    for end in ends.both() {
        delete::<GatewayServer>(end, "Gateway server", waits).await?;
    }
    if waits {
        for end in ends.both() {
            // The last thing that a gateway says of itself.
            let selection = watcher::Config::default().labels(&end.label_selector());
            until_gone::<Connection>(end, selection).await?;
        }
    }

    Ok(())
}

async fn delete<K>(end: &End<'_>, what: &str, waits: bool) -> Result<(), CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let was_there = delete_all::<K>(end).await?;
    if waits && was_there {
        let selection = watcher::Config::default().labels(&end.label_selector());
        until_gone::<K>(end, selection).await?;
    }
    end.done(&format!("{what} {} deleted", if was_there { "correctly" } else { "already" }));

    Ok(())
}
