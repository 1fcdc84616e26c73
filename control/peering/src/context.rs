//! The clusters of a verb: their ids, and the namespaces to work in.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use strait_api::Network;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_operator::cluster_id::{self, SYSTEM_NAMESPACE, Written};
use tokio::time::{Instant, sleep, timeout_at};

use super::api_error::{api_error_text, if_allowed, is_forbidden, is_permanent, pauses, remedy};
use super::{CommandError, Prefixes, Session, Side, TimeoutError, prefixes};

/// The label of the namespace of a peering.
const TENANT_NAMESPACE: &str = "liqo.io/tenant-namespace";

/// The longest id: the name of a namespace has at most 63 bytes.
const ID_BYTES_MAX: usize = 63 - "liqo-tenant-".len();

/// A cluster as the user named it.
#[derive(Clone)]
pub struct ClusterContext {
    /// The client of its API server.
    pub client: Client,
    /// Which of the clusters it is.
    pub side: Side,
    /// Its id, where the user names it; default: as read from the cluster.
    pub cluster_id: Option<String>,
    /// The namespace of the objects; default: that of the verb.
    pub namespace: Option<String>,
    /// The namespace in which Liqo or Strait is installed.
    pub liqo_namespace: String,
    /// Labels and annotations for every object that is created.
    pub marks: Marks,
}

/// Labels and annotations for every object that a verb creates. Those of the verb itself take precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Labels, to select the objects by.
    pub labels: BTreeMap<String, String>,
    /// Annotations, for readers of the objects.
    pub annotations: BTreeMap<String, String>,
}

impl Marks {
    /// Adds them to `object`.
    pub(super) fn add_to<K: Resource>(&self, object: &mut K) {
        for (key, value) in &self.labels {
            object.labels_mut().entry(key.clone()).or_insert_with(|| value.clone());
        }
        for (key, value) in &self.annotations {
            object.annotations_mut().entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// Two clusters to be joined.
#[derive(Clone)]
pub struct Pair {
    /// The cluster of the gateway client.
    pub local: ClusterContext,
    /// The cluster of the gateway server.
    pub remote: ClusterContext,
}

/// The namespace of a peering with the cluster `id`, by default.
#[must_use]
pub(crate) fn tenant_namespace(id: &str) -> String {
    format!("liqo-tenant-{id}")
}

/// One cluster of a peering, as a verb sees it.
pub(super) struct PeeringSide<'a> {
    pub(super) client: Client,
    pub(super) side: Side,
    /// The id of the other cluster.
    pub(super) other: String,
    pub(super) namespace: String,
    pub(super) liqo_namespace: String,
    pub(super) marks: Marks,
    pub(super) session: Session<'a>,
    /// Whether its API server has ever answered.
    has_answered: Cell<bool>,
}

/// Both clusters of a verb.
pub(super) struct PeeringSides<'a> {
    pub(super) local: PeeringSide<'a>,
    pub(super) remote: PeeringSide<'a>,
}

impl<'a> PeeringSides<'a> {
    /// Reads the ids of both. Writes nothing.
    pub(super) async fn connect_both(
        pair: &Pair,
        session: Session<'a>,
    ) -> Result<Self, CommandError> {
        let local_id = own_id(&pair.local, session).await?;
        let remote_id = own_id(&pair.remote, session).await?;
        check_distinct([&pair.local, &pair.remote], [&local_id, &remote_id], session).await?;

        let local = PeeringSide::peering(&pair.local, &remote_id, session).await?;
        let remote = PeeringSide::peering(&pair.remote, &local_id, session).await?;
        Ok(Self { local, remote })
    }

    pub(super) const fn both(&self) -> [&PeeringSide<'a>; 2] {
        [&self.local, &self.remote]
    }

    /// The same in another `session`.
    pub(super) fn in_session<'b>(self, session: Session<'b>) -> PeeringSides<'b> {
        PeeringSides {
            local: self.local.in_session(session),
            remote: self.remote.in_session(session),
        }
    }
}

impl<'a> PeeringSide<'a> {
    /// The cluster of `context`, which has answered, and its namespace of the peering with `other`.
    async fn peering(
        context: &ClusterContext,
        other: &str,
        session: Session<'a>,
    ) -> Result<Self, CommandError> {
        let default = tenant_namespace(other);
        let namespace = context.namespace.clone().unwrap_or_else(|| default.clone());
        let end = Self::alone(context, namespace.clone(), session).with(other);
        end.has_answered.set(true);
        // The default namespace is created when needed; a name that was typed may be a mistake.
        if context.namespace.is_some() && end.find_namespace().await?.is_none() {
            return Err(CommandError::NoNamespace { side: context.side, namespace, default });
        }

        Ok(end)
    }

