//! What this cluster is called, where the installation does not say so.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::api::{Configuration, GatewayClient, GatewayServer};
use crate::complaint::Complaint;

/// The label of the `ConfigMap` with the id of the cluster, and its names where the label is missing.
pub(crate) const CLUSTER_ID_LABEL: (&str, &str) = ("app.kubernetes.io/name", "clusterid-configmap");
pub(crate) const CLUSTER_ID_NAMES: [&str; 2] = ["liqo-clusterid-configmap", "clusterid-configmap"];

/// Its key.
const CLUSTER_ID_KEY: &str = "CLUSTER_ID";

/// Marks an id that was made up, so that one that is typed counts for more.
const GENERATED: &str = "strait.io/generated";

/// The namespace whose UID no other cluster has.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";

/// Between attempts.
const RETRY: Duration = Duration::from_secs(2);

/// Which cluster an installation says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) id: String,
    /// Whether it was made up.
    pub(crate) is_generated: bool,
}

/// What the installation in `namespace` says of which cluster this is.
pub(crate) async fn written(client: &Client, namespace: &str) -> kube::Result<Option<Written>> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let id = |map: ConfigMap| {
        let is_generated = map.annotations().contains_key(GENERATED);
        let id = map.data?.remove(CLUSTER_ID_KEY)?.trim().to_owned();
        (!id.is_empty()).then_some(Written { id, is_generated })
    };
    let (label, value) = CLUSTER_ID_LABEL;
    let marked = api.list(&ListParams::default().labels(&format!("{label}={value}"))).await?;
    if let Some(id) = marked.into_iter().find_map(id) {
        return Ok(Some(id));
    }
    for name in CLUSTER_ID_NAMES {
        if let Some(id) = api.get_opt(name).await?.and_then(id) {
            return Ok(Some(id));
        }
    }

    Ok(None)
}

/// Has the installation in `namespace` say which cluster this is: where it does not, that is the UID of
/// `kube-system`, which stays the same and which no other cluster has.
///
/// Peers know a cluster by its id, so none is made up while there are peerings.
pub async fn ensure(client: Client, namespace: String) {
    let mut complaint = Complaint::about("say which cluster this is");
    loop {
        let outcome = make(&client, &namespace).await;
        complaint.say(&outcome);
        if outcome.is_ok() {
            return;
        }
        sleep(RETRY).await;
    }
}

async fn make(client: &Client, namespace: &str) -> kube::Result<()> {
    if written(client, namespace).await?.is_some() {
        return Ok(());
    }
    let [name, _] = CLUSTER_ID_NAMES;
    let is_peered = is_there::<Configuration>(client).await?
        || is_there::<GatewayServer>(client).await?
        || is_there::<GatewayClient>(client).await?;
    if is_peered {
        warn!(
            "there are peerings, and nothing says what they call this cluster: `kubectl --namespace {namespace} create configmap {name} --from-literal={CLUSTER_ID_KEY}=ID`"
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
        // The API server refuses to change it. To call the cluster otherwise it is deleted, and made again.
        immutable: Some(true),
        ..ConfigMap::default()
    };
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    match api.create(&PostParams::default(), &map).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        made => {
            made.map(|_| info!(id, "this cluster had no id: it has that of {SYSTEM_NAMESPACE}"))
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
