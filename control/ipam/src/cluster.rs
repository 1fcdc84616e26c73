//! The calls of a round to the cluster, and their implementation on an API server.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams,
    PostParams, Preconditions,
};
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::{Configuration, IP, Network};
use strait_plan::conditions::shortened;
use strait_plan::objects::Listed;
use tokio::time::timeout;

use super::object::{Denial, Kind, Target, Write};

/// The `ConfigMap` with the journal.
pub const JOURNAL: &str = "strait-ipam";

/// Its key with the allocations. Without it the journal is not initialized yet.
pub const ALLOCATIONS: &str = "allocations";

/// The field manager, as in `managedFields` and Events.
const FIELD_MANAGER: &str = "strait";

/// The component that reports problems.
const COMPONENT: &str = "strait-operator";

/// Timeout of one call.
const CALL: Duration = Duration::from_secs(10);

/// The journal as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// Unique for each journal ever created.
    pub(super) uid: String,
    /// Unique for each write of the journal.
    pub(super) version: String,
    /// `None`: it was created and is not initialized.
    pub(super) text: Option<String>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// Another writer was faster.
    #[error("it has changed meanwhile")]
    Conflict,
    /// There is no such object, or another one of its name.
    #[error("it is gone")]
    Gone,
    /// The API server rejects the call, and would again.
    #[error("{0}")]
    Refused(String),
    /// The call may or may not have been executed. Another one may succeed.
    #[error("{0}")]
    Away(String),
}