    /// The cluster of `context`, without a peering.
    pub(super) fn alone(context: &ClusterContext, namespace: String, session: Session<'a>) -> Self {
        Self {
            client: context.client.clone(),
            side: context.side,
            other: String::new(),
            namespace,
            liqo_namespace: context.liqo_namespace.clone(),
            marks: context.marks.clone(),
            session,
            has_answered: Cell::new(false),
        }
    }

    /// The same in a peering with the cluster `other`.
    pub(super) fn with(self, other: &str) -> Self {
        Self { other: other.to_owned(), ..self }
    }

    /// The same in another `session`.
    fn in_session<'b>(self, session: Session<'b>) -> PeeringSide<'b> {
        let Self { client, side, other, namespace, liqo_namespace, marks, has_answered, .. } = self;

        PeeringSide { client, side, other, namespace, liqo_namespace, marks, session, has_answered }
    }

    /// The objects of a kind in the namespace of the peering.
    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Reports that a step is done.
    pub(super) fn done(&self, text: &str) {
        self.session.report.done(self.side, text);
    }

    /// The label selector of the peering's objects.
    pub(super) fn label_selector(&self) -> String {
        format!("{REMOTE_CLUSTER_ID}={}", self.other)
    }

    /// The error of `doing` something.
    pub(super) fn failed(&self, doing: &str, error: &kube::Error) -> CommandError {
        failed(self.side, doing, error)
    }

    /// Calls the API server until it answers, within the deadline, which includes connecting. One that has never
    /// answered is called once: its address may be wrong.
    pub(super) async fn call<T>(
        &self,
        doing: &str,
        call: impl AsyncFn() -> kube::Result<T>,
    ) -> Result<T, CommandError> {
        for pause in pauses() {
            let error = match in_time(self.side, self.session, doing, call()).await? {
                Ok(answer) => {
                    self.has_answered.set(true);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let is_late = Instant::now() + pause >= self.session.deadline.at;
            if is_late || is_permanent(&error) || !self.has_answered.get() {
                return Err(self.failed(doing, &error));
            }
            self.session
                .report
                .waiting(self.side, &format!("No API server: {}", api_error_text(&error)));
            sleep(pause).await;
        }

        // The pauses never end.
        std::future::pending().await
    }

    /// The same for something that a verb can do without; `None` if the user may not ask.
    pub(super) async fn ask<T>(
        &self,
        doing: &str,
        call: impl AsyncFn() -> kube::Result<T>,
    ) -> Result<Option<T>, CommandError> {
        self.call(doing, async || if_allowed(call().await)).await
    }

    /// All objects of a kind that belong to the peering.
    pub(super) async fn list<K>(&self) -> Result<Vec<K>, CommandError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + serde::de::DeserializeOwned,
    {
        let parameters = ListParams::default().labels(&self.label_selector());
        let doing = format!("listing {} in namespace {}", K::plural(&()), self.namespace);
        let api = self.api::<K>();

        self.call(&doing, async || api.list(&parameters).await.map(|list| list.items)).await
    }

    /// The cluster's own prefixes.
    pub(super) async fn prefixes(&self) -> Result<Prefixes, CommandError> {
        let api = Api::<Network>::namespaced(self.client.clone(), &self.liqo_namespace);
        let doing = format!("listing networks in namespace {}", self.liqo_namespace);
        let parameters = ListParams::default();
        let networks =
            self.call(&doing, async || api.list(&parameters).await.map(|list| list.items)).await?;

        prefixes::of_cluster(&networks, &self.liqo_namespace)
            .map_err(|cause| CommandError::Prefixes { side: self.side, cause })
    }

    async fn find_namespace(&self) -> Result<Option<Namespace>, CommandError> {
        let api = Api::<Namespace>::all(self.client.clone());
        let doing = format!("reading namespace {}", self.namespace);

        self.call(&doing, async || api.get_opt(&self.namespace).await).await
    }

    /// Whether the namespace of the peering exists.
    pub(super) async fn has_namespace(&self) -> Result<bool, CommandError> {
        Ok(self.find_namespace().await?.is_some())
    }

    /// Creates the namespace of the peering if needed.
    pub(super) async fn make_namespace(&self) -> Result<(), CommandError> {
        if self.has_namespace().await? {
            return Ok(());
        }
        let labels = [(TENANT_NAMESPACE, "true"), (REMOTE_CLUSTER_ID, self.other.as_str())];
        let metadata = ObjectMeta {
            name: Some(self.namespace.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        };
        let mut namespace = Namespace { metadata, ..Namespace::default() };
        self.marks.add_to(&mut namespace);
        let api = Api::<Namespace>::all(self.client.clone());
        let doing = format!("making namespace {}", self.namespace);

        self.call(&doing, async || match api.create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            made => made.map(|_| ()),
        })
        .await
    }
}

pub(super) fn failed(side: Side, doing: &str, error: &kube::Error) -> CommandError {
    CommandError::Call {
        side,
        doing: doing.to_owned(),
        error_text: api_error_text(error),
        remedy: remedy(error),
        is_forbidden: is_forbidden(error),
    }
}

/// The answer of `call`, within the time of `session`.
async fn in_time<T>(
    side: Side,
    session: Session<'_>,
    doing: &str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<kube::Result<T>, CommandError> {
    timeout_at(session.deadline.at, call).await.map_err(|_| {
        CommandError::Timeout(Box::new(TimeoutError {
            side,
            awaited: format!("the API server to answer ({doing})"),
            timeout: session.deadline.timeout,
            found: "no answer".to_owned(),
            cause: None,
            look_at: "kubectl version".to_owned(),
        }))
    })
}

/// Checks that `contacts`, with these `ids`, are two clusters with different ids.
///
/// # Errors
///
/// [`CommandError`] if they are not.
pub(super) async fn check_distinct(
    contacts: [&ClusterContext; 2],
    ids: [&str; 2],
    session: Session<'_>,
) -> Result<(), CommandError> {
    let [local, remote] = contacts;
    let uids = [cluster_uid(local, session).await?, cluster_uid(remote, session).await?];
    let [local_id, remote_id] = ids;

    match &uids {
        [Some(uid), Some(other)] if uid == other => {
            Err(CommandError::SameCluster { id: local_id.to_owned() })
        }
        _ if local_id != remote_id => Ok(()),
        [Some(_), Some(_)] => Err(CommandError::SameId { id: local_id.to_owned() }),
        _ => Err(CommandError::SameCluster { id: local_id.to_owned() }),
    }
}

/// The unique identity of a cluster; `None` for an account that may not ask.
async fn cluster_uid(
    context: &ClusterContext,
    session: Session<'_>,
) -> Result<Option<String>, CommandError> {
    let api = Api::<Namespace>::all(context.client.clone());
    let doing = format!("reading namespace {SYSTEM_NAMESPACE}");
    let found = in_time(context.side, session, &doing, api.get_opt(SYSTEM_NAMESPACE)).await?;
    let found = if_allowed(found).map_err(|error| failed(context.side, &doing, &error))?;

    Ok(found.flatten().and_then(|namespace| namespace.uid()))
}

/// The id of a cluster. This is the first request to its API server: one that does not answer is not waited for, as its
/// address may be wrong.
pub(super) async fn own_id(
    context: &ClusterContext,
    session: Session<'_>,
) -> Result<String, CommandError> {
    let side = context.side;
    let flag = if side == Side::Remote { "--remote-cluster-id" } else { "--cluster-id" };
    if let Some(id) = &context.cluster_id {
        check_id(side, id)?;
    }
    let namespace = &context.liqo_namespace;
    let doing = format!("reading the cluster id in namespace {namespace}");
    let written = cluster_id::written(&context.client, namespace);
    let found = in_time(side, session, &doing, written).await?;
    let found = found.map_err(|error| failed(side, &doing, &error))?;

    match (context.cluster_id.clone(), found) {
        (Some(typed), Some(Written { id: found, is_generated })) if typed != found => {
            if !is_generated {
                return Err(CommandError::OtherCluster { side, typed, found, flag });
            }
            session.report.warn(
                side,
                &format!(
                    "its ConfigMap has the generated id {found}: pass {flag} {typed} to every command, or replace that ConfigMap by one with CLUSTER_ID={typed}"
                ),
            );
            Ok(typed)
        }
        (None, Some(Written { id, .. })) | (Some(id), _) => {
            check_id(side, &id)?;
            Ok(id)
        }
        (None, None) => Err(CommandError::NoClusterId { side, namespace: namespace.clone(), flag }),
    }
}

/// It becomes the value of labels and part of the names of objects and of the tenant namespace, whose length limits its
/// own.
pub(super) fn check_id(side: Side, id: &str) -> Result<(), CommandError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [id.bytes().next(), id.bytes().last()];
    let is_one = id.len() <= ID_BYTES_MAX
        && id.bytes().all(|byte| is_plain(byte) || byte == b'-')
        && ends.iter().all(|byte| byte.is_some_and(is_plain));

    if is_one { Ok(()) } else { Err(CommandError::ClusterId { side, id: id.to_owned() }) }
}
