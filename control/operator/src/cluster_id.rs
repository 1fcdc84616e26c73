//! The id of this cluster, where the installation does not set one.

use backon::BackoffBuilder as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use strait_api::{Configuration, GatewayClient, GatewayServer};
use strait_kube::repeated_failure::RepeatedFailure;
use strait_kube::watch::backoff;
use tokio::time::sleep;
use tracing::{info, warn};

/// The label of the `ConfigMap` with the id of the cluster, and its names where the label is missing.
pub(crate) const CLUSTER_ID_LABEL: (&str, &str) = ("app.kubernetes.io/name", "clusterid-configmap");
pub(crate) const CLUSTER_ID_NAMES: [&str; 2] = ["liqo-clusterid-configmap", "clusterid-configmap"];

/// Its key.
const CLUSTER_ID_KEY: &str = "CLUSTER_ID";

/// Marks a generated id: one that was set by a user takes precedence.
const GENERATED: &str = "strait.io/generated";

/// The namespace whose UID is unique to this cluster.
pub const SYSTEM_NAMESPACE: &str = "kube-system";

/// The cluster id of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The id.
    pub id: String,
    /// Whether it was generated.
    pub is_generated: bool,
}

/// Why there is no cluster id.
#[derive(Debug, thiserror::Error)]
enum NoId {
    /// The `ConfigMap` exists, but has no id.
    #[error(
        "ConfigMap {0} has no {CLUSTER_ID_KEY}: delete it, and one with a generated id is made, or write the id of this cluster into it"
    )]
    Empty(&'static str),
    /// The API server failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

/// The cluster id of the installation in `namespace`.
///
/// # Errors
///
/// The error of the API server.
pub async fn written(client: &Client, namespace: &str) -> kube::Result<Option<Written>> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let (label, value) = CLUSTER_ID_LABEL;
    let marked = api.list(&ListParams::default().labels(&format!("{label}={value}"))).await?;
    if let Some(id) = chosen(marked) {
        return Ok(Some(id));
    }
    for name in CLUSTER_ID_NAMES {
        if let Some(id) = api.get_opt(name).await?.and_then(id) {
            return Ok(Some(id));
        }
    }

    Ok(None)
}

/// The effective id: the first one that a user has set, or else the first generated one.
fn chosen(maps: impl IntoIterator<Item = ConfigMap>) -> Option<Written> {
    maps.into_iter().filter_map(id).min_by_key(|written| written.is_generated)
}

fn id(map: ConfigMap) -> Option<Written> {
    let is_generated = map.annotations().contains_key(GENERATED);
    let id = map.data?.remove(CLUSTER_ID_KEY)?.trim().to_owned();

    (!id.is_empty()).then_some(Written { id, is_generated })
}

/// Ensures that the installation in `namespace` has a cluster id: the default is the UID of `kube-system`, which never
/// changes and is unique.
///
/// Peers know a cluster by its id, so none is generated while there are peerings.
pub async fn ensure(client: Client, namespace: String) {
    let mut failure = RepeatedFailure::about("set the id of this cluster");
    for pause in backoff().build() {
        let outcome = make(&client, &namespace).await;
        failure.log(&outcome);
        if outcome.is_ok() {
            return;
        }
        sleep(pause).await;
    }
}

async fn make(client: &Client, namespace: &str) -> Result<(), NoId> {
    if written(client, namespace).await?.is_some() {
        return Ok(());
    }
    let [name, _] = CLUSTER_ID_NAMES;
    let is_peered = is_there::<Configuration>(client).await?
        || is_there::<GatewayServer>(client).await?
        || is_there::<GatewayClient>(client).await?;
    if is_peered {
        warn!(
            "there are peerings, and the id by which they know this cluster is not set: `kubectl --namespace {namespace} create configmap {name} --from-literal={CLUSTER_ID_KEY}=ID`"
        );
        return Ok(());
    }

    let system = Api::<Namespace>::all(client.clone()).get(SYSTEM_NAMESPACE).await?;
    let id = system.uid().unwrap_or_default();
    let (label, value) = CLUSTER_ID_LABEL;
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(label.to_owned(), value.to_owned())].into()),
            annotations: Some([(GENERATED.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some([(CLUSTER_ID_KEY.to_owned(), id.clone())].into()),
        // Immutable in the API: to change the id, the object is deleted and created again.
        immutable: Some(true),
        ..ConfigMap::default()
    };
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    match api.create(&PostParams::default(), &map).await {
        // Another operator has created it meanwhile, or it has no id.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            written(client, namespace).await?.map(|_| ()).ok_or(NoId::Empty(name))
        }
        made => {
            made?;
            info!(id, "this cluster had no id: it has that of {SYSTEM_NAMESPACE}");
            Ok(())
        }
    }
}

/// Whether there is any object of this kind.
async fn is_there<K>(client: &Client) -> kube::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let some = Api::<K>::all(client.clone()).list_metadata(&ListParams::default().limit(1)).await?;

    Ok(!some.items.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_id_takes_precedence() {
        let map = |id: &str, is_generated: bool| {
            let generated = [(GENERATED.to_owned(), "true".to_owned())];
            ConfigMap {
                metadata: ObjectMeta {
                    annotations: is_generated.then(|| generated.into()),
                    ..ObjectMeta::default()
                },
                data: Some([(CLUSTER_ID_KEY.to_owned(), id.to_owned())].into()),
                ..ConfigMap::default()
            }
        };
        let id = |maps: Vec<ConfigMap>| chosen(maps).map(|written| written.id);

        assert_eq!(id(vec![map("uid", true), map("rome", false)]).as_deref(), Some("rome"));
        assert_eq!(id(vec![map("rome", false), map("uid", true)]).as_deref(), Some("rome"));
        assert_eq!(id(vec![map("rome", false), map("milan", false)]).as_deref(), Some("rome"));
        assert_eq!(id(vec![map(" ", false), map("uid", true)]).as_deref(), Some("uid"));
        assert_eq!(id(vec![map("", false), ConfigMap::default()]), None);
    }
}