/// The calls of a round. Each is executed at most once; a lost answer is [`Failure::Away`].
pub(super) trait Cluster: Sync {
    /// The journal, if there is one.
    fn journal(&self) -> impl Future<Output = Result<Option<Stored>, Failure>> + Send;
    /// Creates a journal that is not initialized.
    fn create_journal(&self) -> impl Future<Output = Result<Stored, Failure>> + Send;
    /// Writes the journal, if it is still the `former` one.
    fn replace_journal(
        &self,
        former: &Stored,
        text: String,
    ) -> impl Future<Output = Result<Stored, Failure>> + Send;
    /// All networks and addresses as they are now, not from a cache.
    fn networks(&self) -> impl Future<Output = Result<Vec<Listed<Network>>, Failure>> + Send;
    /// As [`Self::networks`].
    fn ips(&self) -> impl Future<Output = Result<Vec<Listed<IP>>, Failure>> + Send;
    /// The UID of the object of this name, as it is now.
    fn uid(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send;
    /// Writes to an object. If it has changed since it was read, that is a [`Failure::Conflict`].
    fn write(&self, write: &Write) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Reports a denial.
    fn report(&self, denial: &Denial) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// A cluster behind an API server.
pub(super) struct KubeCluster {
    client: Client,
    namespace: String,
    recorder: Recorder,
}

impl KubeCluster {
    /// With the journal in `namespace`. Sends no request yet.
    pub(super) fn new(client: Client, namespace: String) -> Self {
        let recorder = Recorder::new(client.clone(), Reporter::from(COMPONENT));

        Self { client, namespace, recorder }
    }

    fn journals(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn objects(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource(kind))
    }

    async fn list<K>(&self) -> Result<Vec<Listed<K>>, Failure>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned,
    {
        let api: Api<DeserializeGuard<K>> = Api::all(self.client.clone());
        // Without a resource version the API server reads from its storage, not from its cache.
        let list = call(api.list(&ListParams::default())).await?;

        Ok(list.items.into_iter().map(Into::into).collect())
    }
}

impl Cluster for KubeCluster {
    async fn journal(&self) -> Result<Option<Stored>, Failure> {
        let found = call(self.journals().get_opt(JOURNAL)).await?;

        found.map(stored).transpose()
    }

    async fn create_journal(&self) -> Result<Stored, Failure> {
        let metadata = ObjectMeta { name: Some(JOURNAL.to_owned()), ..ObjectMeta::default() };
        let journal = ConfigMap { metadata, ..ConfigMap::default() };

        stored(call(self.journals().create(&parameters(), &journal)).await?)
    }

    async fn replace_journal(&self, former: &Stored, text: String) -> Result<Stored, Failure> {
        let metadata = ObjectMeta {
            name: Some(JOURNAL.to_owned()),
            uid: Some(former.uid.clone()),
            resource_version: Some(former.version.clone()),
            ..ObjectMeta::default()
        };
        let data = Some([(ALLOCATIONS.to_owned(), text)].into());
        let journal = ConfigMap { metadata, data, ..ConfigMap::default() };

        stored(call(self.journals().replace(JOURNAL, &parameters(), &journal)).await?)
    }

    async fn networks(&self) -> Result<Vec<Listed<Network>>, Failure> {
        self.list().await
    }

    async fn ips(&self) -> Result<Vec<Listed<IP>>, Failure> {
        self.list().await
    }

    async fn uid(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, Failure> {
        let found = call(self.objects(kind, namespace).get_metadata_opt(name)).await?;

        Ok(found.and_then(|found| found.uid()))
    }

    async fn write(&self, write: &Write) -> Result<(), Failure> {
        match write {
            Write::Create(network) => {
                let namespace = network.namespace().unwrap_or_default();
                let api: Api<Network> = Api::namespaced(self.client.clone(), &namespace);
                call(api.create(&parameters(), network)).await.map(|_| ())
            }
            Write::Delete(target) => {
                let preconditions = Preconditions {
                    uid: Some(target.uid.clone()),
                    resource_version: Some(target.version.clone()),
                };
                let parameters = DeleteParams::default().preconditions(preconditions);
                let api = self.objects(target.kind, &target.namespace);
                call(api.delete(&target.name, &parameters)).await.map(|_| ())
            }
            Write::Main(target, patch) => {
                let mut patch = patch.clone();
                pin(&mut patch, target);
                let api = self.objects(target.kind, &target.namespace);
                call(api.patch(&target.name, &merging(), &Patch::Merge(&patch))).await.map(|_| ())
            }
            Write::Status(target, status) => self.write_status(target, status).await,
        }
    }

    async fn report(&self, denial: &Denial) -> Result<(), Failure> {
        let event = Event {
            type_: EventType::Warning,
            reason: denial.reason.to_owned(),
            note: Some(shortened(&denial.message)),
            action: "Allocate".to_owned(),
            secondary: None,
        };

        call(self.recorder.publish(&event, &denial.object)).await
    }
}

impl KubeCluster {
    async fn write_status(&self, target: &Target, status: &Value) -> Result<(), Failure> {
        let mut patch = json!({"status": status});
        pin(&mut patch, target);
        let api = self.objects(target.kind, &target.namespace);
        let (parameters, patch) = match target.kind {
            Kind::Network | Kind::Ip => {
                let resource = resource(target.kind);
                if let Some(patch) = patch.as_object_mut() {
                    patch.insert("apiVersion".to_owned(), json!(resource.api_version));
                    patch.insert("kind".to_owned(), json!(resource.kind));
                }
                (PatchParams::apply(FIELD_MANAGER).force(), Patch::Apply(patch))
            }
            // The list of conditions has several writers, and server-side apply would own all of it.
            Kind::Configuration => (merging(), Patch::Merge(patch)),
        };

        call(api.patch_status(&target.name, &parameters, &patch)).await.map(|_| ())
    }
}

/// Restricts `patch` to this object in this version.
fn pin(patch: &mut Value, target: &Target) {
    let Some(patch) = patch.as_object_mut() else { return };
    let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("uid".to_owned(), json!(target.uid));
        metadata.insert("resourceVersion".to_owned(), json!(target.version));
    }
}

fn parameters() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn merging() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Network => ApiResource::erase::<Network>(&()),
        Kind::Ip => ApiResource::erase::<IP>(&()),
        Kind::Configuration => ApiResource::erase::<Configuration>(&()),
    }
}

fn stored(journal: ConfigMap) -> Result<Stored, Failure> {
    let ConfigMap { metadata, data, .. } = journal;
    let (Some(uid), Some(version)) = (metadata.uid, metadata.resource_version) else {
        return Err(Failure::Away(format!("{JOURNAL} was answered without its version")));
    };

    Ok(Stored { uid, version, text: data.and_then(|mut data| data.remove(ALLOCATIONS)) })
}

async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let error = match timeout(CALL, call).await {
        Err(_) => return Err(Failure::Away("the API server does not answer".to_owned())),
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
    };
    let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };

    Err(match code {
        404 | 410 => Failure::Gone,
        409 => Failure::Conflict,
        400 | 403 | 405 | 413 | 415 | 422 => Failure::Refused(error.to_string()),
        _ => Failure::Away(error.to_string()),
    })
}
